//! How a server and its cluster are doing: the rows of a status.
//!
//! A server writes each row by itself, so that it can leave out those that don't fit into a message. A reader passes over
//! rows that it can't make sense of, and counts them: whoever looks at a cluster of several versions sees the rest.

use crate::cluster::Task;
use crate::error::Result;
use crate::ids::{Attempt, Incarnation, RunId};
use crate::status::{JobStatus, Listed, ServerStatus, SessionStatus, TaskStatus, VariableStatus, WaitedBarrier};
use crate::variables::whole_type;
use crate::wire::attend::{
    cause_from_wire, cause_to_wire, cluster_from_wire, exit_code, mode_from_wire, mode_to_wire, replication_from_wire,
    replication_to_wire, state_from_wire, state_to_wire,
};
use crate::wire::header::{answered_by, missing, task_at};
use crate::wire::tensor::tensor_type;
use crate::wire::v1;
use crate::wire::variables::{part_from_wire, shard_to_wire};
use std::time::Duration;

impl From<TaskStatus> for v1::TaskStatus {
    fn from(row: TaskStatus) -> Self {
        v1::TaskStatus {
            task: Some(row.task.into()),
            address: row.address.unwrap_or_default(),
            state: state_to_wire(row.state).into(),
            incarnation: row.incarnation.map_or(0, |incarnation| incarnation.0),
            since_ms: milliseconds(row.since),
            last_seen_ms: row.last_seen.map(milliseconds),
            message: row.message,
            runner: row.runner,
            exit_code: row.exit_code.map(Into::into),
        }
    }
}

impl From<WaitedBarrier> for v1::BarrierStatus {
    fn from(row: WaitedBarrier) -> Self {
        v1::BarrierStatus {
            container: row.container,
            name: row.name,
            generation: row.generation,
            arrived: row.arrived.into_iter().map(Into::into).collect(),
            missing: row.missing.into_iter().map(Into::into).collect(),
            since_ms: milliseconds(row.since),
        }
    }
}

impl From<VariableStatus> for v1::VariableStatus {
    fn from(row: VariableStatus) -> Self {
        v1::VariableStatus {
            container: row.container,
            name: row.name,
            bytes: row.bytes,
            version: row.version,
            partial_writes: row.partial_writes,
            slot_bytes: row.slot_bytes,
            stale_gradients: row.stale_gradients,
            dropped_gradients: row.dropped_gradients,
            dtype: v1::DType::from(row.ty.dtype).into(),
            shard: row.shard.as_ref().map(|shard| shard_to_wire(shard, &row.ty)),
            shape: whole_type(&row.ty, row.shard.as_ref()).shape,
        }
    }
}

impl From<SessionStatus> for v1::SessionStatus {
    fn from(row: SessionStatus) -> Self {
        v1::SessionStatus {
            container: row.container,
            caller: Some(v1::Caller { task: row.task.map(Into::into), run_id: row.run_id.0 }),
            since_ms: milliseconds(row.since),
            op_instances: row.op_instances,
            attached: row.attached,
        }
    }
}

impl From<JobStatus> for v1::JobStatus {
    fn from(job: JobStatus) -> Self {
        v1::JobStatus {
            mode: mode_to_wire(job.mode).into(),
            replication: replication_to_wire(job.replication).into(),
            training_ended: job.training_ended,
            cause: job.cause.map(cause_to_wire),
        }
    }
}

impl TryFrom<v1::GetStatusResponse> for ServerStatus {
    type Error = crate::error::Error;

    /// Reads an answer.
    ///
    /// # Errors
    /// `internal`: without an incarnation, what answers is no dchost server; `invalid-argument` naming a field outside the
    /// rows that makes no sense.
    fn try_from(answer: v1::GetStatusResponse) -> Result<Self> {
        Ok(ServerStatus {
            incarnation: answered_by(answer.header.as_ref())?,
            task: answer.server.map(|task| task_at("server", task)).transpose()?,
            version: answer.version,
            attempt: answer.attempt.map(Attempt::try_from).transpose()?,
            job: answer.job.map(job).transpose()?,
            tasks: listed(answer.task, answer.tasks_left_out, task),
            barriers: listed(answer.barrier, answer.barriers_left_out, barrier),
            variables: listed(answer.variable, answer.variables_left_out, variable),
            variable_bytes: answer.variable_bytes,
            variable_bytes_max: answer.variable_bytes_max,
            cluster: cluster_from_wire("cluster", answer.cluster)?,
            sessions: listed(answer.session, answer.sessions_left_out, session),
        })
    }
}

fn listed<W, T>(rows: Vec<W>, left_out: u64, read: impl Fn(W) -> Result<T>) -> Listed<T> {
    let told = rows.len();
    let rows: Vec<T> = rows.into_iter().filter_map(|row| read(row).ok()).collect();
    Listed { left_out, strange: (told - rows.len()) as u64, rows }
}

fn job(job: v1::JobStatus) -> Result<JobStatus> {
    Ok(JobStatus {
        mode: mode_from_wire("job.mode", job.mode)?,
        replication: replication_from_wire("job.replication", job.replication)?,
        training_ended: job.training_ended,
        cause: cause_from_wire(job.cause)?,
    })
}

fn task(row: v1::TaskStatus) -> Result<TaskStatus> {
    Ok(TaskStatus {
        task: task_at("task.task", row.task.ok_or_else(|| missing("task.task"))?)?,
        address: Some(row.address).filter(|address| !address.is_empty()),
        state: state_from_wire("task.state", row.state)?,
        since: Duration::from_millis(row.since_ms),
        incarnation: Some(row.incarnation).filter(|&value| value != 0).map(Incarnation),
        last_seen: row.last_seen_ms.map(Duration::from_millis),
        message: row.message,
        runner: row.runner,
        exit_code: row.exit_code.map(|code| exit_code("task.exit_code", code)).transpose()?,
    })
}

fn barrier(row: v1::BarrierStatus) -> Result<WaitedBarrier> {
    let tasks = |tasks: Vec<v1::Task>| tasks.into_iter().map(Task::try_from).collect::<Result<_>>();
    Ok(WaitedBarrier {
        container: row.container,
        name: row.name,
        generation: row.generation,
        arrived: tasks(row.arrived)?,
        missing: tasks(row.missing)?,
        since: Duration::from_millis(row.since_ms),
    })
}

fn variable(row: v1::VariableStatus) -> Result<VariableStatus> {
    let (ty, shard) = part_from_wire(&row.name, tensor_type(row.dtype, row.shape)?, row.shard)?;
    Ok(VariableStatus {
        container: row.container,
        name: row.name,
        ty,
        shard,
        bytes: row.bytes,
        version: row.version,
        partial_writes: row.partial_writes,
        slot_bytes: row.slot_bytes,
        stale_gradients: row.stale_gradients,
        dropped_gradients: row.dropped_gradients,
    })
}

fn session(row: v1::SessionStatus) -> Result<SessionStatus> {
    let caller = row.caller.ok_or_else(|| missing("session.caller"))?;
    Ok(SessionStatus {
        container: row.container,
        task: caller.task.map(|task| task_at("session.caller.task", task)).transpose()?,
        run_id: RunId(caller.run_id),
        since: Duration::from_millis(row.since_ms),
        attached: row.attached,
        op_instances: row.op_instances,
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attend::{Cause, Mode, Replication, TaskState};
    use crate::cluster::{ClusterSpec, TaskType};
    use crate::error::ErrorCode;
    use crate::tensor::{DType, TensorType};
    use crate::variables::Shard;
    use crate::wire::attend::cluster_to_wire;
    use crate::wire::header::response_header;

    const PS: Task = Task::new(TaskType::Ps, 1);

    fn status() -> ServerStatus {
        ServerStatus {
            incarnation: Incarnation(7),
            task: Some(PS),
            version: "0.1.0".into(),
            attempt: Some(Attempt { leader: Incarnation(9), number: 2 }),
            job: Some(JobStatus {
                mode: Some(Mode::IndependentWorker),
                replication: Replication::BetweenGraph,
                training_ended: true,
                cause: Some(Cause { task: PS, exit_code: 202, message: "lost".into() }),
            }),
            tasks: Listed {
                rows: vec![TaskStatus {
                    task: PS,
                    address: Some("a:1".into()),
                    state: TaskState::Ended,
                    since: Duration::from_millis(1500),
                    incarnation: Some(Incarnation(8)),
                    last_seen: Some(Duration::from_millis(3)),
                    message: "done".into(),
                    runner: true,
                    exit_code: Some(4),
                }],
                left_out: 1,
                strange: 0,
            },
            barriers: Listed {
                rows: vec![WaitedBarrier {
                    container: "default".into(),
                    name: "epoch".into(),
                    generation: 4,
                    arrived: vec![PS],
                    missing: vec![Task::new(TaskType::Worker, 0)],
                    since: Duration::from_secs(2),
                }],
                left_out: 2,
                strange: 0,
            },
            variables: Listed {
                rows: vec![VariableStatus {
                    container: "default".into(),
                    name: "w".into(),
                    ty: TensorType::new(DType::F32, [3, 4]),
                    shard: Some(Shard { index: 1, first_row: 3, whole_rows: 6, ps: [0, 1].into() }),
                    bytes: 48,
                    version: 5,
                    partial_writes: 2,
                    slot_bytes: 96,
                    stale_gradients: 7,
                    dropped_gradients: 8,
                }],
                left_out: 3,
                strange: 0,
            },
            variable_bytes: 100,
            variable_bytes_max: Some(1000),
            cluster: ClusterSpec::new().with_job(TaskType::Ps, ["a:1", "b:2"]),
            sessions: Listed {
                rows: vec![SessionStatus {
                    container: "default".into(),
                    task: None,
                    run_id: RunId(6),
                    since: Duration::from_secs(3),
                    attached: Some(false),
                    op_instances: 2,
                }],
                left_out: 4,
                strange: 0,
            },
        }
    }

    fn to_wire(status: ServerStatus) -> v1::GetStatusResponse {
        fn rows<T, W: From<T>>(listed: Listed<T>) -> Vec<W> {
            listed.rows.into_iter().map(Into::into).collect()
        }
        v1::GetStatusResponse {
            header: response_header(status.incarnation),
            attempt: status.attempt.map(Into::into),
            tasks_left_out: status.tasks.left_out,
            task: rows(status.tasks),
            barriers_left_out: status.barriers.left_out,
            barrier: rows(status.barriers),
            variables_left_out: status.variables.left_out,
            variable: rows(status.variables),
            sessions_left_out: status.sessions.left_out,
            session: rows(status.sessions),
            server: status.task.map(Into::into),
            version: status.version,
            job: status.job.map(Into::into),
            variable_bytes: status.variable_bytes,
            variable_bytes_max: status.variable_bytes_max,
            cluster: cluster_to_wire(&status.cluster),
        }
    }

    #[test]
    fn a_status_survives_the_wire() {
        assert_eq!(ServerStatus::try_from(to_wire(status())), Ok(status()));
    }

    #[test]
    fn rows_that_make_no_sense_are_counted_and_the_others_told() {
        let mut wire = to_wire(status());
        wire.task.push(v1::TaskStatus { state: 77, ..wire.task[0].clone() });
        wire.task.push(v1::TaskStatus { exit_code: Some(256), ..wire.task[0].clone() });
        wire.barrier[0].missing.push(v1::Task { job: "judge".into(), index: 0 });
        wire.variable.push(v1::VariableStatus { dtype: 99, ..wire.variable[0].clone() });
        wire.session.push(v1::SessionStatus::default());
        let read = ServerStatus::try_from(wire).expect("the rest makes sense");
        let strange = (read.tasks.strange, read.barriers.strange, read.variables.strange, read.sessions.strange);
        assert_eq!(strange, (2, 1, 1, 1));
        assert_eq!((read.tasks.rows, read.sessions.rows), (status().tasks.rows, status().sessions.rows));
    }

    #[test]
    fn an_answer_without_incarnation_is_nobodys() {
        let error = ServerStatus::try_from(v1::GetStatusResponse::default()).expect_err("refused");
        assert_eq!(error.code, ErrorCode::Internal, "{error}");
        let odd = v1::GetStatusResponse { server: Some(v1::Task::default()), ..to_wire(status()) };
        let error = ServerStatus::try_from(odd).expect_err("refused");
        assert!(error.message.contains("server.job"), "{error}");
    }
}
