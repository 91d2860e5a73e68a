//! The error that every call to the cluster may end with.

use crate::Task;
use std::fmt;

/// The result of a call to the cluster, and what a worker_fn usually returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it is: gRPC's codes, and what a cluster adds to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The call was given up because the run is ending.
    Cancelled,
    /// A failure without a kind of its own; also that of errors made from a string.
    Unknown,
    /// A mistake in the call, whatever the state of the cluster: a shape, a name, a task that doesn't exist.
    InvalidArgument,
    /// The call's own timeout passed.
    DeadlineExceeded,
    /// There is no such thing.
    NotFound,
    /// There is already such a thing.
    AlreadyExists,
    /// The run may not do this.
    PermissionDenied,
    /// A limit is reached; the message names its flag.
    ResourceExhausted,
    /// The call doesn't fit the present state, and repeating it won't help.
    FailedPrecondition,
    /// The call lost against another one: a stale base version, or a barrier that a task left without arriving.
    Aborted,
    /// An index is outside its range.
    OutOfRange,
    /// This host doesn't serve the call.
    Unimplemented,
    /// A bug in dchost.
    Internal,
    /// A task could not be reached before the connect deadline.
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

/// A failed call.
///
/// Prints as `peer-failed: worker:1 ended with exit code 3`; without the code where that is `unknown`. A string becomes
/// an error by `?` or `.into()`, so that a worker_fn can say `return Err("bad shard 7".into())`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure, to match on.
    pub code: ErrorCode,
    /// What happened, where, why and how to mend it.
    pub message: String,
    /// Who is missing, failed or restarted; empty where no task is to blame.
    pub tasks: Vec<Task>,
}

impl Error {
    /// Makes an error of its kind and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), tasks: Vec::new() }
    }

    /// Adds the tasks that are to blame.
    pub fn with_tasks(mut self, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.tasks.extend(tasks);
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::InvalidArgument, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code != ErrorCode::Unknown {
            write!(f, "{}: ", self.code)?;
        }
        f.write_str(&self.message)?;
        let unnamed: Vec<String> =
            self.tasks.iter().map(Task::to_string).filter(|task| !self.message.contains(task)).collect();
        if unnamed.is_empty() { Ok(()) } else { write!(f, " ({})", unnamed.join(", ")) }
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(message: String) -> Self {
        Error::new(ErrorCode::Unknown, message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Self {
        Error::new(ErrorCode::Unknown, message)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::new(ErrorCode::Unknown, error.to_string())
    }
}
