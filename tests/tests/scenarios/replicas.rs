//! Training in step: synchronous replicas with backups.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE, Run, Signal};
use serde_json::Value;

/// Three workers and a backup train; one of them is stopped. The others go on, and when it is back, it is told that its gradient is
/// stale, reads anew and ends with them.
#[test]
fn a_stopped_worker_holds_up_nobody_where_there_is_a_backup() -> Result<()> {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data::/data:ro");
    let builder = Cluster::builder().workers(4).ps(2).guest("digits").flags(["--dir", data]);
    let cluster = builder.guest_args(["--sync", "--backups", "1", "--epochs", "30", "--batch", "8"]).start()?;
    cluster.wait_for_line("worker:0", "epoch 1 of 30")?;
    cluster.signal("worker:3", Signal::STOP);
    cluster.wait_for_line("worker:0", "epoch 6 of 30")?;
    cluster.signal("worker:3", Signal::CONT);
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes(["ps:0", "ps:1", "worker:0", "worker:1", "worker:2", "worker:3"].map(|task| (task, 0)));
    outcomes.expect_output("worker:3", "gradients were stale");
    outcomes.expect_output("worker:0", "epoch 30 of 30");
    outcomes.expect_output("worker:0", "held-out accuracy 9");
    Ok(())
}

/// Three runs of their own, of which two make a step; one is killed. The others go on to the end, and the server has counted what it
/// dropped or refused.
#[test]
fn a_killed_run_holds_up_nobody_where_there_is_a_backup() -> Result<()> {
    let cluster = Cluster::builder().workers(1).ps(1).flags(["--rejoin-timeout", "2s"]).start()?;
    let client = |name: &str, steps: &str| {
        let run = cluster.client(name, "replicas")?.args(["--container", "kept", "--share-container"]);
        run.guest_args([steps, "2"]).start()
    };
    // Without an end of its own: it waits for another one when the others have ended.
    let killed = client("killed", "1000000000")?;
    let others = [client("first", "400")?, client("second", "400")?];
    killed.wait_for_line("version 50", PATIENCE)?;
    killed.signal(Signal::KILL);
    for other in &others {
        other.wait(PATIENCE)?.expect(0, &["ends at version "]);
    }
    assert_eq!(killed.wait(PATIENCE)?.code, -9);
    let run = Run::new("status").args(["status", "--cluster", cluster.spec(), "--task", "ps", "--format", "json"]);
    let outcome = run.output()?;
    let object: Value = serde_json::from_str(&outcome.stdout).with_context(|| outcome.output.clone())?;
    let w = &object["servers"][0]["status"]["variables"][0];
    let count = |name: &str| w[name].as_u64().unwrap_or_default();
    assert!(count("version") >= 401 && count("stale_gradients") + count("dropped_gradients") > 0, "{w:#}");
    cluster.end_servers()?;
    Ok(())
}

/// All workers make each step together.
#[test]
fn workers_without_backups_step_together() -> Result<()> {
    let cluster = Cluster::builder().workers(3).ps(1).guest("replicas").guest_args(["120"]).start()?;
    let outcomes = cluster.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0), ("worker:2", 0)]);
    for worker in ["worker:0", "worker:1", "worker:2"] {
        outcomes.expect_output(worker, "ends at version 121, 0 stale");
    }
    Ok(())
}
