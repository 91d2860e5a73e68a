//! How a process ended: its exit code, and what to tell the user.

use crate::attend::{AttendError, EndReport};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::runtime::{RunEnd, RunReport};
use crate::text::with_lines;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the process exits with.
    pub exit: Exit,
    /// What happened, where, why and how to mend it; none where all is well.
    pub message: Option<String>,
}

impl Outcome {
    /// All is well.
    pub fn done() -> Self {
        Outcome { exit: Exit::Done, message: None }
    }

    /// It failed, with this to tell.
    pub fn failed(exit: Exit, message: impl Into<String>) -> Self {
        Outcome { exit, message: Some(message.into()) }
    }

    /// What the leader is told of it.
    pub fn report(&self, leaving: bool) -> EndReport {
        // The first line says what happened; the rest (frames, hints) is for this task's own log.
        let message = self.message.as_deref().and_then(|message| message.lines().next()).unwrap_or_default();
        EndReport { ok: self.exit == Exit::Done, exit_code: self.exit.code(), message: message.to_owned(), leaving }
    }
}

/// What a run's end means for its process.
///
/// `interrupted` is what the cluster makes of a run that it had to end: see
/// [`MemberHandle::interrupt_exit_code`](super::member::MemberHandle::interrupt_exit_code); none: it ended by itself.
///
/// A run that fails after the cluster failed it is a consequence, and exits with that failure's code; both are told.
pub fn of_run(report: &RunReport, interrupted: Option<(Exit, Error)>) -> Outcome {
    let own = match &report.end {
        RunEnd::Done | RunEnd::GuestExit { ok: true, .. } => Outcome::done(),
        RunEnd::WorkerError { message } => Outcome::failed(Exit::WorkerError, format!("worker_fn failed: {message}")),
        RunEnd::GuestExit { ok: false, code: Some(code) } => {
            Outcome::failed(Exit::WorkerError, format!("the guest exited with code {code}"))
        }
        RunEnd::GuestExit { ok: false, code: None } => {
            Outcome::failed(Exit::WorkerError, "the guest exited with a failure; WASI 0.2 doesn't pass its number on")
        }
        RunEnd::Trap { kind, report } => {
            Outcome::failed(Exit::Trap, with_lines(&format!("the guest trapped: {kind}"), report))
        }
        RunEnd::Limit { message, .. } => return Outcome::failed(Exit::Limit, message.clone()),
        RunEnd::Refused { message } => return Outcome::failed(Exit::Refused, message.clone()),
        RunEnd::NoRoom { message } => return Outcome::failed(Exit::Files, message.clone()),
        RunEnd::HostBug { message } => return Outcome::failed(Exit::Bug, message.clone()),
    };
    let failure = interrupted.or_else(|| {
        let error = report.cluster_failure.clone().filter(|_| own.exit != Exit::Done)?;
        Some((exit_of_failure(&error), error))
    });
    let Some((exit, error)) = failure else { return own };
    match (exit, own.message) {
        // The job ended well without this run: nothing to tell.
        (Exit::Done, _) => Outcome::done(),
        (exit, None) => Outcome::failed(exit, format!("the run ended, but the job had failed: {error}")),
        // Most guests hand on what they were told.
        (exit, Some(message)) if message == format!("worker_fn failed: {error}") => {
            Outcome::failed(exit, format!("{error}\nas a consequence, worker_fn failed with this error"))
        }
        (exit, Some(message)) => Outcome::failed(exit, format!("{error}\nas a consequence, {message}")),
    }
}

/// What a cluster failure that the guest was told of makes of a run that failed after it.
fn exit_of_failure(error: &Error) -> Exit {
    match error.code {
        ErrorCode::Unavailable | ErrorCode::DeadlineExceeded | ErrorCode::Aborted => Exit::Unreachable,
        _ if error.refuses_container() => Exit::Refused,
        _ => Exit::PeerFailed,
    }
}

/// What to tell where the leader did not accept the task.
pub fn of_refusal(exit: Exit, leader: Task, address: &str, error: &AttendError) -> Outcome {
    match error {
        AttendError::Complete => {
            tracing::info!("the job is complete, nothing is left to do");
            Outcome::done()
        }
        AttendError::Unreachable(why) => Outcome::failed(
            exit,
            format!(
                "the leader {leader} at `{address}` could not be reached: {why}; start it, or see --connect-timeout"
            ),
        ),
        AttendError::Refused(error) => Outcome::failed(exit, format!("the leader {leader} refuses this task: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use std::time::Duration;

    fn report(end: RunEnd, cluster_failure: Option<Error>) -> RunReport {
        RunReport { end, cluster_failure, cpu_time: Duration::ZERO, memory_bytes_peak: 0 }
    }

    fn worker_error() -> RunEnd {
        RunEnd::WorkerError { message: "bad shard 7".to_owned() }
    }

    fn peer_failed() -> Error {
        Error::new(ErrorCode::PeerFailed, "worker:1 failed").with_tasks([Task::new(TaskType::Worker, 1)])
    }

    #[test]
    fn each_end_has_its_code() {
        let trap = RunEnd::Trap { kind: "unreachable".to_owned(), report: String::new() };
        for (end, exit) in [
            (RunEnd::Done, Exit::Done),
            (worker_error(), Exit::WorkerError),
            (RunEnd::GuestExit { ok: true, code: Some(0) }, Exit::Done),
            (RunEnd::GuestExit { ok: false, code: Some(3) }, Exit::WorkerError),
            (RunEnd::GuestExit { ok: false, code: None }, Exit::WorkerError),
            (trap, Exit::Trap),
            (RunEnd::Refused { message: String::new() }, Exit::Refused),
            (RunEnd::NoRoom { message: String::new() }, Exit::Files),
            (RunEnd::HostBug { message: String::new() }, Exit::Bug),
        ] {
            let outcome = of_run(&report(end.clone(), None), None);
            assert_eq!(outcome.exit, exit, "{end:?}");
            assert_eq!(outcome.message.is_none(), exit == Exit::Done, "{end:?}");
        }
    }

    #[test]
    fn a_failure_after_a_cluster_failure_is_its_consequence() {
        for (code, exit) in [
            (ErrorCode::PeerFailed, Exit::PeerFailed),
            (ErrorCode::PeerRestarted, Exit::PeerFailed),
            (ErrorCode::Unavailable, Exit::Unreachable),
            (ErrorCode::DeadlineExceeded, Exit::Unreachable),
            (ErrorCode::Aborted, Exit::Unreachable),
        ] {
            let failure = Error::new(code, "no answer");
            let outcome = of_run(&report(worker_error(), Some(failure.clone())), None);
            assert_eq!(outcome.exit, exit, "{code}");
            let message = outcome.message.expect("a failure");
            assert!(message.contains("no answer") && message.contains("bad shard 7"), "tells both: {message}");
            let handed_on = RunEnd::WorkerError { message: failure.to_string() };
            let outcome = of_run(&report(handed_on, Some(failure.clone())), None);
            assert_eq!(outcome.exit, exit, "{code}");
            assert_eq!(
                outcome.message.expect("a failure"),
                format!("{code}: no answer\nas a consequence, worker_fn failed with this error"),
                "tells it once"
            );
            assert_eq!(of_run(&report(RunEnd::Done, Some(failure)), None), Outcome::done(), "a guest may get over it");
        }
        let refused = Error::container_refused(Task::new(TaskType::Ps, 0), "container `mnist` of ps:0 is in use");
        assert_eq!(
            of_run(&report(worker_error(), Some(refused)), None).exit,
            Exit::Refused,
            "it is for the user to mend"
        );
    }

    #[test]
    fn an_interrupted_run_exits_as_the_cluster_says() {
        for exit in [Exit::PeerFailed, Exit::Unreachable] {
            for end in [RunEnd::Done, worker_error()] {
                let outcome = of_run(&report(end, None), Some((exit, peer_failed())));
                assert_eq!(outcome.exit, exit);
                assert!(outcome.message.expect("a failure").contains("worker:1"));
            }
        }
        let cancelled = Error::new(ErrorCode::Cancelled, "the job is over");
        assert_eq!(of_run(&report(worker_error(), None), Some((Exit::Done, cancelled))), Outcome::done());
    }

    #[test]
    fn the_leader_hears_the_first_line() {
        let outcome = Outcome::failed(Exit::Trap, "the guest trapped\nframe 1\nframe 2");
        let report = outcome.report(false);
        assert_eq!((report.ok, report.exit_code, report.message.as_str()), (false, 3, "the guest trapped"));
    }
}
