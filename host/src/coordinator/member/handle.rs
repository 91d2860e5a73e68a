//! What runs and the coordinator hold of a member.

use super::{Command, Departure, Training, solo};
use crate::attend::{AttendError, Cause, EndReport, Registered};
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::exit::Exit;
use crate::handles::{BoxFuture, Job};
use crate::ids::Attempt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Reaches the member; cheap to clone, pollable on any runtime.
#[derive(Clone)]
pub struct MemberHandle {
    pub(super) context: Option<Arc<WorkerContext>>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) registered: watch::Receiver<Option<Result<Registered, AttendError>>>,
    pub(super) attempt: watch::Receiver<Option<Attempt>>,
    pub(super) training: watch::Receiver<Training>,
    pub(super) interrupt: watch::Receiver<Option<Error>>,
    pub(super) overdue: watch::Receiver<bool>,
    pub(super) chief_ended: watch::Receiver<Option<Error>>,
    pub(super) departure: watch::Receiver<Option<Departure>>,
}

impl MemberHandle {
    /// Waits until the leader has accepted the task, or never will.
    ///
    /// # Errors
    /// What the leader said, or why it could not be reached before the connect timeout; `Unreachable` too where the
    /// member was shut down. [`refusal_exit_code`](super::refusal_exit_code) says what the process exits with.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn registered(&self) -> Result<Registered, AttendError> {
        let mut registered = self.registered.clone();
        match registered.wait_for(Option::is_some).await {
            Ok(result) => result.clone().expect("waited until it was there"),
            Err(_) => Err(AttendError::Unreachable("this process is shutting down".to_owned())),
        }
    }

    /// Set once the run must end: `peer-failed` or `peer-restarted` naming the cause, `cancelled` where the job ended
    /// without a failure or the run is an evaluator's.
    pub fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        self.interrupt.clone()
    }

    /// Set once a run that was interrupted has had its 10 s and is to be dropped.
    pub fn overdue(&self) -> watch::Receiver<bool> {
        self.overdue.clone()
    }

    /// Set once the chief's run has ended, well or not: nobody will initialize variables any more.
    pub fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        self.chief_ended.clone()
    }

    /// What a run that ended after the interrupt, with no failure of its own, exits with: 201 if the cause was never
    /// seen, 202 for any other failure, 0 where the job ended well or the run is an evaluator's. None: not interrupted.
    pub fn interrupt_exit_code(&self) -> Option<u8> {
        let code = self.interrupt.borrow().as_ref()?.code;
        let never_seen =
            self.training.borrow().cause.as_ref().is_some_and(|cause| cause.exit_code == Exit::Unreachable.code());
        Some(match code {
            ErrorCode::Cancelled => Exit::Done.code(),
            ErrorCode::PeerFailed if never_seen => Exit::Unreachable.code(),
            ErrorCode::Unavailable => Exit::Unreachable.code(),
            _ => Exit::PeerFailed.code(),
        })
    }

    /// The job's attempt, and each change of it; none before the first registration. Another leader incarnation means
    /// that what was stored for the one before is void.
    pub fn attempts(&self) -> watch::Receiver<Option<Attempt>> {
        self.attempt.clone()
    }

    /// Whether the training has ended.
    pub fn training_ended(&self) -> bool {
        self.training.borrow().ended
    }

    /// The first cause of a failure, once the leader has named one.
    pub fn cause(&self) -> Option<Cause> {
        self.training.borrow().cause.clone()
    }

    /// Reports the end of the task's run and waits, at most [`END_TIMEOUT`](super::END_TIMEOUT), until the leader has it.
    ///
    /// Returns whether it has. A task that leaves without a report is taken for lost.
    ///
    /// # Cancel safety
    /// The report is sent even if nobody waits any more.
    pub async fn end(&self, report: EndReport) -> bool {
        let (reply, delivered) = oneshot::channel();
        self.commands.send(Command::End { report, reply }).await.is_ok() && delivered.await.unwrap_or(false)
    }

    /// Waits until this task is to leave, and says why.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn job_ended(&self) -> Departure {
        let mut departure = self.departure.clone();
        match departure.wait_for(Option::is_some).await {
            Ok(departure) => departure.clone().expect("waited until it was there"),
            Err(_) => Departure::ShutDown,
        }
    }
}

impl Job for MemberHandle {
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match &self.context {
                Some(context) if context.has_barrier => {}
                Some(context) => return Err(solo::no_barrier(context)),
                None => return Err(Error::new(ErrorCode::FailedPrecondition, "this task runs no worker_fn")),
            }
            if let Some(error) = self.interrupt.borrow().clone() {
                return Err(error);
            }
            let closed = || {
                let interrupt = self.interrupt.borrow().clone();
                interrupt.unwrap_or_else(|| Error::new(ErrorCode::Cancelled, "this process is shutting down"))
            };
            let (reply, answer) = oneshot::channel();
            let command = Command::Barrier { name: name.to_owned(), timeout, reply };
            self.commands.send(command).await.map_err(|_| closed())?;
            answer.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn training_ended(&self) -> bool {
        MemberHandle::training_ended(self)
    }

    fn attempt(&self) -> u32 {
        self.attempt.borrow().map_or(0, |attempt| attempt.number)
    }
}
