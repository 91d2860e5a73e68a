//! Loops that compute while values travel.

use anyhow::Result;
use dchost_tests::{Cluster, PATIENCE};

/// Two workers train with values that may be old, and end where the plain loop ends; no push is lost or made twice, and no value is
/// older than was said. The guest itself watches the ages.
#[test]
fn a_loop_that_overlaps_ends_where_the_plain_one_ends() -> Result<()> {
    for depth in ["0", "1", "3"] {
        let cluster = Cluster::builder().workers(2).ps(2).guest("overlaps").guest_args([depth]).start()?;
        let outcomes = cluster.wait_all(PATIENCE)?;
        outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0)]);
        for worker in ["worker:0", "worker:1"] {
            outcomes.expect_output(worker, "plain off by 0.000, overlapped off by 0.000");
            // 60 steps of two pushes each, 20 assignments, and one to a variable without a value.
            outcomes.expect_output(worker, "each push once: true; then uninitialized: push 141: ");
        }
    }
    Ok(())
}
