//! The traits by which a run reaches its cluster, and by which `server`, `client`, `runtime` and `coordinator` meet.
//!
//! `runtime` calls them on behalf of a guest; `coordinator` meets them with local state or with `client`.

mod ops;

use crate::attend::{AttendError, LeaderEvent, MemberMessage, Registered, Registration};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorType, TensorView};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

pub use crate::attend::ProbeOutcome;
pub use crate::ops::{OpCall, OpInput, RemoteValue};
pub use crate::variables::{InitializeMode, UpdateKind, VariableRef};
pub use ops::{OpHost, OpInstance, OpLimits, OpOpening, Ops, StartedOp};

/// A boxed future, so that the traits here can be trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The barrier and the job's state, as one run sees them.
pub trait Job: Send + Sync {
    /// Waits until every chief and worker task has arrived at the barrier `name` (empty: `wait_for_other_workers`).
    ///
    /// # Errors
    /// `failed-precondition` without a barrier in this context; `deadline-exceeded`, `aborted`, `peer-failed`,
    /// `peer-restarted` naming tasks; `cancelled`.
    ///
    /// # Cancel safety
    /// The arrival stands once it was sent; a later call for the same generation finds it.
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>>;

    /// Whether chief and workers have all ended.
    fn training_ended(&self) -> bool;

    /// The job's attempt, from 0.
    fn attempt(&self) -> u32;
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// By a stable hash of the name over the ps tasks; without ps, the leader.
    Auto,
    /// On this task.
    On(Task),
    /// Along axis 0 over the ps tasks.
    Sharded,
}

/// A variable as a run declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name, unique on its task within the container.
    pub name: String,
    /// Element type and extents.
    pub ty: TensorType,
    /// Where it lives.
    pub placement: Placement,
}

/// A variable's value and the version that it was read at or that the write made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value; with empty data where it wasn't asked for.
    pub tensor: Tensor,
    /// Counts applied writes; 1 after initialize.
    pub version: u64,
}

/// One update of one variable; `V` names it (a [`Variable`] or a [`VariableRef`]).
#[derive(Clone, Debug)]
pub struct Change<'a, V> {
    /// The variable.
    pub variable: V,
    /// How it changes.
    pub kind: UpdateKind,
    /// By what; has the variable's type.
    pub value: TensorView<'a>,
    /// Only if the variable still has this version.
    pub base: Option<u64>,
}

/// The variables of the cluster, as one run sees them: names are placed on tasks, many tasks are asked in parallel.
///
/// # Errors
/// All calls: `invalid-argument` (type, shape, name), `uninitialized` with the names, `unavailable` after the connect
/// timeout, `peer-failed` and `peer-restarted` with the task, `cancelled`, `resource-exhausted`; writes of an evaluator
/// anywhere but on its own task `failed-precondition`: it is chief of its own run, and would reset what others train.
///
/// # Cancel safety
/// A dropped read has no effect. A dropped write is applied as a whole or not at all, for each variable.
pub trait Variables: Send + Sync {
    /// Checks a declaration: name, size, and a placement that the cluster has. Reaches no other task.
    fn declare(&self, variable: &Variable) -> Result<()>;

    /// Sets initial values.
    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>>;

    /// Names of those that have no value yet; asks once.
    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>>;

    /// Waits until all have a value; without `timeout` at most 2 h (TensorFlow's 7200 s).
    ///
    /// # Errors
    /// `deadline-exceeded` with the names that are missing, `uninitialized` where no timeout was given or the chief's run has
    /// ended, besides those of all calls.
    fn wait_initialized(&self, variables: Vec<Variable>, timeout: Option<Duration>) -> BoxFuture<'_, Result<()>>;

    /// Reads values, in the order asked for.
    fn read(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<Value>>>;

    /// Applies changes, each atomic for its variable; answers in the same order.
    fn update<'a>(&'a self, changes: Vec<Change<'a, Variable>>, want_values: bool)
    -> BoxFuture<'a, Result<Vec<Value>>>;
}

/// The variables of one container on one task: met by this process's own store, and by `client` for another task's.
///
/// Errors and cancel safety are those of [`Variables`].
pub trait TaskVariables: Send + Sync {
    /// Sets initial values; answers with the versions.
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>>;

    /// Names of those that have no value; waits up to `wait` for the answer to become empty.
    fn uninitialized(&self, variables: Vec<VariableRef>, wait: Duration) -> BoxFuture<'_, Result<Vec<String>>>;

    /// Reads values.
    fn pull(&self, variables: Vec<VariableRef>) -> BoxFuture<'_, Result<Vec<Value>>>;

    /// Applies changes.
    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        want_values: bool,
    ) -> BoxFuture<'a, Result<Vec<Value>>>;
}

/// Where a line of output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The guest's standard output.
    Stdout,
    /// The guest's standard error.
    Stderr,
    /// The guest's `log`.
    Log(Level),
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Finest detail.
    Trace,
    /// For finding faults.
    Debug,
    /// What a user wants to see.
    Info,
    /// Something to look at.
    Warn,
    /// Something failed.
    Error,
}

/// Where a run's output goes. `runtime` splits lines, escapes control characters and bounds lengths before it calls.
pub trait Console: Send + Sync {
    /// Shows one line, without its newline.
    fn line(&self, origin: Origin, text: &str);

    /// Whether lines of this origin are shown at all; the others need not be made.
    fn shows(&self, _origin: Origin) -> bool {
        true
    }

    /// Shows how far the run is: `done` of `total`, where the total is known.
    fn progress(&self, done: u64, total: Option<u64>, note: &str);
}

/// Longest tag of a scalar, in bytes: far above any name a person writes; tags become names in files and dashboards.
pub const TAG_BYTES_MAX: usize = 256;

/// Where a run's scalars go. `runtime` makes tags harmless and cuts them to [`TAG_BYTES_MAX`].
pub trait Summary: Send + Sync {
    /// Keeps a value of a series; a no-op where the run should not save summaries or no directory is given.
    fn scalar(&self, tag: &str, step: u64, value: f64);
}

/// Everything that a run may reach. Cheap to clone.
#[derive(Clone)]
pub struct Handles {
    /// The run's place in the cluster.
    pub context: Arc<WorkerContext>,
    /// Barrier and job state.
    pub job: Arc<dyn Job>,
    /// Variables.
    pub variables: Arc<dyn Variables>,
    /// Ops on other tasks.
    pub ops: Arc<dyn Ops>,
    /// Output.
    pub console: Arc<dyn Console>,
    /// Scalars.
    pub summary: Arc<dyn Summary>,
    /// Once set, every pending and later host call of the run fails with this error.
    pub interrupt: watch::Receiver<Option<Error>>,
}

/// How a task reaches its leader: in this process (`server::leader`) or over gRPC (`client::attend`).
pub trait Attend: Send + Sync {
    /// Registers and opens the stream; one try.
    fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>>;
}

/// An open attend stream. Dropping it without an end report breaks the stream.
#[derive(Debug)]
pub struct AttendChannel {
    /// The leader's answer to the registration.
    pub registered: Registered,
    /// To the leader; closed when the stream is broken.
    pub messages: mpsc::Sender<MemberMessage>,
    /// From the leader; ends when the stream is broken.
    pub events: mpsc::Receiver<LeaderEvent>,
}

/// How the leader finds out whether a silent task lives.
pub trait Probe: Send + Sync {
    /// Dials the task's address once, within a few seconds.
    fn probe(&self, task: Task, address: &str) -> BoxFuture<'_, ProbeOutcome>;
}
