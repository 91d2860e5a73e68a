//! Versions, ages and relaxed consistency, by components on real processes.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Run, Signal, wait_until};
use serde_json::Value;
use std::time::Instant;

#[test]
fn a_training_of_every_consistency_loses_nothing() -> Result<()> {
    let cluster = Cluster::builder().workers(3).ps(2).guest("versions").start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    for (task, rate) in [("worker:0", "0.25"), ("worker:1", "0.5"), ("worker:2", "0.5")] {
        outcomes.expect_output(task, "15 steps, every element 15\n");
        outcomes.expect_output(task, "counted 15, relaxed with a base version: invalid-argument\n");
        // The chief's own write shows at once, the others see what they have kept until they ask for more.
        outcomes.expect_output(task, &format!("rate {rate} as old as an hour, 0.25 at version 2\n"));
    }
    Run::guest("versions")?.output()?.expect(
        0,
        &["5 steps, every element 5", "counted 5, relaxed", "rate 0.25 as old as an hour, 0.25 at version 2"],
    );
    Ok(())
}

/// What `dchost status` tells of ps:0.
fn status(cluster: &Cluster) -> Result<Value> {
    let run = Run::new("status").args(["status", "--cluster", cluster.spec(), "--task", "ps", "--format", "json"]);
    let outcome = run.output()?;
    let object: Value = serde_json::from_str(&outcome.stdout).with_context(|| outcome.output.clone())?;
    Ok(object["servers"][0]["status"].clone())
}

/// Aim: an update that its run's death cut is told by its server, in the log and in the status, and others notice by its version.
/// Method: a client that does nothing but large relaxed updates is killed; where that was between two of them, once more.
#[test]
fn an_update_that_its_runs_death_cut_is_told() -> Result<()> {
    let cluster = Cluster::builder().workers(1).ps(1).flags(["--rejoin-timeout", "1s"]).start()?;
    let deadline = Instant::now() + PATIENCE;
    let variable = loop {
        let client = cluster.client("client", "versions")?.args(["--container", "kept", "--share-container"]);
        let client = client.guest_args(["floods"]).start()?;
        client.wait_for_line("flooding", PATIENCE)?;
        client.signal(Signal::KILL);
        wait_until("the end of its session", PATIENCE, || {
            status(&cluster).is_ok_and(|status| status["sessions"].as_array().is_some_and(Vec::is_empty))
        })?;
        let variable = status(&cluster)?["variables"][0].clone();
        if variable["partial_writes"] != 0 {
            break variable;
        }
        assert!(Instant::now() < deadline, "it was never killed within an update\n{}", cluster.report());
    };
    assert_eq!((&variable["name"], &variable["partial_writes"]), (&"w".into(), &1.into()), "{variable:#}");
    let line = cluster.wait_for_line("ps:0", "has a part of a relaxed update")?;
    assert!(line.contains("WARN") && line.contains("variable `w`") && line.contains("of 33554432 bytes"), "{line}");
    let text = Run::new("status").args(["status", "--cluster", cluster.spec(), "--task", "ps"]).output()?;
    let version = format!("{}, 1 partial write", variable["version"]);
    assert!(text.stdout.contains(&version), "no `{version}` in:\n{}", text.stdout);
    cluster.end_servers()?;
    Ok(())
}
