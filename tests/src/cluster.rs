//! A cluster of dchost processes on loopback.

use crate::port::Port;
use crate::process::{Outcome, Process};
use crate::run::Run;
use crate::{PATIENCE, Signal, paths};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::ops::Index;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a cluster is made of. Tasks are named as they print: `worker:0`.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before `start`"]
pub struct ClusterBuilder {
    chief: bool,
    workers: u32,
    ps: u32,
    evaluator: bool,
    unlisted_evaluator: bool,
    module: Option<PathBuf>,
    guest: Option<String>,
    flags: Vec<String>,
    guest_args: Vec<String>,
    task_flags: Vec<(String, Vec<String>)>,
    task_guests: Vec<(String, String)>,
    task_guest_args: Vec<(String, Vec<String>)>,
    without_module: Vec<String>,
    absent: Vec<String>,
    held: Vec<String>,
}

impl ClusterBuilder {
    /// Adds `chief:0`.
    pub fn chief(mut self) -> Self {
        self.chief = true;
        self
    }

    /// Sets the number of workers.
    pub fn workers(mut self, count: u32) -> Self {
        self.workers = count;
        self
    }

    /// Sets the number of ps tasks. They run without module.
    pub fn ps(mut self, count: u32) -> Self {
        self.ps = count;
        self
    }

    /// Adds `evaluator:0`, listed in the cluster.
    pub fn evaluator(mut self) -> Self {
        self.evaluator = true;
        self
    }

    /// Adds `evaluator:0`, which no cluster spec lists.
    pub fn unlisted_evaluator(mut self) -> Self {
        self.unlisted_evaluator = true;
        self
    }

    /// Sets the guest by name.
    pub fn guest(mut self, name: &str) -> Self {
        self.guest = Some(name.to_owned());
        self
    }

    /// Sets the component by path.
    pub fn module(mut self, path: impl Into<PathBuf>) -> Self {
        self.module = Some(path.into());
        self
    }

    /// Gives one task another guest.
    pub fn task_guest(mut self, task: &str, name: &str) -> Self {
        self.task_guests.push((task.to_owned(), name.to_owned()));
        self
    }

    /// Adds flags for every task.
    pub fn flags<const N: usize>(mut self, flags: [&str; N]) -> Self {
        self.flags.extend(flags.map(str::to_owned));
        self
    }

    /// Adds flags for one task.
    pub fn task_flags<const N: usize>(mut self, task: &str, flags: [&str; N]) -> Self {
        self.task_flags.push((task.to_owned(), flags.map(str::to_owned).into()));
        self
    }

    /// Adds arguments of every guest.
    pub fn guest_args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.guest_args.extend(args.map(str::to_owned));
        self
    }

    /// Gives one task's guest its own arguments in place of everyone's.
    pub fn task_guest_args<const N: usize>(mut self, task: &str, args: [&str; N]) -> Self {
        self.task_guest_args.push((task.to_owned(), args.map(str::to_owned).into()));
        self
    }

    /// Starts one task without its module.
    pub fn without_module(mut self, task: &str) -> Self {
        self.without_module.push(task.to_owned());
        self
    }

    /// Never starts one task; its port is held, and refuses.
    pub fn absent(mut self, task: &str) -> Self {
        self.absent.push(task.to_owned());
        self
    }

    /// Does not start one task until [`Cluster::start_task`]; its port listens.
    pub fn held(mut self, task: &str) -> Self {
        self.held.push(task.to_owned());
        self
    }

    /// Takes the ports and starts every task that is neither absent nor held.
    ///
    /// # Errors
    /// The guest or dchost isn't built, a port cannot be had, a process not started.
    pub fn start(self) -> Result<Cluster> {
        let module = match (&self.module, &self.guest) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(name)) => Some(paths::guest(name)?),
            (None, None) => None,
        };
        let jobs = [
            ("chief", u32::from(self.chief)),
            ("worker", self.workers),
            ("ps", self.ps),
            ("evaluator", u32::from(self.evaluator)),
        ];
        let mut cluster = Cluster {
            spec: String::new(),
            ports: BTreeMap::new(),
            listeners: BTreeMap::new(),
            module,
            processes: BTreeMap::new(),
            builder: self,
        };
        let mut spec = Map::new();
        for (job, count) in jobs.into_iter().filter(|&(_, count)| count > 0) {
            let mut addresses = Vec::new();
            for index in 0..count {
                let port = Port::new()?;
                let task = format!("{job}:{index}");
                addresses.push(Value::from(port.address().to_string()));
                if !cluster.builder.absent.contains(&task) {
                    cluster.listeners.insert(task.clone(), port.listen()?);
                }
                cluster.ports.insert(task, port);
            }
            spec.insert(job.to_owned(), Value::from(addresses));
        }
        cluster.spec = Value::Object(spec).to_string();
        let mut tasks: Vec<String> = cluster.ports.keys().cloned().collect();
        if cluster.builder.unlisted_evaluator {
            // Nobody waits for it: a short job would be over, and its leader gone, before it is up.
            tasks.insert(0, "evaluator:0".to_owned());
        }
        tasks.retain(|task| !cluster.builder.absent.contains(task) && !cluster.builder.held.contains(task));
        for task in tasks {
            cluster.start_task(&task)?;
        }
        Ok(cluster)
    }
}

/// A running cluster; dropping it kills and reaps every process.
#[derive(Debug)]
pub struct Cluster {
    builder: ClusterBuilder,
    spec: String,
    /// Held as long as the cluster is, so that a task may be started again.
    ports: BTreeMap<String, Port>,
    /// Of tasks that have not been started yet.
    listeners: BTreeMap<String, TcpListener>,
    module: Option<PathBuf>,
    processes: BTreeMap<String, Process>,
}

impl Cluster {
    /// Begins a cluster without tasks.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// The cluster spec as JSON.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// The port of a listed task.
    pub fn port(&self, task: &str) -> u16 {
        self.ports.get(task).unwrap_or_else(|| panic!("no task {task} in {}", self.spec)).number()
    }

    /// Takes the listening socket of a task that was held, which then has to bind its port itself when it is started.
    pub fn take_listener(&mut self, task: &str) -> TcpListener {
        self.listeners.remove(task).unwrap_or_else(|| panic!("{task} is not held"))
    }

    /// The command line of a task, with its socket the first time; a second time the process binds the port itself.
    ///
    /// # Errors
    /// A guest isn't built.
    pub fn run(&mut self, task: &str) -> Result<Run> {
        let builder = &self.builder;
        let mut run = Run::new(task).args(["--task", task, "--cluster", &self.spec]);
        let own_guest = builder.task_guests.iter().find(|(of, _)| of == task).map(|(_, guest)| paths::guest(guest));
        let module = own_guest.transpose()?.or_else(|| self.module.clone());
        if let Some(module) = module
            && !task.starts_with("ps:")
            && !builder.without_module.iter().any(|without| without == task)
        {
            run = run.args(["--module".into(), module.into_os_string()]);
        }
        let own_flags = builder.task_flags.iter().filter(|(of, _)| of == task).flat_map(|(_, flags)| flags);
        let flags: Vec<&String> = own_flags.chain(&builder.flags).collect();
        // Ten minutes, the default, are longer than any test waits.
        if !flags.iter().any(|flag| *flag == "--connect-timeout") {
            run = run.args(["--connect-timeout", "60s"]);
        }
        let own_args = builder.task_guest_args.iter().find(|(of, _)| of == task).map(|(_, args)| args);
        run = run.args(flags).guest_args(own_args.unwrap_or(&builder.guest_args));
        Ok(match self.listeners.remove(task) {
            Some(listener) => run.listener(listener),
            None => run,
        })
    }

    /// The command line of a split client that runs a guest on this cluster's servers, which need no module: `name` stands in
    /// messages. Any number of clients may run, one after another or at the same time.
    ///
    /// # Errors
    /// The guest isn't built.
    pub fn client(&self, name: &str, guest: &str) -> Result<Run> {
        let module = paths::guest(guest)?;
        let run = Run::new(name).args(["--task", "client", "--cluster", &self.spec]);
        Ok(run.args(["--module".into(), module.into_os_string()]))
    }

    /// Tells every task to end with SIGTERM, and waits until all have, each with 143: for servers of a split client, which serve
    /// until they are told.
    ///
    /// # Errors
    /// One does otherwise; the error shows the output of every task.
    pub fn end_servers(&self) -> Result<Outcomes> {
        for (task, process) in &self.processes {
            // Before that the signal ends it without a word.
            self.wait_for_line(task, "serves on")?;
            process.signal(Signal::TERM);
        }
        let outcomes = self.wait_all(PATIENCE)?;
        let other = outcomes.0.iter().find(|(_, outcome)| outcome.code != 143);
        match other {
            Some((task, outcome)) => bail!("{task} ended with {}, not 143\n{}", outcome.code, outcomes.report()),
            None => Ok(outcomes),
        }
    }

    /// Starts a task that was held, or one that has ended once more.
    ///
    /// # Errors
    /// A guest or dchost isn't built, the process cannot be started.
    pub fn start_task(&mut self, task: &str) -> Result<()> {
        let process = self.run(task)?.start()?;
        self.processes.insert(task.to_owned(), process);
        Ok(())
    }

    /// The process of a task.
    pub fn task(&self, task: &str) -> &Process {
        self.processes.get(task).unwrap_or_else(|| panic!("{task} was not started"))
    }

    /// Sends a signal to a task.
    pub fn signal(&self, task: &str, signal: Signal) {
        self.task(task).signal(signal);
    }

    /// Waits until a line of a task contains `pattern`.
    ///
    /// # Errors
    /// No such line within [`PATIENCE`]; the error shows the output of every task.
    pub fn wait_for_line(&self, task: &str, pattern: &str) -> Result<String> {
        self.task(task).wait_for_line(pattern, PATIENCE).with_context(|| self.report())
    }

    /// Waits until every task that was started has ended.
    ///
    /// # Errors
    /// One still runs when the timeout passes, or left something behind (see [`Process::wait`]); the error shows the output
    /// of every task.
    pub fn wait_all(&self, timeout: Duration) -> Result<Outcomes> {
        let deadline = Instant::now() + timeout;
        let mut outcomes = BTreeMap::new();
        for (task, process) in &self.processes {
            let left = deadline.saturating_duration_since(Instant::now());
            match process.wait(left) {
                Ok(outcome) => outcomes.insert(task.clone(), outcome),
                Err(_) if process.is_running() => bail!("{task} still runs after {timeout:?}\n{}", self.report()),
                Err(error) => return Err(error.context(self.report())),
            };
        }
        Ok(Outcomes(outcomes))
    }

    /// State and output of every task, for a failure's message.
    pub fn report(&self) -> String {
        self.processes.values().map(Process::report).collect()
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.report())
    }
}

/// How each task ended.
#[derive(Clone, Debug)]
pub struct Outcomes(BTreeMap<String, Outcome>);

impl Outcomes {
    /// Checks the exit code of every task, by name order: `[("ps:0", 0), ("worker:0", 0)]`.
    ///
    /// # Panics
    /// They differ; the message shows the output of every task.
    #[track_caller]
    pub fn expect_codes<const N: usize>(&self, expected: [(&str, i32); N]) {
        let codes: Vec<_> = self.0.iter().map(|(task, outcome)| (task.as_str(), outcome.code)).collect();
        assert!(codes == expected, "exit codes are {codes:?}, expected {expected:?}\n{}", self.report());
    }

    /// Checks that a task's output contains `pattern`.
    ///
    /// # Panics
    /// It doesn't; the message shows the output of every task.
    #[track_caller]
    pub fn expect_output(&self, task: &str, pattern: &str) {
        let found = self[task].output.contains(pattern);
        assert!(found, "no `{pattern}` in the output of {task}\n{}", self.report());
    }

    /// Output of every task, for a failure's message.
    pub fn report(&self) -> String {
        let one = |(task, outcome): (&String, &Outcome)| {
            format!("--- {task} ended with {} after {:?}\n{}", outcome.code, outcome.time, outcome.output)
        };
        self.0.iter().map(one).collect()
    }
}

impl Index<&str> for Outcomes {
    type Output = Outcome;

    fn index(&self, task: &str) -> &Outcome {
        self.0.get(task).unwrap_or_else(|| panic!("{task} was not started\n{}", self.report()))
    }
}
