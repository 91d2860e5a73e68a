//! Attend messages.

use crate::attend::{
    BarrierArrival, Cause, EndReport, LeaderEvent, MemberMessage, Mode, Registered, Registration, Replication,
    TaskState,
};
use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, Caller, Incarnation};
use crate::wire::header::{Header, answered_by, missing, response_header, task_at};
use crate::wire::status::{error_from_wire, error_to_wire};
use crate::wire::v1;
use crate::wire::v1::attend_event::Kind as Event;
use crate::wire::v1::attend_request::Kind as Request;
use std::time::Duration;

/// Most tasks in a registration's cluster: far above any cluster, and far below what would hold up the leader.
const CLUSTER_TASKS_MAX: usize = 100_000;

/// Writes a timeout of a request; none is 0, and one that is shorter than a millisecond is one.
pub fn timeout_to_wire(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// Reads a timeout of a request.
pub fn timeout_from_wire(milliseconds: u64) -> Option<Duration> {
    Some(milliseconds).filter(|&value| value != 0).map(Duration::from_millis)
}

/// Writes a registration, the first message of an attend stream.
pub fn registration_to_wire(container: &str, registration: &Registration) -> v1::AttendRequest {
    let header = Header::new(Caller {
        container: container.to_owned(),
        task: Some(registration.task),
        run_id: registration.run_id,
        attempt: registration.attempt,
    });
    request(Request::Register(v1::Register {
        header: Some((&header).into()),
        incarnation: registration.incarnation.0,
        mode: mode_to_wire(registration.mode).into(),
        replication: replication_to_wire(registration.replication).into(),
        barrier: registration.barrier,
        module_digest: registration.module_digest.map(|digest| digest.to_vec().into()).unwrap_or_default(),
        cluster: cluster_to_wire(&registration.cluster),
    }))
}

/// Reads a registration of `caller`, which the guard has let in.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn registration_from_wire(caller: Caller, register: v1::Register) -> Result<Registration> {
    if register.incarnation == 0 {
        return Err(missing("register.incarnation"));
    }
    let module_digest = match &register.module_digest[..] {
        [] => None,
        digest => Some(digest.try_into().map_err(|_| {
            invalid(format!("register.module_digest: sha256 has 32 bytes, these are {}", digest.len()))
        })?),
    };
    Ok(Registration {
        task: caller.task.ok_or_else(|| missing("register.header.caller.task"))?,
        incarnation: Incarnation(register.incarnation),
        run_id: caller.run_id,
        attempt: caller.attempt,
        mode: mode_from_wire("register.mode", register.mode)?,
        replication: replication_from_wire("register.replication", register.replication)?,
        barrier: register.barrier,
        module_digest,
        cluster: cluster_from_wire("register.cluster", register.cluster)?,
    })
}

/// Writes a cluster.
pub fn cluster_to_wire(cluster: &ClusterSpec) -> Vec<v1::JobAddresses> {
    cluster
        .jobs()
        .map(|job| v1::JobAddresses {
            job: job.as_str().to_owned(),
            address: cluster
                .tasks(job)
                .filter_map(|task| Some((task.index, cluster.address(task)?.to_owned())))
                .collect(),
        })
        .collect()
}

/// Reads the cluster in the field `field`.
///
/// # Errors
/// `invalid-argument` for an unknown job, or more tasks than any cluster has.
pub fn cluster_from_wire(field: &str, jobs: Vec<v1::JobAddresses>) -> Result<ClusterSpec> {
    let tasks: usize = jobs.iter().map(|job| job.address.len()).sum();
    if tasks > CLUSTER_TASKS_MAX {
        return Err(invalid(format!("{field}: {tasks} tasks, at most {CLUSTER_TASKS_MAX} are served")));
    }
    let mut cluster = ClusterSpec::new();
    for entry in jobs {
        let job = entry.job.parse().map_err(|error| invalid(format!("{field}.job: {error}")))?;
        cluster.insert_job(job);
        for (index, address) in entry.address {
            cluster.insert(Task::new(job, index), address);
        }
    }
    Ok(cluster)
}

/// Writes a member's message.
pub fn message_to_wire(message: MemberMessage) -> v1::AttendRequest {
    request(match message {
        MemberMessage::Heartbeat => Request::Heartbeat(v1::Heartbeat {}),
        MemberMessage::Arrival(arrival) => Request::Arrival(v1::BarrierArrival {
            name: arrival.name,
            generation: arrival.generation,
            timeout_ms: timeout_to_wire(arrival.timeout),
        }),
        MemberMessage::End(report) => Request::End(v1::End {
            ok: report.ok,
            exit_code: report.exit_code.into(),
            message: report.message,
            leaving: report.leaving,
        }),
    })
}

/// Reads a member's message after its registration.
///
/// # Errors
/// `invalid-argument` for a second registration, an empty message or an exit code above 255.
pub fn message_from_wire(request: v1::AttendRequest) -> Result<MemberMessage> {
    match request.kind.ok_or_else(|| missing("kind"))? {
        Request::Register(_) => Err(invalid("a stream registers once, with its first message")),
        Request::Heartbeat(v1::Heartbeat {}) => Ok(MemberMessage::Heartbeat),
        Request::Arrival(arrival) => Ok(MemberMessage::Arrival(BarrierArrival {
            name: arrival.name,
            generation: arrival.generation,
            timeout: timeout_from_wire(arrival.timeout_ms),
        })),
        Request::End(end) => Ok(MemberMessage::End(EndReport {
            ok: end.ok,
            exit_code: exit_code("end.exit_code", end.exit_code)?,
            message: end.message,
            leaving: end.leaving,
        })),
    }
}

/// Writes the leader's answer to a registration.
pub fn registered_to_wire(registered: &Registered) -> v1::AttendEvent {
    event(Event::Registered(v1::Registered {
        header: response_header(registered.leader_incarnation),
        attempt: Some(registered.attempt.into()),
        mode: mode_to_wire(registered.mode).into(),
        replication: replication_to_wire(registered.replication).into(),
        training_ended: registered.training_ended,
    }))
}

/// Reads the leader's answer to a registration.
///
/// # Errors
/// `invalid-argument` or `internal` naming what is missing or unknown.
pub fn registered_from_wire(registered: v1::Registered) -> Result<Registered> {
    Ok(Registered {
        leader_incarnation: answered_by(registered.header.as_ref())?,
        attempt: attempt_from_wire("registered.attempt", registered.attempt)?,
        mode: mode_from_wire("registered.mode", registered.mode)?,
        replication: replication_from_wire("registered.replication", registered.replication)?,
        training_ended: registered.training_ended,
    })
}

/// Writes an event of the leader.
pub fn event_to_wire(leader_event: LeaderEvent) -> v1::AttendEvent {
    event(match leader_event {
        LeaderEvent::Heartbeat => Event::Heartbeat(v1::Heartbeat {}),
        LeaderEvent::Barrier { name, generation, result } => {
            let (code, detail, message) = match &result {
                Ok(()) => (0, None, String::new()),
                Err(error) => {
                    let (code, detail, message) = error_to_wire(error);
                    (code as u32, Some(detail), message)
                }
            };
            Event::Barrier(v1::BarrierResult { name, generation, code, detail, message })
        }
        LeaderEvent::AttemptBegins { attempt, cause } => {
            Event::AttemptBegins(v1::AttemptBegins { attempt: Some(attempt.into()), cause: Some(cause_to_wire(cause)) })
        }
        LeaderEvent::Task { task, state, message } => {
            Event::Task(v1::TaskEvent { task: Some(task.into()), state: state_to_wire(state).into(), message })
        }
        LeaderEvent::TrainingEnded { cause } => {
            Event::TrainingEnded(v1::TrainingEnded { cause: cause.map(cause_to_wire) })
        }
        LeaderEvent::JobEnded { cause } => Event::JobEnded(v1::JobEnded { cause: cause.map(cause_to_wire) }),
    })
}

/// Reads an event of the leader after its answer; none where this build doesn't know the kind (a newer leader's).
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn event_from_wire(event: v1::AttendEvent) -> Result<Option<LeaderEvent>> {
    let Some(kind) = event.kind else { return Ok(None) };
    Ok(Some(match kind {
        Event::Registered(_) => return Err(invalid("the leader answers a registration once")),
        Event::Heartbeat(v1::Heartbeat {}) => LeaderEvent::Heartbeat,
        Event::Barrier(barrier) => LeaderEvent::Barrier {
            name: barrier.name,
            generation: barrier.generation,
            result: match i32::try_from(barrier.code).map(tonic::Code::from_i32) {
                Ok(tonic::Code::Ok) => Ok(()),
                code => Err(error_from_wire(
                    code.unwrap_or(tonic::Code::Unknown),
                    barrier.detail.unwrap_or_default(),
                    barrier.message,
                )),
            },
        },
        Event::AttemptBegins(begins) => LeaderEvent::AttemptBegins {
            attempt: attempt_from_wire("attempt_begins.attempt", begins.attempt)?,
            cause: cause_from_wire(begins.cause)?.ok_or_else(|| missing("attempt_begins.cause"))?,
        },
        Event::Task(task) => LeaderEvent::Task {
            task: task_at("task.task", task.task.ok_or_else(|| missing("task.task"))?)?,
            state: state_from_wire("task.state", task.state)?,
            message: task.message,
        },
        Event::TrainingEnded(ended) => LeaderEvent::TrainingEnded { cause: cause_from_wire(ended.cause)? },
        Event::JobEnded(ended) => LeaderEvent::JobEnded { cause: cause_from_wire(ended.cause)? },
    }))
}

/// Writes a task's state.
pub const fn state_to_wire(state: TaskState) -> v1::State {
    match state {
        TaskState::NeverSeen => v1::State::NeverSeen,
        TaskState::Running => v1::State::Running,
        TaskState::Suspect => v1::State::Suspect,
        TaskState::Ended => v1::State::Ended,
        TaskState::Lost => v1::State::Lost,
    }
}

/// Reads a task's state.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn state_from_wire(field: &str, state: i32) -> Result<TaskState> {
    match v1::State::try_from(state) {
        Ok(v1::State::NeverSeen) => Ok(TaskState::NeverSeen),
        Ok(v1::State::Running) => Ok(TaskState::Running),
        Ok(v1::State::Suspect) => Ok(TaskState::Suspect),
        Ok(v1::State::Ended) => Ok(TaskState::Ended),
        Ok(v1::State::Lost) => Ok(TaskState::Lost),
        Ok(v1::State::Unspecified) => Err(missing(field)),
        Err(_) => Err(unknown(field, state)),
    }
}

/// Writes a mode.
pub const fn mode_to_wire(mode: Option<Mode>) -> v1::Mode {
    match mode {
        None => v1::Mode::Unspecified,
        Some(Mode::IndependentWorker) => v1::Mode::IndependentWorker,
        Some(Mode::SplitClient) => v1::Mode::SplitClient,
    }
}

/// Reads a mode.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn mode_from_wire(field: &str, mode: i32) -> Result<Option<Mode>> {
    match v1::Mode::try_from(mode) {
        Ok(v1::Mode::Unspecified) => Ok(None),
        Ok(v1::Mode::IndependentWorker) => Ok(Some(Mode::IndependentWorker)),
        Ok(v1::Mode::SplitClient) => Ok(Some(Mode::SplitClient)),
        Err(_) => Err(unknown(field, mode)),
    }
}

/// Writes how runs are placed.
pub const fn replication_to_wire(replication: Replication) -> v1::Replication {
    match replication {
        Replication::BetweenGraph => v1::Replication::BetweenGraph,
        Replication::InGraph => v1::Replication::InGraph,
    }
}

/// Reads how runs are placed.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn replication_from_wire(field: &str, replication: i32) -> Result<Replication> {
    match v1::Replication::try_from(replication) {
        Ok(v1::Replication::BetweenGraph) => Ok(Replication::BetweenGraph),
        Ok(v1::Replication::InGraph) => Ok(Replication::InGraph),
        Ok(v1::Replication::Unspecified) => Err(missing(field)),
        Err(_) => Err(unknown(field, replication)),
    }
}

fn attempt_from_wire(field: &str, attempt: Option<v1::Attempt>) -> Result<Attempt> {
    attempt.ok_or_else(|| missing(field))?.try_into()
}

/// Writes the first cause of a failure.
pub fn cause_to_wire(cause: Cause) -> v1::Cause {
    v1::Cause { task: Some(cause.task.into()), exit_code: cause.exit_code.into(), message: cause.message }
}

/// Reads the first cause of a failure.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn cause_from_wire(cause: Option<v1::Cause>) -> Result<Option<Cause>> {
    cause
        .map(|cause| {
            Ok(Cause {
                task: task_at("cause.task", cause.task.ok_or_else(|| missing("cause.task"))?)?,
                exit_code: exit_code("cause.exit_code", cause.exit_code)?,
                message: cause.message,
            })
        })
        .transpose()
}

/// Reads an exit code.
///
/// # Errors
/// `invalid-argument` naming the field.
pub fn exit_code(field: &str, code: u32) -> Result<u8> {
    u8::try_from(code).map_err(|_| invalid(format!("{field}: `{code}` is above 255")))
}

fn request(kind: Request) -> v1::AttendRequest {
    v1::AttendRequest { kind: Some(kind) }
}

fn event(kind: Event) -> v1::AttendEvent {
    v1::AttendEvent { kind: Some(kind) }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, message)
}

fn unknown(field: &str, value: i32) -> Error {
    invalid(format!("{field}: this build doesn't know the value `{value}`"))
}

#[cfg(test)]
mod tests;
