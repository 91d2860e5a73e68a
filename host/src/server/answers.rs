//! Streams of answers that go with their session.

use crate::server::guard::Admitted;
use crate::sync::lock;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

/// A stream of answers, or of one's errors.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How long answers wait after the end of the session to be read: who reads them gets what was there.
pub(super) const UNREAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Ties answers to their session: whatever is unread soon after its end is dropped, with the room that it takes. The transport asks
/// for nothing more where a caller doesn't read, and would keep them for as long as the connection stands.
///
/// By itself `answers` ends, or fails, at the end of the session.
pub(super) fn of_session<T: 'static>(
    admitted: Admitted,
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    let over = CancellationToken::new();
    let rest: Rest<T> = Arc::new(Mutex::new(Some(Box::pin(answers))));
    let (unread, session, read) = (rest.clone(), admitted.session.clone(), over.clone());
    tokio::spawn(async move {
        let timed_out = async {
            session.cancelled().await;
            sleep(UNREAD_TIMEOUT).await;
        };
        tokio::select! {
            () = read.cancelled() => {}
            () = timed_out => drop(lock(&unread).take()),
        }
    });
    Box::pin(OfSession { rest, told: false, admitted, _over: over.drop_guard() })
}

/// As [`of_session`], of answers that know nothing of the session: each is sent as long as it lasts.
pub(super) fn while_session<T: 'static>(
    admitted: Admitted,
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    let lasting = admitted.clone();
    let answers = answers.map(move |answer| match lasting.session.is_cancelled() {
        true => Err(lasting.ended().into()),
        false => answer,
    });
    of_session(admitted, answers)
}

/// None once they are dropped.
type Rest<T> = Arc<Mutex<Option<Answers<T>>>>;

struct OfSession<T> {
    rest: Rest<T>,
    /// Whether the caller was told that the session has ended, in place of answers.
    told: bool,
    admitted: Admitted,
    /// Ends the wait for the session's end.
    _over: DropGuard,
}

impl<T> Stream for OfSession<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(rest) = &mut *lock(&self.rest) {
            return rest.as_mut().poll_next(context);
        }
        let told = std::mem::replace(&mut self.told, true);
        Poll::Ready((!told).then(|| Err(self.admitted.ended().into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Task, TaskType};
    use crate::ids::{Caller, Incarnation, RunId};
    use crate::server::guard::{Guard, Rpc, authorize};
    use crate::server::session::Sessions;
    use crate::wire::header::Header;
    use tokio::runtime::Handle;
    use tokio::time::Instant;

    /// Aim: what nobody reads doesn't outlive its session for long, and what is read does. Method: answers that share a value with the
    /// test, on a paused clock.
    #[tokio::test(start_paused = true)]
    async fn what_is_unread_is_dropped_soon_after_the_session_has_ended() {
        let stopping = CancellationToken::new();
        let sessions = Sessions::new(Duration::from_secs(30), stopping.clone(), Handle::current());
        let guard = Guard::new(Task::new(TaskType::Ps, 0), Incarnation(1), sessions, Arc::new(authorize), stopping);
        let caller = Caller { container: "default".to_owned(), task: None, run_id: RunId(1), attempt: None };
        let lease = guard.sessions().open(&caller).expect("there is room");
        let admitted = guard.admit(Rpc::Fetch, Some((&Header::new(caller)).into())).expect("it has a session");
        let shared = Arc::new(());
        let stream = || of_session(admitted.clone(), tokio_stream::iter(vec![Ok(shared.clone()); 3]));
        let (mut unread, mut read) = (stream(), stream());
        assert!(unread.next().await.is_some_and(|answer| answer.is_ok()));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(Arc::strong_count(&shared), 6, "the session lasts");
        lease.close();
        let ended = Instant::now();
        for _ in 0..3 {
            assert!(read.next().await.is_some_and(|answer| answer.is_ok()), "who reads gets what was there");
        }
        assert_eq!(Arc::strong_count(&shared), 3);
        while Arc::strong_count(&shared) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!((UNREAD_TIMEOUT..UNREAD_TIMEOUT * 2).contains(&ended.elapsed()), "{:?}", ended.elapsed());
        assert!(unread.next().await.is_some_and(|answer| answer.is_err()), "it is told");
        assert!(unread.next().await.is_none());
    }
}
