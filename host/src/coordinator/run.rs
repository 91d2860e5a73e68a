//! Runs a plan: wires the parts and owns shutdown.
//!
//! ```text
//! load the module -> bind -> leader, server -> member registers -> worker_fn, or join -> end report -> the job's end
//! ```
//!
//! Everything but guests runs on the *control* runtime; guests run on one of their own. What can be refused is refused
//! before a port is bound.

mod attempts;
mod client;
mod guest;
mod reach;
mod standing;
mod stop;

pub use stop::{Reason, Stop};

use super::console::{Consoles, Screen};
use super::execute::{Effects, execute};
use super::member::{SoloJob, refusal_exit_code};
use super::outcome::{self, Outcome};
use super::plan::{ServerPlan, op_context};
use super::reentry::{Own, mark_thread};
use super::resolve::Resolved;
use super::resolve::values::digest_text;
use crate::attend::Registered;
use crate::client::channel::Connections;
use crate::cluster::{Task, TaskType};
use crate::context::WorkerContext;
use crate::exit::Exit;
use crate::handles::Console;
use crate::ids::{Caller, RunId};
use crate::runtime::{Engine, Module};
use crate::sync::lock;
use crate::variables::{Spare, Store};
use bytes::Bytes;
use guest::{Ended, Guests, Overseer};
use reach::Reach;
use standing::{Standing, StandingOptions};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// How long sessions on other servers may take to close, and the end report of a process that was stopped to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the control runtime's blocking calls (name look-ups, files) may hold up the process's end.
const RUNTIME_TIMEOUT: Duration = Duration::from_millis(200);

/// How often a process that waits for the reader of its output looks whether it has to end.
const OUTPUT_POLL: Duration = Duration::from_millis(100);

/// Most runs that a report tells: each has the message of its end, and there is no end of attempts.
const RUNS_TOLD_MAX: usize = 10_000;

/// Where a component comes from.
#[derive(Clone, Debug)]
pub enum ModuleSource {
    /// The file that the configuration names; none where it names none.
    File,
    /// Memory.
    Bytes {
        /// Stands for its path in messages and for argv\[0\].
        name: String,
        /// The component.
        bytes: Bytes,
    },
    /// Loaded already, by an engine of the caller's.
    Loaded(Module),
}

/// What a run is made of.
pub struct RunOptions {
    /// The configuration.
    pub resolved: Resolved,
    /// Where the component comes from.
    pub module: ModuleSource,
    /// A listening socket that was handed over, which is used instead of binding one.
    pub listener: Option<TcpListener>,
    /// Where the lines of each run go.
    pub consoles: Arc<dyn Consoles>,
    /// What ends it from outside.
    pub stop: Stop,
    /// Whether SIGINT and SIGTERM end it: then the process's handling of them is changed for good.
    pub signals: bool,
    /// Whose standard output has to be read before it ends; none: it ends whether or not what was printed is read.
    pub output: Option<Screen>,
}

/// How a run of `worker_fn` ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its place in the cluster.
    pub context: Arc<WorkerContext>,
    /// Which attempt it was, from 0.
    pub attempt: u32,
    /// How it ended, taken alone: not what its end or the others' make of the job.
    pub outcome: Outcome,
}

/// How it all ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the task, the client or the local run ended.
    pub outcome: Outcome,
    /// Every run of `worker_fn` that began here, in the order of their ends; of more than 10,000 those that ended last.
    pub runs: Vec<RunOutcome>,
}

impl From<Outcome> for Report {
    /// Nothing ran.
    fn from(outcome: Outcome) -> Self {
        Report { outcome, runs: Vec::new() }
    }
}

/// Threads for the connections of a process: beside guests half as many as there are cores, for each wakes the others in vain
/// where messages are small; all where it only serves.
pub fn control_threads(with_guests: bool) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if with_guests { (cores / 2).max(1) } else { cores }
}

/// Runs this process's task to its end.
///
/// Blocks the thread and starts its own runtimes, so that the thread must not be one that polls futures. On a thread of a
/// coordinator's own (a callback of another run) it does nothing, and says so with [`Exit::Refused`].
pub fn run(options: RunOptions) -> Report {
    let RunOptions { resolved, module, listener, consoles, stop, signals, output } = options;
    let Some(_own) = Own::enter() else { return refuse_reentry().into() };
    let runs = resolved.plan.runs.as_slice();
    let of_run = |context: &WorkerContext| (context.task, consoles.console(context));
    let ops =
        resolved.plan.server.as_ref().map(|server| op_context(&resolved.cluster, server.task, resolved.rpc_layer));
    let of_ops = || ops.as_ref().map(|context| consoles.console(context));
    let made = catch_unwind(AssertUnwindSafe(|| (runs.iter().map(of_run).collect(), of_ops())));
    let (consoles, op_console) = match made {
        Ok(consoles) => consoles,
        Err(panic) => {
            let text = format!("the console of a run could not be made: {}", panic_text(&*panic));
            return Outcome::failed(Exit::Bug, text).into();
        }
    };
    // A server runs ops of others, as many at a time as there are cores.
    let guests = if resolved.plan.server.is_some() { usize::MAX } else { runs.len() };
    let mut control = Builder::new_multi_thread();
    control.worker_threads(control_threads(!runs.is_empty()));
    let control = control.thread_name("control").on_thread_start(mark_thread).enable_all().build();
    let (control, guests) = match control.and_then(|control| Ok((control, Guests::start(guests)?))) {
        Ok(runtimes) => runtimes,
        Err(error) => return Outcome::failed(Exit::Files, format!("can't start threads: {error}")).into(),
    };
    let container = match &resolved.container {
        Some(container) => container.clone(),
        None => format!("run-{}", RunId::draw(&mut rand::rng())),
    };
    let spare = Spare::new(resolved.limits.tensor_bytes_max);
    let runs = Mutex::default();
    let process = Process { resolved, container, consoles, op_console, guests, spare, stop, runs };
    let process = Arc::new(process);
    let outcome = control.block_on(process.run(module, listener, signals, output));
    let runs = std::mem::take(&mut *lock(&process.runs));
    drop(process);
    control.shutdown_timeout(RUNTIME_TIMEOUT);
    Report { outcome, runs: runs.into() }
}

/// What a coordinator that is started by what a run calls comes to.
pub(super) fn refuse_reentry() -> Outcome {
    Outcome::failed(
        Exit::Refused,
        "a coordinator was started from what a run of another one called (a line for its console, for instance), which it \
         would hold up: start it from a thread of your own",
    )
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked without a text")
}

/// What lives as long as the process's task.
struct Process {
    resolved: Resolved,
    /// Namespace of variables and barriers.
    container: String,
    /// By the task of each run.
    consoles: BTreeMap<Option<Task>, Arc<dyn Console>>,
    /// Of what others run here; none where there is no server.
    op_console: Option<Arc<dyn Console>>,
    guests: Guests,
    /// Memory of large values that a run has read, from here or from other tasks.
    spare: Spare,
    stop: Stop,
    /// Those that have ended, at most [`RUNS_TOLD_MAX`].
    runs: Mutex<VecDeque<RunOutcome>>,
}

/// A process at the point where its plan can be carried out.
struct Ready {
    process: Arc<Process>,
    module: Option<Module>,
    /// Taken by the server.
    listener: Mutex<Option<TcpListener>>,
}

impl Ready {
    fn take_listener(&self) -> Option<TcpListener> {
        lock(&self.listener).take()
    }
}

impl Effects for Ready {
    async fn join(&self, server: &ServerPlan) -> Outcome {
        self.process.join(server.task, self.take_listener(), self.module.as_ref()).await
    }

    async fn run_task(&self, task: Task, _: Option<&ServerPlan>, context: Arc<WorkerContext>) -> Outcome {
        match &self.module {
            Some(module) => self.process.run_task(task, self.take_listener(), module, context).await,
            None => no_module(),
        }
    }

    async fn run_local(&self, context: Arc<WorkerContext>) -> Outcome {
        match &self.module {
            Some(module) => self.process.run_local(module, context).await,
            None => no_module(),
        }
    }

    async fn run_client(&self, contexts: Vec<Arc<WorkerContext>>) -> Outcome {
        match &self.module {
            Some(module) => self.process.run_client(module, &contexts).await,
            None => no_module(),
        }
    }
}

fn no_module() -> Outcome {
    Outcome::failed(Exit::Bug, "a run was planned without a module; a bug in dchost, please report it")
}

impl Process {
    async fn run(
        self: &Arc<Self>,
        module: ModuleSource,
        listener: Option<TcpListener>,
        signals: bool,
        output: Option<Screen>,
    ) -> Outcome {
        if let Err(error) = self.stop.watch(self.resolved.launched, self.resolved.timeout, signals) {
            return Outcome::failed(Exit::Files, format!("can't watch for signals: {error}"));
        }
        let outcome = self.run_until(module, listener).await;
        let Some(output) = output else { return outcome };
        match self.output_read(&output).await {
            Some(reason) if outcome.exit == Exit::Done => {
                Outcome::failed(reason.exit(), format!("{} before standard output was read", reason.text()))
            }
            _ => outcome,
        }
    }

    /// Waits until what the guest printed is read: as it waited while it ran. Says what ended the wait, if that did.
    async fn output_read(&self, output: &Screen) -> Option<Reason> {
        loop {
            let screen = output.clone();
            let written = tokio::task::spawn_blocking(move || screen.flush_output(OUTPUT_POLL)).await;
            // The thread for it doesn't panic.
            if written.unwrap_or(true) {
                return None;
            }
            if let Some(reason) = self.stop.now() {
                return Some(reason);
            }
        }
    }

    async fn run_until(self: &Arc<Self>, module: ModuleSource, listener: Option<TcpListener>) -> Outcome {
        let module = tokio::select! {
            loaded = self.load(module) => match loaded {
                Ok(module) => module,
                Err(outcome) => return outcome,
            },
            reason = self.stop.wait() => return stopped(&reason),
        };
        let ready = Ready { process: self.clone(), module, listener: Mutex::new(listener) };
        execute(&self.resolved.plan, &ready).await
    }

    /// Loads the component, where there is one. A refusal is the user's to mend, but for a machine that has no thread left,
    /// and bugs.
    async fn load(&self, source: ModuleSource) -> Result<Option<Module>, Outcome> {
        let refused = |exit: Exit, error: anyhow::Error| Outcome::failed(exit, format!("{error:#}"));
        let engine = || Engine::new(self.resolved.engine.clone()).map_err(|error| refused(error.exit(), error.into()));
        let loaded = match (source, &self.resolved.module) {
            (ModuleSource::Loaded(module), _) => Ok(module),
            (ModuleSource::Bytes { name, bytes }, _) => engine()?.load_bytes(&name, bytes).await,
            (ModuleSource::File, Some(path)) => engine()?.load(path).await,
            (ModuleSource::File, None) => return Ok(None),
        };
        let module = loaded.map_err(|error| refused(error.exit(), error.into()))?;
        let line =
            format!("component `{}`, {} bytes, {}", module.name(), module.size_bytes(), digest_text(&module.digest()));
        if self.resolved.launched {
            tracing::debug!("{line}");
        } else {
            tracing::info!("{line}");
        }
        module.check_limits(&self.resolved.limits).map_err(|error| refused(error.exit(), error.into()))?;
        Ok(Some(module))
    }

    /// Serves until the job has ended.
    async fn join(&self, task: Task, listener: Option<TcpListener>, module: Option<&Module>) -> Outcome {
        // A ps does the same with any module and without one; who joins a driver should have the driver's.
        let digest = module.filter(|_| task.job != TaskType::Ps).map(Module::digest);
        let standing = match self.stand(task, listener, &self.store(), digest, None).await {
            Ok(standing) => standing,
            Err(outcome) => return outcome,
        };
        let outcome = tokio::select! {
            outcome = standing.joined(&self.resolved) => outcome,
            reason = self.stop.wait() => return self.leave(&standing, &reason, stopped(&reason)).await,
        };
        standing.end().await;
        outcome
    }

    /// Binds and starts what stands while the task lives.
    async fn stand(
        &self,
        task: Task,
        listener: Option<TcpListener>,
        store: &Store,
        module_digest: Option<[u8; 32]>,
        run: Option<Arc<WorkerContext>>,
    ) -> Result<Standing, Outcome> {
        let (resolved, container, stop) = (&self.resolved, self.container.as_str(), &self.stop);
        let ops = self.op_host(task, store);
        let options = StandingOptions { resolved, container, task, listener, store, ops, module_digest, run, stop };
        Standing::start(options).await
    }

    /// Runs `worker_fn` as a task of the cluster.
    async fn run_task(
        &self,
        task: Task,
        listener: Option<TcpListener>,
        module: &Module,
        context: Arc<WorkerContext>,
    ) -> Outcome {
        let store = self.store();
        let (digest, run) = (Some(module.digest()), Some(context.clone()));
        let standing = match self.stand(task, listener, &store, digest, run).await {
            Ok(standing) => standing,
            Err(outcome) => return outcome,
        };
        let registered = tokio::select! {
            registered = self.register(&standing) => registered,
            reason = self.stop.wait() => return self.leave(&standing, &reason, stopped(&reason)).await,
        };
        let registered = match registered {
            Ok(registered) => registered,
            Err(outcome) => {
                standing.end().await;
                return outcome;
            }
        };
        let attempt = registered.map(|registered| registered.attempt);
        let caller = Caller { container: self.container.clone(), task: Some(task), run_id: standing.run_id, attempt };
        let peers = self.peers(caller, None, &Connections::default());
        let number = attempt.map_or(0, |attempt| attempt.number);
        let overseer: Arc<dyn Overseer> = match &standing.member {
            Some(member) => Arc::new(member.clone()),
            None => Arc::new(SoloJob::new(context.clone(), number)),
        };
        let reach = Reach {
            overseer,
            peers: Some(peers.clone()),
            local: self.local_variables(&store, attempt),
            name: task.to_string(),
            attempt: number,
        };
        let (ended, dump) = self.run_guest(module, context, reach).await;
        let end = async {
            // What the run wrote is in place before anybody hears that it has ended.
            let _ = timeout(CLOSE_TIMEOUT, peers.close()).await;
            self.end_task(&standing, ended).await
        };
        // Side by side: the others need not wait for a disk to hear that this run has ended.
        let dumped = async {
            if let Some(dump) = dump {
                dump.finish(&self.stop).await;
            }
        };
        let (outcome, ()) = tokio::join!(end, dumped);
        outcome
    }

    /// Tells the leader how the run has ended, and waits until the task may go.
    async fn end_task(&self, standing: &Standing, ended: Ended) -> Outcome {
        let own = match ended {
            Ended::Run(outcome) => outcome,
            Ended::Stopped(reason, outcome) => return self.leave(standing, &reason, outcome).await,
        };
        let failure = Some(own.clone()).filter(|own| own.exit != Exit::Done);
        let job_ended = async {
            if let Some(member) = &standing.member {
                member.end(own.report(false)).await;
            }
            standing.job_ended(own).await
        };
        let outcome = tokio::select! {
            outcome = job_ended => outcome,
            // A failure stands, whatever ends the wait for the others.
            reason = self.stop.wait() => {
                let outcome = failure.unwrap_or_else(|| stopped(&reason));
                return self.leave(standing, &reason, outcome).await;
            }
        };
        standing.end().await;
        outcome
    }

    /// Waits until the leader has accepted the task; none where there is no leader.
    async fn register(&self, standing: &Standing) -> Result<Option<Registered>, Outcome> {
        let (Some(member), Some(leader)) = (&standing.member, self.resolved.plan.leader) else { return Ok(None) };
        match member.registered().await {
            Ok(registered) => Ok(Some(registered)),
            Err(error) => {
                let address = self.resolved.cluster.address(leader).unwrap_or_default();
                Err(outcome::of_refusal(
                    Exit::from_code(refusal_exit_code(&error)).unwrap_or(Exit::Bug),
                    leader,
                    address,
                    &error,
                ))
            }
        }
    }

    /// Tells the leader that the task leaves, and ends what stands here without waiting for others.
    async fn leave(&self, standing: &Standing, reason: &Reason, outcome: Outcome) -> Outcome {
        if let Some(member) = &standing.member {
            let _ = timeout(CLOSE_TIMEOUT, member.end(outcome.report(reason.is_leaving()))).await;
        }
        standing.cut();
        outcome
    }
}

fn stopped(reason: &Reason) -> Outcome {
    Outcome::failed(reason.exit(), reason.text())
}
