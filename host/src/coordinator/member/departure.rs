//! Why a task leaves, and what its process exits with.

use crate::attend::{AttendError, Cause};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;

/// Why a task's member has departed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The leader said so, or the task's own run had ended.
    JobEnded {
        /// The first cause of a failure; none where all is well.
        cause: Option<Cause>,
    },
    /// The leader is gone.
    LeaderLost {
        /// `peer-failed` or `peer-restarted`, naming it.
        error: Error,
    },
    /// The leader can't be reached before the connect timeout, or refuses the task.
    Refused(AttendError),
    /// This process is shutting down.
    ShutDown,
}

impl Departure {
    /// What a ps or joined task, or a run without a failure of its own, exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Departure::JobEnded { cause: None } | Departure::ShutDown => Exit::Done.code(),
            Departure::JobEnded { cause: Some(_) } | Departure::LeaderLost { .. } => Exit::PeerFailed.code(),
            Departure::Refused(error) => refusal_exit_code(error),
        }
    }
}

/// What a process exits with whose registration came to this.
///
/// `already-exists` is 200, like an address that is in use. A job that has failed already, or that the task has left,
/// is 202: worth a retry when another life of the job has begun.
pub fn refusal_exit_code(error: &AttendError) -> u8 {
    match error {
        AttendError::Unreachable(_) => Exit::Unreachable.code(),
        AttendError::Complete => Exit::Done.code(),
        AttendError::Refused(error) => match error.code {
            ErrorCode::AlreadyExists => Exit::Bind.code(),
            ErrorCode::PeerFailed | ErrorCode::PeerRestarted | ErrorCode::Aborted | ErrorCode::Cancelled => {
                Exit::PeerFailed.code()
            }
            ErrorCode::Unavailable => Exit::Unreachable.code(),
            _ => Exit::Refused.code(),
        },
    }
}
