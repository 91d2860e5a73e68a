//! The traits by which a run reaches its cluster, and by which `server`, `client`, `runtime` and `coordinator` meet.
//!
//! `runtime` calls them on behalf of a guest; `coordinator` meets them with local state or with `client`.

mod ops;
mod variables;

use crate::attend::{AttendError, LeaderEvent, MemberMessage, Registered, Registration};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

pub use crate::attend::ProbeOutcome;
pub use crate::ops::{OpCall, OpInput, RemoteValue};
pub use crate::variables::{
    Adam, ApplyOptions, Consistency, InitializeMode, Optimizer, ReadOptions, SyncStep, UpdateKind, VariableRef,
    WriteOptions,
};
pub use ops::{OpHost, OpInstance, OpLimits, OpOpening, Ops, StartedOp};
pub use variables::{
    Change, Gradient, GradientOptions, Placement, RowChange, TaskVariables, Value, Variable, Variables,
};

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
