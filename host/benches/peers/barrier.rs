//! dchost's own API: a barrier of so many tasks, each a process; the leader's is the first task's too, as in a real job.

use crate::roles;
use dchost::attend::{Mode, Registration, Replication};
use dchost::client::attend::LeaderClient;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::member::{Member, MemberOptions};
use dchost::handles::{Attend, BoxFuture, Job as _, Probe, ProbeOutcome};
use dchost::ids::{Incarnation, RunId};
use dchost::lifetime;
use dchost::server::cluster::LeaderPart;
use dchost::server::guard::authorize;
use dchost::server::leader::{Leader, LeaderOptions};
use dchost::server::{Server, ServerOptions};
use dchost::variables::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);

const LEADER: Task = Task::new(TaskType::Worker, 0);

/// So many processes meet; the median round as one of them sees it, in µs.
pub(crate) fn measure(tasks: usize, rounds: usize) -> Option<f64> {
    let (tasks, rounds) = (tasks.to_string(), rounds.to_string());
    roles::meet(&["leader", &tasks, &rounds], |address| {
        let others = 1..tasks.parse().unwrap_or(1);
        let words = |index: usize| ["member", &index.to_string(), &tasks, &rounds, address].map(str::to_owned).to_vec();
        others.map(words).collect()
    })
}

/// Everyone is reached over loopback at once, so nobody is ever dialled.
struct NoProbe;

impl Probe for NoProbe {
    fn probe(&self, _task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(async { ProbeOutcome::NoAnswer("not asked for".to_owned()) })
    }
}

/// The same in every process: nobody listens but the leader.
fn cluster(tasks: u32) -> ClusterSpec {
    ClusterSpec::new().with_job(TaskType::Worker, (0..tasks).map(|index| format!("127.0.0.1:{}", index + 1)))
}

/// The role of the leader and first task.
pub(crate) fn lead(tasks: u32, rounds: usize) {
    roles::runtime(true).block_on(async {
        let (service, handle) = Leader::new(LeaderOptions {
            lifetime: lifetime::Options {
                leader: LEADER,
                incarnation: Incarnation(1),
                cluster: cluster(tasks),
                mode: Some(Mode::IndependentWorker),
                replication: Replication::BetweenGraph,
                barrier: true,
                module_digest: Some([0; 32]),
                end: lifetime::EndRule::AllDone,
                connect_timeout: MINUTE,
                rejoin_timeout: MINUTE,
                evaluator_grace: MINUTE,
            },
            probe: Arc::new(NoProbe),
        });
        let server = Server::new(ServerOptions {
            task: LEADER,
            incarnation: Incarnation(1),
            listener: std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"),
            cluster: cluster(tasks),
            leader: Some(LeaderPart::new(handle.clone(), "default")),
            store: Store::default(),
            rejoin_timeout: MINUTE,
            ops: None,
            authorize: Arc::new(authorize),
        })
        .expect("the listener is good");
        roles::say(server.local_addr());
        tokio::spawn(service.run(CancellationToken::new()));
        tokio::spawn(server.run(CancellationToken::new()));
        meet(0, tasks, rounds, Arc::new(handle)).await;
        roles::wait();
    });
}

/// The role of another task.
pub(crate) fn follow(index: u32, tasks: u32, rounds: usize, address: &str) {
    roles::runtime(true).block_on(async {
        let leader = LeaderClient::new(LEADER, address, "default", Handle::current());
        meet(index, tasks, rounds, Arc::new(leader)).await;
        roles::wait();
    });
}

async fn meet(index: u32, tasks: u32, rounds: usize, attend: Arc<dyn Attend>) {
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
            cluster: cluster(tasks),
        },
        leader: LEADER,
        attend,
        probe: None,
        context: Some(Arc::new(WorkerContext {
            cluster: cluster(tasks),
            task: Some(task),
            master_target: String::new(),
            num_workers: tasks,
            is_chief: index == 0,
            distributed_mode: true,
            has_barrier: true,
        })),
        connect_timeout: MINUTE,
        rejoin_timeout: MINUTE,
        stay: false,
    });
    tokio::spawn(member.run(CancellationToken::new()));
    handle.registered().await.expect("the leader accepts it");
    let samples = roles::rounds(rounds, async || handle.barrier("", None).await.expect("the barrier passes")).await;
    roles::say_all(&samples);
}
