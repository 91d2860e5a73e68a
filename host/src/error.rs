//! The one error value that crosses from the domain to guests and to remote callers.

use crate::cluster::{Task, list_tasks};
use crate::variables::StoredShard;
use std::fmt;

/// What kind of failure it is: gRPC's codes, and what a cluster adds to them.
///
/// Three edges map it: `wire::status` to a gRPC status, `runtime` to the WIT enum, `coordinator::outcome` to an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The call was given up because the run or the process is ending.
    Cancelled,
    /// A failure of another system without a kind of its own.
    Unknown,
    /// The caller's mistake, whatever the state of the cluster.
    InvalidArgument,
    /// The call's own timeout passed.
    DeadlineExceeded,
    /// There is no such thing.
    NotFound,
    /// There is already such a thing.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// A limit is reached; the message names its flag.
    ResourceExhausted,
    /// The call doesn't fit the present state; repeating it without a change won't help.
    FailedPrecondition,
    /// The call lost against another one or belongs to an attempt that is over.
    Aborted,
    /// An index is outside its range.
    OutOfRange,
    /// This host doesn't serve the call.
    Unimplemented,
    /// A broken invariant: a bug in dchost.
    Internal,
    /// The task could not be reached before the connect deadline.
    Unavailable,
    /// Data is lost or damaged.
    DataLoss,
    /// The caller didn't say who it is.
    Unauthenticated,
    /// A variable is read or updated before it was initialized.
    Uninitialized,
    /// A task that the call needs has failed.
    PeerFailed,
    /// A task that the call needs was started anew and has lost what it held.
    PeerRestarted,
}

impl ErrorCode {
    /// The code as it prints: `failed-precondition`, `peer-restarted`, ...
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::Unknown => "unknown",
            ErrorCode::InvalidArgument => "invalid-argument",
            ErrorCode::DeadlineExceeded => "deadline-exceeded",
            ErrorCode::NotFound => "not-found",
            ErrorCode::AlreadyExists => "already-exists",
            ErrorCode::PermissionDenied => "permission-denied",
            ErrorCode::ResourceExhausted => "resource-exhausted",
            ErrorCode::FailedPrecondition => "failed-precondition",
            ErrorCode::Aborted => "aborted",
            ErrorCode::OutOfRange => "out-of-range",
            ErrorCode::Unimplemented => "unimplemented",
            ErrorCode::Internal => "internal",
            ErrorCode::Unavailable => "unavailable",
            ErrorCode::DataLoss => "data-loss",
            ErrorCode::Unauthenticated => "unauthenticated",
            ErrorCode::Uninitialized => "uninitialized",
            ErrorCode::PeerFailed => "peer-failed",
            ErrorCode::PeerRestarted => "peer-restarted",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A failed call, as guests and remote callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What happened, where, why and how to mend it: a lowercase fragment without a full stop.
    pub message: String,
    /// Who is missing, failed or restarted; all of them. Empty where no task is to blame.
    pub tasks: Vec<Task>,
    /// Names of the variables, ops or limits concerned.
    pub names: Vec<String>,
    /// Variables that the task holds in other parts than the call took them for. Empty for all other errors.
    pub stored: Vec<StoredShard>,
}

/// The result of a call that a guest or a remote caller made.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of its kind and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), tasks: Vec::new(), names: Vec::new(), stored: Vec::new() }
    }

    /// Adds the tasks that are to blame.
    pub fn with_tasks(mut self, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.tasks.extend(tasks);
        self
    }

    /// Adds the names that are concerned.
    pub fn with_names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds how a task holds a variable that the call took for another part.
    pub fn with_stored(mut self, stored: StoredShard) -> Self {
        self.stored.push(stored);
        self
    }

    /// Makes the error of a split client that may not use its container on `task`; `message` says why, and what to do.
    pub fn container_refused(task: Task, message: impl Into<String>) -> Self {
        Error::new(ErrorCode::FailedPrecondition, message).with_tasks([task]).with_names([CONTAINER_FLAG])
    }

    /// Whether it is that of [`container_refused`](Self::container_refused). Those of variables, whatever their names, blame no task.
    pub fn refuses_container(&self) -> bool {
        self.code == ErrorCode::FailedPrecondition && !self.tasks.is_empty() && self.names == [CONTAINER_FLAG]
    }
}

/// What a client that may not use its container has to change.
const CONTAINER_FLAG: &str = "--container";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        let unnamed: Vec<_> = self.tasks.iter().filter(|task| !self.message.contains(&task.to_string())).collect();
        if unnamed.is_empty() { Ok(()) } else { write!(f, " ({})", list_tasks(unnamed)) }
    }
}

impl std::error::Error for Error {}
