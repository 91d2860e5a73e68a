//! Exit codes: what a process tells the one that started it. Below 128 is permanent, from 128 worth a retry.

/// Why a process exits, as a number.
///
/// # Source
/// The `ExitCode` restart policy of the Kubernetes training operators: 1 to 127 permanent, 128 to 255 retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// `worker_fn` returned an error, or the guest exited non-zero.
    WorkerError = 1,
    /// Usage, configuration or component refused before a port was bound, or refused by the leader.
    Refused = 2,
    /// The guest trapped.
    Trap = 3,
    /// A resource limit was reached.
    Limit = 4,
    /// A bug in dchost.
    Bug = 70,
    /// Files that dchost itself needs cannot be read or written, or standard output can't.
    Files = 74,
    /// The wall clock `--timeout`.
    Timeout = 124,
    /// SIGINT.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
    /// The address could not be bound, or another process has the task.
    Bind = 200,
    /// Peers not reachable, or a barrier not complete, before its deadline.
    Unreachable = 201,
    /// A peer failed or restarted.
    PeerFailed = 202,
}

impl Exit {
    /// The process's exit code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The meaning of another dchost process's exit code; none where dchost never exits with it.
    pub const fn from_code(code: u8) -> Option<Exit> {
        Some(match code {
            0 => Exit::Done,
            1 => Exit::WorkerError,
            2 => Exit::Refused,
            3 => Exit::Trap,
            4 => Exit::Limit,
            70 => Exit::Bug,
            74 => Exit::Files,
            124 => Exit::Timeout,
            130 => Exit::Interrupted,
            143 => Exit::Terminated,
            200 => Exit::Bind,
            201 => Exit::Unreachable,
            202 => Exit::PeerFailed,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_meaning() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(Exit::from_code).collect();
        assert_eq!(known.len(), 13);
        for exit in known {
            assert_eq!(Exit::from_code(exit.code()), Some(exit));
        }
    }
}
