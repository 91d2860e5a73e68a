//! Who is seen, silent and lost.

use super::*;

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
        0s worker:0 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s worker:2 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s ps:0 <- worker:1 Lost worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s barriers: worker:1 peer-failed: worker:1 is gone: its attend stream broke, and dialling it: connection refused
        0s worker:0 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
        0s worker:2 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
        0s ps:0 <- training ended: worker:1 202 (worker:1 is gone: its attend stream broke, and dialling it: connection refused)
        0s barriers: peer-failed: worker:1 is gone: its attend stream broke, and dialling it: connection refused
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
        0s worker:0 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s worker:1 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s worker:2 <- ps:0 Lost ps:0 was restarted: another incarnation answers
        0s barriers: ps:0 peer-restarted: ps:0 was restarted: another incarnation answers
        0s worker:0 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
        0s worker:1 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
        0s worker:2 <- training ended: ps:0 202 (ps:0 was restarted: another incarnation answers)
        0s barriers: peer-failed: ps:0 was restarted: another incarnation answers
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
        30s worker:0 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s worker:2 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s ps:0 <- worker:1 Lost worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s barriers: worker:1 peer-failed: worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
        30s worker:0 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
        30s worker:2 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
        30s ps:0 <- training ended: worker:1 202 (worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out)
        30s barriers: peer-failed: worker:1 did not come back within 30s (--rejoin-timeout): its attend stream broke; timed out
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
        60s worker:0 <- worker:1 Lost worker:1 did not attend within 1m (--connect-timeout): timed out
        60s worker:2 <- worker:1 Lost worker:1 did not attend within 1m (--connect-timeout): timed out
        60s worker:0 <- training ended: worker:1 201 (worker:1 did not attend within 1m (--connect-timeout): timed out)
        60s worker:2 <- training ended: worker:1 201 (worker:1 did not attend within 1m (--connect-timeout): timed out)
        60s barriers: peer-failed: worker:1 did not attend within 1m (--connect-timeout): timed out
        60s barriers: worker:1 peer-failed: worker:1 did not attend within 1m (--connect-timeout): timed out
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
    let reasons = |leader: &Leader| -> Vec<String> {
        leader.lifetime.silent(leader.now).into_iter().map(|silent| silent.reason).collect()
    };
    assert_eq!(reasons(&leader), ["not dialled yet"]);
    // Dialled after 2 s; nobody answers the dial here.
    leader.now += SECOND * 5;
    leader.lifetime.tick(leader.now);
    assert_eq!(reasons(&leader), ["dialled, no answer yet"]);
    leader.probed("worker:1", refused());
    let silent = leader.lifetime.silent(leader.now);
    let expected = Silent {
        task: task("worker:1"),
        state: TaskState::NeverSeen,
        silent_for: SECOND * 5,
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
        30s worker:0 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s worker:1 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s worker:2 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s ps:0 <- evaluator:0 Lost evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
        30s barriers: evaluator:0 peer-failed: evaluator:0 did not come back within 30s (--rejoin-timeout): its attend stream broke; it has no server to dial
    "#]]);
    assert_eq!(leader.state("evaluator:0"), TaskState::Lost);
    assert!(!leader.lifetime.training_ended());
}
