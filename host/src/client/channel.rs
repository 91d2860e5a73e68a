//! Channels to tasks: connect with deadline, sessions, request headers, retry.
//!
//! Connections and sessions live on the control runtime. A call's own future is polled by whoever awaits it, on any
//! runtime: it only meets channels, while sockets and timers are driven by the control runtime. What a call *sends*
//! as a stream is polled by the connection, so a request stream must own its data.

use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Caller, ClientUse, Incarnation};
use crate::sync::lock;
use crate::variables::STAGING;
use crate::wire::header::{Header, SESSION};
use crate::wire::status::{answer, from_status};
use crate::wire::v1;
use connect::{Failure, FailureKind, failure};
use direct::Direct;
use link::{Backoff, Link, Opened};
use resolver::Resolver;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::transport::Channel;

pub mod connect;
pub mod direct;
mod left;
mod link;
pub mod resolver;

/// Most tries of one call. With pauses of up to half a second this is over an hour, more than a sensible rejoin timeout; it
/// ends calls that break every time after a while, because of what they send for instance.
const TRIES_MAX: u32 = 10_000;

/// How long a call on a direct connection outlasts its session: a server that ends the session still says why, or what was done.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Which connection to a task a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Small messages that must not queue behind tensors.
    Control,
    /// Tensors.
    Bulk,
}

/// What [`Peers::call`] gives to each try of a call.
#[derive(Clone, Debug)]
pub struct Try {
    /// A connection to the task; cheap to clone.
    pub channel: Channel,
    /// Direct connections to the task, where its server takes them and the call is to go on [`Lane::Bulk`].
    pub direct: Option<Direct>,
    /// The header of the request, or of its stream's first message. A write has the same sequence in every try.
    pub header: v1::RequestHeader,
}

/// What a run needs to reach other tasks.
#[derive(Clone, Debug)]
pub struct PeersOptions {
    /// Where the tasks are.
    pub cluster: ClusterSpec,
    /// Who calls.
    pub caller: Caller,
    /// How a split client uses its container; none for a task of a job.
    pub client_use: Option<ClientUse>,
    /// The leader of the job, which knows who has left it; none where nobody does.
    pub leader: Option<Task>,
    /// Connections that it shares with other runs.
    pub connections: Connections,
    /// The control runtime.
    pub runtime: Handle,
    /// How long a task may stay unreachable at first contact.
    pub connect_timeout: Duration,
    /// How long a task may stay unreachable after contact.
    pub rejoin_timeout: Duration,
}

/// Connections of this process to other tasks, for one run or for several of them. Cheap to clone; all clones share.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    made: Arc<Mutex<HashMap<(Task, Lane), Channel>>>,
    direct: Arc<Mutex<HashMap<Task, Direct>>>,
    only_grpc: bool,
    /// Where calls are made, where that isn't the control runtime.
    callers: Option<Handle>,
    resolver: Resolver,
}

impl Connections {
    /// Connections whose names are looked up by `resolver`.
    pub fn resolving(resolver: Resolver) -> Self {
        Connections { resolver, ..Connections::default() }
    }

    /// Makes no direct connections.
    pub fn only_grpc(self) -> Self {
        Connections { only_grpc: true, ..self }
    }

    /// Has the runtime on which calls are made watch the direct connections: an answer then wakes its caller, and no other thread
    /// before. It needs sockets and timers.
    pub fn called_on(self, callers: Handle) -> Self {
        Connections { callers: Some(callers), ..self }
    }

    fn direct(&self, task: Task, address: &str, runtime: &Handle) -> Option<Direct> {
        let runtime = self.callers.as_ref().unwrap_or(runtime);
        let new = || Direct::new(address, self.resolver.clone(), runtime.clone());
        (!self.only_grpc).then(|| lock(&self.direct).entry(task).or_insert_with(new).clone())
    }

    /// The connection to a task; it connects, and reconnects, when it is used.
    pub(super) fn channel(&self, task: Task, lane: Lane, address: &str, runtime: &Handle) -> Result<Channel> {
        match lock(&self.made).entry((task, lane)) {
            Entry::Occupied(channel) => Ok(channel.get().clone()),
            Entry::Vacant(place) => {
                // The connection's tasks and timers belong to the runtime that it is made in.
                let _entered = runtime.enter();
                Ok(place.insert(connect::channel(address, &self.resolver)?).clone())
            }
        }
    }
}

/// One run's channels and sessions to other tasks. Cheap to clone; the last clone's drop ends the sessions.
///
/// A task is dialled when it is first called, never before.
#[derive(Clone, Debug)]
pub struct Peers {
    handle: Arc<PeersHandle>,
}

#[derive(Debug)]
struct PeersHandle {
    shared: Arc<Shared>,
    _closing: DropGuard,
}

#[derive(Debug)]
struct Shared {
    cluster: ClusterSpec,
    caller: Caller,
    client_use: Option<ClientUse>,
    leader: Option<Task>,
    connections: Connections,
    runtime: Handle,
    connect_timeout: Duration,
    rejoin_timeout: Duration,
    closing: CancellationToken,
    links: TaskTracker,
    peers: Mutex<HashMap<Task, Arc<Peer>>>,
}

/// One task, as one run knows it.
#[derive(Debug)]
struct Peer {
    task: Task,
    address: String,
    /// Of the last write.
    sequence: AtomicU64,
    /// Of the task since first contact.
    incarnation: Mutex<Option<Incarnation>>,
    /// Set once another incarnation was met: what the run had there is lost.
    restarted: OnceLock<Error>,
    /// The link that is kept now, or the last one.
    link: Mutex<Option<watch::Receiver<Link>>>,
}

impl Peers {
    /// Makes the channels of a run; dials nobody.
    pub fn new(options: PeersOptions) -> Self {
        let PeersOptions { cluster, caller, client_use, leader, connections, runtime, connect_timeout, rejoin_timeout } =
            options;
        let closing = CancellationToken::new();
        let shared = Shared {
            cluster,
            caller,
            client_use,
            leader,
            connections,
            runtime,
            connect_timeout,
            rejoin_timeout,
            closing: closing.clone(),
            links: TaskTracker::new(),
            peers: Mutex::default(),
        };
        Peers { handle: Arc::new(PeersHandle { shared: Arc::new(shared), _closing: closing.drop_guard() }) }
    }

    /// The cluster.
    pub fn cluster(&self) -> &ClusterSpec {
        &self.shared().cluster
    }

    /// Who calls, in its attempt.
    pub fn caller(&self) -> Caller {
        self.shared().caller()
    }

    /// The control runtime.
    pub fn runtime(&self) -> &Handle {
        &self.shared().runtime
    }

    /// Calls `task`: opens a session there if the run has none, then runs `call` with a channel and a header, again
    /// after broken connections. `write` draws a sequence, with which the server applies the call once, however often
    /// it is tried; a call that is no write must bear repetition.
    ///
    /// # Errors
    /// `invalid-argument` (the cluster has no such task); `unavailable` naming task, address, time and last cause (not
    /// reached within the connect timeout); `peer-failed` (not reached for the rejoin timeout after contact); both as soon as it
    /// is known that the task has left the job, and is not reached;
    /// `peer-restarted` (another incarnation answers; stays so for the run); `cancelled` (the run is closing); the
    /// server's own answer.
    ///
    /// # Cancel safety
    /// A dropped call gives up the try that runs; whether a write was applied is then unknown.
    pub async fn call<T, F, Fut>(&self, task: Task, lane: Lane, write: bool, mut call: F) -> Result<T>
    where
        F: FnMut(Try) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        let shared = self.shared();
        let peer = shared.peer(task)?;
        let sequence = if write { peer.sequence.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let mut backoff = Backoff::new();
        let mut failing_since: Option<Instant> = None;
        let mut tries = 0;
        loop {
            let (Opened { incarnation: expected, direct }, link) = shared.session(&peer).await?;
            let header = Header { caller: shared.caller(), sequence, expected: Some(expected) };
            let channel = shared.channel(&peer, lane)?;
            let direct = direct && lane == Lane::Bulk;
            let direct = if direct { shared.connections.direct(task, &peer.address, &shared.runtime) } else { None };
            let silent = async { if direct.is_some() { shared.silent(link).await } else { pending().await } };
            let started = Instant::now();
            let outcome = tokio::select! {
                biased;
                () = shared.closing.cancelled() => return Err(shared.closed()),
                outcome = call(Try { channel, direct: direct.clone(), header: (&header).into() }) => outcome,
                () = silent => Err(Status::unavailable("its session broke, and no answer came")),
            };
            let status = match outcome {
                Ok(value) => return Ok(value),
                Err(status) => status,
            };
            let cause = match (answer(&status), failure(&status)) {
                (Some(error), _) if may_retry(&error) => Failure { kind: FailureKind::Broken, text: error.message },
                (Some(error), _) if is_busy(&error) => {
                    // It lives and works off other writes: that is no outage, however long it takes.
                    (failing_since, tries) = (None, 0);
                    tracing::debug!(%task, sequence, "{}", error.message);
                    tokio::select! {
                        () = shared.closing.cancelled() => return Err(shared.closed()),
                        () = shared.sleep(backoff.next()) => continue,
                    }
                }
                (Some(error), _) => {
                    if error.code == ErrorCode::PeerRestarted && error.tasks == [task] {
                        peer.restarted(&error);
                    }
                    return Err(error);
                }
                (None, Some(failure)) if failure.kind != FailureKind::Foreign => failure,
                // The session showed that it is a dchost server: gRPC's own answer, to an oversized message for instance.
                (None, _) => return Err(from_status(&status)),
            };
            tries += 1;
            let now = Instant::now();
            // A try that went well for so long is no part of the same outage.
            if now - started >= shared.rejoin_timeout {
                failing_since = None;
                backoff = Backoff::new();
            }
            let since = *failing_since.get_or_insert(now);
            let pause = backoff.next();
            if tries >= TRIES_MAX || now + pause - since >= shared.rejoin_timeout {
                return Err(peer.gone(now - since, &cause));
            }
            tracing::debug!(%task, sequence, cause = cause.text, "call failed, trying again");
            tokio::select! {
                () = shared.closing.cancelled() => return Err(shared.closed()),
                () = shared.sleep(pause) => {}
            }
        }
    }

    /// Ends all sessions cleanly, within a few seconds, and every call that is pending or comes later with `cancelled`.
    ///
    /// # Cancel safety
    /// The end goes on when the wait for it is dropped.
    pub async fn close(&self) {
        let shared = self.shared();
        shared.closing.cancel();
        shared.links.close();
        tokio::select! {
            () = shared.links.wait() => {}
            () = shared.sleep(link::CLOSE_TIMEOUT + Duration::from_secs(1)) => {}
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Shared {
    fn caller(&self) -> Caller {
        self.caller.clone()
    }

    fn closed(&self) -> Error {
        Error::new(ErrorCode::Cancelled, format!("run `{}` is ending", self.caller.run_id))
    }

    /// Makes a timer of the control runtime: the caller's may have none.
    fn sleep(&self, duration: Duration) -> Sleep {
        let _entered = self.runtime.enter();
        tokio::time::sleep(duration)
    }

    fn channel(&self, peer: &Peer, lane: Lane) -> Result<Channel> {
        self.connections.channel(peer.task, lane, &peer.address, &self.runtime)
    }

    fn peer(&self, task: Task) -> Result<Arc<Peer>> {
        let Some(address) = self.cluster.address(task) else {
            let tasks: Vec<_> = self.cluster.iter().map(|(task, _)| task).collect();
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("the cluster has no task `{task}`, it has {}", crate::cluster::list_tasks(&tasks)),
            ));
        };
        let peer = lock(&self.peers).entry(task).or_insert_with(|| Arc::new(Peer::new(task, address))).clone();
        Ok(peer)
    }

    /// Waits until the run has a session on the task; begins a link where there is none.
    async fn session(self: &Arc<Self>, peer: &Arc<Peer>) -> Result<(Opened, watch::Receiver<Link>)> {
        let mut link = self.link(peer)?;
        loop {
            let state = link.borrow_and_update().clone();
            match state {
                Link::Open(opened) => return Ok((opened, link)),
                Link::Failed(error) => return Err(error),
                Link::Down => {}
            }
            // A link says why before it ends, except when the run closes.
            link.changed().await.map_err(|_| self.closed())?;
        }
    }

    /// Waits until a direct connection can't be hoped to bring an answer any more. It has no pings of its own, as HTTP/2 has; those
    /// of the session tell when a task has vanished, or is frozen.
    async fn silent(&self, mut link: watch::Receiver<Link>) {
        // It was open: any change is its end, also where another one is open by now.
        if link.changed().await.is_err() {
            // The run closes, which ends its calls.
            return pending().await;
        }
        self.sleep(LAST_ANSWER_TIMEOUT).await;
    }

    fn link(self: &Arc<Self>, peer: &Arc<Peer>) -> Result<watch::Receiver<Link>> {
        if let Some(error) = peer.restarted.get() {
            return Err(error.clone());
        }
        if self.closing.is_cancelled() {
            return Err(self.closed());
        }
        let mut slot = lock(&peer.link);
        if let Some(link) = slot.as_ref().filter(|link| !matches!(&*link.borrow(), Link::Failed(_))) {
            return Ok(link.clone());
        }
        let (sender, receiver) = watch::channel(Link::Down);
        *slot = Some(receiver.clone());
        self.links.spawn_on(link::keep(self.clone(), peer.clone(), sender), &self.runtime);
        Ok(receiver)
    }
}

impl Peer {
    fn new(task: Task, address: &str) -> Self {
        Peer {
            task,
            address: address.to_owned(),
            sequence: AtomicU64::new(0),
            incarnation: Mutex::default(),
            restarted: OnceLock::new(),
            link: Mutex::default(),
        }
    }

    fn incarnation(&self) -> MutexGuard<'_, Option<Incarnation>> {
        lock(&self.incarnation)
    }

    /// Notes the incarnation that answers; another one than before has lost what the run had there.
    fn meet(&self, incarnation: Incarnation) -> Result<()> {
        let known = *self.incarnation().get_or_insert(incarnation);
        if known == incarnation {
            return Ok(());
        }
        let error = Error::new(
            ErrorCode::PeerRestarted,
            format!("{} is incarnation `{incarnation}`, it was `{known}`: it was started anew", self.task),
        )
        .with_tasks([self.task]);
        self.restarted(&error);
        Err(error)
    }

    fn restarted(&self, error: &Error) {
        // The first finding stands.
        let _ = self.restarted.set(error.clone());
    }

    /// The error of a task that can't be reached, and won't come back.
    fn left(&self, how: &str) -> Error {
        let code = if self.incarnation().is_some() { ErrorCode::PeerFailed } else { ErrorCode::Unavailable };
        let message = format!("{} at `{}` has left the job, and is not waited for: {how}", self.task, self.address);
        Error::new(code, message).with_tasks([self.task])
    }

    /// The error of a task that can't be reached for so long.
    fn gone(&self, unreachable_for: Duration, cause: &Failure) -> Error {
        let (task, address) = (self.task, &self.address);
        let (seconds, cause) = (unreachable_for.as_secs_f32(), &cause.text);
        let error = if self.incarnation().is_some() {
            Error::new(
                ErrorCode::PeerFailed,
                format!("{task} at `{address}` has not answered for {seconds:.1} s: {cause}"),
            )
        } else {
            Error::new(
                ErrorCode::Unavailable,
                format!(
                    "{task} at `{address}` was not reached within {seconds:.1} s: {cause}; is it running, and is that its address? See --connect-timeout"
                ),
            )
        };
        error.with_tasks([task])
    }
}

/// Whether the server only has too many unfinished writes to take this one now.
fn is_busy(error: &Error) -> bool {
    error.code == ErrorCode::ResourceExhausted && error.names == [STAGING]
}

/// Whether the server's answer only says that the session is not there, or not any more.
fn may_retry(error: &Error) -> bool {
    error.code == ErrorCode::Unavailable || (error.code == ErrorCode::FailedPrecondition && error.names == [SESSION])
}
