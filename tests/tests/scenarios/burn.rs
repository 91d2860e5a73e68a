//! The network of the crate `burn`, trained by a cluster.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, PATIENCE};

/// Two workers and a ps learn to read digits as well as the example `digits` promises.
#[test]
fn a_network_of_burn_learns_to_read_digits() -> Result<()> {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data::/data:ro");
    let mut cluster = Cluster::builder().workers(2).ps(1).guest("burn-digits");
    for worker in ["worker:0", "worker:1"] {
        cluster = cluster.task_flags(worker, ["--dir", data]);
    }
    let outcomes = cluster.start()?.wait_all(PATIENCE)?;
    outcomes.expect_codes([("ps:0", 0), ("worker:0", 0), ("worker:1", 0)]);
    let output = &outcomes["worker:0"].stdout;
    let accuracy = output.lines().find_map(|line| line.split_once("held-out accuracy ")?.1.strip_suffix(" %"));
    let accuracy: f64 = accuracy.context("no accuracy was printed")?.parse()?;
    assert!(accuracy >= 95.0, "{accuracy} %");
    Ok(())
}
