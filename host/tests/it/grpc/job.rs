//! A whole job in one process: the real leader and members, each task with its own server, over loopback.

use super::*;
use dchost::attend::{EndReport, Mode, Registration};
use dchost::client::attend::LeaderClient;
use dchost::client::channel::Lane;
use dchost::client::probe::Dialer;
use dchost::context::WorkerContext;
use dchost::coordinator::member::{Member, MemberHandle, MemberOptions};
use dchost::error::ErrorCode;
use dchost::handles::{Attend, Job as _};
use dchost::lifetime::{EndRule, Options as LifetimeOptions};
use dchost::server::leader::{JobEnd, Leader, LeaderOptions};

/// One task's process, as far as this part of it goes.
struct Process {
    member: MemberHandle,
    attending: JoinHandle<()>,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Process {
    /// Ends as a killed process does: connections break, nobody listens, nothing is reported.
    async fn kill(self) {
        self.attending.abort();
        self.shutdown.cancel();
        self.serving.await.expect("the server doesn't panic");
    }
}

struct Job {
    cluster: ClusterSpec,
    leading: JoinHandle<JobEnd>,
    leader: Process,
    worker: Process,
    ps: Process,
}

const LEADER: Task = WORKER;
const SECOND: Task = Task::new(TaskType::Worker, 1);

fn start_job() -> Job {
    let tasks = [LEADER, SECOND, PS];
    let listeners = tasks.map(|_| listener());
    let mut cluster = ClusterSpec::new();
    for (task, listener) in tasks.iter().zip(&listeners) {
        cluster.insert(*task, listener.local_addr().expect("it is bound").to_string());
    }
    let dialer = Arc::new(Dialer::new("default", RunId(99), Handle::current()));
    let (leader, handle) = Leader::new(LeaderOptions {
        lifetime: LifetimeOptions {
            leader: LEADER,
            incarnation: Incarnation(1),
            cluster: cluster.clone(),
            mode: Some(Mode::IndependentWorker),
            replication: BETWEEN_GRAPH,
            barrier: true,
            module_digest: Some([1; 32]),
            end: EndRule::AllDone,
            connect_timeout: LONG,
            rejoin_timeout: LONG,
            evaluator_grace: LONG,
        },
        probe: dialer.clone(),
    });
    let leading = tokio::spawn(leader.run(CancellationToken::new()));
    let leader_address = cluster.address(LEADER).expect("it is listed").to_owned();

    let mut processes = (1..).zip(tasks).zip(listeners).map(|((incarnation, task), listener)| {
        let mut options = options(task, incarnation, listener);
        options.cluster = cluster.clone();
        options.leader = (task == LEADER).then(|| LeaderPart::new(handle.clone(), "default"));
        let server = Server::new(options).expect("the listener is good");
        let shutdown = CancellationToken::new();
        let serving = server.run(shutdown.clone());
        let serving = tokio::spawn(async move { serving.await.expect("the transport serves") });

        let runs = task.job == TaskType::Worker;
        let attend: Arc<dyn Attend> = if task == LEADER {
            Arc::new(handle.clone())
        } else {
            Arc::new(LeaderClient::new(LEADER, leader_address.clone(), "default", Handle::current()))
        };
        let context = WorkerContext {
            cluster: cluster.clone(),
            task: Some(task),
            master_target: String::new(),
            num_workers: 2,
            is_chief: task == LEADER,
            distributed_mode: true,
            has_barrier: true,
        };
        let (member, handle) = Member::new(MemberOptions {
            registration: Registration {
                task,
                incarnation: Incarnation(incarnation),
                run_id: RunId(incarnation),
                attempt: None,
                mode: runs.then_some(Mode::IndependentWorker),
                replication: BETWEEN_GRAPH,
                barrier: true,
                module_digest: runs.then_some([1; 32]),
                cluster: cluster.clone(),
            },
            leader: LEADER,
            attend,
            probe: None,
            context: runs.then(|| Arc::new(context)),
            connect_timeout: LONG,
            rejoin_timeout: LONG,
            stay: false,
        });
        let (stop, task_shutdown) = (shutdown.clone(), shutdown);
        let attending = tokio::spawn(async move { drop(member.run(stop).await) });
        Process { member: handle, attending, shutdown: task_shutdown, serving }
    });
    let mut next = || processes.next().expect("there are three tasks");
    let (leader, worker, ps) = (next(), next(), next());
    Job { cluster, leading, leader, worker, ps }
}

fn well() -> EndReport {
    EndReport { ok: true, exit_code: 0, message: String::new(), leaving: false }
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

#[tokio::test]
async fn job_passes_barriers_and_everyone_leaves() {
    let job = start_job();
    for _ in 0..20 {
        let (first, second) = soon("the barrier", async {
            tokio::join!(job.leader.member.barrier("", None), job.worker.member.barrier("", None))
        })
        .await;
        assert_eq!((first, second), (Ok(()), Ok(())));
    }
    assert!(soon("the report", job.worker.member.end(well())).await);
    assert!(!job.leader.member.training_ended());
    assert!(soon("the report", job.leader.member.end(well())).await);
    for process in [&job.ps, &job.worker, &job.leader] {
        soon("job ended", process.member.job_ended()).await;
        assert_eq!(process.member.cause(), None);
    }
    let end = soon("the leader leaves", job.leading).await.expect("no panic");
    assert_eq!(end, JobEnd { cause: None });
    for process in [job.leader, job.worker, job.ps] {
        soon("the server stops", process.kill()).await;
    }
}

#[tokio::test]
async fn death_of_a_worker_fails_the_one_that_waits_for_it() {
    let job = start_job();
    let both = async { tokio::join!(job.leader.member.barrier("", None), job.worker.member.barrier("", None)) };
    assert_eq!(soon("the barrier", both).await, (Ok(()), Ok(())));
    let waiting = job.leader.member.clone();
    let waiting = tokio::spawn(async move { waiting.barrier("", None).await });
    // Nobody listens at its address any more, so that the leader's probe is refused.
    soon("the process dies", job.worker.kill()).await;
    let error = soon("the barrier", waiting).await.expect("no panic").expect_err("it can't pass");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[SECOND][..]), "{error}");
    let cause = job.leading;
    soon(
        "the report",
        job.leader.member.end(EndReport { ok: false, exit_code: 202, message: error.message, leaving: false }),
    )
    .await;
    let end = soon("the leader leaves", cause).await.expect("no panic");
    assert_eq!(end.cause.map(|cause| (cause.task, cause.exit_code)), Some((SECOND, 202)));
    soon("job ended", job.ps.member.job_ended()).await;
    soon("the server stops", job.ps.kill()).await;
    soon("the server stops", job.leader.kill()).await;
}

/// Aim: who calls a task that has left the job hears so at once, whatever the timeouts are; a task that may still come is waited
/// for. Method: a worker that was never met and a ps that was met end well and by a signal; both servers are gone.
#[tokio::test]
async fn tasks_that_have_left_the_job_are_not_waited_for() {
    const HOURS: Duration = Duration::from_secs(24 * 3600);
    let job = start_job();
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: Some(LEADER),
        connections: Connections::default(),
        cluster: job.cluster,
        caller: caller(1),
        runtime: Handle::current(),
        connect_timeout: HOURS,
        rejoin_timeout: HOURS,
    });
    let call = async |task| peers.call(task, Lane::Control, false, async |_| Ok(())).await;
    for process in [&job.leader, &job.worker, &job.ps] {
        soon("it attends", process.member.registered()).await.expect("it is accepted");
    }
    assert_eq!(soon("the ps serves", call(PS)).await, Ok(()));
    assert!(soon("the report", job.worker.member.end(well())).await);
    soon("the worker goes", job.worker.kill()).await;
    let error = soon("who calls is told", call(SECOND)).await.expect_err("nobody is there");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::Unavailable, &[SECOND][..]));
    assert!(error.message.ends_with("has left the job, and is not waited for: its run has ended"), "{error}");

    let serves = peers.clone();
    let left = EndReport { ok: false, exit_code: 143, message: "stopped by SIGTERM".to_owned(), leaving: true };
    assert!(soon("the report", job.ps.member.end(left)).await);
    soon("the ps goes", job.ps.kill()).await;
    let waits = async {
        // While the connection breaks, a call may still go well.
        loop {
            if let Err(error) = serves.call(PS, Lane::Control, false, async |_| Ok(())).await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    let error = soon("who calls is told", waits).await;
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[PS][..]));
    assert!(error.message.ends_with("is not waited for: stopped by SIGTERM"), "{error}");
    soon("the sessions close", peers.close()).await;
    soon("the server stops", job.leader.kill()).await;
}
