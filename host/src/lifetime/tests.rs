//! One test for each sentence of the rules: events in, effects out, on made-up time.

use super::*;
use crate::ids::RunId;
use expect_test::{Expect, expect};

const SECOND: Duration = Duration::from_secs(1);

fn task(name: &str) -> Task {
    let (job, index) = name.split_once(':').expect("job:index");
    Task::new(job.parse().expect("a job"), index.parse().expect("an index"))
}

/// Chief-less cluster of three workers and a ps, led by worker:0.
fn options() -> Options {
    Options {
        leader: task("worker:0"),
        incarnation: Incarnation(1),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1", "c:1"]).with_job(TaskType::Ps, ["p:1"]),
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

/// A leader with made-up time; what happens is written down as lines.
struct Leader {
    lifetime: Lifetime,
    now: Instant,
    start: Instant,
    next: u64,
    lines: Vec<String>,
}

impl Leader {
    fn new(options: Options) -> Self {
        let now = Instant::now();
        Leader { lifetime: Lifetime::new(now, options), now, start: now, next: 0, lines: Vec::new() }
    }

    /// All of the default cluster attend, in this order as connections 0 to 3.
    fn attended(options: Options) -> Self {
        let mut leader = Leader::new(options);
        for name in ["worker:0", "worker:1", "worker:2", "ps:0"] {
            leader.attend(name, incarnation_of(name));
        }
        leader.lines.clear();
        leader
    }

    fn registration(&self, name: &str, incarnation: u64) -> Registration {
        let task = task(name);
        let server = task.job == TaskType::Ps;
        let own = self.lifetime.options();
        Registration {
            task,
            incarnation: Incarnation(incarnation),
            run_id: RunId(incarnation),
            attempt: None,
            mode: own.mode.filter(|_| !server),
            replication: own.replication,
            barrier: own.barrier,
            module_digest: own.module_digest.filter(|_| !server),
            cluster: own.cluster.clone(),
        }
    }

    fn attend(&mut self, name: &str, incarnation: u64) -> ConnectionId {
        let registration = self.registration(name, incarnation);
        self.attend_with(registration)
    }

    fn attend_with(&mut self, registration: Registration) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        let effects = self.lifetime.attend(self.now, connection, registration);
        self.note(effects);
        connection
    }

    fn connection(&self, name: &str) -> ConnectionId {
        self.lifetime.connection_of(task(name)).expect("it attends")
    }

    fn end(&mut self, name: &str, report: EndReport) {
        let effects = self.lifetime.end(self.now, self.connection(name), report);
        self.note(effects);
    }

    fn breaks(&mut self, name: &str) {
        let effects = self.lifetime.broken(self.now, self.connection(name));
        self.note(effects);
    }

    fn probed(&mut self, name: &str, outcome: ProbeOutcome) {
        let effects = self.lifetime.probed(self.now, task(name), outcome);
        self.note(effects);
    }

    /// Lets time pass up to `seconds` after the start, stopping wherever something is due; those in `alive` send
    /// heartbeats, every probe goes unanswered.
    fn until(&mut self, seconds: u64, alive: &[&str]) {
        let end = self.start + SECOND * u32::try_from(seconds).expect("few");
        while self.now < end {
            let due = self.lifetime.next_deadline().unwrap_or(end).clamp(self.now, end);
            self.now = due.min(self.now + HEARTBEAT_INTERVAL);
            for name in alive {
                if let Some(connection) = self.lifetime.connection_of(task(name)) {
                    self.lifetime.heard(self.now, connection);
                }
            }
            let effects = self.lifetime.tick(self.now);
            let probes: Vec<Task> = effects
                .iter()
                .filter_map(|effect| match effect {
                    Effect::Probe { task, .. } => Some(*task),
                    _ => None,
                })
                .collect();
            self.note(effects);
            for task in probes {
                self.probed(&task.to_string(), ProbeOutcome::NoAnswer("timed out".to_owned()));
            }
            // What is due is done: otherwise the service would spin.
            let next = self.lifetime.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "still due at {:?}", self.now - self.start);
        }
    }

    fn note(&mut self, effects: Vec<Effect>) {
        let at = (self.now - self.start).as_secs();
        for effect in effects {
            let who = |connection: ConnectionId| {
                self.lifetime.task_of(connection).map_or_else(|| format!("#{}", connection.0), |task| task.to_string())
            };
            let cause = |cause: &Option<Cause>| match cause {
                None => "well".to_owned(),
                Some(cause) => format!("{} {} ({})", cause.task, cause.exit_code, cause.message),
            };
            let line = match &effect {
                Effect::Answer { connection, result: Ok(registered) } => {
                    format!("{} registered, ended {}", who(*connection), registered.training_ended)
                }
                Effect::Answer { connection, result: Err(error) } => match error {
                    AttendError::Refused(error) => format!("#{} refused: {error}", connection.0),
                    error => format!("#{} {error:?}", connection.0),
                },
                Effect::Send { connection, event } => {
                    let event = match event {
                        LeaderEvent::TrainingEnded { cause: why } => format!("training ended: {}", cause(why)),
                        LeaderEvent::JobEnded { cause: why } => format!("job ended: {}", cause(why)),
                        LeaderEvent::Task { task, state, message } => format!("{task} {state:?} {message}"),
                        event => format!("{event:?}"),
                    };
                    format!("{} <- {event}", who(*connection))
                }
                Effect::Close { connection } => format!("close #{}", connection.0),
                Effect::Probe { task, address } => format!("probe {task} at {address}"),
                Effect::Failed { task, error } => format!("barriers: {task} {error}"),
                Effect::Left { task, message } => format!("barriers: {task} left: {message}"),
                Effect::CancelBarriers { error } => format!("barriers: {error}"),
                Effect::Leave { cause: why } => format!("leave: {}", cause(why)),
            };
            self.lines.push(format!("{at}s {line}\n"));
        }
    }

    fn state(&self, name: &str) -> TaskState {
        let task = task(name);
        self.lifetime.rows().iter().find(|row| row.task == task).expect("it has a row").state
    }

    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&std::mem::take(&mut self.lines).concat());
    }
}

fn incarnation_of(name: &str) -> u64 {
    match name {
        "worker:0" => 1,
        "worker:1" => 11,
        "worker:2" => 12,
        "ps:0" => 20,
        _ => 30,
    }
}

fn done() -> EndReport {
    EndReport { ok: true, exit_code: 0, message: String::new(), leaving: false }
}

fn failed(exit_code: u8, message: &str) -> EndReport {
    EndReport { ok: false, exit_code, message: message.to_owned(), leaving: false }
}

fn leaving() -> EndReport {
    EndReport { ok: false, exit_code: 143, message: "SIGTERM".to_owned(), leaving: true }
}

fn refused() -> ProbeOutcome {
    ProbeOutcome::Refused("connection refused".to_owned())
}

const ALL: [&str; 4] = ["worker:0", "worker:1", "worker:2", "ps:0"];

#[test]
fn rows_are_kept_for_runners_from_the_start_and_for_others_from_their_first_attend() {
    let mut leader = Leader::new(options());
    let tasks = |leader: &Leader| leader.lifetime.rows().iter().map(|row| row.task.to_string()).collect::<Vec<_>>();
    assert_eq!(tasks(&leader), ["worker:0", "worker:1", "worker:2"]);
    leader.attend("ps:0", 20);
    assert_eq!(tasks(&leader), ["ps:0", "worker:0", "worker:1", "worker:2"]);

    let in_graph = Leader::new(Options { replication: Replication::InGraph, ..options() });
    assert_eq!(tasks(&in_graph), ["worker:0"]);
}

#[test]
fn refused_after_a_broken_stream_is_lost_at_once() {
    let mut leader = Leader::attended(options());
    leader.breaks("worker:1");
    leader.check(expect![[r#"
        0s close #1
        0s probe worker:1 at b:1
    "#]]);
    leader.probed("worker:1", refused());
    leader.check(expect![[r#"
        0s barriers: worker:1 peer-failed: worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s worker:0 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s worker:2 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s ps:0 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s barriers: peer-failed: worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s worker:0 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
        0s worker:2 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
        0s ps:0 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
    "#]]);
}

#[test]
fn another_incarnation_behind_the_address_is_lost_at_once() {
    let mut leader = Leader::attended(options());
    leader.breaks("ps:0");
    leader.probed("ps:0", ProbeOutcome::Answered(Incarnation(99)));
    leader.check(expect![[r#"
        0s close #3
        0s probe ps:0 at p:1
        0s barriers: ps:0 peer-restarted: ps:0 was restarted: another incarnation answers
        0s worker:0 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s worker:1 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s worker:2 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s barriers: peer-failed: ps:0 was restarted: another incarnation answers
        0s worker:0 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
        0s worker:1 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
        0s worker:2 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
    "#]]);
}

#[test]
fn no_answer_is_suspect_then_lost_after_the_rejoin_timeout() {
    let mut leader = Leader::attended(options());
    leader.breaks("worker:1");
    leader.probed("worker:1", ProbeOutcome::NoAnswer("timed out".to_owned()));
    assert_eq!(leader.state("worker:1"), TaskState::Suspect);
    leader.until(29, &ALL);
    assert_eq!(leader.state("worker:1"), TaskState::Suspect);
    leader.lines.clear();
    leader.until(30, &ALL);
    leader.check(expect![[r#"
        30s barriers: worker:1 peer-failed: worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s worker:0 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s worker:2 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s ps:0 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s barriers: peer-failed: worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s worker:0 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
        30s worker:2 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
        30s ps:0 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
    "#]]);
}

#[test]
fn same_incarnation_that_attends_again_is_running() {
    let mut leader = Leader::attended(options());
    leader.breaks("worker:1");
    leader.probed("worker:1", ProbeOutcome::NoAnswer("timed out".to_owned()));
    leader.until(20, &ALL);
    leader.lines.clear();
    leader.attend("worker:1", 11);
    leader.check(expect![[r#"
        20s worker:0 <- worker:1 Running it is back
        20s worker:2 <- worker:1 Running it is back
        20s ps:0 <- worker:1 Running it is back
        20s worker:1 registered, ended false
    "#]]);
    leader.until(100, &ALL);
    assert_eq!(leader.state("worker:1"), TaskState::Running);
}

#[test]
fn stream_that_reopens_at_once_is_no_news_to_others() {
    let mut leader = Leader::attended(options());
    leader.attend("worker:1", 11);
    leader.check(expect![[r#"
        0s close #1
        0s worker:1 registered, ended false
    "#]]);
}

#[test]
fn silence_counts_as_a_broken_stream() {
    let mut leader = Leader::attended(options());
    leader.until(9, &["worker:0", "worker:2", "ps:0"]);
    leader.check(expect![""]);
    leader.until(10, &["worker:0", "worker:2", "ps:0"]);
    leader.check(expect![[r#"
        10s close #1
        10s probe worker:1 at b:1
        10s worker:0 <- worker:1 Suspect it sent no heartbeat; timed out
        10s worker:2 <- worker:1 Suspect it sent no heartbeat; timed out
        10s ps:0 <- worker:1 Suspect it sent no heartbeat; timed out
    "#]]);
}

#[test]
fn runner_never_seen_is_lost_after_the_connect_timeout() {
    let mut leader = Leader::new(options());
    leader.attend("worker:0", 1);
    leader.attend("worker:2", 12);
    leader.until(59, &ALL);
    assert_eq!(leader.state("worker:1"), TaskState::NeverSeen);
    leader.lines.clear();
    leader.until(60, &ALL);
    leader.check(expect![[r#"
        60s barriers: worker:1 peer-failed: worker:1 did not attend within 1m (--connect-timeout): timed out
        60s worker:0 <- worker:1 Lost worker:1 did not attend within 1m (--connect-timeout): timed out
        60s worker:2 <- worker:1 Lost worker:1 did not attend within 1m (--connect-timeout): timed out
        60s barriers: peer-failed: worker:1 did not attend within 1m (--connect-timeout): timed out
        60s worker:0 <- training ended: worker:1 201 (worker:1 did not attend within 1m (--connect-timeout): timed out)
        60s worker:2 <- training ended: worker:1 201 (worker:1 did not attend within 1m (--connect-timeout): timed out)
    "#]]);
}

#[test]
fn ps_never_seen_matters_to_nobody() {
    let mut leader = Leader::new(options());
    for name in ["worker:0", "worker:1", "worker:2"] {
        leader.attend(name, incarnation_of(name));
    }
    leader.lines.clear();
    leader.until(200, &ALL);
    leader.check(expect![""]);
}

#[test]
fn silent_tasks_are_reported_with_the_last_probe_error() {
    let mut leader = Leader::new(options());
    leader.attend("worker:0", 1);
    leader.attend("worker:2", 12);
    leader.until(1, &ALL);
    let silent = leader.lifetime.silent(leader.now);
    assert!(matches!(&silent[..], [Silent { reason, .. }] if reason == "not dialled yet"), "{silent:?}");
    leader.until(6, &ALL);
    leader.probed("worker:1", refused());
    let silent = leader.lifetime.silent(leader.now);
    let expected = Silent {
        task: task("worker:1"),
        state: TaskState::NeverSeen,
        silent_for: SECOND * 6,
        reason: "connection refused".to_owned(),
    };
    // Being refused is no loss for a task that was never seen: it may not have started.
    assert_eq!(silent, [expected]);
}

#[test]
fn evaluator_never_ends_an_attempt() {
    let mut leader = Leader::attended(options());
    leader.attend("evaluator:0", 30);
    leader.end("evaluator:0", failed(1, "no checkpoint"));
    leader.attend("evaluator:0", 31);
    leader.breaks("evaluator:0");
    leader.until(60, &ALL);
    leader.check(expect![[r#"
        0s evaluator:0 registered, ended false
        0s evaluator:0 <- evaluator:0 Ended no checkpoint
        0s close #4
        0s evaluator:0 registered, ended false
        0s close #5
        0s worker:0 <- evaluator:0 Suspect its attend stream broke; it has no server to dial
        0s worker:1 <- evaluator:0 Suspect its attend stream broke; it has no server to dial
        0s worker:2 <- evaluator:0 Suspect its attend stream broke; it has no server to dial
        0s ps:0 <- evaluator:0 Suspect its attend stream broke; it has no server to dial
        30s barriers: evaluator:0 peer-failed: evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s worker:0 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s worker:1 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s worker:2 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s ps:0 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
    "#]]);
    assert_eq!(leader.state("evaluator:0"), TaskState::Lost);
    assert!(!leader.lifetime.training_ended());
}

#[test]
fn failed_run_ends_the_training_with_its_code() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", failed(3, "unreachable executed"));
    leader.check(expect![[r#"
        0s worker:1 <- worker:1 Ended unreachable executed
        0s barriers: worker:1 peer-failed: worker:1 failed with exit code 3: unreachable executed
        0s barriers: peer-failed: worker:1 failed with exit code 3: unreachable executed
        0s worker:0 <- training ended: worker:1 3 (unreachable executed)
        0s worker:1 <- training ended: worker:1 3 (unreachable executed)
        0s worker:2 <- training ended: worker:1 3 (unreachable executed)
        0s ps:0 <- training ended: worker:1 3 (unreachable executed)
    "#]]);
    // The first cause stays.
    leader.end("worker:2", failed(1, "later"));
    assert_eq!(leader.lifetime.cause().map(|cause| cause.task), Some(task("worker:1")));
}

#[test]
fn consequence_waits_for_the_loss_that_caused_it() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", failed(202, "ps:0 is gone"));
    leader.breaks("ps:0");
    leader.probed("ps:0", refused());
    assert_eq!(leader.lifetime.cause().map(|cause| cause.task), Some(task("ps:0")));

    let mut alone = Leader::attended(options());
    alone.end("worker:1", failed(202, "ps:0 is gone"));
    alone.until(1, &ALL);
    assert!(!alone.lifetime.training_ended());
    alone.until(2, &ALL);
    assert_eq!(alone.lifetime.cause().map(|cause| cause.task), Some(task("worker:1")));
}

#[test]
fn training_ends_when_every_runner_has_ended_and_the_leader_leaves_last() {
    let mut leader = Leader::attended(options());
    leader.end("worker:0", done());
    leader.end("worker:1", done());
    leader.breaks("worker:1");
    leader.until(50, &ALL);
    assert!(!leader.lifetime.training_ended());
    leader.lines.clear();
    leader.end("worker:2", done());
    leader.check(expect![[r#"
        50s worker:2 <- worker:2 Ended 
        50s barriers: worker:2 left: its run has ended
        50s barriers: cancelled: the training has ended
        50s worker:0 <- training ended: well
        50s worker:2 <- training ended: well
        50s ps:0 <- training ended: well
        50s worker:0 <- job ended: well
        50s worker:2 <- job ended: well
        50s ps:0 <- job ended: well
    "#]]);
    leader.breaks("worker:2");
    leader.check(expect![[r#"
        50s close #2
    "#]]);
    leader.breaks("ps:0");
    leader.check(expect![[r#"
        50s close #3
        50s leave: well
    "#]]);
}

#[test]
fn leader_leaves_ten_seconds_after_job_ended_whoever_stays() {
    let mut leader = Leader::attended(options());
    for name in ["worker:0", "worker:1", "worker:2"] {
        leader.end(name, done());
    }
    leader.lines.clear();
    leader.until(9, &ALL);
    leader.check(expect![""]);
    leader.until(10, &ALL);
    leader.check(expect![[r#"
        10s leave: well
    "#]]);
}

#[test]
fn chief_done_ends_the_training_for_the_others() {
    let mut leader = Leader::attended(Options { end: EndRule::ChiefDone, ..options() });
    leader.end("worker:1", done());
    leader.lines.clear();
    leader.end("worker:0", done());
    leader.check(expect![[r#"
        0s worker:0 <- worker:0 Ended 
        0s barriers: worker:0 left: its run has ended
        0s barriers: cancelled: the training has ended
        0s worker:0 <- training ended: well
        0s worker:1 <- training ended: well
        0s worker:2 <- training ended: well
        0s ps:0 <- training ended: well
    "#]]);
    // Its guest is given up after 10 s; the leader waits a little longer for its report.
    leader.until(14, &ALL);
    leader.check(expect![""]);
    leader.until(15, &ALL);
    leader.check(expect![[r#"
        15s worker:0 <- job ended: well
        15s worker:1 <- job ended: well
        15s worker:2 <- job ended: well
        15s ps:0 <- job ended: well
    "#]]);
}

#[test]
fn end_never_stays_unless_the_job_fails() {
    let mut well = Leader::attended(Options { end: EndRule::Never, ..options() });
    well.attend("evaluator:0", 30);
    for name in ["worker:0", "worker:1", "worker:2"] {
        well.end(name, done());
    }
    well.until(600, &["worker:0", "worker:1", "worker:2", "ps:0", "evaluator:0"]);
    assert!(well.lifetime.training_ended());
    assert!(!well.lines.concat().contains("job ended"), "{}", well.lines.concat());
    well.lines.clear();
    let effects = well.lifetime.stop(well.now);
    well.note(effects);
    well.check(expect![[r#"
        600s worker:0 <- job ended: well
        600s worker:1 <- job ended: well
        600s worker:2 <- job ended: well
        600s ps:0 <- job ended: well
        600s evaluator:0 <- job ended: well
        600s leave: well
    "#]]);

    let mut ill = Leader::attended(Options { end: EndRule::Never, ..options() });
    for name in ["worker:0", "worker:1", "worker:2"] {
        ill.end(name, failed(1, "no"));
    }
    assert!(ill.lines.concat().contains("ps:0 <- job ended: worker:0 1 (no)"), "{}", ill.lines.concat());
}

#[test]
fn evaluators_have_their_grace_and_none_after_a_failure() {
    let mut leader = Leader::attended(options());
    leader.attend("evaluator:0", 30);
    for name in ["worker:0", "worker:1", "worker:2"] {
        leader.end(name, done());
    }
    leader.lines.clear();
    let alive = ["worker:0", "worker:1", "worker:2", "ps:0", "evaluator:0"];
    leader.until(19, &alive);
    leader.check(expect![""]);
    leader.until(20, &alive);
    leader.check(expect![[r#"
        20s worker:0 <- job ended: well
        20s worker:1 <- job ended: well
        20s worker:2 <- job ended: well
        20s ps:0 <- job ended: well
        20s evaluator:0 <- job ended: well
    "#]]);

    let mut early = Leader::attended(options());
    early.attend("evaluator:0", 30);
    for name in ["worker:0", "worker:1", "worker:2", "evaluator:0"] {
        early.end(name, done());
    }
    assert!(early.lines.concat().ends_with("evaluator:0 <- job ended: well\n"), "{}", early.lines.concat());

    let mut failing = Leader::attended(options());
    failing.attend("evaluator:0", 30);
    for name in ["worker:0", "worker:1", "worker:2"] {
        failing.end(name, failed(1, "no"));
    }
    assert!(failing.lines.concat().contains("evaluator:0 <- job ended: worker:0 1 (no)"), "{}", failing.lines.concat());
}

#[test]
fn second_incarnation_is_refused_while_the_first_answers() {
    let mut leader = Leader::attended(options());
    leader.attend("worker:1", 98);
    leader.check(expect![[r#"
        0s probe worker:1 at b:1
    "#]]);
    leader.probed("worker:1", ProbeOutcome::Answered(Incarnation(11)));
    leader.check(expect![[r#"
        0s #4 refused: already-exists: another process runs worker:1 already (incarnation 000000000000000b): stop it, or give this one another index
    "#]]);
}

#[test]
fn second_incarnation_behind_the_same_address_loses_the_first() {
    let mut leader = Leader::attended(options());
    leader.attend("worker:1", 98);
    leader.lines.clear();
    leader.probed("worker:1", ProbeOutcome::Answered(Incarnation(98)));
    leader.check(expect![[r#"
        0s close #1
        0s barriers: worker:1 peer-restarted: worker:1 was restarted: another incarnation registered
        0s worker:0 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s worker:2 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s ps:0 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s barriers: peer-failed: worker:1 was restarted: another incarnation registered
        0s worker:0 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s worker:2 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s ps:0 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s #4 refused: peer-failed: the job has failed: worker:1 was restarted: another incarnation registered
    "#]]);
}

#[test]
fn second_incarnation_of_a_suspect_comes_again() {
    let mut leader = Leader::attended(options());
    leader.breaks("worker:1");
    leader.probed("worker:1", ProbeOutcome::NoAnswer("timed out".to_owned()));
    leader.lines.clear();
    leader.attend("worker:1", 98);
    leader.probed("worker:1", ProbeOutcome::NoAnswer("timed out".to_owned()));
    leader.check(expect![[r#"
        0s probe worker:1 at b:1
        0s #4 Unreachable("an earlier process of worker:1 may still live: timed out")
    "#]]);
}

#[test]
fn second_unlisted_evaluator_is_refused_without_dialling() {
    let mut leader = Leader::attended(options());
    leader.attend("evaluator:0", 30);
    leader.lines.clear();
    leader.attend("evaluator:0", 31);
    leader.check(expect![[r#"
        0s #5 refused: already-exists: another process runs evaluator:0 already (incarnation 000000000000001e): stop it, or give this one another index
    "#]]);
}

#[test]
fn ended_task_that_comes_back_is_told_that_its_part_is_complete() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", done());
    leader.breaks("worker:1");
    leader.lines.clear();
    leader.attend("worker:1", 98);
    leader.check(expect![[r#"
        0s #4 Complete
    "#]]);
    // The same process may have lost the acknowledgement.
    leader.attend("worker:1", 11);
    leader.end("worker:1", done());
    leader.check(expect![[r#"
        0s worker:1 registered, ended false
        0s worker:1 <- worker:1 Ended 
    "#]]);
}

#[test]
fn task_that_comes_back_to_a_failed_job_is_refused_with_the_cause() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", failed(1, "no"));
    leader.breaks("worker:1");
    leader.lines.clear();
    leader.attend("worker:1", 98);
    leader.check(expect![[r#"
        0s #4 refused: peer-failed: the job has failed: worker:1 failed with exit code 1: no
    "#]]);
}

#[test]
fn task_that_left_does_not_end_the_training_but_the_leader_does() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", leaving());
    leader.breaks("worker:1");
    leader.attend("worker:1", 98);
    assert!(!leader.lifetime.training_ended());
    leader.check(expect![[r#"
        0s worker:1 <- worker:1 Ended SIGTERM
        0s barriers: worker:1 left: SIGTERM
        0s close #1
        0s #4 refused: aborted: an earlier process of worker:1 left this attempt, which goes on without it
    "#]]);
    leader.end("worker:0", leaving());
    leader.check(expect![[r#"
        0s worker:0 <- worker:0 Ended SIGTERM
        0s barriers: worker:0 left: SIGTERM
        0s barriers: peer-failed: worker:0 left: SIGTERM
        0s worker:0 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
        0s worker:2 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
        0s ps:0 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
    "#]]);
}

#[test]
fn stop_ends_the_job_at_once() {
    let mut leader = Leader::attended(options());
    let effects = leader.lifetime.stop(leader.now);
    leader.note(effects);
    leader.check(expect![[r#"
        0s barriers: peer-failed: worker:0: the leader was told to stop
        0s worker:0 <- training ended: worker:0 143 (the leader was told to stop)
        0s worker:1 <- training ended: worker:0 143 (the leader was told to stop)
        0s worker:2 <- training ended: worker:0 143 (the leader was told to stop)
        0s ps:0 <- training ended: worker:0 143 (the leader was told to stop)
        0s worker:0 <- job ended: worker:0 143 (the leader was told to stop)
        0s worker:1 <- job ended: worker:0 143 (the leader was told to stop)
        0s worker:2 <- job ended: worker:0 143 (the leader was told to stop)
        0s ps:0 <- job ended: worker:0 143 (the leader was told to stop)
        0s leave: worker:0 143 (the leader was told to stop)
    "#]]);
}

#[test]
fn late_ps_learns_that_the_training_has_ended() {
    let mut leader = Leader::new(options());
    leader.attend("evaluator:0", 30);
    for name in ["worker:0", "worker:1", "worker:2"] {
        leader.attend(name, incarnation_of(name));
        leader.end(name, done());
    }
    leader.lines.clear();
    leader.attend("ps:0", 20);
    leader.check(expect![[r#"
        0s ps:0 registered, ended true
        0s ps:0 <- training ended: well
    "#]]);
}

#[test]
fn leader_without_module_serves_and_never_ends() {
    let mut leader = Leader::new(Options { mode: None, module_digest: None, ..options() });
    leader.attend("worker:1", 11);
    leader.end("worker:1", failed(1, "no"));
    leader.attend("worker:1", 12);
    leader.breaks("worker:1");
    leader.probed("worker:1", refused());
    leader.attend("worker:1", 13);
    leader.until(1000, &["worker:1"]);
    assert_eq!(leader.state("worker:1"), TaskState::Running);
    assert!(!leader.lifetime.training_ended());
}

#[test]
fn mismatches_are_refused_naming_both_values() {
    let check = |change: &dyn Fn(&mut Registration), expected: Expect| {
        let mut leader = Leader::new(options());
        let mut registration = leader.registration("worker:1", 11);
        change(&mut registration);
        leader.attend_with(registration);
        leader.check(expected);
    };
    check(
        &|registration| registration.mode = Some(Mode::SplitClient),
        expect![[r#"
        0s #0 refused: failed-precondition: worker:1 runs as split-client, but its leader worker:0 as independent-worker
    "#]],
    );
    check(
        &|registration| registration.replication = Replication::InGraph,
        expect![[r#"
        0s #0 refused: failed-precondition: worker:1 runs in-graph, but its leader worker:0 between-graph: give all tasks the same --replication
    "#]],
    );
    check(
        &|registration| registration.barrier = false,
        expect![[r#"
        0s #0 refused: failed-precondition: worker:1 runs without the cluster barrier, but its leader worker:0 with it: give --no-cluster-barrier to all tasks or to none
    "#]],
    );
    check(
        &|registration| registration.module_digest = Some([8; 32]),
        expect![[r#"
        0s #0 refused: failed-precondition: worker:1 runs the module sha256:08080808080808080808080808080808, but its leader worker:0 sha256:07070707070707070707070707070707: give all tasks the same file
    "#]],
    );
    check(
        &|registration| registration.cluster.insert(task("ps:0"), "q:1"),
        expect![[r#"
        0s #0 refused: failed-precondition: worker:1 and its leader worker:0 disagree about the cluster: ps:0 is at `q:1` for worker:1, at `p:1` for worker:0
    "#]],
    );
    check(
        &|registration| registration.task = task("worker:3"),
        expect![[r#"
        0s #0 refused: invalid-argument: the cluster of the leader worker:0 has no worker:3: its job `worker` has 3 tasks, and a running job takes no more
    "#]],
    );
    check(
        &|registration| registration.task = task("client:0"),
        expect![[r#"
        0s #0 refused: failed-precondition: a client does not attend a leader: it is the leader of its own run (client:0)
    "#]],
    );
    check(
        &|registration| registration.attempt = Some(Attempt { leader: Incarnation(5), number: 0 }),
        expect![[r#"
        0s #0 refused: peer-restarted: the leader worker:0 was restarted: the run of worker:1 belongs to the one before
    "#]],
    );
    // What only one side has is not compared: evaluators, and tasks of a sparse view.
    check(
        &|registration| registration.cluster.insert(task("evaluator:0"), "e:1"),
        expect![[r#"
        0s worker:1 registered, ended false
    "#]],
    );
    check(
        &|registration| registration.cluster = ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]),
        expect![[r#"
            0s worker:1 registered, ended false
        "#]],
    );
}

#[test]
fn refused_runner_is_reported_as_such() {
    let mut leader = Leader::new(options());
    leader.attend("worker:0", 1);
    leader.attend("worker:2", 12);
    let mut registration = leader.registration("worker:1", 11);
    registration.barrier = false;
    leader.attend_with(registration);
    leader.until(7, &ALL);
    let silent = leader.lifetime.silent(leader.now);
    assert!(
        matches!(&silent[..], [Silent { reason, .. }] if reason.contains("refused: worker:1 runs without the cluster")),
        "{silent:?}"
    );
}

#[test]
fn runner_without_module_fails_the_job_at_once() {
    let mut leader = Leader::new(options());
    leader.attend("worker:0", 1);
    leader.attend("worker:2", 12);
    leader.lines.clear();
    let mut registration = leader.registration("worker:1", 11);
    (registration.mode, registration.module_digest) = (None, None);
    leader.attend_with(registration);
    leader.check(expect![[r#"
        0s #2 refused: failed-precondition: worker:1 runs without --module, and the leader worker:0 runs worker_fn: give every chief and worker the same --module
        0s barriers: worker:1 peer-failed: worker:1 failed with exit code 2: worker:1 runs without --module
        0s barriers: peer-failed: worker:1 failed with exit code 2: worker:1 runs without --module
        0s worker:0 <- training ended: worker:1 2 (worker:1 runs without --module)
        0s worker:2 <- training ended: worker:1 2 (worker:1 runs without --module)
    "#]]);
}

#[test]
fn module_under_a_leader_without_one_is_refused() {
    let mut leader = Leader::new(Options { mode: None, module_digest: None, ..options() });
    let mut registration = leader.registration("worker:1", 11);
    (registration.mode, registration.module_digest) = (Some(Mode::IndependentWorker), Some([7; 32]));
    leader.attend_with(registration);
    leader.check(expect![[r#"
        0s #0 refused: failed-precondition: worker:1 runs as independent-worker, but its leader worker:0 as a standard server without --module
    "#]]);
}

#[test]
fn joined_worker_of_an_in_graph_job_needs_no_module() {
    let mut leader = Leader::new(Options { replication: Replication::InGraph, barrier: false, ..options() });
    leader.attend("worker:0", 1);
    let mut registration = leader.registration("worker:1", 11);
    (registration.mode, registration.module_digest) = (None, None);
    leader.attend_with(registration);
    leader.end("worker:0", done());
    leader.check(expect![[r#"
        0s worker:0 registered, ended false
        0s worker:1 registered, ended false
        0s worker:0 <- worker:0 Ended 
        0s barriers: worker:0 left: its run has ended
        0s barriers: cancelled: the training has ended
        0s worker:0 <- training ended: well
        0s worker:1 <- training ended: well
        0s worker:0 <- job ended: well
        0s worker:1 <- job ended: well
    "#]]);
}
