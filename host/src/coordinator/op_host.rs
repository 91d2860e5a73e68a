//! Ops of others on this task: the components that they bring, and an instance for each of their runs.
//!
//! A component is compiled once, whoever brings it, and kept while an instance of it lives; beyond that as long as there is
//! room. An instance is a queue and, from its first call on, a store on the guest runtime. It sees the context and the variables
//! of this task, under the container and attempt of its caller, as a run of its own.

use super::local::LocalVariables;
use super::ops::NoOps;
use super::placement::{PlacedVariables, PlacementOptions};
use crate::client::channel::{Connections, Peers, PeersOptions};
use crate::client::ops::Fetcher;
use crate::client::variables::{CachedVariables, ReadCache, RemoteVariables};
use crate::cluster::{Task, TaskType};
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, Console, Handles, Job, OpHost, OpInstance, OpLimits, OpOpening, RemoteValue, Summary};
use crate::ids::{Caller, RunId};
use crate::ops::MODULE;
use crate::runtime::{Engine, EngineOptions, GuestOptions, LoadError, Module, OpGuest};
use crate::sync::lock;
use crate::tensor::Tensor;
use crate::variables::{Spare, Store};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tracing::{debug, warn};

/// Most instances at once, over all callers: each may take `--max-memory`.
const INSTANCES_MAX: usize = 256;

/// Most components that are kept; those of no instance make room, the one that was used longest ago first.
const COMPONENTS_MAX: usize = 64;

/// Most bytes of components that are kept. Their code is several times as large.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;

/// What ops on a task are run with.
#[derive(Clone)]
pub struct OpHostOptions {
    /// This task.
    pub task: Task,
    /// The leader of its job, if it has one.
    pub leader: Option<Task>,
    /// What an op sees of its place.
    pub context: Arc<WorkerContext>,
    /// How components are compiled.
    pub engine: EngineOptions,
    /// What instances are granted, and their limits; arguments are the caller's.
    pub guest: GuestOptions,
    /// This task's variables.
    pub store: Store,
    /// Memory of large values.
    pub spare: Spare,
    /// Where their output goes.
    pub console: Arc<dyn Console>,
    /// The guest runtime.
    pub guests: Handle,
    /// The control runtime.
    pub control: Handle,
    /// How long a task may stay unreachable at first contact.
    pub connect_timeout: Duration,
    /// How long a task may stay unreachable after contact.
    pub rejoin_timeout: Duration,
}

/// Runs ops for others. Cheap to clone.
#[derive(Clone)]
pub struct Ops(Arc<Inner>);

struct Inner {
    options: OpHostOptions,
    fetcher: Fetcher,
    components: Mutex<Components>,
    /// One compiles at a time: it takes all cores as it is.
    compiling: Arc<tokio::sync::Mutex<Option<Engine>>>,
    instances: Arc<Semaphore>,
}

#[derive(Default)]
struct Components {
    loaded: HashMap<[u8; 32], Loaded>,
    /// Counts uses, to tell which was longest ago.
    uses: u64,
}

struct Loaded {
    module: Module,
    bytes: Bytes,
    used: u64,
    /// Held by each instance.
    instances: Arc<()>,
}

impl Components {
    fn used(&mut self, module: &[u8; 32]) -> Option<&Loaded> {
        self.uses += 1;
        let uses = self.uses;
        self.loaded.get_mut(module).map(|loaded| {
            loaded.used = uses;
            &*loaded
        })
    }

    /// Makes room for one of so many bytes.
    ///
    /// # Errors
    /// `resource-exhausted`: all of them are in use.
    fn make_room(&mut self, task: Task, bytes: u64) -> Result<()> {
        let full = |components: &Components| {
            let held: u64 = components.loaded.values().map(|loaded| loaded.bytes.len() as u64).sum();
            components.loaded.len() >= COMPONENTS_MAX || held.saturating_add(bytes) > COMPONENT_BYTES_MAX
        };
        while !self.loaded.is_empty() && full(self) {
            let idle = self.loaded.iter().filter(|(_, loaded)| Arc::strong_count(&loaded.instances) == 1);
            let Some((&oldest, _)) = idle.min_by_key(|(_, loaded)| loaded.used) else {
                let message = format!(
                    "{task} runs ops of {} components, and has no room for another of {bytes} bytes (at most \
                     {COMPONENTS_MAX}, {COMPONENT_BYTES_MAX} bytes together): try again when some have ended",
                    self.loaded.len()
                );
                return Err(Error::new(ErrorCode::ResourceExhausted, message).with_tasks([task]));
            };
            self.loaded.remove(&oldest);
        }
        Ok(())
    }
}

impl Ops {
    /// Makes the host; nothing is compiled or started before somebody asks.
    pub fn new(options: OpHostOptions) -> Self {
        let OpHostOptions { context, control, guest, .. } = &options;
        let fetcher = Fetcher::new(context.cluster.clone(), control.clone(), guest.limits.tensor_bytes_max);
        Ops(Arc::new(Inner {
            fetcher,
            options,
            components: Mutex::default(),
            compiling: Arc::default(),
            instances: Arc::new(Semaphore::new(INSTANCES_MAX)),
        }))
    }

    /// Compiles a component in its turn. What has begun goes on when it is dropped, and nothing else begins meanwhile: a thread
    /// that compiles can't be ended.
    async fn compile_in_turn(&self, module: [u8; 32], component: Bytes) -> Result<()> {
        let engine = self.0.compiling.clone().lock_owned().await;
        let ops = self.clone();
        let compiled = tokio::spawn(async move { ops.compile(engine, module, component).await });
        compiled.await.unwrap_or_else(|error| {
            let message = format!("{} could not compile the component: {error}", self.0.options.task);
            Err(Error::new(ErrorCode::Internal, message).with_tasks([self.0.options.task]))
        })
    }

    async fn compile(
        &self,
        mut engine: OwnedMutexGuard<Option<Engine>>,
        module: [u8; 32],
        component: Bytes,
    ) -> Result<()> {
        let Inner { options, components, .. } = &*self.0;
        // Somebody else may have brought it meanwhile.
        if lock(components).used(&module).is_some() {
            return Ok(());
        }
        lock(components).make_room(options.task, component.len() as u64)?;
        let refuse = |why: String| {
            let message = format!("{} can't run the component: {why}", options.task);
            Error::new(ErrorCode::FailedPrecondition, message).with_tasks([options.task])
        };
        let made = match engine.take() {
            Some(engine) => engine,
            None => Engine::new(options.engine.clone())
                .map_err(|error| refuse(format!("{:#}", anyhow::Error::from(error))))?,
        };
        let name = format!("{}.wasm", crate::text::hex(&module[..8]));
        let loaded = made.load_ops(&name, component.clone(), module).await;
        *engine = Some(made);
        let loaded = loaded.map_err(|error| match error {
            LoadError::Announced { .. } => Error::new(ErrorCode::InvalidArgument, error.to_string()),
            error => refuse(format!("{:#}", anyhow::Error::from(error))),
        })?;
        debug!(component = name, bytes = component.len(), "a component for ops is here");
        let mut components = lock(components);
        components.uses += 1;
        let used = components.uses;
        components.loaded.insert(module, Loaded { module: loaded, bytes: component, used, instances: Arc::default() });
        Ok(())
    }
}

impl OpHost for Ops {
    fn limits(&self) -> OpLimits {
        let OpHostOptions { engine, guest, .. } = &self.0.options;
        OpLimits { component_bytes_max: engine.module_bytes_max, tensor_bytes_max: guest.limits.tensor_bytes_max }
    }

    fn component(&self, module: &[u8; 32]) -> Option<Bytes> {
        lock(&self.0.components).used(module).map(|loaded| loaded.bytes.clone())
    }

    fn load(&self, module: [u8; 32], component: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.compile_in_turn(module, component))
    }

    fn fetch(&self, caller: Caller, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        let fetcher = self.0.fetcher.clone();
        Box::pin(async move { fetcher.fetch(caller, value).await })
    }

    fn open(&self, opening: OpOpening, until_gone: Box<dyn Send + Sync>) -> Result<Arc<dyn OpInstance>> {
        let Inner { options, components, instances, .. } = &*self.0;
        let task = options.task;
        let (module, held) = match lock(components).used(&opening.module) {
            Some(loaded) => (loaded.module.clone(), loaded.instances.clone()),
            None => {
                let message = format!("{task} has dropped the component meanwhile: put it again");
                return Err(Error::new(ErrorCode::NotFound, message).with_names([MODULE]));
            }
        };
        let room = instances.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{task} runs {INSTANCES_MAX} instances of ops already, for as many runs");
            Error::new(ErrorCode::ResourceExhausted, message).with_tasks([task])
        })?;
        let queue = Arc::new(Queue::default());
        let instance = Running { options: options.clone(), opening, module, held, room, until_gone };
        options.guests.spawn(instance.serve(Server(queue.clone())));
        Ok(Arc::new(Callers(queue)))
    }
}

/// Calls that wait for an instance, by the order in which they came.
#[derive(Default)]
struct Queue {
    state: Mutex<Waiting>,
    /// Something has come, or nothing will any more.
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    calls: BTreeMap<u64, Work>,
    /// Of the last call.
    last: u64,
    /// Nobody calls any more, or nobody serves.
    closed: bool,
}

/// A call that waits. Its caller is gone when the reply is closed.
struct Work {
    op: String,
    inputs: BoxFuture<'static, Result<Vec<Tensor>>>,
    reply: oneshot::Sender<Result<Vec<Tensor>>>,
}

/// The end of the queue that callers have; the instance ends with it.
struct Callers(Arc<Queue>);

impl Drop for Callers {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_one();
    }
}

/// The end that the instance has.
struct Server(Arc<Queue>);

impl Server {
    /// The next call; none once nobody can call any more.
    async fn next(&self) -> Option<Work> {
        loop {
            {
                let mut state = lock(&self.0.state);
                if let Some((_, work)) = state.calls.pop_first() {
                    return Some(work);
                }
                if state.closed {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        drop(calls);
    }
}

/// A call's place in the queue. Dropping it takes the call out, with the inputs that it holds.
struct Place {
    queue: Arc<Queue>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let work = lock(&self.queue.state).calls.remove(&self.number);
        drop(work);
    }
}

impl OpInstance for Callers {
    fn call(
        &self,
        op: String,
        inputs: BoxFuture<'static, Result<Vec<Tensor>>>,
    ) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        let (reply, answer) = oneshot::channel();
        let place = {
            let mut state = lock(&self.0.state);
            state.last += 1;
            let number = state.last;
            if !state.closed {
                state.calls.insert(number, Work { op, inputs, reply });
            }
            Place { queue: self.0.clone(), number }
        };
        self.0.changed.notify_one();
        Box::pin(async move {
            let _place = place;
            let gone = || Error::new(ErrorCode::Cancelled, "the instance that runs ops is being ended");
            answer.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

/// An instance.
struct Running {
    options: OpHostOptions,
    opening: OpOpening,
    module: Module,
    /// Keeps the component loaded.
    held: Arc<()>,
    room: OwnedSemaphorePermit,
    until_gone: Box<dyn Send + Sync>,
}

impl Running {
    /// Runs what comes, in order, until nobody can send any more.
    async fn serve(self, queue: Server) {
        let task = self.options.task;
        let (peers, handles, _interrupt) = self.handles();
        let guest = GuestOptions { args: self.opening.args.clone(), ..self.options.guest.clone() };
        let mut guest = self.module.open_ops(guest, handles);
        while let Some(Work { op, inputs, mut reply }) = queue.next().await {
            let work = async {
                let guest = guest.as_mut().map_err(|error| error.clone())?;
                let inputs = inputs.await?;
                run(guest, task, &op, inputs).await
            };
            tokio::select! {
                // Who gave up wants nothing to begin.
                biased;
                () = reply.closed() => {}
                result = work => {
                    // Who gave up meanwhile is not told.
                    let _ = reply.send(result);
                }
            }
        }
        drop(guest);
        // Whoever hears of the end finds its place free.
        drop((self.held, self.room));
        drop(self.until_gone);
        // Its timers are of the control runtime, which may be shutting down: then this goes with it.
        self.options.control.spawn(async move { peers.close().await });
    }

    /// What the instance may reach: as a run of its own, in its caller's container.
    fn handles(&self) -> (Peers, Handles, watch::Sender<Option<Error>>) {
        let OpHostOptions { task, leader, context, store, spare, console, control, .. } = &self.options;
        let Caller { container, attempt, .. } = &self.opening.caller;
        let peers = Peers::new(PeersOptions {
            cluster: context.cluster.clone(),
            caller: Caller {
                container: container.clone(),
                task: Some(*task),
                run_id: RunId::draw(&mut rand::rng()),
                attempt: *attempt,
            },
            // As its caller: in the caller's name it may be the first of the client on a server.
            client_use: self.opening.client_use,
            leader: *leader,
            connections: Connections::default().called_on(self.options.guests.clone()),
            runtime: control.clone(),
            connect_timeout: self.options.connect_timeout,
            rejoin_timeout: self.options.rejoin_timeout,
        });
        let local = LocalVariables::new(store.clone(), container.clone(), *attempt, control.clone());
        let (remote, reads) = (peers.clone(), spare.clone());
        let cache = ReadCache::new(self.options.guest.limits.tensor_bytes_max, control.clone());
        let variables = PlacedVariables::new(PlacementOptions {
            cluster: context.cluster.clone(),
            // What an evaluator may not write itself, its ops may not write for it.
            run_task: self.opening.caller.task.filter(|caller| caller.job == TaskType::Evaluator).or(Some(*task)),
            process_task: Some(*task),
            local: Arc::new(local.with_spare(spare.clone())),
            remote: Box::new(move |task| {
                let variables = RemoteVariables::new(remote.clone(), task).with_spare(reads.clone());
                Arc::new(CachedVariables::new(variables, task, cache.clone()))
            }),
            chief_ended: watch::channel(None).1,
            runtime: control.clone(),
            spare: spare.clone(),
        });
        let (interrupt, interrupted) = watch::channel(None);
        let handles = Handles {
            context: context.clone(),
            job: Arc::new(OpJob { attempt: attempt.map_or(0, |attempt| attempt.number) }),
            variables: Arc::new(variables),
            ops: Arc::new(NoOps::within_op()),
            console: console.clone(),
            summary: Arc::new(NoSummary),
            interrupt: interrupted,
        };
        (peers, handles, interrupt)
    }
}

async fn run(guest: &mut OpGuest, task: Task, op: &str, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    match guest.call(op, inputs).await {
        Ok(results) => Ok(results),
        Err(end) => {
            let error = end.error(task, op);
            if let Some(report) = end.report() {
                warn!("{}", error.message);
                // A line each: the log escapes newlines.
                report.lines().for_each(|line| warn!("{line}"));
            }
            Err(error)
        }
    }
}

/// The job as an op sees it: none that it could meet anybody in.
struct OpJob {
    attempt: u32,
}

impl Job for OpJob {
    fn barrier<'a>(&'a self, _name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        let error =
            Error::new(ErrorCode::FailedPrecondition, "no barrier in an op: let worker_fn wait, and then start ops");
        Box::pin(async { Err(error) })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// Drops scalars: they are worker_fn's.
struct NoSummary;

impl Summary for NoSummary {
    fn scalar(&self, _tag: &str, _step: u64, _value: f64) {}
}

#[cfg(test)]
mod tests;
