//! The one way that every waiting host call goes: interruptible, labelled, its panics caught.

use super::watch::RunWatch;
use crate::error::{Error, ErrorCode};
use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use tokio::sync::watch;

/// How a host function ends that doesn't answer: the guest gets an error, or traps.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub enum HostError {
    /// The guest's mistake, or the cluster's failure: an error of the WIT.
    Wit(Error),
    /// A broken invariant.
    Trap(wasmtime::Error),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Wit(error) => error.fmt(f),
            HostError::Trap(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for HostError {}

impl From<Error> for HostError {
    fn from(error: Error) -> Self {
        HostError::Wit(error)
    }
}

impl From<wasmtime::Error> for HostError {
    fn from(error: wasmtime::Error) -> Self {
        HostError::Trap(error)
    }
}

impl From<wasmtime::component::ResourceTableError> for HostError {
    /// A full table is the guest's limit and any other fault a handle that it can't have: both trap.
    fn from(error: wasmtime::component::ResourceTableError) -> Self {
        HostError::Trap(error.into())
    }
}

/// A host function panicked; the run ends as a bug in dchost.
#[derive(Debug, thiserror::Error)]
#[error("a host function panicked: {0}")]
pub(super) struct HostPanic(pub(super) String);

/// Whether an answer's tasks are waited for together, which makes more codes a failure of the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A barrier: its deadline-exceeded and aborted are the cluster's.
    Barrier,
    /// Anything else: a deadline is the guest's own.
    Other,
}

/// What host calls of one run share. Cheap to clone, so that a call needn't borrow the store.
#[derive(Clone)]
pub(crate) struct Calls {
    interrupt: watch::Receiver<Option<Error>>,
    watch: RunWatch,
}

impl Calls {
    pub(super) fn new(interrupt: watch::Receiver<Option<Error>>, watch: RunWatch) -> Self {
        Calls { interrupt, watch }
    }

    /// The receiver that tells of an interrupt.
    pub(super) fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        self.interrupt.clone()
    }

    /// Fails if the run is interrupted: for calls that answer at once.
    pub(super) fn check(&self) -> Result<(), HostError> {
        let interrupt = self.interrupt.borrow().clone();
        match interrupt {
            Some(error) => Err(self.tell(CallKind::Other, error)),
            None => Ok(()),
        }
    }

    /// Waits for `answer` until the run is interrupted. An answer that is there wins over an interrupt: what has happened is
    /// told, as a barrier that was passed before a task failed, and the next call tells of the interrupt.
    ///
    /// `label` names the call for whoever drops the run meanwhile.
    ///
    /// # Cancel safety
    /// Dropping it drops `answer`; the run's watch goes on naming the call, which is what the run was dropped in.
    pub(super) async fn wait<T>(
        &self,
        kind: CallKind,
        label: String,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, HostError> {
        self.check()?;
        self.watch.set_pending(Some(label));
        let mut interrupt = self.interrupt.clone();
        let guarded = catch_panics(answer);
        let answer = tokio::select! {
            biased;
            answer = guarded => answer,
            error = interrupted(&mut interrupt) => Ok(Err(error)),
        };
        self.watch.set_pending(None);
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.tell(kind, error)),
            Err(panic) => Err(self.bug(panic)),
        }
    }

    /// Makes the error that a guest gets, and remembers whether it tells of a cluster failure.
    pub(super) fn tell(&self, kind: CallKind, error: Error) -> HostError {
        let cluster = match error.code {
            ErrorCode::PeerFailed | ErrorCode::PeerRestarted | ErrorCode::Unavailable => true,
            ErrorCode::DeadlineExceeded | ErrorCode::Aborted => kind == CallKind::Barrier,
            _ => error.refuses_container(),
        };
        if cluster {
            self.watch.note_cluster_failure(&error);
        }
        HostError::Wit(error)
    }

    /// Makes the trap that a panicking host function ends in.
    pub(super) fn bug(&self, panic: HostPanic) -> HostError {
        self.watch.note_host_bug(panic.to_string());
        HostError::Trap(panic.into())
    }
}

/// Resolves when the run is interrupted; never, if its sender is gone.
///
/// # Cancel safety
/// Dropping it has no effect; an interrupt that came stays.
pub(super) async fn interrupted(interrupt: &mut watch::Receiver<Option<Error>>) -> Error {
    let error = match interrupt.wait_for(Option::is_some).await {
        Ok(error) => error.clone(),
        Err(_closed) => None,
    };
    match error {
        Some(error) => error,
        None => std::future::pending().await,
    }
}

/// Runs a future, turning a panic in it into a value.
///
/// Whatever the future held is dropped with it, so nothing half done is seen afterwards.
///
/// # Cancel safety
/// That of the future, whose panic while it is dropped is not caught.
pub(super) async fn catch_panics<F: Future>(future: F) -> Result<F::Output, HostPanic> {
    let mut future = pin!(future);
    poll_fn(|cx| match caught(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    })
    .await
}

/// Runs `work`, turning a panic in it into a value. What it leaves half done must not be looked at afterwards.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, HostPanic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| HostPanic(panic_text(&*payload)))
}

/// The text of a panic, where it has one.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a value that is no text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_there_wins_over_an_interrupt_and_the_next_call_tells_of_it() {
        let (interrupt, interrupted) = watch::channel(None);
        let calls = Calls::new(interrupted, RunWatch::new());
        let (release, released) = tokio::sync::oneshot::channel();
        let wait = calls.wait(CallKind::Barrier, "barrier".to_owned(), async { Ok(released.await.expect("released")) });
        // Both are there when the waiting call is polled again.
        let both = async {
            release.send(7).expect("somebody waits");
            interrupt.send_replace(Some(Error::new(ErrorCode::PeerFailed, "worker:1 failed")));
        };
        let (released, ()) = tokio::join!(biased; wait, both);
        assert_eq!(released.expect("the answer"), 7);
        let next = calls.wait(CallKind::Barrier, "barrier".to_owned(), std::future::ready(Ok(7))).await;
        assert!(matches!(next, Err(HostError::Wit(error)) if error.code == ErrorCode::PeerFailed));
    }
}
