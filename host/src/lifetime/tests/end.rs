//! How the training and the job end, and who leaves when.

use super::*;

#[test]
fn failed_run_ends_the_training_with_its_code() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", failed(3, "unreachable executed"));
    leader.check(expect![[r#"
        0s barriers: worker:1 peer-failed: worker:1 failed with exit code 3: unreachable executed
        0s worker:0 <- training ended: worker:1 3 (unreachable executed)
        0s worker:1 <- training ended: worker:1 3 (unreachable executed)
        0s worker:2 <- training ended: worker:1 3 (unreachable executed)
        0s ps:0 <- training ended: worker:1 3 (unreachable executed)
        0s barriers: peer-failed: worker:1 failed with exit code 3: unreachable executed
        0s worker:1 <- worker:1 Ended unreachable executed
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
        50s barriers: worker:2 left: its run has ended
        50s worker:2 <- worker:2 Ended 
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
        0s worker:1 <- worker:0 Ended 
        0s worker:2 <- worker:0 Ended 
        0s ps:0 <- worker:0 Ended 
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
fn task_that_left_does_not_end_the_training_but_the_leader_does() {
    let mut leader = Leader::attended(options());
    leader.end("worker:1", leaving());
    leader.breaks("worker:1");
    leader.attend("worker:1", 98);
    assert!(!leader.lifetime.training_ended());
    leader.check(expect![[r#"
        0s barriers: worker:1 left: SIGTERM
        0s worker:1 <- worker:1 Ended SIGTERM
        0s close #1
        0s #4 refused: aborted: an earlier process of worker:1 left this attempt, which goes on without it
    "#]]);
    leader.end("worker:0", leaving());
    leader.check(expect![[r#"
        0s barriers: worker:0 left: SIGTERM
        0s worker:0 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
        0s worker:2 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
        0s ps:0 <- training ended: worker:0 143 (worker:0 left: SIGTERM)
        0s barriers: peer-failed: worker:0 left: SIGTERM
        0s worker:0 <- worker:0 Ended SIGTERM
        0s worker:2 <- worker:0 Ended SIGTERM
        0s ps:0 <- worker:0 Ended SIGTERM
    "#]]);
}

#[test]
fn stop_ends_the_job_at_once() {
    let mut leader = Leader::attended(options());
    let effects = leader.lifetime.stop(leader.now);
    leader.note(effects);
    leader.check(expect![[r#"
        0s worker:0 <- training ended: worker:0 143 (the leader was told to stop)
        0s worker:1 <- training ended: worker:0 143 (the leader was told to stop)
        0s worker:2 <- training ended: worker:0 143 (the leader was told to stop)
        0s ps:0 <- training ended: worker:0 143 (the leader was told to stop)
        0s barriers: peer-failed: worker:0: the leader was told to stop
        0s worker:0 <- job ended: worker:0 143 (the leader was told to stop)
        0s worker:1 <- job ended: worker:0 143 (the leader was told to stop)
        0s worker:2 <- job ended: worker:0 143 (the leader was told to stop)
        0s ps:0 <- job ended: worker:0 143 (the leader was told to stop)
        0s leave: worker:0 143 (the leader was told to stop)
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

/// Aim: a task that comes after the failure hears of it, rather than waiting for a leader that has gone.
#[test]
fn leader_that_failed_stays_for_listed_tasks_that_have_not_attended() {
    let mut leader = Leader::new(options());
    leader.attend("worker:0", 1);
    leader.attend("worker:1", 11);
    leader.end("worker:0", failed(1, "bad shard"));
    leader.end("worker:1", failed(202, "worker:0 failed"));
    leader.breaks("worker:1");
    leader.lines.clear();
    leader.attend("ps:0", 20);
    leader.check(expect![[r#"
        0s #2 refused: peer-failed: the job has failed: worker:0 failed with exit code 1: bad shard
    "#]]);
    leader.attend("worker:2", 12);
    leader.check(expect![[r#"
        0s #3 refused: peer-failed: the job has failed: worker:0 failed with exit code 1: bad shard
        0s leave: worker:0 1 (bad shard)
    "#]]);
}

#[test]
fn leader_that_failed_leaves_after_ten_seconds_or_the_connect_timeout_whoever_never_came() {
    for (connect_timeout, leaves) in [(60, 10), (4, 4)] {
        let mut leader = Leader::new(Options { connect_timeout: SECOND * connect_timeout, ..options() });
        leader.attend("worker:0", 1);
        leader.end("worker:0", failed(1, "bad shard"));
        leader.lines.clear();
        leader.until(leaves - 1, &["worker:0"]);
        assert!(leader.lines.is_empty(), "{:?}", leader.lines);
        leader.until(leaves, &["worker:0"]);
        let last = leader.lines.last().map(String::as_str);
        assert_eq!(last, Some(format!("{leaves}s leave: worker:0 1 (bad shard)\n").as_str()));
    }
}

/// Aim: the order of start does not matter, not even to a job that is over in no time.
#[test]
fn job_that_ended_well_waits_for_listed_tasks_that_have_not_attended() {
    let mut options = options();
    options.cluster = options.cluster.with_job(TaskType::Evaluator, ["e:1"]);
    let workers = ["worker:0", "worker:1", "worker:2"];
    let ended = |options: Options| {
        let mut leader = Leader::new(options);
        for name in workers {
            leader.attend(name, incarnation_of(name));
        }
        for name in workers {
            leader.end(name, done());
        }
        leader.lines.clear();
        leader
    };
    // A late evaluator still has its run, a late ps is told that nothing is left to do.
    let mut leader = ended(options.clone());
    leader.until(3, &workers);
    leader.attend("evaluator:0", 30);
    leader.end("evaluator:0", done());
    for name in ["worker:1", "worker:2", "evaluator:0"] {
        leader.breaks(name);
    }
    leader.lines.clear();
    leader.attend("ps:0", 20);
    leader.check(expect![[r#"
        3s #4 Complete
        3s leave: well
    "#]]);
    // Nobody comes: the evaluator's time, then the ps's.
    let mut leader = ended(options);
    leader.until(60, &workers);
    leader.check(expect![[r#"
        10s worker:0 <- job ended: well
        10s worker:1 <- job ended: well
        10s worker:2 <- job ended: well
        20s leave: well
    "#]]);
}
