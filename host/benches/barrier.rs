//! Barrier rounds of N tasks over loopback, against arrivals and releases on plain tonic streams in the same run.
//!
//! dchost's side is the real one: the leader's service behind a standard server, and one member a task, each with its own
//! connection. The plain side only counts arrivals and answers them, with the same channel settings. Rounds alternate between
//! both; the table shows medians of a round as one task sees it. All tasks are in this process. Run with
//! `cargo bench -p dchost --bench barrier`.

use dchost::attend::{Mode, Registration, Replication};
use dchost::client::attend::LeaderClient;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::member::{Member, MemberHandle, MemberOptions};
use dchost::handles::{BoxFuture, Job, Probe, ProbeOutcome};
use dchost::ids::{Incarnation, RunId};
use dchost::lifetime;
use dchost::server::cluster::LeaderPart;
use dchost::server::guard::authorize;
use dchost::server::leader::{Leader, LeaderOptions};
use dchost::server::{Server, ServerOptions};
use dchost::variables::Store;
use dchost::wire::v1::{self, attend_event, attend_request, cluster_client::ClusterClient, cluster_server};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

mod plain;

const ROUNDS: usize = 2000;

/// The first rounds connect, and fill caches.
const WARM_UP: usize = 100;

/// Messages that wait for a plain stream: never more than one does.
const QUEUED: usize = 4;

/// Everyone is reached over loopback at once, so nobody is ever dialled.
struct NoProbe;

impl Probe for NoProbe {
    fn probe(&self, _task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(async { ProbeOutcome::NoAnswer("not asked for".to_owned()) })
    }
}

/// Starts a leader behind a standard server, and a member of each task.
fn start(workers: u32) -> Vec<MemberHandle> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let leader = Task::new(TaskType::Worker, 0);
    let addresses = (0..workers).map(|index| if index == 0 { address.clone() } else { format!("127.0.0.1:{index}") });
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, addresses);
    let minute = Duration::from_secs(60);
    let (service, handle) = Leader::new(LeaderOptions {
        lifetime: lifetime::Options {
            leader,
            incarnation: Incarnation(1),
            cluster: cluster.clone(),
            mode: Some(Mode::IndependentWorker),
            replication: Replication::BetweenGraph,
            barrier: true,
            module_digest: Some([0; 32]),
            end: lifetime::EndRule::AllDone,
            connect_timeout: minute,
            rejoin_timeout: minute,
            evaluator_grace: minute,
        },
        probe: Arc::new(NoProbe),
    });
    let server = Server::new(ServerOptions {
        task: leader,
        incarnation: Incarnation(1),
        listener,
        cluster: cluster.clone(),
        leader: Some(LeaderPart::new(handle, "default")),
        store: Store::default(),
        rejoin_timeout: minute,
        ops: None,
        authorize: Arc::new(authorize),
    })
    .expect("the listener is good");
    tokio::spawn(service.run(CancellationToken::new()));
    tokio::spawn(server.run(CancellationToken::new()));
    let member = |index: u32| {
        let task = Task::new(TaskType::Worker, index);
        let (member, handle) = Member::new(MemberOptions {
            registration: Registration {
                task,
                incarnation: Incarnation(u64::from(index) + 1),
                run_id: RunId(u64::from(index) + 1),
                attempt: None,
                mode: Some(Mode::IndependentWorker),
                replication: Replication::BetweenGraph,
                barrier: true,
                module_digest: Some([0; 32]),
                cluster: cluster.clone(),
            },
            leader,
            attend: Arc::new(LeaderClient::new(leader, &address, "default", Handle::current())),
            probe: None,
            context: Some(Arc::new(WorkerContext {
                cluster: cluster.clone(),
                task: Some(task),
                master_target: String::new(),
                num_workers: workers,
                is_chief: index == 0,
                distributed_mode: true,
                has_barrier: true,
            })),
            connect_timeout: minute,
            rejoin_timeout: minute,
            stay: false,
        });
        tokio::spawn(member.run(CancellationToken::new()));
        handle
    };
    (0..workers).map(member).collect()
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::AttendEvent, Status>> + Send>>;

type EventSender = mpsc::Sender<Result<v1::AttendEvent, Status>>;

/// Counts arrivals and answers them when all are there, and does nothing else.
struct Plain {
    size: usize,
    waiting: Arc<Mutex<Vec<EventSender>>>,
}

#[tonic::async_trait]
impl cluster_server::Cluster for Plain {
    type AttendStream = Events;
    type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionEvent, Status>> + Send>>;

    async fn attend(&self, request: Request<Streaming<v1::AttendRequest>>) -> Result<Response<Events>, Status> {
        let (events, stream) = mpsc::channel(QUEUED);
        let (size, waiting) = (self.size, self.waiting.clone());
        let mut arrivals = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(_)) = arrivals.message().await {
                let all = {
                    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    waiting.push(events.clone());
                    if waiting.len() == size { std::mem::take(&mut *waiting) } else { Vec::new() }
                };
                for waiter in all {
                    let kind = Some(attend_event::Kind::Heartbeat(v1::Heartbeat {}));
                    // A stream that has gone has nobody to tell.
                    let _ = waiter.send(Ok(v1::AttendEvent { kind })).await;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn session(
        &self,
        _: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }
}

/// One task's plain stream.
struct PlainMember {
    arrivals: mpsc::Sender<v1::AttendRequest>,
    events: Streaming<v1::AttendEvent>,
}

async fn start_plain(workers: u32) -> Vec<PlainMember> {
    let plain = Plain { size: workers as usize, waiting: Arc::default() };
    let address = plain::serve(cluster_server::ClusterServer::new(plain)).await;
    let mut members = Vec::new();
    for _ in 0..workers {
        let (arrivals, stream) = mpsc::channel(QUEUED);
        let answer =
            ClusterClient::new(plain::channel(&address)).attend(ReceiverStream::new(stream)).await.expect("it serves");
        members.push(PlainMember { arrivals, events: answer.into_inner() });
    }
    members
}

impl PlainMember {
    async fn barrier(&mut self) {
        let kind = Some(attend_request::Kind::Heartbeat(v1::Heartbeat {}));
        self.arrivals.send(v1::AttendRequest { kind }).await.expect("the stream is open");
        self.events.next().await.expect("an answer comes").expect("and is good");
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Every task makes its rounds; answers with the times of all, both ways.
async fn rounds(workers: u32) -> (Vec<Duration>, Vec<Duration>) {
    let members = start(workers);
    for member in &members {
        member.registered().await.expect("the leader accepts it");
    }
    let mut tasks = Vec::new();
    for (member, mut plain) in members.into_iter().zip(start_plain(workers).await) {
        tasks.push(tokio::spawn(async move {
            let (mut own, mut other) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS + WARM_UP {
                let started = Instant::now();
                member.barrier("", None).await.expect("the barrier passes");
                let passed = Instant::now();
                plain.barrier().await;
                if round >= WARM_UP {
                    own.push(passed - started);
                    other.push(passed.elapsed());
                }
            }
            (own, other)
        }));
    }
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for task in tasks {
        let (mine, plain) = task.await.expect("no task panics");
        own.extend(mine);
        other.extend(plain);
    }
    (own, other)
}

async fn measure() {
    println!("{:>5} {:>12} {:>12} {:>18}", "tasks", "dchost", "plain tonic", "dchost/plain time");
    for workers in [2, 4, 8] {
        let (mut own, mut plain) = rounds(workers).await;
        let (own, plain) = (median(&mut own), median(&mut plain));
        let ratio = own.as_secs_f64() / plain.as_secs_f64();
        let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
        println!("{workers:>5} {:>12} {:>12} {ratio:>17.2}x", micros(own), micros(plain));
    }
}

fn main() {
    // `cargo test --benches` asks for a list of tests: there are none.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("the system gives threads").block_on(measure());
}
