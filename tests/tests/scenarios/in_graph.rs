//! In-graph replication: one driver for all workers, in a split client or on the leader.

use anyhow::Result;
use dchost_tests::{Cluster, ClusterBuilder, PATIENCE, Signal};

const IN_GRAPH: [&str; 2] = ["--replication", "in-graph"];

fn independent(workers: u32) -> ClusterBuilder {
    Cluster::builder().workers(workers).guest("drives").flags(IN_GRAPH)
}

#[test]
fn a_split_client_drives_all_workers_as_tensorflow_has_it() -> Result<()> {
    let cluster = Cluster::builder().workers(3).ps(2).start()?;
    for name in ["first", "second"] {
        let outcome = cluster.client(name, "drives")?.args(IN_GRAPH).output()?;
        assert_eq!(outcome.code, 0, "{}", outcome.output);
        let target = format!("grpc://127.0.0.1:{}", cluster.port("worker:0"));
        assert_eq!(outcome.stdout, format!("client:0 | sum 33.0 on {target} of 3 workers, barrier false\n"));
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn an_evaluator_runs_beside_a_split_driver() -> Result<()> {
    let cluster = Cluster::builder().workers(3).evaluator().start()?;
    let outcome = cluster.client("client", "drives")?.args(IN_GRAPH).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let mut lines: Vec<_> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    let target = |task| format!("grpc://127.0.0.1:{}", cluster.port(task));
    let driver = format!("client:0 | sum 33.0 on {} of 3 workers, barrier false", target("worker:0"));
    let evaluator = format!("evaluator:0 | not the driver but evaluator:0, on {}", target("evaluator:0"));
    assert_eq!(lines, [driver, evaluator]);

    let outcome = cluster.client("client", "evaluates")?.args(IN_GRAPH).output()?;
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    for line in [
        "evaluator:0 | reads x = 5",
        "evaluator:0 | initialize of x: failed-precondition",
        "evaluator:0 | update of x: failed-precondition",
        "evaluator:0 | barrier: failed-precondition",
        "client:0 | trained, score 0.5",
    ] {
        assert!(
            outcome.stdout.lines().any(|found| found.trim_start().ends_with(line)),
            "no `{line}`:\n{}",
            outcome.output
        );
    }
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn a_failing_driver_is_named_once() -> Result<()> {
    let cluster = Cluster::builder().workers(2).start()?;
    let outcome = cluster.client("client", "worker_error")?.args(IN_GRAPH).output()?;
    assert_eq!(outcome.code, 1, "{}", outcome.output);
    let error: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("bad shard 7")).collect();
    assert_eq!(error, ["client:0 | error: worker_fn failed: bad shard 7"]);
    cluster.end_servers()?;
    Ok(())
}

#[test]
fn independent_workers_join_the_driver_and_leave_with_it() -> Result<()> {
    for without in [None, Some("worker:2")] {
        let mut builder = independent(3);
        if let Some(task) = without {
            builder = builder.without_module(task);
        }
        let outcomes = builder.start()?.wait_all(PATIENCE)?;
        outcomes.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
        outcomes.expect_output("worker:0", "sum 33.0 on ");
        for task in ["worker:1", "worker:2"] {
            assert_eq!(outcomes[task].stdout, "", "it never runs worker_fn\n{}", outcomes.report());
        }
    }
    Ok(())
}

#[test]
fn a_chief_drives_where_there_is_one() -> Result<()> {
    let cluster = Cluster::builder().chief().workers(2).ps(1).guest("hello").flags(IN_GRAPH).start()?;
    let target = format!("hello: master_target grpc://127.0.0.1:{}", cluster.port("chief:0"));
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("chief:0", 0), ("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    for line in
        ["hello: task none", "hello: num_workers 3", "hello: is_chief true", "hello: has_barrier false", &target]
    {
        outcomes.expect_output("chief:0", line);
    }
    assert_eq!(outcomes["worker:0"].stdout, "", "{}", outcomes.report());
    Ok(())
}

#[test]
fn an_evaluator_beside_an_independent_driver_has_a_run_of_its_own() -> Result<()> {
    let cluster = Cluster::builder().workers(2).evaluator().guest("evaluates").flags(IN_GRAPH).start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("evaluator:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    outcomes.expect_output("evaluator:0", "reads x = 5");
    outcomes.expect_output("evaluator:0", "update of x: failed-precondition");
    outcomes.expect_output("worker:0", "trained, score 0.5");
    Ok(())
}

#[test]
fn a_worker_of_the_other_replication_is_refused_with_both_named() -> Result<()> {
    // The guest needs nobody, so that the driver ends well all the same.
    let mut builder = Cluster::builder().workers(3).guest("hello");
    for task in ["worker:0", "worker:1"] {
        builder = builder.task_flags(task, IN_GRAPH);
    }
    // The leader waits for who has never been there, so that it still answers when the last one comes.
    let outcomes = builder.start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 2)]);
    for word in ["between-graph", "in-graph", "worker:2"] {
        outcomes.expect_output("worker:2", word);
    }
    Ok(())
}

#[test]
fn a_drivers_failure_is_202_for_those_who_joined() -> Result<()> {
    for (ending, code) in [("worker_error", 1), ("panics", 3)] {
        let outcomes = independent(3).guest(ending).ps(1).start()?.wait_all(PATIENCE)?;
        outcomes.expect_codes([("ps:0", 202), ("worker:0", code), ("worker:1", 202), ("worker:2", 202)]);
        for task in ["ps:0", "worker:1", "worker:2"] {
            outcomes.expect_output(task, "the job has failed: worker:0");
        }
    }
    Ok(())
}

#[test]
fn where_the_end_is_never_tasks_stay_until_they_are_told() -> Result<()> {
    let cluster = independent(2).flags(["--end", "never"]).start()?;
    cluster.wait_for_line("worker:0", "the run of worker:0 has ended")?;
    cluster.wait_for_line("worker:1", "attends its leader")?;
    for task in ["worker:1", "worker:0"] {
        assert!(cluster.task(task).is_running(), "{}", cluster.report());
        cluster.signal(task, Signal::TERM);
        assert_eq!(cluster.task(task).wait(PATIENCE)?.code, 143);
    }
    Ok(())
}

#[test]
fn a_driver_ends_with_its_job_whatever_the_rule_is() -> Result<()> {
    for rule in ["all-done", "chief-done"] {
        let outcomes = independent(3).flags(["--end", rule]).start()?.wait_all(PATIENCE)?;
        outcomes.expect_codes([("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    }
    Ok(())
}
