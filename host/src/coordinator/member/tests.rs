//! Members and their leader in one process, on a paused clock: streams are channels, probes answer what a test sets.

use super::*;
use crate::attend::{Mode, Replication, TaskState};
use crate::cluster::{ClusterSpec, TaskType};
use crate::error::ErrorCode;
use crate::handles::{AttendChannel, BoxFuture, Job, ProbeOutcome};
use crate::ids::{Incarnation, RunId};
use crate::lifetime::{self, EndRule};
use crate::server::leader::{JobEnd, Leader, LeaderHandle, LeaderOptions};
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn worker(index: u32) -> Task {
    Task::new(TaskType::Worker, index)
}

fn ps(index: u32) -> Task {
    Task::new(TaskType::Ps, index)
}

fn evaluator() -> Task {
    Task::new(TaskType::Evaluator, 0)
}

/// The network between members and leaders: who can be reached, and what dialling shows.
#[derive(Default)]
struct Net {
    /// None: the leader's address refuses.
    leader: Mutex<Option<LeaderHandle>>,
    dialled: Mutex<BTreeMap<Task, ProbeOutcome>>,
}

impl Net {
    fn set_dialled(&self, task: Task, outcome: ProbeOutcome) {
        self.dialled.lock().expect("no panic").insert(task, outcome);
    }
}

impl Attend for Net {
    fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>> {
        let leader = self.leader.lock().expect("no panic").clone();
        Box::pin(async move {
            match leader {
                Some(leader) => leader.attend(registration).await,
                None => Err(AttendError::Unreachable("connection refused".to_owned())),
            }
        })
    }
}

impl Probe for Net {
    fn probe(&self, task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
        let outcome = self.dialled.lock().expect("no panic").get(&task).cloned();
        Box::pin(std::future::ready(outcome.unwrap_or_else(|| ProbeOutcome::NoAnswer("timed out".to_owned()))))
    }
}

/// A job of `workers` workers and a ps, led by worker:0.
struct Cluster {
    net: Arc<Net>,
    spec: ClusterSpec,
    leader: JoinHandle<JobEnd>,
    rejoin_timeout: Duration,
    connect_timeout: Duration,
}

/// A member, and the means to kill it.
struct Running {
    handle: MemberHandle,
    service: JoinHandle<Option<Departure>>,
}

impl Running {
    /// The process dies: its stream breaks without a word.
    async fn kill(self) {
        self.service.abort();
        assert!(self.service.await.expect_err("aborted").is_cancelled());
    }
}

fn leader_options(spec: &ClusterSpec, incarnation: u64) -> lifetime::Options {
    lifetime::Options {
        leader: worker(0),
        incarnation: Incarnation(incarnation),
        cluster: spec.clone(),
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        barrier: true,
        module_digest: Some([7; 32]),
        end: EndRule::AllDone,
        connect_timeout: SECOND * 60,
        rejoin_timeout: SECOND * 30,
        evaluator_grace: SECOND * 20,
    }
}

fn start_leader(net: &Arc<Net>, lifetime: lifetime::Options) -> JoinHandle<JobEnd> {
    let (leader, handle) = Leader::new(LeaderOptions { lifetime, probe: net.clone() });
    *net.leader.lock().expect("no panic") = Some(handle);
    tokio::spawn(leader.run(CancellationToken::new()))
}

impl Cluster {
    fn start(workers: u32) -> Self {
        Cluster::start_with(workers, |options| options)
    }

    fn start_with(workers: u32, change: impl FnOnce(lifetime::Options) -> lifetime::Options) -> Self {
        let spec = ClusterSpec::new()
            .with_job(TaskType::Worker, (0..workers).map(|index| format!("w{index}:1")))
            .with_job(TaskType::Ps, ["p:1"]);
        let net = Arc::new(Net::default());
        let leader = start_leader(&net, change(leader_options(&spec, 1)));
        Cluster { net, spec, leader, rejoin_timeout: SECOND * 30, connect_timeout: SECOND * 60 }
    }

    fn context(&self, task: Task) -> Option<Arc<WorkerContext>> {
        let runs = task.job != TaskType::Ps;
        runs.then(|| {
            Arc::new(WorkerContext {
                cluster: self.spec.clone(),
                task: Some(task),
                master_target: "grpc://x:1".to_owned(),
                num_workers: self.spec.num_workers(),
                is_chief: task == worker(0),
                distributed_mode: task.job != TaskType::Evaluator,
                has_barrier: task.job == TaskType::Worker,
            })
        })
    }

    fn options(&self, task: Task) -> MemberOptions {
        let context = self.context(task);
        MemberOptions {
            registration: Registration {
                task,
                incarnation: Incarnation(100 + u64::from(task.index)),
                run_id: RunId(1),
                attempt: None,
                mode: context.as_ref().map(|_| Mode::IndependentWorker),
                replication: Replication::BetweenGraph,
                barrier: true,
                module_digest: context.as_ref().map(|_| [7; 32]),
                cluster: self.spec.clone(),
            },
            leader: worker(0),
            attend: self.net.clone(),
            probe: (task != worker(0)).then(|| (self.net.clone() as Arc<dyn Probe>, "w0:1".to_owned())),
            context,
            connect_timeout: self.connect_timeout,
            rejoin_timeout: self.rejoin_timeout,
            stay: false,
        }
    }

    fn member(&self, task: Task) -> Running {
        Cluster::run(self.options(task))
    }

    fn run(options: MemberOptions) -> Running {
        let (member, handle) = Member::new(options);
        Running { handle, service: tokio::spawn(member.run(CancellationToken::new())) }
    }

    /// Starts members and waits until all attend.
    async fn members(&self, tasks: impl IntoIterator<Item = Task>) -> Vec<Running> {
        let members: Vec<Running> = tasks.into_iter().map(|task| self.member(task)).collect();
        for member in &members {
            member.handle.registered().await.expect("accepted");
        }
        members
    }
}

fn done() -> EndReport {
    EndReport { ok: true, exit_code: 0, message: String::new(), leaving: false }
}

/// Waits at the unnamed barrier in a task of its own, like a guest on its own runtime.
fn wait(member: &Running) -> JoinHandle<Result<()>> {
    wait_at(member, "", None)
}

fn wait_at(member: &Running, name: &'static str, timeout: Option<Duration>) -> JoinHandle<Result<()>> {
    let handle = member.handle.clone();
    tokio::spawn(async move { handle.barrier(name, timeout).await })
}

/// Lets everything run that can run now.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn start_order_does_not_matter() {
    let mut cluster = Cluster::start(3);
    // Nobody listens yet, and two of three start long before the leader.
    let leader = cluster.net.leader.lock().expect("no panic").take();
    let early = [cluster.member(worker(2)), cluster.member(ps(0)), cluster.member(worker(1))];
    let waits: Vec<_> = [&early[0], &early[2]].map(wait).into_iter().collect();
    tokio::time::sleep(SECOND * 30).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    *cluster.net.leader.lock().expect("no panic") = leader;
    let chief = cluster.member(worker(0));
    chief.handle.barrier("", None).await.expect("all come");
    for wait in waits {
        wait.await.expect("no panic").expect("all come");
    }
    for member in [&early[0], &early[2], &chief] {
        assert!(member.handle.end(done()).await);
    }
    assert_eq!(early[1].handle.job_ended().await, Departure::JobEnded { cause: None });
    assert_eq!((&mut cluster.leader).await.expect("no panic"), JobEnd { cause: None });
}

#[tokio::test(start_paused = true)]
async fn job_ends_well_for_everybody_and_the_leader_leaves_last() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0), worker(1), ps(0)]).await;
    assert!(members[0].handle.end(done()).await);
    tokio::time::sleep(SECOND * 100).await;
    assert!(!members[2].handle.training_ended() && !members[2].service.is_finished());
    assert!(members[1].handle.end(done()).await);
    let departure = members[2].handle.job_ended().await;
    assert_eq!(departure, Departure::JobEnded { cause: None });
    assert_eq!(departure.exit_code(), 0);
    assert!(members[2].handle.training_ended());
    assert_eq!(members[1].handle.interrupt_exit_code(), None);
    let begin = Instant::now();
    assert_eq!(cluster.leader.await.expect("no panic").cause, None);
    // All others have gone, so it doesn't wait for anybody.
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
    for member in members {
        assert_eq!(member.service.await.expect("no panic"), Some(Departure::JobEnded { cause: None }));
    }
}

#[tokio::test(start_paused = true)]
async fn late_member_is_waited_for() {
    let cluster = Cluster::start(3);
    let members = cluster.members([worker(0), worker(1)]).await;
    let waits: Vec<_> = members.iter().map(wait).collect();
    tokio::time::sleep(SECOND * 50).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    let late = cluster.member(worker(2));
    late.handle.barrier("", None).await.expect("passes");
    for wait in waits {
        wait.await.expect("no panic").expect("passes");
    }
}

#[tokio::test(start_paused = true)]
async fn death_fails_waiters_at_once_naming_the_dead() {
    let cluster = Cluster::start(3);
    let mut members = cluster.members([worker(0), worker(1), worker(2), ps(0)]).await;
    let waits = [wait(&members[0]), wait(&members[2])];
    settle().await;
    cluster.net.set_dialled(worker(1), ProbeOutcome::Refused("connection refused".to_owned()));
    let begin = Instant::now();
    members.remove(1).kill().await;
    for wait in waits {
        let error = wait.await.expect("no panic").expect_err("a peer died");
        assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[worker(1)][..]), "{error}");
    }
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
    // Later calls fail the same way; the ps leaves when the runs have ended.
    let error = members[0].handle.barrier("other", None).await.expect_err("a peer died");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[worker(1)][..]), "{error}");
    assert_eq!(members[0].handle.interrupt_exit_code(), Some(202));
    let failed = EndReport { ok: false, exit_code: 202, message: error.message, leaving: false };
    for member in &members[..2] {
        assert!(member.handle.end(failed.clone()).await);
    }
    let departure = members[2].handle.job_ended().await;
    assert_eq!(departure.exit_code(), 202);
    let Departure::JobEnded { cause: Some(cause) } = departure else { panic!("{departure:?}") };
    assert_eq!((cause.task, cause.exit_code), (worker(1), 202));
    assert_eq!(cluster.leader.await.expect("no panic").exit_code(0), 202);
}

#[tokio::test(start_paused = true)]
async fn restart_fails_waiters_as_peer_restarted() {
    let cluster = Cluster::start(2);
    let mut members = cluster.members([worker(0), worker(1)]).await;
    let waits = wait(&members[0]);
    settle().await;
    cluster.net.set_dialled(worker(1), ProbeOutcome::Answered(Incarnation(77)));
    members.remove(1).kill().await;
    let error = waits.await.expect("no panic").expect_err("the peer was restarted");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[worker(1)][..]), "{error}");
}

#[tokio::test(start_paused = true)]
async fn silent_member_is_lost_after_the_rejoin_timeout() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0)]).await;
    // It registers and then says nothing, with its stream open.
    let silent = cluster.net.attend(cluster.options(worker(1)).registration).await.expect("accepted");
    let begin = Instant::now();
    let error = members[0].handle.barrier("", None).await.expect_err("the peer is silent");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[worker(1)][..]), "{error}");
    let took = begin.elapsed();
    assert!(took >= SECOND * 39 && took < SECOND * 42, "{took:?}");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn runner_never_seen_ends_the_job_with_201() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0)]).await;
    cluster.net.set_dialled(worker(1), ProbeOutcome::Refused("connection refused".to_owned()));
    let error = members[0].handle.barrier("", None).await.expect_err("a peer never came");
    assert!(error.message.contains("connection refused") && error.tasks == [worker(1)], "{error}");
    let interrupt = members[0].handle.interrupt();
    interrupt.clone().wait_for(Option::is_some).await.expect("the member runs");
    assert_eq!(members[0].handle.interrupt_exit_code(), Some(201));
    // The guest doesn't end by itself.
    let begin = Instant::now();
    members[0].handle.overdue().wait_for(|overdue| *overdue).await.expect("the member lives");
    assert!(begin.elapsed() >= SECOND * 9, "{:?}", begin.elapsed());
    assert!(members[0].handle.end(EndReport { ok: false, exit_code: 201, ..done() }).await);
    assert_eq!(cluster.leader.await.expect("no panic").exit_code(0), 201);
}

#[tokio::test(start_paused = true)]
async fn evaluator_has_its_grace_then_is_cancelled_and_exits_well() {
    let cluster = Cluster::start(1);
    let members = cluster.members([worker(0), evaluator()]).await;
    assert!(members[0].handle.end(done()).await);
    let begin = Instant::now();
    let mut interrupt = members[1].handle.interrupt();
    let error = interrupt.wait_for(Option::is_some).await.expect("the member runs").clone().expect("set");
    assert_eq!(error.code, ErrorCode::Cancelled);
    assert!(members[1].handle.training_ended());
    let took = begin.elapsed();
    assert!(took >= SECOND * 19 && took < SECOND * 21, "{took:?}");
    assert_eq!(members[1].handle.interrupt_exit_code(), Some(0));
    assert_eq!(members[1].handle.job_ended().await.exit_code(), 0);
    assert_eq!(cluster.leader.await.expect("no panic").cause, None);
}

#[tokio::test(start_paused = true)]
async fn evaluator_is_cancelled_at_once_after_a_failure() {
    let cluster = Cluster::start(1);
    let members = cluster.members([worker(0), evaluator()]).await;
    let failed = EndReport { ok: false, exit_code: 3, message: "unreachable".to_owned(), leaving: false };
    assert!(members[0].handle.end(failed).await);
    let mut interrupt = members[1].handle.interrupt();
    let error = interrupt.wait_for(Option::is_some).await.expect("the member runs").clone().expect("set");
    assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
    assert_eq!(members[1].handle.interrupt_exit_code(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn eight_members_pass_a_hundred_rounds_together() {
    let cluster = Cluster::start(8);
    let members = cluster.members((0..8).map(worker)).await;
    let passed = Arc::new(Mutex::new(vec![0u32; 8]));
    let mut runs = JoinSet::new();
    for (index, member) in members.iter().enumerate() {
        let (handle, passed) = (member.handle.clone(), passed.clone());
        runs.spawn(async move {
            for round in 0..100 {
                // Different tasks are late in different rounds.
                tokio::time::sleep(Duration::from_millis((index as u64 * 7 + round * 13) % 29)).await;
                handle.barrier("", None).await.expect("passes");
                let mut passed = passed.lock().expect("no panic");
                passed[index] += 1;
                let (least, most) = (passed.iter().min(), passed.iter().max());
                assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{passed:?}");
            }
        });
    }
    while let Some(run) = runs.join_next().await {
        run.expect("no panic");
    }
    assert_eq!(*passed.lock().expect("no panic"), [100; 8]);
}

#[tokio::test(start_paused = true)]
async fn member_that_reconnects_mid_barrier_gets_its_answer() {
    let cluster = Cluster::start(2);
    // This one's streams can be cut.
    struct Cut {
        net: Arc<Net>,
        cut: watch::Sender<u32>,
    }
    impl Attend for Cut {
        fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>> {
            Box::pin(async move {
                let channel = self.net.attend(registration).await?;
                let (events, events_out) = mpsc::channel(16);
                let (messages, mut messages_in) = mpsc::channel(16);
                let mut cut = self.cut.subscribe();
                let AttendChannel { registered, messages: to_leader, events: mut from_leader } = channel;
                tokio::spawn(async move {
                    loop {
                        tokio::select! {
                            _ = cut.changed() => return,
                            Some(message) = messages_in.recv() => to_leader.send(message).await.expect("open"),
                            Some(event) = from_leader.recv() => events.send(event).await.expect("open"),
                            else => return,
                        }
                    }
                });
                Ok(AttendChannel { registered, messages, events: events_out })
            })
        }
    }
    let cut = watch::Sender::new(0);
    let options = MemberOptions {
        attend: Arc::new(Cut { net: cluster.net.clone(), cut: cut.clone() }),
        ..cluster.options(worker(1))
    };
    let second = Cluster::run(options);
    second.handle.registered().await.expect("accepted");
    // Cut before the others arrive: the arrival stands, and the answer comes over the new stream.
    let waiting = wait(&second);
    settle().await;
    cut.send_replace(1);
    tokio::time::sleep(SECOND).await;
    let first = cluster.members([worker(0)]).await.remove(0);
    first.handle.barrier("", None).await.expect("passes");
    waiting.await.expect("no panic").expect("passes");

    // Cut while there is no leader to reach: the others pass meanwhile, and the answer is replayed.
    let waiting = wait(&second);
    settle().await;
    let leader = cluster.net.leader.lock().expect("no panic").take();
    cut.send_replace(2);
    settle().await;
    first.handle.barrier("", None).await.expect("passes");
    assert!(!waiting.is_finished());
    *cluster.net.leader.lock().expect("no panic") = leader;
    waiting.await.expect("no panic").expect("passes");

    // Both count alike: the next round meets.
    let waiting = wait(&second);
    first.handle.barrier("", None).await.expect("passes");
    waiting.await.expect("no panic").expect("passes");
}

#[tokio::test(start_paused = true)]
async fn deadline_names_who_is_missing_for_all_who_wait() {
    let cluster = Cluster::start(3);
    let members = cluster.members([worker(0), worker(1), worker(2)]).await;
    let begin = Instant::now();
    let patient = wait_at(&members[0], "step", None);
    let hasty = wait_at(&members[1], "step", Some(SECOND * 2));
    for wait in [patient, hasty] {
        let error = wait.await.expect("no panic").expect_err("one is missing");
        assert_eq!((error.code, &error.tasks[..]), (ErrorCode::DeadlineExceeded, &[worker(2)][..]), "{error}");
    }
    let took = begin.elapsed();
    assert!(took >= SECOND * 2 && took < SECOND * 3, "{took:?}");
    // The late one is told of the round that it missed; then they meet.
    let error = members[2].handle.barrier("step", None).await.expect_err("it came late");
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    let waits = [0, 1, 2].map(|index| wait_at(&members[index], "step", Some(SECOND * 2)));
    for wait in waits {
        wait.await.expect("no panic").expect("passes");
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_was_given_up_is_found_by_the_next_one() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0), worker(1)]).await;
    let given_up = tokio::time::timeout(SECOND, members[0].handle.barrier("", None)).await;
    assert!(given_up.is_err());
    // The arrival stands.
    members[1].handle.barrier("", None).await.expect("passes");
    settle().await;
    members[0].handle.barrier("", None).await.expect("passes");
    let waiting = wait(&members[0]);
    members[1].handle.barrier("", None).await.expect("passes");
    waiting.await.expect("no panic").expect("passes");
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_without_arriving_aborts_the_barrier() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0), worker(1)]).await;
    let waiting = wait(&members[0]);
    settle().await;
    assert!(members[1].handle.end(done()).await);
    let error = waiting.await.expect("no panic").expect_err("one has left");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::Aborted, &[worker(1)][..]), "{error}");
}

#[tokio::test(start_paused = true)]
async fn run_gives_up_a_leader_that_never_comes_and_a_server_does_not() {
    let cluster = Cluster::start(2);
    *cluster.net.leader.lock().expect("no panic") = None;
    let (run, server) = (cluster.member(worker(1)), cluster.member(ps(0)));
    let begin = Instant::now();
    let waiting = wait(&run);
    let error = run.handle.registered().await.expect_err("nobody there");
    assert!(matches!(&error, AttendError::Unreachable(why) if why.contains("connection refused")), "{error:?}");
    assert_eq!(refusal_exit_code(&error), 201);
    assert!(begin.elapsed() >= SECOND * 60 && begin.elapsed() < SECOND * 63, "{:?}", begin.elapsed());
    let error = waiting.await.expect("no panic").expect_err("nobody there");
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    tokio::time::sleep(SECOND * 3600 * 24).await;
    assert!(!server.service.is_finished());
}

#[tokio::test(start_paused = true)]
async fn lost_leader_fails_runs_at_once_and_servers_after_the_connect_timeout() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(1), ps(0)]).await;
    let waiting = wait(&members[0]);
    settle().await;
    *cluster.net.leader.lock().expect("no panic") = None;
    cluster.net.set_dialled(worker(0), ProbeOutcome::Refused("connection refused".to_owned()));
    let begin = Instant::now();
    cluster.leader.abort();
    let error = waiting.await.expect("no panic").expect_err("the leader died");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[worker(0)][..]), "{error}");
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
    assert_eq!(members[0].handle.interrupt_exit_code(), Some(202));
    let departure = members[1].handle.job_ended().await;
    assert_eq!(departure.exit_code(), 202);
    assert!(matches!(departure, Departure::LeaderLost { .. }), "{departure:?}");
    assert!(begin.elapsed() >= SECOND * 60 && begin.elapsed() < SECOND * 63, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unreachable_leader_is_lost_after_the_rejoin_timeout() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(1)]).await;
    let waiting = wait(&members[0]);
    settle().await;
    *cluster.net.leader.lock().expect("no panic") = None;
    cluster.leader.abort();
    let begin = Instant::now();
    let error = waiting.await.expect("no panic").expect_err("the leader is gone");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[worker(0)][..]), "{error}");
    assert!(begin.elapsed() >= SECOND * 29 && begin.elapsed() < SECOND * 33, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn restarted_leader_ends_runs_and_takes_over_servers() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(1), ps(0)]).await;
    let waiting = wait(&members[0]);
    let mut attempts = members[1].handle.attempts();
    assert_eq!(attempts.borrow_and_update().map(|attempt| attempt.leader), Some(Incarnation(1)));
    settle().await;
    cluster.leader.abort();
    let _second = start_leader(&cluster.net, leader_options(&cluster.spec, 2));
    let error = waiting.await.expect("no panic").expect_err("the leader was restarted");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[worker(0)][..]), "{error}");
    assert_eq!(members[0].handle.interrupt_exit_code(), Some(202));
    attempts.changed().await.expect("the member runs");
    assert_eq!(attempts.borrow().map(|attempt| attempt.leader), Some(Incarnation(2)));
    assert!(!members[1].service.is_finished());
}

#[tokio::test(start_paused = true)]
async fn server_with_end_never_stays_after_the_job() {
    let cluster = Cluster::start(1);
    let members = cluster.members([worker(0)]).await;
    let staying = Cluster::run(MemberOptions { stay: true, ..cluster.options(ps(0)) });
    staying.handle.registered().await.expect("accepted");
    assert!(members[0].handle.end(done()).await);
    assert_eq!(cluster.leader.await.expect("no panic").cause, None);
    tokio::time::sleep(SECOND * 3600).await;
    assert!(!staying.service.is_finished());
    assert!(staying.handle.training_ended());
}

#[tokio::test(start_paused = true)]
async fn chief_done_cancels_the_other_runs_which_exit_well() {
    let cluster = Cluster::start_with(2, |options| lifetime::Options { end: EndRule::ChiefDone, ..options });
    let members = cluster.members([worker(0), worker(1), ps(0)]).await;
    let waiting = wait_at(&members[1], "later", None);
    settle().await;
    assert!(members[0].handle.end(done()).await);
    let error = waiting.await.expect("no panic").expect_err("the chief is done");
    assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
    let error = members[1].handle.barrier("other", None).await.expect_err("the chief is done");
    assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
    assert_eq!(members[1].handle.interrupt_exit_code(), Some(0));
    assert!(members[1].handle.end(EndReport { ok: false, exit_code: 0, ..done() }).await);
    assert_eq!(members[2].handle.job_ended().await, Departure::JobEnded { cause: None });
    assert_eq!(cluster.leader.await.expect("no panic").cause, None);
}

#[tokio::test(start_paused = true)]
async fn server_under_a_leader_without_module_serves_on() {
    let cluster = Cluster::start_with(1, |options| lifetime::Options { mode: None, module_digest: None, ..options });
    let members = cluster.members([ps(0)]).await;
    *cluster.net.leader.lock().expect("no panic") = None;
    cluster.leader.abort();
    tokio::time::sleep(SECOND * 3600).await;
    assert!(!members[0].service.is_finished());
    assert!(!members[0].handle.training_ended());
}

#[tokio::test(start_paused = true)]
async fn runner_without_module_fails_the_job_for_everybody() {
    let cluster = Cluster::start(2);
    let members = cluster.members([worker(0)]).await;
    let waiting = wait(&members[0]);
    let mut options = cluster.options(worker(1));
    (options.registration.mode, options.registration.module_digest, options.context) = (None, None, None);
    let error = Cluster::run(options).handle.registered().await.expect_err("it has no module");
    assert_eq!(refusal_exit_code(&error), 2, "{error:?}");
    let error = waiting.await.expect("no panic").expect_err("the job has failed");
    assert!(error.message.contains("worker:1 runs without --module"), "{error}");
    assert_eq!(members[0].handle.cause().map(|cause| cause.exit_code), Some(2));
}

#[tokio::test(start_paused = true)]
async fn refusal_reaches_the_one_who_registers() {
    let cluster = Cluster::start(2);
    let mut options = cluster.options(worker(1));
    options.registration.module_digest = Some([8; 32]);
    let refused = Cluster::run(options);
    let error = refused.handle.registered().await.expect_err("another module");
    assert_eq!(refusal_exit_code(&error), 2, "{error:?}");
    assert_eq!(refused.service.await.expect("no panic"), Some(Departure::Refused(error)));
}

#[tokio::test(start_paused = true)]
async fn second_process_of_a_task_is_refused() {
    let cluster = Cluster::start(2);
    let _members = cluster.members([worker(0), worker(1)]).await;
    cluster.net.set_dialled(worker(1), ProbeOutcome::Answered(Incarnation(101)));
    let mut options = cluster.options(worker(1));
    options.registration.incarnation = Incarnation(555);
    let error = Cluster::run(options).handle.registered().await.expect_err("the first lives");
    assert_eq!(refusal_exit_code(&error), 200, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn end_report_is_given_up_in_time_and_delivered_when_the_leader_is_back() {
    let cluster = Cluster::start(2);
    let _leader_own = cluster.members([worker(0)]).await;
    let leader = cluster.net.leader.lock().expect("no panic").take();
    let late = cluster.member(ps(0));
    let begin = Instant::now();
    assert!(!late.handle.end(done()).await, "there is no leader");
    assert!(begin.elapsed() >= END_TIMEOUT && begin.elapsed() < END_TIMEOUT + SECOND, "{:?}", begin.elapsed());
    *cluster.net.leader.lock().expect("no panic") = leader.clone();
    assert!(late.handle.end(done()).await);
    let status = leader.expect("set").status(None).await.expect("runs");
    let row = status.rows.iter().find(|row| row.task == ps(0)).expect("a row");
    assert_eq!(row.state, TaskState::Ended);
}

#[tokio::test(start_paused = true)]
async fn context_without_barrier_says_so_with_cluster_type_and_id() {
    let cluster = Cluster::start(1);
    let members = cluster.members([worker(0), evaluator()]).await;
    let error = members[1].handle.barrier("", None).await.expect_err("an evaluator has none");
    assert_eq!(error.code, ErrorCode::FailedPrecondition);
    assert_eq!(
        error.message,
        "no barrier in this context (cluster {ps: [p:1], worker: [w0:1]}, task type evaluator, task id 0): ask \
         has-barrier before waiting"
    );
    let solo = SoloJob::new(cluster.context(worker(0)).expect("a run"), 0);
    assert_eq!(solo.barrier("x", None).await.expect_err("no leader").code, ErrorCode::FailedPrecondition);
    assert!(!Job::training_ended(&solo) && solo.attempt() == 0);
}

#[test]
fn handle_is_polled_on_a_runtime_without_clock() {
    // The member runs on one runtime, the guest's calls on another that has neither timer nor I/O.
    let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    let (cluster, first, second) = control.block_on(async {
        let cluster = Cluster::start(2);
        let mut members = cluster.members([worker(0), worker(1)]).await;
        let second = members.remove(1);
        (cluster, members.remove(0), second)
    });
    let guests = tokio::runtime::Builder::new_current_thread().build().expect("starts");
    guests.block_on(async {
        let waiting = wait_at(&second, "step", Some(SECOND * 60));
        first.handle.barrier("step", Some(SECOND * 60)).await.expect("passes");
        waiting.await.expect("no panic").expect("passes");
        assert!(first.handle.end(done()).await && second.handle.end(done()).await);
    });
    assert_eq!(control.block_on(cluster.leader).expect("no panic").cause, None);
}

/// Aim: who waits for variables learns that nobody will initialize them, also where it comes after the chief's end.
#[tokio::test(start_paused = true)]
async fn the_chiefs_end_is_known_to_all_and_to_who_comes_later() {
    let cluster = Cluster::start(3);
    let early = cluster.members([worker(0), worker(1)]).await;
    assert!(early[1].handle.chief_ended().borrow().is_none());
    assert!(early[0].handle.end(done()).await);
    let late = cluster.members([worker(2)]).await;
    for member in [&early[1], &late[0]] {
        let mut ended = member.handle.chief_ended();
        let error = ended.wait_for(Option::is_some).await.expect("the member lives").clone().expect("waited for it");
        assert_eq!((error.code, error.tasks.as_slice()), (ErrorCode::Uninitialized, &[worker(0)][..]));
        assert!(member.handle.interrupt().borrow().is_none(), "the run goes on");
    }
}
