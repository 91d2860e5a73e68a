//! How a server and its cluster are doing, at one moment: what a server answers, and `dchost status` shows.

use crate::attend::{Cause, Mode, Replication, TaskState};
use crate::cluster::{ClusterSpec, Task};
use crate::ids::{Attempt, Incarnation, RunId};
use std::time::Duration;

pub use crate::variables::VariableStatus;

/// What one server tells of itself; a leader's also of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Of the server's process.
    pub incarnation: Incarnation,
    /// The task that the server is; none where it doesn't tell.
    pub task: Option<Task>,
    /// The version of dchost that it runs; empty where it doesn't tell.
    pub version: String,
    /// The attempt of the cluster, from its leader; else the one that the caller's container is in, if any.
    pub attempt: Option<Attempt>,
    /// What the leader knows of the job; none elsewhere.
    pub job: Option<JobStatus>,
    /// The leader's rows, in order.
    pub tasks: Listed<TaskStatus>,
    /// Barriers that tasks wait at; empty but on the leader.
    pub barriers: Listed<WaitedBarrier>,
    /// Variables of all containers.
    pub variables: Listed<VariableStatus>,
    /// Bytes of all of them, those that are left out included.
    pub variable_bytes: u64,
    /// Most of them that the server takes; none: no limit.
    pub variable_bytes_max: Option<u64>,
    /// The cluster as the server was given it; empty where it doesn't tell.
    pub cluster: ClusterSpec,
    /// Sessions, by container and run.
    pub sessions: Listed<SessionStatus>,
}

/// Rows of a listing, and how many more there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// Those that are told.
    pub rows: Vec<T>,
    /// How many are not, so that the answer stays within a message.
    pub left_out: u64,
    /// How many this build can't make sense of: a newer server's, or a broken one's.
    pub strange: u64,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed { rows: Vec::new(), left_out: 0, strange: 0 }
    }
}

/// How the job is doing, as its leader knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// None: the leader is a standard server without module, and leads nothing.
    pub mode: Option<Mode>,
    /// How runs are placed.
    pub replication: Replication,
    /// Whether every runner has ended, or the attempt has failed for good.
    pub training_ended: bool,
    /// The first cause of a failure; none where all is well.
    pub cause: Option<Cause>,
}

/// A task in the leader's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// Who.
    pub task: Task,
    /// The address that the cluster lists; none for an unlisted evaluator.
    pub address: Option<String>,
    /// Its state.
    pub state: TaskState,
    /// How long it has been in that state.
    pub since: Duration,
    /// Of the process that attends or attended; none before.
    pub incarnation: Option<Incarnation>,
    /// How long ago it was last heard of; none if never.
    pub last_seen: Option<Duration>,
    /// Why it is in its state; of a silent task with what dialling it showed last.
    pub message: String,
    /// Whether the training waits for its end.
    pub runner: bool,
    /// What it reported at its end.
    pub exit_code: Option<u8>,
}

/// A barrier generation that tasks wait in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedBarrier {
    /// The leader's container.
    pub container: String,
    /// The barrier's name; empty for `wait_for_other_workers`.
    pub name: String,
    /// The open generation.
    pub generation: u64,
    /// Who has arrived.
    pub arrived: Vec<Task>,
    /// Who is missing.
    pub missing: Vec<Task>,
    /// How long ago the first task arrived.
    pub since: Duration,
}

/// A run's session on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Its container.
    pub container: String,
    /// Whose it is; none: a split client's, or a tool's.
    pub task: Option<Task>,
    /// The run.
    pub run_id: RunId,
    /// How long ago it was opened.
    pub since: Duration,
    /// Whether its stream is open, rather than broken and awaited; none where the server doesn't tell.
    pub attached: Option<bool>,
    /// Op instances that are open in it.
    pub op_instances: u32,
}
