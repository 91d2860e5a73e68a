//! dchost's own API: a standard server in one process, a run's view of it in another.

use crate::lane::{Lane, Process};
use crate::question::{Bounds, MANY, Question, SMALL, WORKERS};
use crate::{barrier, memory, roles};
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::variables::RemoteVariables;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::handles::{Change, InitializeMode, ReadOptions, TaskVariables, UpdateKind, VariableRef, WriteOptions};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::server::guard::authorize;
use dchost::server::{Server, ServerOptions};
use dchost::tensor::{DType, TensorType, TensorView};
use dchost::variables::{Consistency, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// What tables call it.
pub(crate) const NAME: &str = "dchost host";

/// The same by relaxed consistency: applied as it arrives.
pub(crate) const RELAXED: &str = "dchost host, relaxed";

/// The same without direct connections.
pub(crate) const GRPC: &str = "dchost host, gRPC";

const PS: Task = Task::new(TaskType::Ps, 0);

/// A server and its workers, started at the first question.
struct Host {
    name: &'static str,
    /// The workers before the server: they end first.
    workers: Vec<Process>,
    ps: Option<Process>,
}

pub(crate) fn lane(bounds: Bounds) -> Box<dyn Lane> {
    let mut host = Host { name: NAME, workers: Vec::new(), ps: None };
    Box::new(crate::lane::Fresh { name: NAME, knows: |_| true, answer: move |question| host.ask(question, bounds) })
}

/// Another way to push and pull.
pub(crate) fn way(name: &'static str, bounds: Bounds) -> Box<dyn Lane> {
    let mut host = Host { name, workers: Vec::new(), ps: None };
    let knows = |question| matches!(question, Question::Push(_) | Question::Pull(_));
    Box::new(crate::lane::Fresh { name, knows, answer: move |question| host.ask(question, bounds) })
}

impl Host {
    fn ask(&mut self, question: Question, bounds: Bounds) -> Option<f64> {
        let seconds = bounds.seconds;
        match question {
            Question::Barrier(tasks) => barrier::measure(tasks, bounds.rounds),
            Question::PushGrowth(size) => Some(memory::measure(size)?.growth),
            Question::PushPeak(size) => Some(memory::measure(size)?.peak),
            Question::Push(_) | Question::Pull(_) => self.workers()[0].ask(&question.line(bounds)?),
            Question::OneByOne => self.workers()[0].ask(&format!("one-by-one {SMALL} {seconds}")),
            Question::Together => self.workers()[0].ask(&format!("together {SMALL} {seconds}")),
            Question::OneWorker(size) => pace(&mut self.workers()[..1], size, seconds),
            Question::AllWorkers(size) => pace(self.workers(), size, seconds),
        }
    }

    fn workers(&mut self) -> &mut [Process] {
        if self.ps.is_none() {
            let (ps, address) = roles::start_server(&["ps"]);
            self.ps = Some(ps);
            let worker = |index: usize| roles::start(&["client", &index.to_string(), &address, self.name]);
            self.workers = (0..WORKERS).map(worker).collect();
        }
        &mut self.workers
    }
}

/// How often one of the workers ends a push, in µs.
fn pace(workers: &mut [Process], size: usize, seconds: f64) -> Option<f64> {
    for worker in &mut *workers {
        worker.say(&format!("pace {size} {seconds}"))?;
    }
    let paces: Option<Vec<f64>> = workers.iter_mut().map(|worker| worker.hear()?.parse().ok()).collect();
    Some(1.0 / paces?.iter().map(|pace| 1.0 / pace).sum::<f64>())
}

/// The role of a ps.
pub(crate) fn serve() {
    let runtime = roles::runtime(false);
    let _inside = runtime.enter();
    let server = Server::new(ServerOptions {
        task: PS,
        incarnation: Incarnation(1),
        listener: std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"),
        cluster: ClusterSpec::new(),
        leader: None,
        store: Store::default(),
        rejoin_timeout: Duration::from_secs(30),
        ops: None,
        authorize: Arc::new(authorize),
    })
    .expect("the listener is good");
    roles::say(server.local_addr());
    runtime.spawn(server.run(CancellationToken::new()));
    roles::wait();
}

/// The role of a worker: answers questions about the variables of the ps at `address`.
pub(crate) fn answer(index: u32, address: &str, way: &str) {
    let consistency = if way == RELAXED { Consistency::Relaxed } else { Consistency::Atomic };
    roles::runtime(true).block_on(async {
        let variables = connect(index, address, way);
        for asked in roles::asked() {
            let (size, seconds) = (asked.size, asked.seconds);
            let data = vec![1; size];
            let one = variable("v", size);
            let many: Vec<VariableRef> = (0..MANY).map(|index| variable(&format!("w{index}-"), size)).collect();
            match asked.what.as_str() {
                "one-by-one" | "together" => initialize(&variables, &many, &data).await,
                _ => initialize(&variables, std::slice::from_ref(&one), &data).await,
            }
            let push = async || push(&variables, &one, &data, consistency).await;
            let pull = async |refs: Vec<VariableRef>| {
                drop(
                    variables
                        .pull(refs, ReadOptions { consistency, ..ReadOptions::default() })
                        .await
                        .expect("the pull works"),
                )
            };
            let each = async || {
                for variable in &many {
                    pull(vec![variable.clone()]).await;
                }
            };
            roles::say(match asked.what.as_str() {
                "push" => roles::timed(seconds, push).await,
                "pull" => roles::timed(seconds, async || pull(vec![one.clone()]).await).await,
                "pace" => roles::paced(seconds, push).await,
                "one-by-one" => roles::timed(seconds, each).await,
                "together" => roles::timed(seconds, async || pull(many.clone()).await).await,
                // For who looks at the server meanwhile.
                "initialize" => 0.0,
                "push-once" => {
                    push().await;
                    0.0
                }
                other => panic!("there is no question `{other}`"),
            });
        }
    });
}

fn connect(index: u32, address: &str, way: &str) -> RemoteVariables {
    let connections = Connections::default();
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: if way == GRPC { connections.only_grpc() } else { connections },
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [address]),
        caller: Caller {
            container: "default".into(),
            task: Some(Task::new(TaskType::Worker, index)),
            run_id: RunId(u64::from(index) + 1),
            attempt: None,
        },
        runtime: Handle::current(),
        connect_timeout: Duration::from_secs(30),
        rejoin_timeout: Duration::from_secs(30),
    });
    RemoteVariables::new(peers, PS)
}

fn variable(name: &str, size: usize) -> VariableRef {
    VariableRef::whole(format!("{name}{size}"), TensorType::new(DType::F32, [size as u64 / 4]))
}

async fn initialize(variables: &RemoteVariables, all: &[VariableRef], data: &[u8]) {
    let value = |variable: &VariableRef| (variable.clone(), TensorView { ty: variable.ty.clone(), data });
    let values = all.iter().map(value).collect();
    variables.initialize(values, InitializeMode::IfAbsent).await.expect("the initialize works");
}

async fn push(variables: &RemoteVariables, variable: &VariableRef, data: &[u8], consistency: Consistency) {
    let value = TensorView { ty: variable.ty.clone(), data };
    let change = Change { variable: variable.clone(), kind: UpdateKind::Add, value, base: None };
    variables.push(vec![change], WriteOptions { want_values: false, consistency }).await.expect("the push works");
}
