//! Ops over real sockets: components, calls, kept results, and callers and tasks that break the rules.
//!
//! The tasks run ops of a [`FakeHost`], whose instances are queues as the real ones, so that each op does what its name says.

use super::*;
use bytes::Bytes;
use dchost::client::ops::{Component, Fetcher, RemoteOps};
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{BoxFuture, OpCall, OpHost, OpInput, OpInstance, OpLimits, OpOpening, RemoteValue, StartedOp};
use dchost::ops::{MODULE, unknown_op};
use dchost::tensor::{DType, Tensor, TensorType};
use dchost::wire::header::Header;
use dchost::wire::v1::ops_client::OpsClient;
use dchost::wire::v1::{self, call_request};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, mpsc, oneshot, watch};

mod calls;
mod hostile;
mod put;
mod strange;
mod values;

const A: Task = Task::new(TaskType::Worker, 0);
const B: Task = Task::new(TaskType::Worker, 1);

/// `--max-tensor` of the tasks: small, so that what is bounded by it is quick to exceed.
const TENSOR_BYTES_MAX: u64 = 1 << 20;

/// `--max-tensor` where one tensor has to be more than a stream takes unread.
const LARGE_BYTES_MAX: u64 = 32 << 20;

/// `--max-module-size` of the tasks.
const COMPONENT_BYTES_MAX: u64 = 1 << 20;

/// Runs ops on a task.
struct FakeHost {
    task: Task,
    tensor_bytes_max: u64,
    components: Mutex<HashMap<[u8; 32], Bytes>>,
    fetcher: Fetcher,
    seen: Arc<Seen>,
}

/// What became of a task's instances.
#[derive(Default)]
struct Seen {
    /// Components that were compiled.
    loads: AtomicUsize,
    /// Instances that were opened.
    opened: AtomicUsize,
    /// Those that live.
    alive: watch::Sender<usize>,
    /// Values that were fetched from other tasks.
    fetched: AtomicUsize,
    /// Calls that were handed to an instance, whether or not their turn has come.
    called: AtomicUsize,
    /// Ops whose turn came, in order; with their first input where it is a number.
    began: watch::Sender<Vec<String>>,
    /// How many more openings find that the component had to make room.
    evictions: AtomicUsize,
    /// Lets a `gate` go on.
    gate: Notify,
}

impl Seen {
    fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    /// Waits until an op of this name has begun.
    async fn began(&self, op: &str) {
        let mut began = self.began.subscribe();
        let wait = began.wait_for(|began| began.iter().any(|other| other == op));
        tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("{op} never begins")).expect("it is kept");
    }

    /// Waits until so many instances live.
    async fn alive(&self, count: usize) {
        let mut alive = self.alive.subscribe();
        let wait = alive.wait_for(|&alive| alive == count);
        tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("never {count} alive")).expect("it is kept");
    }
}

impl OpHost for FakeHost {
    fn limits(&self) -> OpLimits {
        OpLimits { component_bytes_max: COMPONENT_BYTES_MAX, tensor_bytes_max: self.tensor_bytes_max }
    }

    fn component(&self, module: &[u8; 32]) -> Option<Bytes> {
        self.components.lock().expect("no panic above").get(module).cloned()
    }

    fn load(&self, module: [u8; 32], component: Bytes) -> BoxFuture<'_, Result<()>> {
        self.seen.loads.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if <[u8; 32]>::from(Sha256::digest(&component)) != module {
                return Err(Error::new(ErrorCode::InvalidArgument, "its sha256 is another"));
            }
            if component.starts_with(b"bad") {
                let message = format!("{} can't run the component: it has no op-entry", self.task);
                return Err(Error::new(ErrorCode::FailedPrecondition, message));
            }
            self.components.lock().expect("no panic above").insert(module, component);
            Ok(())
        })
    }

    fn fetch(&self, caller: Caller, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        self.seen.fetched.fetch_add(1, Ordering::SeqCst);
        let fetcher = self.fetcher.clone();
        Box::pin(async move { fetcher.fetch(caller, value).await })
    }

    fn open(&self, opening: OpOpening, until_gone: Box<dyn Send + Sync>) -> Result<Arc<dyn OpInstance>> {
        let fewer = |evictions: usize| evictions.checked_sub(1);
        if self.seen.evictions.try_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            self.components.lock().expect("no panic above").remove(&opening.module);
            let message = format!("{} has dropped the component meanwhile: put it again", self.task);
            return Err(Error::new(ErrorCode::NotFound, message).with_names([MODULE]));
        }
        let (jobs, queue) = mpsc::unbounded_channel();
        self.seen.opened.fetch_add(1, Ordering::SeqCst);
        self.seen.alive.send_modify(|alive| *alive += 1);
        let (task, tensor_bytes_max, seen) = (self.task, self.tensor_bytes_max, self.seen.clone());
        tokio::spawn(async move {
            work_off(task, tensor_bytes_max, queue, &seen).await;
            drop(until_gone);
            seen.alive.send_modify(|alive| *alive -= 1);
        });
        Ok(Arc::new(FakeInstance { jobs, seen: self.seen.clone() }))
    }
}

type Inputs = BoxFuture<'static, Result<Vec<Tensor>>>;
type Reply = oneshot::Sender<Result<Vec<Tensor>>>;

struct FakeInstance {
    jobs: mpsc::UnboundedSender<(String, Inputs, Reply)>,
    seen: Arc<Seen>,
}

impl OpInstance for FakeInstance {
    fn call(&self, op: String, inputs: Inputs) -> Inputs {
        let (reply, answer) = oneshot::channel();
        self.seen.called.fetch_add(1, Ordering::SeqCst);
        let _ = self.jobs.send((op, inputs, reply));
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(Error::new(ErrorCode::Cancelled, "it is gone"))) })
    }
}

async fn work_off(
    task: Task,
    tensor_bytes_max: u64,
    mut queue: mpsc::UnboundedReceiver<(String, Inputs, Reply)>,
    seen: &Seen,
) {
    let mut calls = 0;
    while let Some((op, inputs, mut reply)) = queue.recv().await {
        let work = async {
            let inputs = inputs.await?;
            let first = inputs.first().filter(|first| first.ty == number(0).ty).map(value_of);
            let shown = first.map_or_else(|| op.clone(), |first| format!("{op} {first}"));
            seen.began.send_modify(|began| began.push(shown));
            calls += 1;
            match op.as_str() {
                "echo" => Ok(inputs),
                "calls" => Ok(vec![number(calls)]),
                "length" => Ok(vec![number(inputs.iter().map(|input| input.data.len() as i64).sum())]),
                "nothing" => Ok(Vec::new()),
                "bytes" => Ok(vec![bytes(usize::try_from(first.unwrap_or_default()).expect("a size"))]),
                // Small enough to be sent unasked, and as large as may be.
                "eager" => Ok(vec![bytes(16 << 10)]),
                "full" => Ok(vec![bytes(usize::try_from(tensor_bytes_max).expect("a size"))]),
                "gate" => {
                    seen.gate.notified().await;
                    Ok(inputs)
                }
                "never" => std::future::pending().await,
                "fail" => Err(Error::new(ErrorCode::Unknown, "op `fail` failed: as it was told")),
                other => Err(unknown_op(task, other, &["echo".to_owned(), "length".to_owned()])),
            }
        };
        tokio::select! {
            biased;
            () = reply.closed() => {}
            result = work => drop(reply.send(result)),
        }
    }
}

fn number(value: i64) -> Tensor {
    Tensor { ty: TensorType::new(DType::S64, []), data: value.to_le_bytes().to_vec().into() }
}

fn value_of(tensor: &Tensor) -> i64 {
    i64::from_le_bytes(tensor.data[..].try_into().expect("a number"))
}

fn bytes(count: usize) -> Tensor {
    Tensor { ty: TensorType::new(DType::U8, [count as u64]), data: vec![7; count].into() }
}

fn component_of(bytes: &'static [u8]) -> Component {
    Component {
        digest: Sha256::digest(bytes).into(),
        bytes: Bytes::from_static(bytes),
        args: Vec::new(),
        tensor_bytes_max: TENSOR_BYTES_MAX,
    }
}

/// Two tasks that run ops.
struct Tasks {
    tensor_bytes_max: u64,
    cluster: ClusterSpec,
    ports: HashMap<Task, Held>,
    servers: HashMap<Task, Running>,
    seen: HashMap<Task, Arc<Seen>>,
}

impl Tasks {
    fn start() -> Tasks {
        Tasks::start_with(TENSOR_BYTES_MAX)
    }

    /// With this `--max-tensor`.
    fn start_with(tensor_bytes_max: u64) -> Tasks {
        let ports = HashMap::from([(A, Held::new()), (B, Held::new())]);
        let cluster = ClusterSpec::new().with_job(TaskType::Worker, [A, B].map(|task| ports[&task].addr.to_string()));
        let mut tasks = Tasks { tensor_bytes_max, cluster, ports, servers: HashMap::new(), seen: HashMap::new() };
        for task in [A, B] {
            tasks.serve(task, 7);
        }
        tasks
    }

    fn serve(&mut self, task: Task, incarnation: u64) {
        let seen = Arc::new(Seen::default());
        let host = FakeHost {
            task,
            tensor_bytes_max: self.tensor_bytes_max,
            components: Mutex::default(),
            fetcher: Fetcher::new(self.cluster.clone(), Handle::current(), self.tensor_bytes_max),
            seen: seen.clone(),
        };
        let options = ServerOptions {
            cluster: self.cluster.clone(),
            ops: Some(Arc::new(host)),
            ..options(task, incarnation, self.ports[&task].listen())
        };
        self.servers.insert(task, start(options));
        self.seen.insert(task, seen);
    }

    fn seen(&self, task: Task) -> &Seen {
        &self.seen[&task]
    }

    /// A run that reaches the tasks at `cluster`, and soon takes one that doesn't answer for lost.
    fn run_at(cluster: ClusterSpec, run: u64) -> Asker {
        Tasks::patient_run_at(cluster, run, Duration::from_millis(300))
    }

    fn patient_run_at(cluster: ClusterSpec, run: u64, rejoin_timeout: Duration) -> Asker {
        let peers = Peers::new(PeersOptions {
            client_use: None,
            leader: None,
            connections: Connections::default(),
            cluster,
            caller: caller(run),
            runtime: Handle::current(),
            // Longer than any test waits: what ends meanwhile doesn't end by it.
            connect_timeout: 2 * LONG,
            rejoin_timeout,
        });
        Asker::new(peers, component_of(b"component"))
    }

    fn run(&self, run: u64) -> Asker {
        Tasks::run_at(self.cluster.clone(), run)
    }

    /// A run whose connections to `A` the test cuts; it comes back each time, however busy the machine.
    async fn relayed(&self, run: u64) -> (Asker, Relay) {
        let relay = Relay::to(self.servers[&A].addr).await;
        let cluster =
            ClusterSpec::new().with_job(TaskType::Worker, [relay.addr.to_string(), self.servers[&B].addr.to_string()]);
        (Tasks::patient_run_at(cluster, run, LONG), relay)
    }

    async fn stop(self) {
        for server in self.servers.into_values() {
            server.stop().await;
        }
    }
}

/// A run that calls ops.
struct Asker {
    peers: Peers,
    a: RemoteOps,
    b: RemoteOps,
}

impl Asker {
    fn new(peers: Peers, component: Component) -> Asker {
        let component = Arc::new(component);
        let on = |task| RemoteOps::new(peers.clone(), task, component.clone());
        Asker { a: on(A), b: on(B), peers: peers.clone() }
    }
}

fn call(op: &str, inputs: impl IntoIterator<Item = Tensor>) -> OpCall {
    let inputs = inputs.into_iter().map(OpInput::Tensor).collect();
    OpCall { op: op.to_owned(), inputs, timeout: None }
}

/// How a call of this number begins on the wire.
fn header(call: u64, op: &str, types: &[TensorType]) -> call_request::Kind {
    let input = |ty| v1::Input { kind: Some(v1::input::Kind::Tensor(v1::TensorHeader::from(ty))) };
    call_request::Kind::Header(v1::CallHeader {
        call,
        op: op.into(),
        input: types.iter().map(input).collect(),
        timeout_ms: 0,
    })
}

fn begin(ops: &RemoteOps, op: &str, inputs: impl IntoIterator<Item = Tensor>) -> Box<dyn StartedOp> {
    ops.start(call(op, inputs)).expect("its form is good")
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("it ends")
}

async fn take(op: &dyn StartedOp) -> Result<Vec<Tensor>> {
    within(op.take()).await
}

async fn run_op(ops: &RemoteOps, op: &str, inputs: impl IntoIterator<Item = Tensor>) -> Result<Vec<Tensor>> {
    take(&*begin(ops, op, inputs)).await
}

async fn keep(op: &dyn StartedOp) -> Result<Vec<RemoteValue>> {
    within(op.keep()).await
}
