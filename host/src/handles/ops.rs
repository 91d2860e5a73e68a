//! Ops: what a run asks of other tasks, and what a task does for the runs of others.

use super::BoxFuture;
use crate::cluster::Task;
use crate::error::Result;
use crate::ids::{Caller, ClientUse};
use crate::ops::{OpCall, RemoteValue};
use crate::tensor::Tensor;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::watch;

/// The ops of a run's component on the tasks of its cluster, as the run sees them.
pub trait Ops: Send + Sync {
    /// Starts an op on `task`, and returns at once. Calls to one task run in the order in which they were started.
    ///
    /// # Errors
    /// `invalid-argument` (the cluster has no such task; the call's form); `failed-precondition` (a local run, an op itself,
    /// a component that can't travel). Everything else comes with the results.
    fn start(&self, task: Task, call: OpCall) -> Result<Box<dyn StartedOp>>;

    /// Copies a kept value here. Can be called again.
    ///
    /// # Errors
    /// `peer-failed`, `peer-restarted`, `unavailable` with the task; `not-found` once it was released; `cancelled`.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    fn fetch(&self, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>>;

    /// Frees a kept value where it is. Tells nobody how that went: the end of the run frees it too.
    fn release(&self, value: RemoteValue);
}

/// An op that was started. Dropping it gives it up.
pub trait StartedOp: Send + Sync {
    /// Becomes true when the op has ended, well or not.
    fn ended(&self) -> watch::Receiver<bool>;

    /// Copies the results here; together with [`keep`](Self::keep) called once.
    ///
    /// # Errors
    /// `not-found` naming the known ops; `unknown` with the op's own error; `aborted` where it trapped, with its report;
    /// `resource-exhausted` with the limit's flag; `deadline-exceeded`; `cancelled`; `failed-precondition` where the task can't
    /// run the component, and why; `peer-failed`, `peer-restarted`, `unavailable` with the task. All name op and task.
    ///
    /// # Cancel safety
    /// Dropping it leaves the op as it is; its results are lost where they were on their way.
    fn take(&self) -> BoxFuture<'static, Result<Vec<Tensor>>>;

    /// Leaves the results where they are.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Cancel safety
    /// As [`take`](Self::take).
    fn keep(&self) -> BoxFuture<'static, Result<Vec<RemoteValue>>>;

    /// Ends the op; then taking fails with `cancelled`. Does nothing where it has ended.
    fn cancel(&self);
}

/// Who opens an instance, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpOpening {
    /// The run whose ops it runs.
    pub caller: Caller,
    /// How the run's split client uses the container, which the instance uses alike; none: it is a task's.
    pub client_use: Option<ClientUse>,
    /// The component's sha256.
    pub module: [u8; 32],
    /// Arguments of the instance, without its name.
    pub args: Vec<String>,
}

/// What a task takes of those who bring components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpLimits {
    /// The largest component, in bytes (`--max-module-size`).
    pub component_bytes_max: u64,
    /// All tensors of one call together, in bytes (`--max-tensor`).
    pub tensor_bytes_max: u64,
}

/// The components that callers bring to a task, and instances of them: met by `coordinator` with `runtime`, called by `server`.
pub trait OpHost: Send + Sync {
    /// What is taken.
    fn limits(&self) -> OpLimits;

    /// The bytes of a component that is loaded; none where it isn't.
    fn component(&self, module: &[u8; 32]) -> Option<Bytes>;

    /// Compiles a component whose sha256 is `module`, within this task's limits. One that is loaded already is not compiled again.
    ///
    /// # Errors
    /// `failed-precondition`: it is no component that this task can run, and why, or compiling takes too much; `invalid-argument`:
    /// its sha256 is another; `resource-exhausted`: too many are loaded.
    ///
    /// # Cancel safety
    /// A dropped load may go on, and is then found by the next.
    fn load(&self, module: [u8; 32], component: Bytes) -> BoxFuture<'_, Result<()>>;

    /// Copies a value here that another task keeps for the run of `caller`.
    ///
    /// # Errors
    /// `peer-failed`, `peer-restarted`, `unavailable` with the task; `not-found` once it was released; `invalid-argument` where the
    /// cluster has no such task.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    fn fetch(&self, caller: Caller, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>>;

    /// Makes an instance's queue; the instance itself begins with the first call. `until_gone` is dropped when it can do nothing
    /// any more, which is after its last user has dropped it.
    ///
    /// # Errors
    /// `not-found`: the component isn't loaded; `resource-exhausted`: too many instances.
    fn open(&self, opening: OpOpening, until_gone: Box<dyn Send + Sync>) -> Result<Arc<dyn OpInstance>>;
}

/// One instance of a component, for one caller. Keeps its state between calls; dropping it ends it, whatever it does.
pub trait OpInstance: Send + Sync {
    /// Runs an op, after those that were called before: its place is taken when this is called, not when the future is polled.
    /// `inputs` are waited for when its turn comes.
    ///
    /// An op that traps, reaches a limit or is given up takes the instance's state with it: the next call begins in a new one.
    ///
    /// # Errors
    /// `not-found` listing the known ops, `unknown`, `aborted`, `resource-exhausted` as at [`StartedOp::take`]; those of `inputs`.
    ///
    /// # Cancel safety
    /// Dropping it takes the call out of the queue, or ends it where it runs, also one that never yields.
    fn call(
        &self,
        op: String,
        inputs: BoxFuture<'static, Result<Vec<Tensor>>>,
    ) -> BoxFuture<'static, Result<Vec<Tensor>>>;
}
