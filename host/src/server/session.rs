//! Sessions: a run's lease on this server.
//!
//! | state | event | next |
//! | --- | --- | --- |
//! | none | a stream opens | attached |
//! | attached | its stream ends cleanly | ended |
//! | attached | its stream breaks | detached |
//! | attached, detached | a stream of the same run opens | attached, the earlier stream no longer counts |
//! | detached | the rejoin timeout passes | ended |
//! | any | a newer attempt of the container begins | ended |
//!
//! The end of a session cancels its token, to which blocked and unfinished calls are tied, and tells subscribers. A server
//! that stops cancels all tokens; nobody is told, since all that it held goes with it.

use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, Caller, ClientUse, RunId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Most sessions on one server: each holds a stream, and a caller makes one by naming a run.
pub const SESSIONS_MAX: usize = 4096;

/// Most data calls of one session at once, over all its connections: as many as one connection carries, which is several
/// times what a guest may have in flight (`-W max-ops`). Each holds a task and what it has staged; none is queued.
pub const CALLS_PER_SESSION_MAX: usize = 1024;

/// A data call of a session; the session has room for another once it is dropped.
#[derive(Debug)]
pub struct SessionCall {
    /// Cancelled when the session ends.
    pub token: CancellationToken,
    /// How the session's split client uses the container; none: it is a task's.
    pub client_use: Option<ClientUse>,
    _room: OwnedSemaphorePermit,
}

/// A session that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// Whose it was.
    pub caller: Caller,
    /// Whether its container has no other session left.
    pub last_in_container: bool,
}

/// A session in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Whose it is.
    pub caller: Caller,
    /// How long ago it was first opened.
    pub age: Duration,
    /// Whether its stream is open, rather than broken and awaited.
    pub attached: bool,
}

/// What is told when a session ends; called on the thread that ends it, without locks of the sessions. It must not call
/// the guard, whose lock is held when a new attempt ends sessions.
pub type OnEnd = Arc<dyn Fn(&SessionEnd) + Send + Sync>;

type Key = (String, RunId);

/// The sessions of one server. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

struct Inner {
    rejoin_timeout: Duration,
    stopping: CancellationToken,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<Key, Session>,
    subscribers: Vec<OnEnd>,
    streams_opened: u64,
}

struct Session {
    caller: Caller,
    client_use: Option<ClientUse>,
    opened_at: Instant,
    token: CancellationToken,
    /// Room for calls.
    calls: Arc<Semaphore>,
    /// The stream that counts; an earlier one of the same run may linger until its connection is known to be broken.
    stream: u64,
    attached: bool,
}

impl Sessions {
    /// Makes the sessions of a server, none open. Their tokens are children of `stopping`; timers run on `runtime`.
    pub fn new(rejoin_timeout: Duration, stopping: CancellationToken, runtime: Handle) -> Self {
        Sessions { inner: Arc::new(Inner { rejoin_timeout, stopping, runtime, state: Mutex::default() }) }
    }

    /// Registers what is told when a session ends.
    pub fn on_end(&self, subscriber: OnEnd) {
        self.lock().subscribers.push(subscriber);
    }

    /// Opens the session of a task's run, or attaches a new stream to it.
    ///
    /// # Errors
    /// `resource-exhausted` for too many sessions.
    pub fn open(&self, caller: &Caller) -> Result<Lease> {
        self.open_for(caller, None)
    }

    /// Opens a run's session, or attaches a new stream to it; `client_use` is that of a split client's run.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_for(&self, caller: &Caller, client_use: Option<ClientUse>) -> Result<Lease> {
        let key = (caller.container.clone(), caller.run_id);
        let mut state = self.lock();
        state.streams_opened += 1;
        let stream = state.streams_opened;
        if !state.sessions.contains_key(&key) && state.sessions.len() >= SESSIONS_MAX {
            return Err(Error::new(
                ErrorCode::ResourceExhausted,
                format!("the server has {SESSIONS_MAX} sessions already; end runs that are not needed"),
            ));
        }
        let session = state.sessions.entry(key.clone()).or_insert_with(|| Session {
            caller: caller.clone(),
            client_use,
            opened_at: Instant::now(),
            token: self.inner.stopping.child_token(),
            calls: Arc::new(Semaphore::new(CALLS_PER_SESSION_MAX)),
            stream,
            attached: true,
        });
        session.caller = caller.clone();
        session.client_use = client_use;
        session.stream = stream;
        session.attached = true;
        let token = session.token.clone();
        drop(state);
        Ok(Lease { sessions: self.clone(), key, stream, token, closed: false })
    }

    /// The token of the run's session, if it has one here.
    pub fn token(&self, container: &str, run_id: RunId) -> Option<CancellationToken> {
        // The key is owned, so that a lookup copies the name; names are at most 63 bytes.
        self.lock().sessions.get(&(container.to_owned(), run_id)).map(|session| session.token.clone())
    }

    /// Begins a data call in the run's session; none where it has no session here.
    ///
    /// # Errors
    /// `resource-exhausted`: too many are under way.
    pub fn call(&self, container: &str, run_id: RunId) -> Result<Option<SessionCall>> {
        let state = self.lock();
        let Some(session) = state.sessions.get(&(container.to_owned(), run_id)) else { return Ok(None) };
        match session.calls.clone().try_acquire_owned() {
            Ok(room) => {
                let (token, client_use) = (session.token.clone(), session.client_use);
                Ok(Some(SessionCall { token, client_use, _room: room }))
            }
            Err(_) => Err(Error::new(
                ErrorCode::ResourceExhausted,
                format!(
                    "run `{run_id}` has {CALLS_PER_SESSION_MAX} calls under way here, the most that a run may have: \
                     wait for some (`-W max-ops` bounds what a guest starts)"
                ),
            )),
        }
    }

    /// Ends the sessions of a container that belong to another attempt than `attempt`. One whose caller told no attempt stays.
    pub fn end_earlier_attempts(&self, container: &str, attempt: Attempt) {
        self.end_where(|session| {
            session.caller.container == container && session.caller.attempt.is_some_and(|other| other != attempt)
        });
    }

    /// Ends the sessions of a container that are not those of the leader, or client, of `attempt`: what they had there goes.
    pub fn end_others(&self, container: &str, attempt: Attempt) {
        self.end_where(|session| {
            let other = session.caller.attempt.is_none_or(|other| other.leader != attempt.leader);
            session.caller.container == container && other
        });
    }

    /// The containers that have a session.
    pub fn containers(&self) -> HashSet<String> {
        self.lock().sessions.keys().map(|(container, _)| container.clone()).collect()
    }

    /// A session of the container whose stream is open, and whose caller and use are such; none where there is none.
    pub fn attached(&self, container: &str, such: impl Fn(&Caller, Option<ClientUse>) -> bool) -> Option<SessionRow> {
        let state = self.lock();
        let is = |session: &&Session| {
            session.attached && session.caller.container == container && such(&session.caller, session.client_use)
        };
        state.sessions.values().find(is).map(Session::row)
    }

    /// Every session, by container and run.
    pub fn list(&self) -> Vec<SessionRow> {
        let mut rows: Vec<_> = self.lock().sessions.values().map(Session::row).collect();
        rows.sort_by(|a, b| (&a.caller.container, a.caller.run_id).cmp(&(&b.caller.container, b.caller.run_id)));
        rows
    }

    fn end_where(&self, ends: impl Fn(&Session) -> bool) {
        let mut state = self.lock();
        let ended: Vec<Session> =
            state.sessions.extract_if(|_, session| ends(session)).map(|(_, session)| session).collect();
        let ends: Vec<SessionEnd> = ended
            .iter()
            .map(|session| SessionEnd {
                last_in_container: state.sessions.keys().all(|(container, _)| *container != session.caller.container),
                caller: session.caller.clone(),
            })
            .collect();
        let subscribers = state.subscribers.clone();
        drop(state);
        for (session, end) in ended.iter().zip(&ends) {
            session.token.cancel();
            tracing::debug!(container = end.caller.container, run = %end.caller.run_id, "session ended");
            for subscriber in &subscribers {
                subscriber(end);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that may panic.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One stream's hold on a session. Dropping it is a broken stream: the session waits for another one.
#[must_use = "a dropped lease is a broken stream"]
pub struct Lease {
    sessions: Sessions,
    key: Key,
    stream: u64,
    token: CancellationToken,
    closed: bool,
}

impl Lease {
    /// Cancelled when the session ends.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Ends the session, unless another stream of the run has taken over.
    pub fn close(mut self) {
        self.closed = true;
        self.sessions.end_where(|session| session.is(&self.key, self.stream));
    }
}

impl Session {
    fn row(&self) -> SessionRow {
        SessionRow { caller: self.caller.clone(), age: self.opened_at.elapsed(), attached: self.attached }
    }

    fn is(&self, key: &Key, stream: u64) -> bool {
        // Streams are counted over all sessions, so that the number alone names one.
        debug_assert!(self.stream != stream || (&self.caller.container, self.caller.run_id) == (&key.0, key.1));
        self.stream == stream
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let mut state = self.sessions.lock();
        let Some(session) = state.sessions.get_mut(&self.key).filter(|session| session.stream == self.stream) else {
            return;
        };
        session.attached = false;
        drop(state);
        let (sessions, stream) = (self.sessions.clone(), self.stream);
        let token = self.token.clone();
        self.sessions.inner.runtime.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(sessions.inner.rejoin_timeout) => {
                    sessions.end_where(|session| session.stream == stream);
                }
                () = token.cancelled() => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;

    const REJOIN: Duration = Duration::from_secs(30);

    fn caller(container: &str, run: u64) -> Caller {
        Caller { container: container.into(), task: None, run_id: RunId(run), attempt: None }
    }

    fn sessions() -> (Sessions, Arc<Mutex<Vec<SessionEnd>>>) {
        let sessions = Sessions::new(REJOIN, CancellationToken::new(), Handle::current());
        let ends = Arc::new(Mutex::new(Vec::new()));
        let seen = ends.clone();
        sessions.on_end(Arc::new(move |end| seen.lock().expect("no panic above").push(end.clone())));
        (sessions, ends)
    }

    #[tokio::test(start_paused = true)]
    async fn clean_end_ends_at_once() {
        let (sessions, ends) = sessions();
        let first = sessions.open(&caller("a", 1)).expect("there is room");
        let second = sessions.open(&caller("a", 2)).expect("there is room");
        let token = sessions.token("a", RunId(1)).expect("it is open");
        first.close();
        assert!(token.is_cancelled());
        assert!(sessions.token("a", RunId(1)).is_none());
        second.close();
        let ends = ends.lock().expect("no panic above");
        assert_eq!(ends.iter().map(|end| end.last_in_container).collect::<Vec<_>>(), [false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn broken_stream_is_awaited_for_the_rejoin_timeout() {
        let (sessions, ends) = sessions();
        let lease = sessions.open(&caller("a", 1)).expect("there is room");
        let token = lease.token().clone();
        drop(lease);
        tokio::time::sleep(REJOIN - Duration::from_millis(1)).await;
        assert!(!token.is_cancelled());
        assert!(!sessions.list()[0].attached);

        let lease = sessions.open(&caller("a", 1)).expect("there is room");
        tokio::time::sleep(REJOIN * 10).await;
        assert!(!token.is_cancelled(), "a reopened session lives on, with the same token");
        assert_eq!(sessions.list()[0].age, REJOIN * 11 - Duration::from_millis(1));

        drop(lease);
        let broken_at = Instant::now();
        token.cancelled().await;
        assert_eq!(broken_at.elapsed(), REJOIN);
        assert_eq!(ends.lock().expect("no panic above").len(), 1);
        assert!(sessions.list().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn stale_stream_does_not_end_a_session_that_was_taken_over() {
        let (sessions, ends) = sessions();
        let stale = sessions.open(&caller("a", 1)).expect("there is room");
        let stale_too = sessions.open(&caller("a", 1)).expect("there is room");
        let current = sessions.open(&caller("a", 1)).expect("there is room");
        drop(stale);
        stale_too.close();
        tokio::time::sleep(REJOIN * 2).await;
        assert!(!current.token().is_cancelled());
        assert!(ends.lock().expect("no panic above").is_empty());
        current.close();
    }

    #[tokio::test(start_paused = true)]
    async fn new_attempt_ends_sessions_of_the_old_one() {
        let (sessions, _) = sessions();
        let attempt = |number| Attempt { leader: Incarnation(1), number };
        let with = |run, number| Caller { attempt: Some(attempt(number)), ..caller("a", run) };
        let old = sessions.open(&with(1, 0)).expect("there is room");
        let new = sessions.open(&with(2, 1)).expect("there is room");
        let none = sessions.open(&caller("a", 3)).expect("there is room");
        let elsewhere = sessions.open(&Caller { container: "b".into(), ..with(4, 0) }).expect("there is room");
        sessions.end_earlier_attempts("a", attempt(1));
        assert!(old.token().is_cancelled());
        for lease in [new, none, elsewhere] {
            assert!(!lease.token().is_cancelled());
            lease.close();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_calls_of_a_session_are_refused_and_others_go_on() {
        let (sessions, _) = sessions();
        let leases = [1, 2].map(|run| sessions.open(&caller("a", run)).expect("there is room"));
        let call = |run| sessions.call("a", RunId(run));
        let mut calls: Vec<_> = (0..CALLS_PER_SESSION_MAX).map(|_| call(1).expect("there is room")).collect();
        let error = call(1).expect_err("there is no room");
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
        assert!(call(2).expect("another run's calls don't count").is_some());
        assert!(call(3).expect("nothing is counted without a session").is_none());
        calls.pop();
        assert!(call(1).expect("one has ended").is_some());
        drop(leases);
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_sessions_are_refused() {
        let (sessions, _) = sessions();
        let leases: Vec<_> =
            (1..=SESSIONS_MAX as u64).map(|run| sessions.open(&caller("a", run)).expect("there is room")).collect();
        let error = sessions.open(&caller("a", 0)).err().expect("there is no room");
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
        assert!(sessions.open(&caller("a", 1)).is_ok(), "a known run may reopen");
        drop(leases);
    }
}
