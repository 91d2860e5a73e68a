//! What servers answered, for programs. The keys stand in docs/status.md.

use crate::cluster::Task;
use crate::coordinator::survey::Seen;
use crate::ids::Attempt;
use crate::status::{JobStatus, Listed, ServerStatus, SessionStatus, TaskStatus, VariableStatus, WaitedBarrier};
use crate::text::escaped_json;
use crate::variables::whole_type;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// One object, on one line, with its end.
pub(super) fn line(time: SystemTime, seen: &[Seen], error: Option<&str>) -> String {
    let servers: Vec<_> = seen.iter().map(server).collect();
    let time = humantime::format_rfc3339_millis(time).to_string();
    format!("{}\n", escaped_json(&json!({"time": time, "servers": servers, "error": error}).to_string()))
}

fn server(Seen { target, outcome }: &Seen) -> Value {
    let status = outcome.as_ref().ok();
    json!({
        "asked": name(target.task),
        "address": target.address,
        "error": outcome.as_ref().err().map(ToString::to_string),
        "status": status.map(server_status),
    })
}

fn server_status(status: &ServerStatus) -> Value {
    let (tasks, tasks_left_out) = listed(&status.tasks, task);
    let (barriers, barriers_left_out) = listed(&status.barriers, barrier);
    let (variables, variables_left_out) = listed(&status.variables, variable);
    let (sessions, sessions_left_out) = listed(&status.sessions, session);
    json!({
        "task": name(status.task),
        "incarnation": status.incarnation.to_string(),
        "version": status.version,
        "attempt": status.attempt.map(attempt),
        "job": status.job.as_ref().map(job),
        "tasks": tasks,
        "tasks_left_out": tasks_left_out,
        "barriers": barriers,
        "barriers_left_out": barriers_left_out,
        "variables": variables,
        "variables_left_out": variables_left_out,
        "variable_bytes": status.variable_bytes,
        "variable_bytes_max": status.variable_bytes_max,
        "sessions": sessions,
        "sessions_left_out": sessions_left_out,
    })
}

/// The rows, and how many more there are, whatever the reason.
fn listed<T>(listed: &Listed<T>, row: impl Fn(&T) -> Value) -> (Vec<Value>, u64) {
    (listed.rows.iter().map(row).collect(), listed.left_out.saturating_add(listed.strange))
}

fn name(task: Option<Task>) -> Option<String> {
    task.map(|task| task.to_string())
}

fn names(tasks: &[Task]) -> Vec<String> {
    tasks.iter().map(Task::to_string).collect()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn attempt(attempt: Attempt) -> Value {
    json!({"leader_incarnation": attempt.leader.to_string(), "number": attempt.number})
}

fn job(job: &JobStatus) -> Value {
    json!({
        "mode": job.mode.map(|mode| mode.as_str()),
        "replication": job.replication.as_str(),
        "training_ended": job.training_ended,
        "cause": job.cause.as_ref().map(|cause| {
            json!({"task": cause.task.to_string(), "exit_code": cause.exit_code, "message": cause.message})
        }),
    })
}

fn task(row: &TaskStatus) -> Value {
    json!({
        "task": row.task.to_string(),
        "address": row.address,
        "state": row.state.as_str(),
        "since_ms": milliseconds(row.since),
        "incarnation": row.incarnation.map(|incarnation| incarnation.to_string()),
        "last_seen_ms": row.last_seen.map(milliseconds),
        "runner": row.runner,
        "exit_code": row.exit_code,
        "message": row.message,
    })
}

fn barrier(row: &WaitedBarrier) -> Value {
    json!({
        "name": row.name,
        "container": row.container,
        "generation": row.generation,
        "since_ms": milliseconds(row.since),
        "arrived": names(&row.arrived),
        "missing": names(&row.missing),
    })
}

fn variable(row: &VariableStatus) -> Value {
    json!({
        "name": row.name,
        "container": row.container,
        "dtype": row.ty.dtype.as_str(),
        "shape": whole_type(&row.ty, row.shard.as_ref()).shape,
        "shard": row.shard.as_ref().map(|shard| json!({
            "index": shard.index,
            "count": shard.count(),
            "first_row": shard.first_row,
            "rows": row.ty.shape.first(),
        })),
        "bytes": row.bytes,
        "version": row.version,
        "partial_writes": row.partial_writes,
        "slot_bytes": row.slot_bytes,
        "stale_gradients": row.stale_gradients,
        "dropped_gradients": row.dropped_gradients,
    })
}

fn session(row: &SessionStatus) -> Value {
    json!({
        "task": name(row.task),
        "run_id": row.run_id.to_string(),
        "container": row.container,
        "since_ms": milliseconds(row.since),
        "attached": row.attached,
        "op_instances": row.op_instances,
    })
}
