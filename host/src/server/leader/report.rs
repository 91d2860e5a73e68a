//! What the leader logs every few seconds while something is missing.

use super::LeaderStatus;
use crate::attend::TaskState;
use crate::cluster::list_tasks;
use std::time::Duration;
use tracing::info;

/// Tasks that one report describes one by one; it counts the rest.
const TASKS_MAX: usize = 16;

/// Logs who is silent, since when and why, and who keeps others waiting at a barrier.
pub(super) fn log(status: &LeaderStatus) {
    for line in lines(status, tokio::time::Instant::now().into_std()) {
        info!("{line}");
    }
}

/// The report's lines; none where nothing is missing.
pub(super) fn lines(status: &LeaderStatus, now: std::time::Instant) -> Vec<String> {
    let mut lines: Vec<String> = status
        .silent
        .iter()
        .take(TASKS_MAX)
        .map(|silent| {
            let what = if silent.state == TaskState::NeverSeen { "not seen yet" } else { "does not answer" };
            format!("{} {what} for {}: {}", silent.task, seconds(silent.silent_for), silent.reason)
        })
        .collect();
    if status.silent.len() > TASKS_MAX {
        let rest = status.silent.iter().skip(TASKS_MAX).map(|silent| &silent.task);
        lines.push(format!("{} more tasks are silent: {}", status.silent.len() - TASKS_MAX, list_tasks(rest)));
    }
    lines.extend(status.barriers.iter().map(|barrier| barrier.line(now)));
    lines
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}
