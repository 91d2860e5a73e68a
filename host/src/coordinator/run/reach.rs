//! What a run of `worker_fn` reaches: its variables, its peers, its console and files, and the job's state.

use super::guest::{self, Dump, Ended, Overseer};
use super::{Process, RunOutcome};
use crate::client::channel::{Connections, Peers, PeersOptions};
use crate::client::variables::RemoteVariables;
use crate::context::WorkerContext;
use crate::coordinator::local::LocalVariables;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::placement::{PlacedVariables, PlacementOptions};
use crate::coordinator::resolve::Resolved;
use crate::coordinator::summary::SummaryFile;
use crate::error::Result;
use crate::exit::Exit;
use crate::handles::{BoxFuture, Handles, Job, TaskVariables};
use crate::ids::{Attempt, Caller, ClientUse};
use crate::runtime::{GuestOptions, Module};
use crate::sync::lock;
use crate::variables::{Store, StoreOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Attempts that may leave a core dump: those after them mostly end as they did, and each dump is as large as the memory.
const DUMPED_ATTEMPTS_MAX: u32 = 3;

/// What a run reaches beyond its own sandbox.
pub(super) struct Reach {
    pub(super) overseer: Arc<dyn Overseer>,
    /// None without a cluster.
    pub(super) peers: Option<Peers>,
    /// This process's variables.
    pub(super) local: Arc<dyn TaskVariables>,
    /// What its files are called by: its task, else that of its process; `local` without a cluster.
    pub(super) name: String,
    /// Which attempt it is, from 0.
    pub(super) attempt: u32,
}

/// Gives barriers without a timeout of their own the one of `--barrier-timeout`.
struct WithDefaultTimeout {
    job: Arc<dyn Overseer>,
    timeout: Option<Duration>,
}

impl Job for WithDefaultTimeout {
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        self.job.barrier(name, timeout.or(self.timeout))
    }

    fn training_ended(&self) -> bool {
        self.job.training_ended()
    }

    fn attempt(&self) -> u32 {
        self.job.attempt()
    }
}

impl Process {
    /// Runs `worker_fn` with what it may reach, and notes how that ended; answers as well what is still being written of it.
    ///
    /// # Cancel safety
    /// As [`guest::run`]: the run goes on, and nobody hears how it ends.
    pub(super) async fn run_guest(
        &self,
        module: &Module,
        context: Arc<WorkerContext>,
        reach: Reach,
    ) -> (Ended, Option<Dump>) {
        let attempt = reach.attempt;
        let (ended, dump) = self.run_reaching(module, context.clone(), reach).await;
        let (Ended::Run(outcome) | Ended::Stopped(_, outcome)) = &ended;
        lock(&self.runs).push(RunOutcome { context, attempt, outcome: outcome.clone() });
        (ended, dump)
    }

    async fn run_reaching(&self, module: &Module, context: Arc<WorkerContext>, reach: Reach) -> (Ended, Option<Dump>) {
        let (resolved, stop) = (&self.resolved, &self.stop);
        let failed = |exit: Exit, message: String| (Ended::Run(Outcome::failed(exit, message)), None);
        let Reach { overseer, peers, local, name, attempt } = reach;
        let Some(console) = self.consoles.get(&context.task).cloned() else {
            return failed(Exit::Bug, "a run has no console; a bug in dchost, please report it".to_owned());
        };
        let summary = match SummaryFile::open(resolved.summary_dir.as_deref(), &context, &name) {
            Ok(summary) => Arc::new(summary),
            Err(error) => return failed(Exit::Files, format!("{:#}", anyhow::Error::from(error))),
        };
        let spare = self.spare.clone();
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
        let (interrupt, interrupted) = watch::channel(None);
        let handles = Handles {
            context,
            job: Arc::new(WithDefaultTimeout { job: overseer.clone(), timeout: resolved.barrier_timeout }),
            variables: Arc::new(variables),
            console,
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

    pub(super) fn store(&self) -> Store {
        Store::new(StoreOptions { variable_bytes_max: self.resolved.variable_bytes_max, ..StoreOptions::default() })
    }

    /// What a run needs to reach other tasks.
    pub(super) fn peers(&self, caller: Caller, client_use: Option<ClientUse>, connections: &Connections) -> Peers {
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

    pub(super) fn local_variables(&self, store: &Store, attempt: Option<Attempt>) -> Arc<dyn TaskVariables> {
        let local = LocalVariables::new(store.clone(), self.container.clone(), attempt, Handle::current());
        Arc::new(local.with_spare(self.spare.clone()))
    }
}
