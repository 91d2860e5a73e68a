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
mod standing;
mod stop;

use super::console::ProcessConsole;
use super::descriptors;
use super::local::LocalVariables;
use super::member::{SoloJob, refusal_exit_code};
use super::op_host::{self, OpHostOptions};
use super::ops::{NoOps, PlacedOps};
use super::outcome::{self, Outcome};
use super::placement::{PlacedVariables, PlacementOptions};
use super::plan::op_context;
use super::resolve::Resolved;
use super::resolve::values::digest_text;
use super::summary::SummaryFile;
use crate::attend::Registered;
use crate::client::channel::{Connections, Peers, PeersOptions};
use crate::client::ops::Component;
use crate::client::variables::RemoteVariables;
use crate::cluster::{Task, TaskType};
use crate::context::WorkerContext;
use crate::exit::Exit;
use crate::handles::{Handles, Job, OpHost, Ops, TaskVariables};
use crate::ids::{Caller, ClientUse, RunId};
use crate::runtime::{Engine, EngineOptions, GuestOptions, Module};
use crate::variables::{Spare, Store, StoreOptions};
use guest::{Dump, Ended, Guests, Overseer};
use standing::{Standing, StandingOptions};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stop::{Reason, Stop};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long sessions on other servers may take to close, and the end report of a process that was stopped to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the control runtime's blocking calls (name look-ups, files) may hold up the process's end.
const RUNTIME_TIMEOUT: Duration = Duration::from_millis(200);

/// How often a process that waits for the reader of its output looks whether it has to end.
const OUTPUT_POLL: Duration = Duration::from_millis(100);

/// Attempts that may leave a core dump: those after them mostly end as they did, and each dump is as large as the memory.
const DUMPED_ATTEMPTS_MAX: u32 = 3;

/// Runs this process's task to its end.
///
/// Blocks the thread and starts its own runtimes. Within a tokio runtime (a host function, another coordinator's callback)
/// it does nothing, and says so with [`Exit::Refused`]. `listener` is a socket that was handed over, which is used instead
/// of binding one.
pub fn run(resolved: Resolved, listener: Option<TcpListener>, console: ProcessConsole) -> Outcome {
    if Handle::try_current().is_ok() {
        return Outcome::failed(
            Exit::Refused,
            "a coordinator was started from within a tokio runtime, whose threads it would block: start it on a thread of \
             its own (`std::thread::spawn`), and never from what a run calls",
        );
    }
    descriptors::raise();
    let runtimes = Builder::new_multi_thread().thread_name("control").enable_all().build();
    // A server runs ops of others, as many at a time as there are cores.
    let guests = if resolved.plan.server.is_some() { usize::MAX } else { resolved.plan.runs.len() };
    let (control, guests) = match runtimes.and_then(|control| Ok((control, Guests::start(guests)?))) {
        Ok(runtimes) => runtimes,
        Err(error) => return Outcome::failed(Exit::Files, format!("can't start threads: {error}")),
    };
    let spare = Spare::new(resolved.limits.tensor_bytes_max);
    let container = match &resolved.container {
        Some(container) => container.clone(),
        None => format!("run-{}", RunId::draw(&mut rand::rng())),
    };
    let process = Arc::new(Process { resolved, container, console, guests, spare });
    let outcome = control.block_on(process.run(listener));
    drop(process);
    control.shutdown_timeout(RUNTIME_TIMEOUT);
    outcome
}

/// What lives as long as the process.
struct Process {
    resolved: Resolved,
    /// Namespace of variables and barriers.
    container: String,
    console: ProcessConsole,
    guests: Guests,
    /// Memory of large values that a run has read, from here or from other tasks.
    spare: Spare,
}

impl Process {
    async fn run(self: &Arc<Self>, listener: Option<TcpListener>) -> Outcome {
        let stop = match Stop::watch(self.resolved.launched, self.resolved.timeout) {
            Ok(stop) => stop,
            Err(error) => return Outcome::failed(Exit::Files, format!("can't watch for signals: {error}")),
        };
        let outcome = self.run_until(listener, &stop).await;
        match self.output_read(&stop).await {
            Some(reason) if outcome.exit == Exit::Done => stopped(&reason),
            _ => outcome,
        }
    }

    /// Waits until what the guest printed is read: as it waited while it ran. Says what ended the wait, if that did.
    async fn output_read(&self, stop: &Stop) -> Option<Reason> {
        loop {
            let screen = self.console.screen().clone();
            let written = tokio::task::spawn_blocking(move || screen.flush_output(OUTPUT_POLL)).await;
            // The thread for it doesn't panic.
            if written.unwrap_or(true) {
                return None;
            }
            if let Some(reason) = stop.now() {
                return Some(reason);
            }
        }
    }

    async fn run_until(self: &Arc<Self>, listener: Option<TcpListener>, stop: &Stop) -> Outcome {
        let module = match &self.resolved.module {
            None => None,
            Some(path) => tokio::select! {
                loaded = self.load(path) => match loaded {
                    Ok(module) => Some(module),
                    Err(outcome) => return outcome,
                },
                reason = stop.wait() => return stopped(&reason),
            },
        };
        let runs = self.resolved.plan.runs.as_slice();
        if runs.is_empty() {
            return self.join(listener, module.as_ref(), stop).await;
        }
        let Some(module) = module else {
            return Outcome::failed(Exit::Bug, "a run was planned without a module; a bug in dchost, please report it");
        };
        let contexts: Vec<_> = runs.iter().cloned().map(Arc::new).collect();
        match (self.resolved.task, contexts.as_slice()) {
            (Some(task), [context]) => self.run_task(task, listener, &module, context.clone(), stop).await,
            (None, [context]) if context.cluster.is_empty() => self.run_local(&module, context.clone(), stop).await,
            (None, contexts) => self.run_client(&module, contexts, stop).await,
            (Some(task), several) => {
                let text = format!("{} runs were planned for {task}; a bug in dchost, please report it", several.len());
                Outcome::failed(Exit::Bug, text)
            }
        }
    }

    /// Loads the component. A refusal is the user's to mend, but for a machine that has no thread left, and bugs.
    async fn load(&self, path: &Path) -> Result<Module, Outcome> {
        let refused = |exit: Exit, error: anyhow::Error| Outcome::failed(exit, format!("{error:#}"));
        let engine = Engine::new(self.resolved.engine.clone()).map_err(|error| refused(error.exit(), error.into()))?;
        let module = engine.load(path).await.map_err(|error| refused(error.exit(), error.into()))?;
        let line =
            format!("component `{}`, {} bytes, {}", module.name(), module.size_bytes(), digest_text(&module.digest()));
        if self.resolved.launched {
            tracing::debug!("{line}");
        } else {
            tracing::info!("{line}");
        }
        module.check_limits(&self.resolved.limits).map_err(|error| refused(error.exit(), error.into()))?;
        Ok(module)
    }

    /// Serves until the job has ended.
    async fn join(&self, listener: Option<TcpListener>, module: Option<&Module>, stop: &Stop) -> Outcome {
        let Some(task) = self.resolved.task else {
            return Outcome::failed(
                Exit::Bug,
                "a server was planned without a task; a bug in dchost, please report it",
            );
        };
        // A ps does the same with any module and without one; who joins a driver should have the driver's.
        let digest = module.filter(|_| task.job != TaskType::Ps).map(Module::digest);
        let standing = match self.stand(task, listener, &self.store(), digest, None, stop).await {
            Ok(standing) => standing,
            Err(outcome) => return outcome,
        };
        let outcome = tokio::select! {
            outcome = standing.joined(&self.resolved) => outcome,
            reason = stop.wait() => return self.leave(&standing, &reason, stopped(&reason)).await,
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
        stop: &Stop,
    ) -> Result<Standing, Outcome> {
        let (resolved, container, ops) = (&self.resolved, self.container.as_str(), self.op_host(task, store));
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
        stop: &Stop,
    ) -> Outcome {
        let store = self.store();
        let (digest, run) = (Some(module.digest()), Some(context.clone()));
        let standing = match self.stand(task, listener, &store, digest, run, stop).await {
            Ok(standing) => standing,
            Err(outcome) => return outcome,
        };
        let registered = tokio::select! {
            registered = self.register(&standing) => registered,
            reason = stop.wait() => return self.leave(&standing, &reason, stopped(&reason)).await,
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
            console: self.console.clone(),
            name: task.to_string(),
            attempt: number,
        };
        let (ended, dump) = self.run_guest(module, context, reach, stop).await;
        let end = async {
            // What the run wrote is in place before anybody hears that it has ended.
            let _ = timeout(CLOSE_TIMEOUT, peers.close()).await;
            self.end_task(&standing, ended, stop).await
        };
        // Side by side: the others need not wait for a disk to hear that this run has ended.
        let dumped = async {
            if let Some(dump) = dump {
                dump.finish(stop).await;
            }
        };
        tokio::join!(end, dumped).0
    }

    /// Tells the leader how the run has ended, and waits until the task may go.
    async fn end_task(&self, standing: &Standing, ended: Ended, stop: &Stop) -> Outcome {
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
            reason = stop.wait() => {
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

    /// Runs `worker_fn` with what it may reach.
    async fn run_guest(
        &self,
        module: &Module,
        context: Arc<WorkerContext>,
        reach: Reach,
        stop: &Stop,
    ) -> (Ended, Option<Dump>) {
        let resolved = &self.resolved;
        let Reach { overseer, peers, local, console, name, attempt } = reach;
        let summary = match SummaryFile::open(resolved.summary_dir.as_deref(), &context, &name) {
            Ok(summary) => Arc::new(summary),
            Err(error) => {
                let outcome = Outcome::failed(Exit::Files, format!("{:#}", anyhow::Error::from(error)));
                return (Ended::Run(outcome), None);
            }
        };
        let (spare, ops_peers) = (self.spare.clone(), peers.clone());
        let variables = PlacedVariables::new(PlacementOptions {
            cluster: context.cluster.clone(),
            run_task: context.task,
            process_task: resolved.task,
            local,
            remote: Box::new(move |task| {
                let peers = peers.clone().expect("without a cluster every variable is local");
                Arc::new(RemoteVariables::new(peers, task).with_spare(spare.clone()))
            }),
            chief_ended: overseer.chief_ended(),
            runtime: Handle::current(),
        });
        let ops: Arc<dyn Ops> = match (ops_peers, module.component_bytes()) {
            (None, _) => Arc::new(NoOps::local()),
            (Some(_), None) => Arc::new(NoOps::precompiled()),
            (Some(peers), Some(bytes)) => Arc::new(PlacedOps::new(
                peers,
                Arc::new(Component {
                    digest: module.digest(),
                    bytes,
                    args: resolved.guest_args.clone(),
                    tensor_bytes_max: resolved.limits.tensor_bytes_max,
                }),
            )),
        };
        let (interrupt, interrupted) = watch::channel(None);
        let handles = Handles {
            context,
            job: Arc::new(WithDefaultTimeout { job: overseer.clone(), timeout: resolved.barrier_timeout }),
            variables: Arc::new(variables),
            ops,
            console: Arc::new(console),
            summary: summary.clone(),
            interrupt: interrupted,
        };
        let options = self.guest_options(attempt);
        let (ended, dump) = guest::run(&self.guests, module, options, handles, interrupt, &*overseer, stop).await;
        (guest::with_summary(ended, &summary, stop).await, dump)
    }

    fn guest_options(&self, attempt: u32) -> GuestOptions {
        let Resolved { guest_args, env, dirs, net, coredump_dir, limits, .. } = &self.resolved;
        GuestOptions {
            args: guest_args.clone(),
            env: env.clone(),
            dirs: dirs.clone(),
            net: net.clone(),
            coredump_dir: coredump_dir.clone().filter(|_| attempt < DUMPED_ATTEMPTS_MAX),
            limits: limits.clone(),
        }
    }

    /// What runs ops for others on this task.
    fn op_host(&self, task: Task, store: &Store) -> Arc<dyn OpHost> {
        let resolved = &self.resolved;
        let context = Arc::new(op_context(&resolved.cluster, task, resolved.rpc_layer));
        Arc::new(op_host::Ops::new(OpHostOptions {
            task,
            context,
            // A digest is of the component that runs here.
            engine: EngineOptions { digest: None, ..resolved.engine.clone() },
            guest: GuestOptions { args: Vec::new(), coredump_dir: None, ..self.guest_options(0) },
            store: store.clone(),
            spare: self.spare.clone(),
            console: Arc::new(self.console.clone()),
            guests: self.guests.handle(),
            control: Handle::current(),
            connect_timeout: resolved.connect_timeout,
            rejoin_timeout: resolved.rejoin_timeout,
        }))
    }

    fn store(&self) -> Store {
        Store::new(StoreOptions { variable_bytes_max: self.resolved.variable_bytes_max, ..StoreOptions::default() })
    }

    /// What a run needs to reach other tasks.
    fn peers(&self, caller: Caller, client_use: Option<ClientUse>, connections: &Connections) -> Peers {
        Peers::new(PeersOptions {
            cluster: self.resolved.cluster.clone(),
            caller,
            client_use,
            connections: connections.clone(),
            runtime: Handle::current(),
            connect_timeout: self.resolved.connect_timeout,
            rejoin_timeout: self.resolved.rejoin_timeout,
        })
    }

    fn local_variables(&self, store: &Store, attempt: Option<crate::ids::Attempt>) -> Arc<dyn TaskVariables> {
        let local = LocalVariables::new(store.clone(), self.container.clone(), attempt, Handle::current());
        Arc::new(local.with_spare(self.spare.clone()))
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

/// What a run reaches beyond its own sandbox.
struct Reach {
    overseer: Arc<dyn Overseer>,
    /// None without a cluster.
    peers: Option<Peers>,
    /// This process's variables.
    local: Arc<dyn TaskVariables>,
    console: ProcessConsole,
    /// What its files are called by: its task, else that of its process; `local` without a cluster.
    name: String,
    /// Which attempt it is, from 0.
    attempt: u32,
}

/// Gives barriers without a timeout of their own the one of `--barrier-timeout`.
struct WithDefaultTimeout {
    job: Arc<dyn Overseer>,
    timeout: Option<Duration>,
}

impl Job for WithDefaultTimeout {
    fn barrier<'a>(
        &'a self,
        name: &'a str,
        timeout: Option<Duration>,
    ) -> crate::handles::BoxFuture<'a, crate::error::Result<()>> {
        self.job.barrier(name, timeout.or(self.timeout))
    }

    fn training_ended(&self) -> bool {
        self.job.training_ended()
    }

    fn attempt(&self) -> u32 {
        self.job.attempt()
    }
}

fn stopped(reason: &Reason) -> Outcome {
    Outcome::failed(reason.exit(), reason.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::config::{Environment, run_settings};
    use crate::coordinator::console::testing::captured;
    use crate::coordinator::console::{ConsoleOptions, ProgressMode};
    use crate::coordinator::resolve::{Purpose, resolve};
    use clap::Parser as _;

    /// Starts a local run of a file that isn't there, which a run that goes on finds out first.
    fn start() -> Outcome {
        let cli = Cli::try_parse_from(["dchost", "--module=/nowhere/m.wasm"]).expect("it parses");
        let settings = run_settings(&cli.run, &Environment::default(), None);
        let resolved = resolve(&settings, Purpose::Run).expect("it is a local run");
        run(resolved, None, ProcessConsole::on(captured(ProgressMode::Lines).screen, ConsoleOptions::default()))
    }

    #[test]
    fn a_run_within_a_runtime_is_refused_before_any_effect() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.build().expect("there are threads");
            let outcome = runtime.block_on(async { start() });
            let message = outcome.message.unwrap_or_default();
            assert_eq!(outcome.exit, Exit::Refused);
            assert!(message.contains("within a tokio runtime") && message.contains("std::thread::spawn"), "{message}");
            let elsewhere = runtime.block_on(async { std::thread::spawn(start).join() }).expect("it doesn't panic");
            let message = elsewhere.message.unwrap_or_default();
            assert!(message.contains("/nowhere/m.wasm"), "a thread of its own is fine: {message}");
        }
    }
}
