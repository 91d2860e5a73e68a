//! The Cluster service: attend, session, status, drain.

use crate::attend::{AttendError, LeaderEvent};
use crate::barrier::BarrierStatus;
use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, ErrorCode};
use crate::handles::{Attend, AttendChannel, BoxFuture};
use crate::ids::Caller;
use crate::lifetime::RowStatus;
use crate::server::first_message;
use crate::server::guard::{Guard, Rpc};
use crate::server::leader::{LeaderHandle, LeaderStatus};
use crate::server::session::{Lease, SessionRow};
use crate::status::{JobStatus, SessionStatus, TaskStatus, WaitedBarrier};
use crate::variables::Store;
use crate::wire::attend::{
    cluster_to_wire, event_to_wire, message_from_wire, registered_to_wire, registration_from_wire,
};
use crate::wire::header::{missing, response_header};
use crate::wire::transport::MESSAGE_BYTES_MAX;
use crate::wire::v1;
use crate::wire::v1::cluster_server;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// How long a session may be silent before its stream counts as broken. Clients renew every 5 s, and HTTP/2 pings
/// notice a dead connection earlier; this is for a peer whose connection answers while its client doesn't.
const SESSION_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Most bytes of the rows of one status, so that it stays within a message of 4 MiB with what else is in it.
const STATUS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (64 << 10);

/// Events that wait for a slow connection.
const EVENTS_QUEUED: usize = 64;

/// The leader's half on this server.
#[derive(Clone)]
pub struct LeaderPart {
    /// Takes registrations.
    pub attend: Arc<dyn Attend>,
    /// Asks what it knows, for status, of all tasks or of one; none once it has left.
    pub status: Arc<dyn Fn(Option<Task>) -> BoxFuture<'static, Option<LeaderStatus>> + Send + Sync>,
    /// The container of its job, whose barriers it holds.
    pub container: String,
}

impl LeaderPart {
    /// The part of a leader whose job is in `container`.
    pub fn new(leader: LeaderHandle, container: impl Into<String>) -> Self {
        let asked = leader.clone();
        LeaderPart {
            container: container.into(),
            attend: Arc::new(leader),
            status: Arc::new(move |row| {
                let leader = asked.clone();
                Box::pin(async move { leader.status(row).await })
            }),
        }
    }
}

/// Serves attend, session, status and drain. Cheap to clone.
#[derive(Clone)]
pub struct ClusterService {
    guard: Guard,
    cluster: Arc<ClusterSpec>,
    leader: Option<LeaderPart>,
    store: Store,
    stopping: CancellationToken,
    /// Counts the op instances of a session's run.
    op_instances: OpInstances,
}

/// Counts the op instances that the run of a caller has on this server.
pub type OpInstances = Arc<dyn Fn(&Caller) -> u32 + Send + Sync>;

impl ClusterService {
    /// Makes the service. `leader` where this server is the leader; `store` holds its variables.
    pub fn new(
        guard: Guard,
        cluster: ClusterSpec,
        leader: Option<LeaderPart>,
        store: Store,
        stopping: CancellationToken,
    ) -> Self {
        let op_instances: OpInstances = Arc::new(|_| 0);
        ClusterService { guard, cluster: Arc::new(cluster), leader, store, stopping, op_instances }
    }

    /// Shows how many op instances each session's run has.
    pub fn with_op_instances(self, op_instances: OpInstances) -> Self {
        ClusterService { op_instances, ..self }
    }

    fn not_the_leader(&self) -> Error {
        let own = self.guard.task();
        let error = match self.cluster.leader() {
            Some(leader) if leader != own => {
                let address = self.cluster.address(leader).unwrap_or_default();
                Error::new(
                    ErrorCode::FailedPrecondition,
                    format!("{own} is not the leader, {leader} at `{address}` is"),
                )
                .with_tasks([leader])
            }
            _ => {
                Error::new(ErrorCode::FailedPrecondition, format!("{own} leads no run, and the cluster has no leader"))
            }
        };
        error.with_names(["leader"])
    }
}

type Events<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl cluster_server::Cluster for ClusterService {
    type AttendStream = Events<v1::AttendEvent>;
    type SessionStream = Events<v1::SessionEvent>;

    async fn attend(
        &self,
        request: Request<Streaming<v1::AttendRequest>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let mut requests = request.into_inner();
        let first = first_message(requests.message()).await?;
        let (header, register) = match first.and_then(|first| first.kind) {
            Some(v1::attend_request::Kind::Register(register)) => (register.header.clone(), Some(register)),
            _ => (None, None),
        };
        let admitted = self.guard.admit(Rpc::Attend, header)?;
        let register = register.ok_or_else(|| missing("register"))?;
        let Some(leader) = &self.leader else { return Err(self.not_the_leader().into()) };
        let registration = registration_from_wire(admitted.caller.clone(), register)?;
        let attended = admitted.run(async { Ok(leader.attend.attend(registration).await) }).await?;
        let (events, stream) = mpsc::channel(EVENTS_QUEUED);
        match attended {
            Ok(channel) => {
                let registered = registered_to_wire(&channel.registered);
                events.try_send(Ok(registered)).expect("the channel is new and has room");
                tokio::spawn(relay(channel, requests, events, self.stopping.clone()));
            }
            Err(AttendError::Complete) => {
                let complete = event_to_wire(LeaderEvent::JobEnded { cause: None });
                events.try_send(Ok(complete)).expect("the channel is new and has room");
            }
            Err(AttendError::Refused(error)) => return Err(error.into()),
            Err(AttendError::Unreachable(why)) => return Err(Error::new(ErrorCode::Unavailable, why).into()),
        }
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut requests = request.into_inner();
        let first = first_message(requests.message()).await?;
        let first = first.unwrap_or_default();
        let lease = self.guard.open_session(first.header, first.client_use)?;
        let (events, stream) = mpsc::channel(1);
        let opened = v1::SessionEvent { header: response_header(self.guard.incarnation()), direct: true };
        events.try_send(Ok(opened)).expect("the channel is new and has room");
        tokio::spawn(hold(lease, requests, events));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let v1::GetStatusRequest { header, brief, row } = request.into_inner();
        let admitted = self.guard.admit(Rpc::GetStatus, header)?;
        let mut response = v1::GetStatusResponse {
            header: response_header(self.guard.incarnation()),
            attempt: self.guard.attempt(&admitted.caller.container).map(Into::into),
            ..Default::default()
        };
        if brief {
            if let (Some(leader), Some(row)) = (&self.leader, row) {
                let row = Task::try_from(row)?;
                if let Some(LeaderStatus { mode, replication, training_ended, cause, rows, .. }) =
                    (leader.status)(Some(row)).await
                {
                    response.job = Some(JobStatus { mode, replication, training_ended, cause }.into());
                    response.task = rows.into_iter().map(task_status).collect();
                }
            }
            return Ok(Response::new(response));
        }
        response.server = Some(self.guard.task().into());
        env!("CARGO_PKG_VERSION").clone_into(&mut response.version);
        response.variable_bytes = self.store.variable_bytes();
        response.variable_bytes_max = self.store.variable_bytes_max();
        response.cluster = cluster_to_wire(&self.cluster);
        let mut budget = STATUS_BYTES_MAX - response.encoded_len().min(STATUS_BYTES_MAX);
        if let Some(leader) = &self.leader
            && let Some(status) = (leader.status)(None).await
        {
            response.attempt = Some(status.attempt.into());
            let LeaderStatus { mode, replication, training_ended, cause, .. } = status;
            response.job = Some(JobStatus { mode, replication, training_ended, cause }.into());
            let tasks = status.rows.into_iter().map(task_status);
            (response.task, response.tasks_left_out) = within(&mut budget, 2, tasks);
            let barriers = status.barriers.into_iter().map(|row| barrier_status(&leader.container, row));
            (response.barrier, response.barriers_left_out) = within(&mut budget, 2, barriers);
        }
        let sessions = self.guard.sessions().list().into_iter().map(|row| {
            let op_instances = (self.op_instances)(&row.caller);
            session_status(row, op_instances)
        });
        (response.session, response.sessions_left_out) = within(&mut budget, 2, sessions);
        let store = self.store.clone();
        // A variable that is being written makes a listing wait.
        let variables = tokio::task::spawn_blocking(move || store.statuses()).await;
        let variables = variables
            .map_err(|error| Error::new(ErrorCode::Internal, format!("listing the variables ended early: {error}")))?;
        let variables = variables.into_iter().map(v1::VariableStatus::from);
        (response.variable, response.variables_left_out) = within(&mut budget, 1, variables);
        Ok(Response::new(response))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        self.guard.admit(Rpc::Drain, request.into_inner().header)?;
        Err(Error::new(ErrorCode::Unimplemented, format!("{} is not served by this version", Rpc::Drain)).into())
    }
}

/// Carries messages between a task's stream and the leader until either side ends.
async fn relay(
    channel: AttendChannel,
    mut requests: Streaming<v1::AttendRequest>,
    events: mpsc::Sender<Result<v1::AttendEvent, Status>>,
    stopping: CancellationToken,
) {
    let AttendChannel { registered: _, messages, events: mut leader_events } = channel;
    let (to_stream, stream_gone) = (events.clone(), events.clone());
    // Two loops, so that a full queue in one direction doesn't hold up the other.
    let upward = async move {
        loop {
            // Ended and broken are the same here: without an end report the leader finds out what happened.
            let Ok(Some(request)) = requests.message().await else { return };
            match message_from_wire(request) {
                Ok(message) => {
                    if messages.send(message).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let _ = events.send(Err(error.into())).await;
                    return;
                }
            }
        }
    };
    let downward = async move {
        loop {
            let event = tokio::select! {
                // What the leader has said before the server stops is still delivered.
                biased;
                event = leader_events.recv() => event,
                () = stopping.cancelled() => None,
            };
            let Some(event) = event else { return };
            if to_stream.send(Ok(event_to_wire(event))).await.is_err() {
                return;
            }
        }
    };
    // A task that has reported its end may close its half and still listens; so the end of `upward` alone, which drops
    // the sender to the leader, doesn't end `downward`: the leader closes it.
    tokio::pin!(downward);
    tokio::select! {
        () = stream_gone.closed() => {}
        () = &mut downward => {}
        () = upward => {
            tokio::select! {
                () = stream_gone.closed() => {}
                () = &mut downward => {}
            }
        }
    }
}

/// Keeps a session while its stream lives. `events` is dropped at the end, which ends the answering stream.
async fn hold(
    lease: Lease,
    mut requests: Streaming<v1::SessionRequest>,
    events: mpsc::Sender<Result<v1::SessionEvent, Status>>,
) {
    let ended = lease.token().clone();
    loop {
        let message = tokio::select! {
            () = ended.cancelled() => return,
            message = timeout(SESSION_SILENCE_MAX, requests.message()) => message,
        };
        match message {
            Ok(Ok(Some(v1::SessionRequest { .. }))) => {}
            Ok(Ok(None)) => return lease.close(),
            Ok(Err(_)) => return,
            Err(_) => {
                let error = Error::new(
                    ErrorCode::Unavailable,
                    format!("the session was silent for {} s", SESSION_SILENCE_MAX.as_secs()),
                );
                // A full queue means that the stream doesn't move; dropping it says enough.
                let _ = events.try_send(Err(error.into()));
                return;
            }
        }
    }
}

/// The first rows that fit into one `share`th of `budget` bytes, from which they are taken, and how many are left out.
fn within<T: prost::Message>(
    budget: &mut usize,
    share: usize,
    rows: impl ExactSizeIterator<Item = T>,
) -> (Vec<T>, u64) {
    // Of the field: its tag and the length of the row.
    const FIELD_BYTES_MAX: usize = 6;
    let (count, mut room, mut listed) = (rows.len(), *budget / share, Vec::new());
    for row in rows {
        let Some(rest) = room.checked_sub(row.encoded_len() + FIELD_BYTES_MAX) else { break };
        *budget -= room - rest;
        room = rest;
        listed.push(row);
    }
    let left_out = (count - listed.len()) as u64;
    (listed, left_out)
}

fn session_status(row: SessionRow, op_instances: u32) -> v1::SessionStatus {
    let status = SessionStatus {
        container: row.caller.container,
        task: row.caller.task,
        run_id: row.caller.run_id,
        since: row.age,
        attached: Some(row.attached),
        op_instances,
    };
    status.into()
}

fn task_status(row: RowStatus) -> v1::TaskStatus {
    let status = TaskStatus {
        task: row.task,
        address: row.address,
        state: row.state,
        since: row.since.elapsed(),
        incarnation: row.incarnation,
        last_seen: row.last_seen.map(|seen| seen.elapsed()),
        message: row.message,
        runner: row.runner,
        exit_code: row.exit_code,
    };
    status.into()
}

fn barrier_status(container: &str, row: BarrierStatus) -> v1::BarrierStatus {
    let status = WaitedBarrier {
        container: container.to_owned(),
        name: row.name,
        generation: row.generation,
        arrived: row.arrived,
        missing: row.missing,
        since: row.since.elapsed(),
    };
    status.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: no status is too large to be received, whatever its rows hold, and none hides that something is missing.
    #[test]
    fn status_stays_within_a_message_and_counts_what_is_left_out() {
        let tasks = vec![v1::TaskStatus { message: "x".repeat(4096), ..Default::default() }; 2000];
        let sessions = vec![v1::SessionStatus { container: "c".repeat(63), ..Default::default() }; 4096];
        let variables = vec![v1::VariableStatus { name: "v".repeat(256), bytes: 1, ..Default::default() }; 100_000];
        let mut budget = STATUS_BYTES_MAX;
        let mut response = v1::GetStatusResponse::default();
        (response.task, response.tasks_left_out) = within(&mut budget, 2, tasks.into_iter());
        (response.session, response.sessions_left_out) = within(&mut budget, 2, sessions.into_iter());
        (response.variable, response.variables_left_out) = within(&mut budget, 1, variables.into_iter());
        assert!(response.encoded_len() <= MESSAGE_BYTES_MAX, "{} bytes", response.encoded_len());
        assert!(response.encoded_len() > MESSAGE_BYTES_MAX * 9 / 10, "room is used: {} bytes", response.encoded_len());
        assert_eq!(response.task.len() as u64 + response.tasks_left_out, 2000);
        assert_eq!((response.session.len(), response.sessions_left_out), (4096, 0));
        assert_eq!(response.variable.len() as u64 + response.variables_left_out, 100_000);
        assert!(response.variables_left_out > 0 && response.tasks_left_out > 0);
    }
}
