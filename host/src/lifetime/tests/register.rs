//! Who may attend.

use super::*;

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
        0s worker:0 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s worker:2 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s ps:0 <- worker:1 Lost worker:1 was restarted: another incarnation registered
        0s barriers: worker:1 peer-restarted: worker:1 was restarted: another incarnation registered
        0s worker:0 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s worker:2 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s ps:0 <- training ended: worker:1 202 (worker:1 was restarted: another incarnation registered)
        0s barriers: peer-failed: worker:1 was restarted: another incarnation registered
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
        0s ps:0 <- worker:0 Ended 
        0s ps:0 <- training ended: well
    "#]]);
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
        0s worker:0 <- training ended: worker:1 2 (worker:1 runs without --module)
        0s worker:2 <- training ended: worker:1 2 (worker:1 runs without --module)
        0s barriers: peer-failed: worker:1 failed with exit code 2: worker:1 runs without --module
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
        0s barriers: worker:0 left: its run has ended
        0s worker:0 <- worker:0 Ended 
        0s worker:1 <- worker:0 Ended 
        0s barriers: cancelled: the training has ended
        0s worker:0 <- training ended: well
        0s worker:1 <- training ended: well
        0s worker:0 <- job ended: well
        0s worker:1 <- job ended: well
    "#]]);
}

#[test]
fn second_process_of_the_leaders_task_is_refused_at_once() {
    let mut leader = Leader::attended(options());
    leader.attend("worker:0", 2);
    leader.check(expect![[r#"
        0s #4 refused: already-exists: worker:0 leads this job in another process
    "#]]);
}

#[test]
fn evaluators_that_the_job_does_not_have_are_refused() {
    let mut leader = Leader::attended(options());
    leader.attend("evaluator:1", 31);
    leader.check(expect![[r#"
        0s #4 refused: invalid-argument: a job has one evaluator, and evaluator:1 is not that of the leader worker:0
    "#]]);
    leader.attend("evaluator:0", 30);
    leader.check(expect![[r#"
        0s evaluator:0 registered, ended false
    "#]]);
}

/// A leader that were refused would leave at once, and those that it has not told would wait for it without end.
#[test]
fn leader_that_attends_after_the_failure_is_told_of_it_and_stays_for_the_others() {
    let mut leader = Leader::new(options());
    let registration = Registration { module_digest: None, ..leader.registration("worker:1", 11) };
    leader.attend_with(registration);
    leader.lines.clear();
    leader.attend("worker:0", 10);
    leader.check(expect![[r#"
        0s worker:0 registered, ended true
        0s worker:0 <- training ended: worker:1 2 (worker:1 runs without --module)
        0s worker:0 <- job ended: worker:1 2 (worker:1 runs without --module)
    "#]]);
    leader.attend("ps:0", 30);
    leader.check(expect![[r#"
        0s #2 refused: peer-failed: the job has failed: worker:1 failed with exit code 2: worker:1 runs without --module
    "#]]);
}
