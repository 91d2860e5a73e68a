//! What a task and its leader say to each other on the attend stream.
//!
//! The leader's half lives in `lifetime` (rows, rules) and `server::leader` (its service); a task's half in
//! `coordinator::member`. Both see only these values, so that they meet in one process or over gRPC alike.

use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, Result};
use crate::ids::{Attempt, Incarnation, RunId};
use std::time::Duration;

/// How often whoever waits for tasks says so in the log.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// How runs are placed: TensorFlow's coordinator modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One client runs every `worker_fn`; all tasks are standard servers.
    SplitClient,
    /// Each task runs its own `worker_fn`.
    IndependentWorker,
}

impl Mode {
    /// The mode as it is written: `split-client` or `independent-worker`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::SplitClient => "split-client",
            Mode::IndependentWorker => "independent-worker",
        }
    }
}

/// Whether each worker builds its own part of the computation, or one driver builds all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replication {
    /// One run for each chief and worker task.
    BetweenGraph,
    /// One run that drives all tasks.
    InGraph,
}

impl Replication {
    /// The replication as it is written: `between-graph` or `in-graph`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Replication::BetweenGraph => "between-graph",
            Replication::InGraph => "in-graph",
        }
    }
}

/// A task's first words to the leader; refused where they don't fit the leader's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Who registers. An evaluator may be missing from the cluster.
    pub task: Task,
    /// Of the registering process.
    pub incarnation: Incarnation,
    /// The run that the process executes or will execute; a server without runs draws one too.
    pub run_id: RunId,
    /// The attempt that the task takes itself to be in; none at first contact.
    pub attempt: Option<Attempt>,
    /// None: a standard server without module, which learns the mode from the answer.
    pub mode: Option<Mode>,
    /// How the task would replicate; not compared where `mode` is none.
    pub replication: Replication,
    /// Whether the task expects the cluster barrier; not compared where `mode` is none.
    pub barrier: bool,
    /// sha256 of the module; none without one. Compared where both sides have one.
    pub module_digest: Option<[u8; 32]>,
    /// The cluster without evaluators; sparse views are compared on the tasks that both have.
    pub cluster: ClusterSpec,
}

/// The leader's answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Of the leader's process.
    pub leader_incarnation: Incarnation,
    /// The attempt that runs now.
    pub attempt: Attempt,
    /// The leader's mode; none where it is a standard server without module itself.
    pub mode: Option<Mode>,
    /// The leader's replication.
    pub replication: Replication,
    /// Whether training has ended already.
    pub training_ended: bool,
}

/// What a registered task tells its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberMessage {
    /// The process lives. Sent on a timer, whatever the guest does; any message counts as one.
    Heartbeat,
    /// The task's run waits at a barrier.
    Arrival(BarrierArrival),
    /// The task's run has ended, or the task leaves.
    End(EndReport),
}

/// A run's arrival at a barrier. Repeating it is harmless: it counts once and gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierArrival {
    /// The barrier's name; empty for `wait_for_other_workers`.
    pub name: String,
    /// Counted for each name by the caller, from 0 within the attempt.
    pub generation: u64,
    /// How long this caller waits; none: without limit.
    pub timeout: Option<Duration>,
}

/// How a task's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndReport {
    /// Whether all is well.
    pub ok: bool,
    /// The exit code that the run's process would have on its own.
    pub exit_code: u8,
    /// What happened; empty where all is well.
    pub message: String,
    /// A signal or the operator ended it: it left, it didn't fail.
    pub leaving: bool,
}

/// What the leader tells a registered task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderEvent {
    /// The leader lives.
    Heartbeat,
    /// How a barrier's generation ended for this task.
    Barrier {
        /// The barrier's name.
        name: String,
        /// The generation that ended.
        generation: u64,
        /// Passed, or why not.
        result: Result<()>,
    },
    /// A new attempt begins: end the guest, and begin again in a new store.
    AttemptBegins {
        /// The new attempt.
        attempt: Attempt,
        /// Why the one before ended.
        cause: Cause,
    },
    /// A task's state changed. `Ended` acknowledges the task's own report; the leader's end goes to all.
    Task {
        /// The task concerned.
        task: Task,
        /// Its new state.
        state: TaskState,
        /// Why, in words.
        message: String,
    },
    /// Every runner has ended, or the attempt has failed for good.
    TrainingEnded {
        /// The first cause of a failure; none where all is well.
        cause: Option<Cause>,
    },
    /// No runner runs any more: leave.
    JobEnded {
        /// The first cause of a failure; none where all is well.
        cause: Option<Cause>,
    },
}

/// A task's state in the leader's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// It has not attended in this attempt.
    NeverSeen,
    /// It attends.
    Running,
    /// Its stream broke and it doesn't answer; it may come back.
    Suspect,
    /// It reported its end.
    Ended,
    /// It is taken for dead.
    Lost,
}

impl TaskState {
    /// The state as it prints: `never-seen`, `running`, `suspect`, `ended` or `lost`.
    pub const fn as_str(self) -> &'static str {
        match self {
            TaskState::NeverSeen => "never-seen",
            TaskState::Running => "running",
            TaskState::Suspect => "suspect",
            TaskState::Ended => "ended",
            TaskState::Lost => "lost",
        }
    }
}

/// The first cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The task that failed first.
    pub task: Task,
    /// 201 if it was never seen, 202 if it was lost, else the exit code that it reported.
    pub exit_code: u8,
    /// What happened there.
    pub message: String,
}

/// Why attending didn't work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttendError {
    /// The leader can't be reached (now); trying again may help. Says why: refused, unresolved, timed out.
    Unreachable(String),
    /// The leader refuses the task for good. `already-exists`: another incarnation of the task is alive (exit 200);
    /// `failed-precondition`, `invalid-argument`: mode, digest, cluster or a missing module (exit 2).
    Refused(Error),
    /// The job is complete: leave with 0.
    Complete,
}

/// What dialling a task's address shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// A dchost server of this incarnation answered.
    Answered(Incarnation),
    /// The connection was refused: nobody listens.
    Refused(String),
    /// Nothing came back in time, or the name doesn't resolve. Says which.
    NoAnswer(String),
}
