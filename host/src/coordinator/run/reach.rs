//! What a run of `worker_fn` reaches: its variables, its peers, its console and files, and the job's state.

use super::guest::{self, Dump, Ended, Overseer};
use super::{Process, RUNS_TOLD_MAX, RunOutcome};
use crate::client::channel::{Connections, Peers, PeersOptions};
use crate::client::ops::Component;
use crate::client::variables::{CachedVariables, ReadCache, RemoteVariables};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::coordinator::local::LocalVariables;
use crate::coordinator::op_host::{self, OpHostOptions};
use crate::coordinator::ops::{NoOps, PlacedOps};
use crate::coordinator::outcome::Outcome;
use crate::coordinator::placement::{PlacedVariables, PlacementOptions};
use crate::coordinator::plan::op_context;
use crate::coordinator::resolve::Resolved;
use crate::coordinator::summary::SummaryFile;
use crate::error::Result;
use crate::exit::Exit;
use crate::handles::{BoxFuture, Handles, Job, OpHost, Ops, TaskVariables};
use crate::ids::{Attempt, Caller, ClientUse};
use crate::runtime::{EngineOptions, GuestOptions, Module};
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
        let mut runs = lock(&self.runs);
        if runs.len() == RUNS_TOLD_MAX {
            runs.pop_front();
        }
        runs.push_back(RunOutcome { context, attempt, outcome: outcome.clone() });
        drop(runs);
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
        let (spare, ops) = (self.spare.clone(), self.ops(module, peers.clone()));
        let cache = ReadCache::new(resolved.limits.tensor_bytes_max, Handle::current());
        let variables = PlacedVariables::new(PlacementOptions {
            cluster: context.cluster.clone(),
            run_task: context.task,
            process_task: resolved.task,
            local,
            remote: Box::new(move |task| {
                let peers = peers.clone().expect("without a cluster every variable is local");
                let variables = RemoteVariables::new(peers, task).with_spare(spare.clone());
                Arc::new(CachedVariables::new(variables, task, cache.clone()))
            }),
            chief_ended: overseer.chief_ended(),
            runtime: Handle::current(),
            spare: self.spare.clone(),
        });
        let (interrupt, interrupted) = watch::channel(None);
        let handles = Handles {
            context,
            job: Arc::new(WithDefaultTimeout { job: overseer.clone(), timeout: resolved.barrier_timeout }),
            variables: Arc::new(variables),
            ops,
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

    /// What a run reaches of ops: those of its own component, on the tasks of its cluster.
    fn ops(&self, module: &Module, peers: Option<Peers>) -> Arc<dyn Ops> {
        let Some(peers) = peers else { return Arc::new(NoOps::local()) };
        let Some(bytes) = module.component_bytes() else { return Arc::new(NoOps::precompiled()) };
        let component = Component {
            digest: module.digest(),
            bytes,
            args: self.resolved.guest_args.clone(),
            tensor_bytes_max: self.resolved.limits.tensor_bytes_max,
        };
        Arc::new(PlacedOps::new(peers, Arc::new(component)))
    }

    /// What runs ops for others on this task; none where it has no server.
    pub(super) fn op_host(&self, task: Task, store: &Store) -> Option<Arc<dyn OpHost>> {
        let resolved = &self.resolved;
        let console = self.op_console.clone()?;
        Some(Arc::new(op_host::Ops::new(OpHostOptions {
            task,
            leader: resolved.plan.leader,
            context: Arc::new(op_context(&resolved.cluster, task, resolved.rpc_layer)),
            // A digest is of the component that runs here.
            engine: EngineOptions { digest: None, ..resolved.engine.clone() },
            guest: GuestOptions { args: Vec::new(), coredump_dir: None, ..self.guest_options(0) },
            store: store.clone(),
            spare: self.spare.clone(),
            console,
            guests: self.guests.handle(),
            control: Handle::current(),
            connect_timeout: resolved.connect_timeout,
            rejoin_timeout: resolved.rejoin_timeout,
        })))
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
            leader: self.resolved.plan.leader,
            connections: connections.clone().called_on(self.guests.handle()),
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
