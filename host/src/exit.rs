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
    /// Files that dchost itself needs cannot be read or written.
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
}
