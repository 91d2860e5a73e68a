//! Ops of a run: which task runs them, and who may start any.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, OpCall, Ops, RemoteValue, StartedOp};
use crate::tensor::Tensor;

/// Ops of a run that can start none; says why.
#[derive(Clone, Debug)]
pub struct NoOps(Error);

impl NoOps {
    /// Of a local run, which has no tasks.
    pub fn local() -> Self {
        NoOps(Error::new(
            ErrorCode::FailedPrecondition,
            "no ops in a local run, which has no other tasks: call the function itself",
        ))
    }

    /// Of an op: what it started would have nobody to end it.
    pub fn within_op() -> Self {
        NoOps(Error::new(
            ErrorCode::FailedPrecondition,
            "an op can't start ops: return, and let worker_fn start the next",
        ))
    }
}

impl Ops for NoOps {
    fn start(&self, _task: Task, _call: OpCall) -> Result<Box<dyn StartedOp>> {
        Err(self.0.clone())
    }

    fn fetch(&self, _value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        let error = self.0.clone();
        Box::pin(async { Err(error) })
    }

    fn release(&self, _value: RemoteValue) {}
}
