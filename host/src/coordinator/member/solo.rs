//! A run without leader: local, or in a cluster view that has none.

use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, Job};
use std::sync::Arc;
use std::time::Duration;

/// The job of a run that has no leader: no barrier, attempts that its own process counts, training that ends with the run.
#[derive(Clone, Debug)]
pub struct SoloJob {
    context: Arc<WorkerContext>,
    attempt: u32,
}

impl SoloJob {
    /// Makes the job of a run; `attempt` counts from 0.
    pub fn new(context: Arc<WorkerContext>, attempt: u32) -> Self {
        SoloJob { context, attempt }
    }
}

impl Job for SoloJob {
    fn barrier<'a>(&'a self, _name: &'a str, _timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Err(no_barrier(&self.context)) })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// The error of waiting where there is no barrier.
///
/// # Source
/// `wait_for_other_workers` of TensorFlow's `_WorkerContext`, whose error names cluster, type and id as well.
pub(in crate::coordinator) fn no_barrier(context: &WorkerContext) -> Error {
    let mut jobs = Vec::new();
    for job in context.cluster.jobs() {
        let addresses: Vec<&str> =
            context.cluster.tasks(job).filter_map(|task| context.cluster.address(task)).collect();
        jobs.push(format!("{job}: [{}]", addresses.join(", ")));
    }
    let (kind, id) = match context.task {
        Some(task) => (task.job.to_string(), task.index.to_string()),
        None => ("none".to_owned(), "none".to_owned()),
    };
    let message = format!(
        "no barrier in this context (cluster {{{}}}, task type {kind}, task id {id}): ask has-barrier before waiting",
        jobs.join(", ")
    );
    Error::new(ErrorCode::FailedPrecondition, message)
}
