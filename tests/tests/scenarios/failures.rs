//! Jobs that fail: who is blamed, how fast the others know, and with which codes all end.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Signal};
use std::time::{Duration, Instant};

/// How soon the others shall have ended after a failure that nobody has to wait for; room for a slow machine included.
const SECONDS: Duration = Duration::from_secs(30);

#[test]
fn a_ps_that_never_starts_is_named_at_the_connect_deadline() -> Result<()> {
    let builder = Cluster::builder().workers(1).ps(2).guest("counter").absent("ps:0");
    let cluster = builder.flags(["--connect-timeout", "3s"]).start()?;
    let outcome = cluster.task("worker:0").wait(PATIENCE).with_context(|| cluster.report())?;
    assert_eq!(outcome.code, 201, "{}", cluster.report());
    assert!(outcome.output.contains("ps:0"), "{}", cluster.report());
    Ok(())
}

#[test]
fn a_worker_that_never_starts_is_named_at_the_connect_deadline() -> Result<()> {
    let builder = Cluster::builder().workers(2).ps(1).guest("barrier_loop").absent("worker:1");
    let outcomes = builder.flags(["--connect-timeout", "3s"]).start()?.wait_all(PATIENCE)?;
    assert_eq!(outcomes["worker:0"].code, 201, "{}", outcomes.report());
    outcomes.expect_output("worker:0", "worker:1");
    assert_ne!(outcomes["ps:0"].code, 0, "{}", outcomes.report());
    Ok(())
}

#[test]
fn a_worker_without_module_fails_the_job_at_once() -> Result<()> {
    let builder = Cluster::builder().workers(2).ps(1).guest("barrier_loop").without_module("worker:1");
    let outcomes = builder.start()?.wait_all(SECONDS)?;
    outcomes.expect_output("worker:0", "worker:1 runs without --module");
    outcomes.expect_output("worker:1", "--module");
    assert_eq!(outcomes["worker:1"].code, 2, "{}", outcomes.report());
    assert_eq!(outcomes["worker:0"].code, 202, "{}", outcomes.report());
    Ok(())
}

#[test]
fn an_error_of_one_worker_ends_the_job_and_names_it() -> Result<()> {
    let builder = Cluster::builder().workers(3).ps(1).guest("fails_after").guest_args(["1", "error"]);
    let outcomes = builder.start()?.wait_all(SECONDS)?;
    outcomes.expect_codes([("ps:0", 202), ("worker:0", 202), ("worker:1", 1), ("worker:2", 202)]);
    for task in ["worker:0", "worker:2"] {
        outcomes.expect_output(task, "second barrier: peer-failed [worker:1]");
    }
    outcomes.expect_output("worker:1", "gone after the first barrier");
    outcomes.expect_output("ps:0", "worker:1");
    Ok(())
}

#[test]
fn a_trap_of_the_leaders_guest_ends_the_job_and_names_it() -> Result<()> {
    let builder = Cluster::builder().workers(3).ps(1).guest("fails_after").guest_args(["0", "panic"]);
    let outcomes = builder.start()?.wait_all(SECONDS)?;
    outcomes.expect_codes([("ps:0", 202), ("worker:0", 3), ("worker:1", 202), ("worker:2", 202)]);
    for task in ["worker:1", "worker:2"] {
        outcomes.expect_output(task, "second barrier: peer-failed [worker:0]");
    }
    Ok(())
}

#[test]
fn who_leaves_before_a_barrier_is_named_by_it() -> Result<()> {
    for ending in ["return", "exit-well"] {
        let builder = Cluster::builder().workers(3).guest("fails_after").guest_args(["1", ending]);
        let outcomes = builder.start()?.wait_all(SECONDS)?;
        for task in ["worker:0", "worker:2"] {
            outcomes.expect_output(task, "second barrier: aborted [worker:1]");
            outcomes.expect_output(task, "worker:1 left without arriving");
            assert_eq!(outcomes[task].code, 201, "{}", outcomes.report());
        }
    }
    Ok(())
}

#[test]
fn a_guest_that_exits_with_a_failure_has_failed_for_the_others() -> Result<()> {
    let builder = Cluster::builder().workers(3).guest("fails_after").guest_args(["1", "exit"]);
    let outcomes = builder.start()?.wait_all(SECONDS)?;
    outcomes.expect_codes([("worker:0", 202), ("worker:1", 1), ("worker:2", 202)]);
    for task in ["worker:0", "worker:2"] {
        outcomes.expect_output(task, "second barrier: peer-failed [worker:1]");
    }
    Ok(())
}

/// Aim: a signal while a failed task waits for the others loses neither its code nor its message. Method: a leader that fails
/// while another's guest never yields, so that the leader has to wait.
#[test]
fn a_signal_does_not_replace_a_failure() -> Result<()> {
    let builder = Cluster::builder().workers(2).guest("exceeds").guest_args(["cpu", "60000"]);
    let cluster = builder.task_guest_args("worker:0", ["nothing-known"]).start()?;
    cluster.wait_for_line("worker:0", "the run of worker:0 has ended with 1")?;
    cluster.signal("worker:0", Signal::TERM);
    let outcome = cluster.task("worker:0").wait(SECONDS).with_context(|| cluster.report())?;
    assert_eq!(outcome.code, 1, "{}", cluster.report());
    assert!(outcome.output.contains("error: worker_fn failed: unknown: nothing-known"), "{}", cluster.report());
    Ok(())
}

#[test]
fn only_the_task_that_failed_before_the_first_barrier_is_blamed() -> Result<()> {
    // Its argument is no number, so its guest panics before it arrives anywhere.
    let builder = Cluster::builder().workers(4).guest("barrier_loop").task_guest_args("worker:3", ["many"]);
    let outcomes = builder.start()?.wait_all(SECONDS)?;
    outcomes.expect_codes([("worker:0", 202), ("worker:1", 202), ("worker:2", 202), ("worker:3", 3)]);
    for task in ["worker:0", "worker:1", "worker:2"] {
        outcomes.expect_output(task, "worker:3");
    }
    Ok(())
}

#[test]
fn a_barrier_with_a_timeout_names_who_is_missing() -> Result<()> {
    let builder =
        Cluster::builder().workers(3).guest("barrier_loop").guest_args(["1", "late", "2000"]).held("worker:2");
    let outcomes = builder.start()?.wait_all(PATIENCE)?;
    for task in ["worker:0", "worker:1"] {
        assert!(matches!(outcomes[task].code, 201 | 202), "{}", outcomes.report());
        outcomes.expect_output(task, "worker:2");
    }
    assert!(["worker:0", "worker:1"].iter().any(|task| outcomes[task].code == 201), "{}", outcomes.report());
    Ok(())
}

#[test]
fn a_variable_that_nobody_makes_ends_a_bounded_wait_by_name() -> Result<()> {
    let outcomes = Cluster::builder()
        .workers(2)
        .ps(1)
        .guest("waits_uninitialized")
        .guest_args(["1000"])
        .start()?
        .wait_all(PATIENCE)?;
    for task in ["worker:0", "worker:1"] {
        outcomes.expect_output(task, "never");
        assert_ne!(outcomes[task].code, 0, "{}", outcomes.report());
    }
    Ok(())
}

#[test]
fn a_dead_chief_ends_the_wait_for_its_variables() -> Result<()> {
    // The chief gives up after a while, in which the worker has come to wait without limit.
    let builder = Cluster::builder().chief().workers(1).ps(1).guest("waits_uninitialized");
    let cluster = builder.task_guest_args("chief:0", ["5000"]).start()?;
    cluster.wait_for_line("worker:0", "waiting")?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("chief:0", 1), ("ps:0", 202), ("worker:0", 202)]);
    outcomes.expect_output("worker:0", "chief:0");
    Ok(())
}

/// Kills `victim` while every guest waits in a host call, and checks that the others end soon with 202, naming it.
fn kill_one(victim: &str) -> Result<()> {
    let cluster = Cluster::builder().workers(3).ps(1).guest("waits_uninitialized").start()?;
    for task in ["worker:0", "worker:1", "worker:2"] {
        cluster.wait_for_line(task, "waiting")?;
    }
    cluster.signal(victim, Signal::KILL);
    let killed = Instant::now();
    for task in ["worker:0", "worker:1", "worker:2"].into_iter().filter(|&task| task != victim) {
        let outcome = cluster.task(task).wait(SECONDS).with_context(|| cluster.report())?;
        assert_eq!(outcome.code, 202, "{task}\n{}", cluster.report());
        assert!(outcome.output.contains(victim), "{task} does not name {victim}\n{}", cluster.report());
    }
    assert!(killed.elapsed() < SECONDS, "{}", cluster.report());
    assert_eq!(cluster.task(victim).wait(SECONDS)?.code, -9);
    Ok(())
}

#[test]
fn a_killed_worker_is_named_within_seconds() -> Result<()> {
    kill_one("worker:1")
}

#[test]
fn a_killed_leader_is_named_within_seconds() -> Result<()> {
    kill_one("worker:0")
}

#[test]
fn a_killed_ps_is_named_within_seconds() -> Result<()> {
    kill_one("ps:0")
}

#[test]
fn a_worker_that_is_told_to_end_leaves_with_143_and_is_named_by_the_barrier() -> Result<()> {
    // More rounds than anybody waits for: it is told to end in the middle of them.
    let cluster = Cluster::builder().workers(3).ps(1).guest("barrier_loop").guest_args(["100000000"]).start()?;
    for task in ["worker:0", "worker:1", "worker:2"] {
        cluster.wait_for_line(task, "attends its leader")?;
    }
    cluster.signal("worker:1", Signal::TERM);
    let outcomes = cluster.wait_all(PATIENCE)?;
    assert_eq!(outcomes["worker:1"].code, 143, "{}", outcomes.report());
    for task in ["worker:0", "worker:2"] {
        assert!(matches!(outcomes[task].code, 201 | 202), "{}", outcomes.report());
        outcomes.expect_output(task, "worker:1");
    }
    Ok(())
}

#[test]
fn a_worker_that_comes_back_mid_run_is_not_taken_for_its_old_life() -> Result<()> {
    let mut cluster = Cluster::builder().workers(3).ps(1).guest("waits_uninitialized").start()?;
    for task in ["worker:0", "worker:1", "worker:2"] {
        cluster.wait_for_line(task, "waiting")?;
    }
    cluster.signal("worker:1", Signal::KILL);
    cluster.task("worker:1").wait(PATIENCE)?;
    cluster.start_task("worker:1")?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    for task in ["worker:0", "worker:2"] {
        assert_eq!(outcomes[task].code, 202, "{}", outcomes.report());
        outcomes.expect_output(task, "worker:1");
    }
    assert_ne!(outcomes["worker:1"].code, 1, "its wait ended with the attempt, not by itself\n{}", outcomes.report());
    Ok(())
}

#[test]
fn a_guest_that_never_yields_is_ended_when_a_peer_has_failed() -> Result<()> {
    let cluster = Cluster::builder().workers(2).guest("spins").start()?;
    for task in ["worker:0", "worker:1"] {
        cluster.wait_for_line(task, "spinning")?;
    }
    cluster.signal("worker:1", Signal::KILL);
    // Ten seconds are the guest's to end by itself.
    let outcome = cluster.task("worker:0").wait(PATIENCE)?;
    assert_eq!(outcome.code, 202, "{}", cluster.report());
    assert!(outcome.output.contains("worker:1"), "{}", cluster.report());
    Ok(())
}
