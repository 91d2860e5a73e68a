//! Gradients that ps tasks apply.

use anyhow::Result;
use dchost_tests::{Cluster, PATIENCE};

/// Two workers train the same line; every method finds it, and no step is lost.
#[test]
fn a_regression_is_trained_on_the_ps_by_every_method() -> Result<()> {
    for method in ["adam", "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adamw"] {
        let cluster = Cluster::builder().workers(2).ps(2).guest("regression").guest_args([method]).start()?;
        let outcomes = cluster.wait_all(PATIENCE)?;
        outcomes.expect_codes([("ps:0", 0), ("ps:1", 0), ("worker:0", 0), ("worker:1", 0)]);
        for worker in ["worker:0", "worker:1"] {
            outcomes.expect_output(worker, "y = 3.0x -2.0");
        }
        let then = match method {
            "sgd" | "adagrad" => "then adagrad: done",
            _ => "then adagrad: failed-precondition",
        };
        outcomes.expect_output("worker:0", then);
    }
    Ok(())
}
