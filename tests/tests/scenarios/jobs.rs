//! Jobs that end well.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Signal, is_listening, ping};
use std::time::Duration;

#[test]
fn counter_with_three_workers_and_two_ps_as_tensorflow_has_it() -> Result<()> {
    for flags in [&[][..], &["--no-cluster-barrier"]] {
        let mut builder = Cluster::builder().workers(3).ps(2).guest("counter");
        for flag in flags {
            builder = builder.flags([flag]);
        }
        let outcomes = builder.start()?.wait_all(PATIENCE)?;
        outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
        for task in ["worker:0", "worker:1", "worker:2"] {
            outcomes.expect_output(task, "x=16 y=14");
        }
    }
    Ok(())
}

#[test]
fn a_chief_counts_as_a_worker() -> Result<()> {
    let outcomes = Cluster::builder().chief().workers(2).ps(2).guest("counter").start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("chief:0", 0), ("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["chief:0", "worker:0", "worker:1"] {
        outcomes.expect_output(task, "x=16 y=14");
    }
    Ok(())
}

/// Aim: in whichever order tasks start, the job runs. Method: every task held, started in fixed shuffled orders, the
/// leader first, last and in between; a ps last.
#[test]
fn the_order_of_start_does_not_matter() -> Result<()> {
    const TASKS: [&str; 5] = ["worker:0", "worker:1", "worker:2", "ps:0", "ps:1"];
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
        let mut builder = Cluster::builder().workers(3).ps(2).guest("counter");
        for task in TASKS {
            builder = builder.held(task);
        }
        let mut cluster = builder.start()?;
        for index in order {
            cluster.start_task(TASKS[index])?;
        }
        let outcomes = cluster.wait_all(PATIENCE)?;
        outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    }
    Ok(())
}

#[test]
fn contexts_show_each_task_its_place() -> Result<()> {
    let cluster = Cluster::builder().chief().workers(1).ps(1).unlisted_evaluator().guest("hello").start()?;
    let ports = ["chief:0", "worker:0"].map(|task| cluster.port(task));
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("chief:0", 0), ("evaluator:0", 0), ("ps:0", 0), ("worker:0", 0)]);
    let expected: [(&str, [String; 5]); 3] = [
        (
            "chief:0",
            [
                format!("master_target grpc://127.0.0.1:{}", ports[0]),
                "num_workers 2".into(),
                "is_chief true".into(),
                "distributed_mode true".into(),
                "has_barrier true".into(),
            ],
        ),
        (
            "worker:0",
            [
                format!("master_target grpc://127.0.0.1:{}", ports[1]),
                "num_workers 2".into(),
                "is_chief false".into(),
                "distributed_mode true".into(),
                "has_barrier true".into(),
            ],
        ),
        (
            "evaluator:0",
            [
                "master_target local".into(),
                "num_workers 2".into(),
                "is_chief true".into(),
                "distributed_mode false".into(),
                "has_barrier false".into(),
            ],
        ),
    ];
    for (task, lines) in expected {
        for line in lines {
            outcomes.expect_output(task, &format!("hello: {line}\n"));
        }
    }
    Ok(())
}

#[test]
fn a_listed_evaluator_changes_nobody_elses_context() -> Result<()> {
    let outcomes = Cluster::builder().workers(2).ps(1).evaluator().guest("hello").start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("evaluator:0", 0), ("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["worker:0", "worker:1", "evaluator:0"] {
        outcomes.expect_output(task, "hello: num_workers 2\n");
    }
    outcomes.expect_output("evaluator:0", "hello: distributed_mode false\n");
    Ok(())
}

#[test]
fn a_ps_with_end_never_stays_until_it_is_told_to_end() -> Result<()> {
    let cluster = Cluster::builder().workers(2).ps(1).guest("hello").task_flags("ps:0", ["--end", "never"]).start()?;
    for task in ["worker:0", "worker:1"] {
        let outcome = cluster.task(task).wait(PATIENCE).with_context(|| cluster.report())?;
        assert_eq!(outcome.code, 0, "{}", cluster.report());
    }
    ping(cluster.port("ps:0")).context("the ps still serves")?;
    cluster.signal("ps:0", Signal::TERM);
    assert_eq!(cluster.task("ps:0").wait(PATIENCE)?.code, 143, "{}", cluster.report());
    Ok(())
}

#[test]
fn the_leader_waits_for_a_straggler_and_leaves_last() -> Result<()> {
    // Without ps the leader's process holds the variables, too: nobody may be cut off by its own early end.
    let cluster = Cluster::builder()
        .chief()
        .workers(1)
        .ps(1)
        .guest("sleeps")
        .guest_args(["3000"])
        .task_guest_args("chief:0", ["0"])
        .start()?;
    cluster.wait_for_line("chief:0", "awake")?;
    cluster.wait_for_line("worker:0", "sleeping")?;
    let worker = cluster.task("worker:0").wait(PATIENCE)?;
    assert!(worker.output.contains("awake"), "{}", cluster.report());
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("chief:0", 0), ("ps:0", 0), ("worker:0", 0)]);
    assert!(outcomes["chief:0"].time + Duration::from_secs(1) > worker.time, "{}", outcomes.report());
    Ok(())
}

#[test]
fn without_ps_the_leader_holds_the_variables_until_the_last_read() -> Result<()> {
    let outcomes =
        Cluster::builder().workers(3).guest("big_variable").guest_args(["1000000"]).start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    for task in ["worker:0", "worker:1", "worker:2"] {
        outcomes.expect_output(task, "read 1000000 bytes");
    }
    Ok(())
}

#[test]
fn a_variable_of_200_megabytes_travels_whole() -> Result<()> {
    let builder = Cluster::builder().workers(1).ps(1).guest("big_variable").guest_args(["200000000", "ps:0"]);
    let outcomes = builder.flags(["--max-memory", "2GiB"]).start()?.wait_all(3 * PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("worker:0", 0)]);
    outcomes.expect_output("worker:0", "read 200000000 bytes");
    Ok(())
}

#[test]
fn a_hundred_barriers_pass() -> Result<()> {
    let outcomes =
        Cluster::builder().workers(4).guest("barrier_loop").guest_args(["100"]).start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 0), ("worker:3", 0)]);
    outcomes.expect_output("worker:3", "passed 100 barriers");
    Ok(())
}

#[test]
fn a_late_worker_is_named_and_then_everyone_passes() -> Result<()> {
    let mut cluster = Cluster::builder().workers(3).guest("barrier_loop").guest_args(["2"]).held("worker:2").start()?;
    cluster.wait_for_line("worker:0", "worker:2")?;
    cluster.start_task("worker:2")?;
    cluster.wait_all(PATIENCE)?.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    Ok(())
}

#[test]
fn an_evaluator_that_never_ends_is_cancelled_after_its_grace() -> Result<()> {
    let outcomes = Cluster::builder()
        .workers(2)
        .ps(1)
        .evaluator()
        .guest("sleeps")
        .guest_args(["500"])
        .task_guest_args("evaluator:0", ["3600000"])
        .flags(["--evaluator-grace", "1s"])
        .start()?
        .wait_all(PATIENCE)?;
    outcomes.expect_codes([("evaluator:0", 0), ("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    Ok(())
}

#[test]
fn the_server_answers_while_its_guest_never_yields() -> Result<()> {
    let cluster = Cluster::builder().workers(2).guest("spins").start()?;
    for task in ["worker:0", "worker:1"] {
        cluster.wait_for_line(task, "spinning")?;
    }
    for task in ["worker:0", "worker:1"] {
        let answered = (0..20).map(|_| ping(cluster.port(task))).collect::<Result<Vec<_>>>()?;
        // A tenth of a second is the aim on a machine of its own; a server that waits for its guest never answers.
        let fastest = answered.iter().min().context("twenty answers")?;
        assert!(*fastest < Duration::from_millis(500), "{task} took {answered:?}");
    }
    Ok(())
}

#[test]
fn a_worker_that_comes_back_after_the_job_ends_at_once_or_at_its_deadline() -> Result<()> {
    let mut cluster = Cluster::builder().workers(2).guest("hello").flags(["--connect-timeout", "10s"]).start()?;
    cluster.wait_all(PATIENCE)?.expect_codes([("worker:0", 0), ("worker:1", 0)]);
    cluster.start_task("worker:1")?;
    let code = cluster.task("worker:1").wait(PATIENCE)?.code;
    assert!(code == 0 || code == 201, "{}", cluster.report());
    Ok(())
}

#[test]
fn no_port_stays_open_when_a_job_has_ended() -> Result<()> {
    let cluster = Cluster::builder().workers(2).ps(1).guest("hello").start()?;
    cluster.wait_all(PATIENCE)?.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    for task in ["ps:0", "worker:0", "worker:1"] {
        assert!(!is_listening(cluster.port(task)), "{task}");
    }
    Ok(())
}
