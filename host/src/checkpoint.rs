//! Checkpoints: the variables of a container, with what optimizers keep beside them, in files and back.
//!
//! The process that calls [`save`] or [`restore`] reads and writes the files, on its own machine; the tasks of the cluster send and
//! take values, and open no path that anybody names. A checkpoint knows nothing of how the tasks held its variables: one that was
//! in parts is whole in it, and is cut anew for the tasks that there are when it is restored.
//!
//! | module | what it is |
//! | --- | --- |
//! | `tensors` | headers of safetensors files |
//! | `manifest` | what the manifest says, and whether that makes sense |
//! | `write`, `read` | the directory: written beside its place and renamed, checked before anything of it is used |
//! | `reach` | which tasks there are |
//! | `save`, `restore` | what goes where, and the transfer |

mod manifest;
mod reach;
mod read;
mod restore;
mod save;
mod tensors;
mod write;

pub use restore::{RestoreReport, restore};
pub use save::{SaveReport, save};

use crate::client::status::StatusError;
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::text;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of values in one file, unless one tensor has more: files of such a size are copied, sent and checked with ease.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// What is saved or restored, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// `host:port` of any task of the cluster; it tells where the others are.
    pub address: String,
    /// The checkpoint's directory.
    pub dir: PathBuf,
    /// The container whose variables are meant.
    pub container: String,
    /// How long a task may take to answer: the one that is asked, ps tasks and, where there are none, the leader.
    pub connect_timeout: Duration,
    /// Most bytes of values in one file that is written, unless one tensor has more.
    pub file_bytes_max: u64,
}

impl CheckpointOptions {
    /// The container `default`, 5 s to answer, files of [`FILE_BYTES_MAX`].
    pub fn new(address: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        CheckpointOptions {
            address: address.into(),
            dir: dir.into(),
            container: "default".to_owned(),
            connect_timeout: Duration::from_secs(5),
            file_bytes_max: FILE_BYTES_MAX,
        }
    }
}

/// Why a checkpoint was not saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refuses to read or write.
    #[error("can't {what} `{}`", text::path(.path))]
    Files {
        /// `read` or `write`.
        what: &'static str,
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is in the directory is no whole checkpoint. Nothing of it was restored.
    #[error("checkpoint `{}` can't be used: {why}", text::path(.dir))]
    Torn {
        /// The directory.
        dir: PathBuf,
        /// Which file is wrong, and how.
        why: String,
    },
    /// It can't be done as it was asked for; the text says what would do.
    #[error("{0}")]
    Refused(String),
    /// A task that is needed doesn't answer.
    #[error("{task} at `{}` was not reached: {error}; is it running, and is that its address? See --connect-timeout",
            text::shown(.address))]
    NotReached {
        /// Which: `ps:1`, or `the server`.
        task: String,
        /// Where.
        address: String,
        /// Why.
        error: Box<StatusError>,
    },
    /// A task refuses, or has failed.
    #[error(transparent)]
    Task(#[from] Error),
}

impl CheckpointError {
    /// The exit code of a process that ends so.
    pub fn exit(&self) -> Exit {
        match self {
            CheckpointError::Files { .. } | CheckpointError::Torn { .. } => Exit::Files,
            CheckpointError::Refused(_) => Exit::Refused,
            CheckpointError::NotReached { error, .. } => match **error {
                StatusError::Refused(_) => Exit::Refused,
                StatusError::NotReached { .. } | StatusError::Foreign(_) => Exit::Unreachable,
            },
            CheckpointError::Task(error) => match error.code {
                ErrorCode::Unavailable | ErrorCode::DeadlineExceeded | ErrorCode::Aborted => Exit::Unreachable,
                ErrorCode::PeerFailed | ErrorCode::PeerRestarted | ErrorCode::Cancelled => Exit::PeerFailed,
                ErrorCode::ResourceExhausted => Exit::Limit,
                ErrorCode::DataLoss => Exit::Files,
                ErrorCode::Internal | ErrorCode::Unknown => Exit::Bug,
                _ => Exit::Refused,
            },
        }
    }

    fn reading(path: &Path, source: io::Error) -> Self {
        CheckpointError::Files { what: "read", path: path.to_owned(), source }
    }

    fn writing(path: &Path, source: io::Error) -> Self {
        CheckpointError::Files { what: "write", path: path.to_owned(), source }
    }
}
