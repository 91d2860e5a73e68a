//! What the leader's service does by itself; how it and members meet is tested in `coordinator::member`.

use super::*;
use crate::attend::{Mode, Replication, TaskState};
use crate::cluster::{ClusterSpec, TaskType};
use crate::ids::{Incarnation, RunId};
use crate::lifetime::EndRule;
use expect_test::expect;

/// Answers every dial with what a test has set, and counts.
struct FakeProbe(ProbeOutcome);

impl Probe for FakeProbe {
    fn probe(&self, _task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

fn worker(index: u32) -> Task {
    Task::new(TaskType::Worker, index)
}

fn options(outcome: ProbeOutcome) -> LeaderOptions {
    let lifetime = lifetime::Options {
        leader: worker(0),
        incarnation: Incarnation(1),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]),
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        barrier: true,
        module_digest: Some([7; 32]),
        end: EndRule::AllDone,
        connect_timeout: Duration::from_secs(60),
        rejoin_timeout: Duration::from_secs(30),
        evaluator_grace: Duration::from_secs(60),
    };
    LeaderOptions { lifetime, probe: Arc::new(FakeProbe(outcome)) }
}

fn registration(task: Task, incarnation: u64) -> Registration {
    Registration {
        task,
        incarnation: Incarnation(incarnation),
        run_id: RunId(incarnation),
        attempt: None,
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        barrier: true,
        module_digest: Some([7; 32]),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]),
    }
}

fn start(outcome: ProbeOutcome) -> (LeaderHandle, tokio::task::JoinHandle<JobEnd>, CancellationToken) {
    let (leader, handle) = Leader::new(options(outcome));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(leader.run(shutdown.clone()));
    (handle, running, shutdown)
}

/// Aim: who asks for one task, as many may at once for many, costs the leader one row. Method: another task is silent, and a barrier
/// waits for it.
#[tokio::test(start_paused = true)]
async fn who_asks_for_one_task_is_told_of_that_alone() {
    let (handle, _running, _shutdown) = start(ProbeOutcome::Refused("connection refused".to_owned()));
    let channel = handle.attend(registration(worker(0), 1)).await.expect("accepted");
    let arrival = BarrierArrival { name: "step".to_owned(), generation: 0, timeout: None };
    channel.messages.send(MemberMessage::Arrival(arrival)).await.expect("open");
    tokio::time::sleep(Duration::from_secs(6)).await;
    let all = handle.status(None).await.expect("runs");
    assert_eq!((all.rows.len(), all.silent.len(), all.barriers.len()), (2, 1, 1));
    for row in &all.rows {
        let one = handle.status(Some(row.task)).await.expect("runs");
        assert_eq!(one, LeaderStatus { rows: vec![row.clone()], silent: vec![], barriers: vec![], ..all.clone() });
    }
    let none = handle.status(Some(worker(9))).await.expect("runs");
    assert_eq!((none.rows, none.mode), (Vec::new(), all.mode));
}

#[tokio::test(start_paused = true)]
async fn status_and_report_name_who_is_silent_and_who_is_missing() {
    let (handle, _running, _shutdown) = start(ProbeOutcome::Refused("connection refused".to_owned()));
    let channel = handle.attend(registration(worker(0), 1)).await.expect("accepted");
    let arrival = BarrierArrival { name: "step".to_owned(), generation: 0, timeout: None };
    channel.messages.send(MemberMessage::Arrival(arrival)).await.expect("open");
    tokio::time::sleep(Duration::from_secs(6)).await;
    let status = handle.status(None).await.expect("runs");
    let lines = report::lines(&status, std_now()).join("\n");
    expect![[r#"
        worker:1 not seen yet for 6 s: connection refused
        barrier `step`, generation 0: 1 of 2 arrived, waiting 6 s for worker:1"#]]
    .assert_eq(&lines);
}

#[tokio::test(start_paused = true)]
async fn task_that_reads_nothing_is_cut_off() {
    let (handle, _running, _shutdown) = start(ProbeOutcome::NoAnswer("timed out".to_owned()));
    let _leader_own = handle.attend(registration(worker(0), 1)).await.expect("accepted");
    let mut channel = handle.attend(registration(worker(1), 2)).await.expect("accepted");
    // Each of these is answered, and no answer is read.
    for _ in 0..EVENTS_MAX + 1 {
        let impossible = BarrierArrival { name: String::new(), generation: 9, timeout: None };
        if channel.messages.send(MemberMessage::Arrival(impossible)).await.is_err() {
            break;
        }
    }
    channel.messages.closed().await;
    let mut waiting = 0;
    while channel.events.recv().await.is_some() {
        waiting += 1;
    }
    assert_eq!(waiting, EVENTS_MAX);
    let row = |status: LeaderStatus| status.rows.into_iter().find(|row| row.task == worker(1)).expect("a row").state;
    assert_eq!(row(handle.status(None).await.expect("runs")), TaskState::Suspect);
    handle.attend(registration(worker(1), 2)).await.expect("it may come back");
    assert_eq!(row(handle.status(None).await.expect("runs")), TaskState::Running);
}

#[tokio::test(start_paused = true)]
async fn probe_that_hangs_counts_as_no_answer() {
    struct Hanging;
    impl Probe for Hanging {
        fn probe(&self, _task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
            Box::pin(std::future::pending())
        }
    }
    let mut options = options(ProbeOutcome::NoAnswer(String::new()));
    options.probe = Arc::new(Hanging);
    let (leader, handle) = Leader::new(options);
    let _running = tokio::spawn(leader.run(CancellationToken::new()));
    let _first = handle.attend(registration(worker(1), 2)).await.expect("accepted");
    // The first keeps its stream open without a word: by the time that the dial is given up it is suspect.
    let refused = handle.attend(registration(worker(1), 3)).await.expect_err("the first may live");
    assert!(matches!(&refused, AttendError::Unreachable(why) if why.contains("no answer from `b:1`")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_job_and_streams_can_be_read_to_their_end() {
    let (handle, running, shutdown) = start(ProbeOutcome::NoAnswer("timed out".to_owned()));
    let mut channel = handle.attend(registration(worker(1), 2)).await.expect("accepted");
    shutdown.cancel();
    let end = running.await.expect("ends");
    assert_eq!(end.cause.as_ref().map(|cause| (cause.task, cause.exit_code)), Some((worker(0), 143)));
    let mut last = None;
    while let Some(event) = channel.events.recv().await {
        last = Some(event);
    }
    assert_eq!(last, Some(LeaderEvent::JobEnded { cause: end.cause }));
    assert!(matches!(handle.attend(registration(worker(1), 2)).await, Err(AttendError::Unreachable(_))));
    assert_eq!(handle.status(None).await, None);
}

#[test]
fn leader_exits_with_its_own_code_or_that_of_a_failure_elsewhere() {
    let cause = |exit_code| Some(Cause { task: worker(1), exit_code, message: String::new() });
    let code = |cause, own| JobEnd { cause }.exit_code(own);
    assert_eq!(code(None, 0), 0);
    assert_eq!(code(None, 1), 1);
    assert_eq!(code(cause(3), 0), 202);
    assert_eq!(code(cause(202), 0), 202);
    assert_eq!(code(cause(201), 0), 201);
    assert_eq!(code(cause(201), 1), 1);
}
