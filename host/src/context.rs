//! The worker context: what `worker_fn` may ask about its place in the cluster.

use crate::cluster::{ClusterSpec, Task};

/// A run's place in the cluster. Every value is computed once, when the plan is made.
///
/// # Source
/// `_WorkerContext` of TensorFlow's `distribute_coordinator.py`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerContext {
    /// The cluster; empty in a local run.
    pub cluster: ClusterSpec,
    /// The task that runs; none in a local run and for an in-graph driver.
    pub task: Option<Task>,
    /// Where the run's master is: `local`, or the address under the rpc layer's prefix (`grpc://host:2222`).
    pub master_target: String,
    /// The number of chief and worker tasks; evaluators see the same number. 0 in a local run.
    pub num_workers: u32,
    /// Whether this run initializes and saves.
    pub is_chief: bool,
    /// Whether the run trains together with others: false in a local run and for an evaluator.
    pub distributed_mode: bool,
    /// Whether `wait_for_other_workers` and named barriers work.
    pub has_barrier: bool,
}

impl WorkerContext {
    /// Whether this run should write checkpoints; the chief's business, and the evaluator's own.
    pub fn should_checkpoint(&self) -> bool {
        self.is_chief
    }

    /// Whether this run should write summaries; the chief's business, and the evaluator's own.
    pub fn should_save_summary(&self) -> bool {
        self.is_chief
    }
}
