//! What stands before every handler: authorization, protocol, container, incarnation, attempt, session.
//!
//! A handler's first act is [`Guard::admit`], with the header of the request or of the stream's first message, or with
//! none where there is none: authorization comes first, so that a caller that may not call learns nothing else.
//!
//! Two services of a server have no guard, on purpose: `grpc.health.v1.Health` and `grpc.reflection.v1`. Those who ask them
//! (kubelets, load balancers, grpcurl) know neither header nor identity, and the answers are the same for everyone: that this
//! server serves, and the published contract. They name no task, container, run or variable, and change nothing.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, AttemptGate, AttemptOrder, Caller, ClientUse, Incarnation};
use crate::server::session::{Lease, SESSIONS_MAX, SessionCall, Sessions};
use crate::text::shown_within;
use crate::variables::CONTAINERS_MAX;
use crate::wire::header::{Header, SESSION, client_use_from_wire, missing};
use crate::wire::v1;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longest container name, in bytes: it becomes a label and a part of file names.
pub const CONTAINER_BYTES_MAX: usize = 63;

/// Containers in use always have room in the memory of attempts: a caller makes one by naming it, but uses it by a session.
const _: () = assert!(CONTAINERS_MAX > SESSIONS_MAX);

/// Every rpc of `dchost.v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rpc {
    /// A task's stream to its leader.
    Attend,
    /// A run's lease on this server.
    Session,
    /// How this server, or the leader's cluster, is doing.
    GetStatus,
    /// Takes no new sessions, and leaves when the present ones have ended.
    Drain,
    /// Sets initial values.
    Initialize,
    /// Updates variables.
    Push,
    /// Reads variables.
    Pull,
    /// Reads rows.
    Gather,
    /// Updates rows.
    Scatter,
    /// Names variables without value, and waits for none.
    Uninitialized,
    /// Forgets variables.
    Delete,
    /// Reads all of a container, for a checkpoint.
    Save,
    /// Sets variables from a checkpoint.
    Restore,
    /// Hands a module over.
    PutModule,
    /// Calls ops of a module.
    Call,
    /// Reads what an op's call has left.
    Fetch,
}

impl Rpc {
    /// Every rpc; a test compares them with the descriptors.
    pub const ALL: [Rpc; 16] = [
        Rpc::Attend,
        Rpc::Session,
        Rpc::GetStatus,
        Rpc::Drain,
        Rpc::Initialize,
        Rpc::Push,
        Rpc::Pull,
        Rpc::Gather,
        Rpc::Scatter,
        Rpc::Uninitialized,
        Rpc::Delete,
        Rpc::Save,
        Rpc::Restore,
        Rpc::PutModule,
        Rpc::Call,
        Rpc::Fetch,
    ];

    /// Service and method: `dchost.v1.Cluster/Attend`.
    pub const fn path(self) -> &'static str {
        match self {
            Rpc::Attend => "dchost.v1.Cluster/Attend",
            Rpc::Session => "dchost.v1.Cluster/Session",
            Rpc::GetStatus => "dchost.v1.Cluster/GetStatus",
            Rpc::Drain => "dchost.v1.Cluster/Drain",
            Rpc::Initialize => "dchost.v1.Variables/Initialize",
            Rpc::Push => "dchost.v1.Variables/Push",
            Rpc::Pull => "dchost.v1.Variables/Pull",
            Rpc::Gather => "dchost.v1.Variables/Gather",
            Rpc::Scatter => "dchost.v1.Variables/Scatter",
            Rpc::Uninitialized => "dchost.v1.Variables/Uninitialized",
            Rpc::Delete => "dchost.v1.Variables/Delete",
            Rpc::Save => "dchost.v1.Variables/Save",
            Rpc::Restore => "dchost.v1.Variables/Restore",
            Rpc::PutModule => "dchost.v1.Ops/PutModule",
            Rpc::Call => "dchost.v1.Ops/Call",
            Rpc::Fetch => "dchost.v1.Ops/Fetch",
        }
    }

    /// Whether the rpc touches a run's data or executes its code: such a call needs a session, and its caller's attempt is
    /// checked and adopted, as at the session's beginning. Attending tells it to the leader, who owns attempts; status and drain
    /// concern the whole server.
    pub const fn needs_session(self) -> bool {
        match self {
            Rpc::Attend | Rpc::Session | Rpc::GetStatus | Rpc::Drain => false,
            Rpc::Initialize
            | Rpc::Push
            | Rpc::Pull
            | Rpc::Gather
            | Rpc::Scatter
            | Rpc::Uninitialized
            | Rpc::Delete
            | Rpc::Save
            | Rpc::Restore
            | Rpc::PutModule
            | Rpc::Call
            | Rpc::Fetch => true,
        }
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.path())
    }
}

/// Who a caller is, as far as its connection proves it. There is one identity until tenants exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Anyone who can reach the port.
    Anonymous,
}

/// Decides whether `identity` may call `rpc` on a container (empty where the request names none).
pub type Authorize = Arc<dyn Fn(Identity, Rpc, &str) -> Result<()> + Send + Sync>;

/// Permits everything to the one identity that exists.
///
/// # Errors
/// None yet; `permission-denied` once identities differ.
pub fn authorize(identity: Identity, _rpc: Rpc, _container: &str) -> Result<()> {
    match identity {
        Identity::Anonymous => Ok(()),
    }
}

/// What is told when a container's content ends because an attempt begins, which is named: drop its variables. Called before
/// the first call of the new attempt is admitted, under the guard's lock: it must not call the guard.
pub type AttemptEnded = Arc<dyn Fn(&str, Attempt) + Send + Sync>;

/// A call that may go on.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who calls.
    pub caller: Caller,
    /// Of a write: counts from 1 for each run and server. 0: not a write.
    pub sequence: u64,
    /// How the caller's split client uses the container; none: a task calls, or no session is needed.
    pub client_use: Option<ClientUse>,
    /// Cancelled when the run's session here ends, or the server stops. Blocked and unfinished work is tied to it.
    pub session: CancellationToken,
    /// Counts as a call of its session until the last clone is dropped; none where it needs no session.
    _call: Option<Arc<SessionCall>>,
    /// Cancelled when the server stops.
    stopping: CancellationToken,
    /// This server.
    task: Task,
}

impl Admitted {
    /// Runs `work` until it is done, the run's session ends or the server stops.
    ///
    /// # Errors
    /// Those of `work`; `cancelled` when the session ends; `unavailable` when the server stops.
    ///
    /// # Cancel safety
    /// That of `work`, which is dropped when the session ends.
    pub async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            // First: an answer that is there must not be lost to a server that stops because it was given.
            result = work => result,
            () = self.session.cancelled() => Err(self.ended()),
        }
    }

    /// The error of a call whose session has ended.
    pub fn ended(&self) -> Error {
        if self.stopping.is_cancelled() {
            Error::new(ErrorCode::Unavailable, format!("{} is stopping", self.task)).with_tasks([self.task])
        } else {
            Error::new(
                ErrorCode::Cancelled,
                format!("the session of run `{}` on {} has ended", self.caller.run_id, self.task),
            )
        }
    }
}

/// The guard of one server. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    inner: Arc<Inner>,
}

struct Inner {
    task: Task,
    incarnation: Incarnation,
    authorize: Authorize,
    sessions: Sessions,
    stopping: CancellationToken,
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
struct Attempts {
    containers: HashMap<String, ContainerAttempt>,
    subscribers: Vec<AttemptEnded>,
}

/// The attempt that a container is in.
struct ContainerAttempt {
    gate: AttemptGate,
    /// Whether this process heard of the present attempt from its leader, or leads itself; then no caller can bring another one.
    confirmed: bool,
}

impl Guard {
    /// Makes the guard of the server of `task`. `sessions` are those that data calls need; `stopping` is cancelled
    /// when the server stops.
    pub fn new(
        task: Task,
        incarnation: Incarnation,
        sessions: Sessions,
        authorize: Authorize,
        stopping: CancellationToken,
    ) -> Self {
        let attempts = Mutex::new(Attempts::default());
        Guard { inner: Arc::new(Inner { task, incarnation, authorize, sessions, stopping, attempts }) }
    }

    /// The task that this server is.
    pub fn task(&self) -> Task {
        self.inner.task
    }

    /// This server's incarnation, for answers.
    pub fn incarnation(&self) -> Incarnation {
        self.inner.incarnation
    }

    /// The sessions of this server.
    pub fn sessions(&self) -> &Sessions {
        &self.inner.sessions
    }

    /// Registers what is told when a container's attempt is followed by a newer one, or by another leader's, and when a client
    /// that wants to be alone is the first to tell of one.
    pub fn on_attempt_ended(&self, subscriber: AttemptEnded) {
        self.lock().subscribers.push(subscriber);
    }

    /// Lets a call in, or says why not. Checks in this order: authorization, header, protocol, container name,
    /// incarnation, attempt, session.
    ///
    /// # Errors
    /// `permission-denied`; `invalid-argument` (no header, or a bad field, which is named);
    /// `failed-precondition` (another protocol; a data call without session, with the name `session`);
    /// `peer-restarted` naming this task (another incarnation is expected);
    /// `aborted` (an attempt or a leader that is over); `unavailable` (one that this server's leader hasn't told of);
    /// `resource-exhausted` (too many data calls of one session at once).
    pub fn admit(&self, rpc: Rpc, header: Option<v1::RequestHeader>) -> Result<Admitted> {
        let inner = &*self.inner;
        let Header { caller, sequence, .. } = self.check(rpc, header)?;
        if let Some(attempt) = caller.attempt.filter(|_| rpc.needs_session()) {
            self.enter(&mut self.lock(), &caller.container, attempt, false)?;
        }
        let call = if rpc.needs_session() {
            let call = inner.sessions.call(&caller.container, caller.run_id)?;
            Some(Arc::new(call.ok_or_else(|| no_session(inner.task, &caller))?))
        } else {
            None
        };
        let session = call.as_ref().map_or_else(|| inner.stopping.clone(), |call| call.token.clone());
        let client_use = call.as_ref().and_then(|call| call.client_use);
        let (stopping, task) = (inner.stopping.clone(), inner.task);
        Ok(Admitted { caller, sequence, client_use, session, _call: call, stopping, task })
    }

    /// Opens the run's session, or attaches a new stream to it. `client_use` is as on the wire: whether a split client opens it.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit); `failed-precondition` where a client finds another one in its container and not both
    /// share it, and where the container is that of a job; `resource-exhausted` for too many sessions.
    pub fn open_session(&self, header: Option<v1::RequestHeader>, client_use: i32) -> Result<Lease> {
        let Header { caller, .. } = self.check(Rpc::Session, header)?;
        let client_use = client_use_from_wire(client_use)?;
        let exclusive = client_use == Some(ClientUse::Exclusive);
        // Under one lock, so that of two clients that come at the same time one finds the other.
        let mut attempts = self.lock();
        if let Some(client_use) = client_use {
            self.refuse_company(&attempts, &caller, client_use)?;
        }
        if let Some(attempt) = caller.attempt {
            let container = &caller.container;
            let first = !attempts.containers.contains_key(container);
            self.enter(&mut attempts, container, attempt, false)?;
            if exclusive {
                // None of them is there; what one that comes back had would be gone.
                self.inner.sessions.end_others(container, attempt);
            }
            if exclusive && first {
                // Clients that shared it had no attempt, and may have left something.
                attempts.subscribers.iter().for_each(|subscriber| subscriber(container, attempt));
            }
        }
        self.inner.sessions.open_for(&caller, client_use)
    }

    /// Refuses a client that isn't alone in a container, unless all who are there share it.
    fn refuse_company(&self, attempts: &Attempts, caller: &Caller, client_use: ClientUse) -> Result<()> {
        let (task, container) = (self.inner.task, caller.container.as_str());
        let refuse = |message| Err(Error::container_refused(task, message));
        let own = caller.attempt.map(|attempt| attempt.leader);
        let is_other = |other: Option<Attempt>| other.is_none_or(|other| Some(other.leader) != own);
        let of_job = |state: &&ContainerAttempt| state.confirmed && is_other(Some(state.gate.current()));
        if attempts.containers.get(container).filter(of_job).is_some() {
            return refuse(format!(
                "container `{container}` of {task} is that of a job, whose leader {task} attends: give the client another \
                 --container, or none"
            ));
        }
        let in_the_way = |other: &Caller, other_use| {
            let alone = client_use == ClientUse::Exclusive || other_use == Some(ClientUse::Exclusive);
            alone && is_other(other.attempt)
        };
        let Some(row) = self.inner.sessions.attached(container, in_the_way) else { return Ok(()) };
        let share = match client_use {
            ClientUse::Exclusive => "--share-container to use it together",
            ClientUse::Shared => "start that one with --share-container too",
        };
        refuse(format!(
            "container `{container}` of {task} is in use by another client, run `{}`, for {}: wait for its end, give \
             another --container, or {share}",
            row.caller.run_id,
            humantime::format_duration(Duration::from_secs(row.age.as_secs()))
        ))
    }

    /// Checks what needs no state: authorization, header, protocol, container name, incarnation.
    fn check(&self, rpc: Rpc, header: Option<v1::RequestHeader>) -> Result<Header> {
        let inner = &*self.inner;
        let container = header.as_ref().map_or("", |header| header.container.as_str());
        (inner.authorize)(Identity::Anonymous, rpc, container)?;
        let header: Header = header.ok_or_else(|| missing("header"))?.try_into()?;
        check_container(&header.caller.container)?;
        if let Some(expected) = header.expected.filter(|&expected| expected != inner.incarnation) {
            return Err(Error::new(
                ErrorCode::PeerRestarted,
                format!(
                    "{} is incarnation `{}`, the call is for `{expected}`: it was started anew",
                    inner.task, inner.incarnation
                ),
            )
            .with_tasks([inner.task]));
        }
        Ok(header)
    }

    /// Makes `attempt` the container's attempt, if it isn't yet: this process's leader has told of it. Where that ends an
    /// earlier one, its sessions end and subscribers are told, before this returns.
    ///
    /// # Errors
    /// `aborted` where the attempt, or its leader, is over; `resource-exhausted` for too many containers.
    pub fn adopt(&self, container: &str, attempt: Attempt) -> Result<()> {
        self.enter(&mut self.lock(), container, attempt, true)
    }

    /// Takes an attempt from this process's leader (`confirmed`) or, before that has told of any, from a caller.
    fn enter(&self, attempts: &mut Attempts, container: &str, attempt: Attempt, confirmed: bool) -> Result<()> {
        let Attempts { containers, subscribers } = attempts;
        let Some(state) = containers.get_mut(container) else {
            if containers.len() >= CONTAINERS_MAX {
                // Split clients make a container each. One that nobody uses any more needs no memory of its attempts.
                let used = self.inner.sessions.containers();
                containers.retain(|name, _| used.contains(name));
            }
            if containers.len() >= CONTAINERS_MAX {
                return Err(Error::new(
                    ErrorCode::ResourceExhausted,
                    format!("{} has {CONTAINERS_MAX} containers in use already", self.inner.task),
                ));
            }
            containers.insert(container.to_owned(), ContainerAttempt { gate: AttemptGate::new(attempt), confirmed });
            return Ok(());
        };
        let current = state.gate.current();
        match state.gate.order(attempt) {
            AttemptOrder::Same => {
                state.confirmed |= confirmed;
                return Ok(());
            }
            AttemptOrder::Over => {
                return Err(Error::new(
                    ErrorCode::Aborted,
                    format!(
                        "attempt {} of leader `{}` is over, container `{container}` of {} is in attempt {} of leader `{}`",
                        attempt.number, attempt.leader, self.inner.task, current.number, current.leader
                    ),
                ));
            }
            AttemptOrder::Newer => {}
        }
        if state.confirmed && !confirmed {
            let message = format!(
                "{} has not heard of attempt {} of leader `{}` from its own leader `{}` in container `{container}`",
                self.inner.task, attempt.number, attempt.leader, current.leader
            );
            return Err(Error::new(ErrorCode::Unavailable, message).with_tasks([self.inner.task]));
        }
        state.confirmed = confirmed;
        tracing::info!(container, attempt = attempt.number, leader = %attempt.leader, "new attempt, earlier one is dropped");
        state.gate.advance(attempt);
        self.inner.sessions.end_earlier_attempts(container, attempt);
        for subscriber in subscribers {
            subscriber(container, attempt);
        }
        Ok(())
    }

    /// The attempt that a container is in, as far as this server has seen one.
    pub fn attempt(&self, container: &str) -> Option<Attempt> {
        self.lock().containers.get(container).map(|state| state.gate.current())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Attempts> {
        // The state is whole between any two statements that may panic.
        self.inner.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_session(task: Task, caller: &Caller) -> Error {
    Error::new(
        ErrorCode::FailedPrecondition,
        format!("run `{}` has no session on {task} in container `{}`", caller.run_id, caller.container),
    )
    .with_names([SESSION])
}

/// Checks a container name: 1 to 63 letters, digits, `-`, `_` and `.`, the first a letter or digit.
///
/// # Errors
/// `invalid-argument` naming the rule.
pub fn check_container(container: &str) -> Result<()> {
    let first_fits = container.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let all_fit = container.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if container.len() <= CONTAINER_BYTES_MAX && first_fits && all_fit {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::InvalidArgument,
        format!(
            "container name `{}` must be 1 to {CONTAINER_BYTES_MAX} letters, digits, `-`, `_` or `.`, beginning with a letter or digit",
            shown_within(container, CONTAINER_BYTES_MAX + 1)
        ),
    ))
}

#[cfg(test)]
mod tests;
