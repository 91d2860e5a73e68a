//! What the rows show to people.

use super::{Lifetime, Row};
use crate::attend::{Mode, Replication, TaskState};
use crate::cluster::Task;
use crate::ids::Incarnation;
use std::time::{Duration, Instant};

/// A task that should attend and doesn't.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Who.
    pub task: Task,
    /// Never seen, or suspect.
    pub state: TaskState,
    /// For how long.
    pub silent_for: Duration,
    /// What the last probe showed.
    pub reason: String,
}

/// A row, as a status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowStatus {
    /// Who.
    pub task: Task,
    /// The address that the cluster lists; none for an unlisted evaluator.
    pub address: Option<String>,
    /// Whether the training waits for its end.
    pub runner: bool,
    /// Its state.
    pub state: TaskState,
    /// Of the process that attended last.
    pub incarnation: Option<Incarnation>,
    /// When the row came to its state.
    pub since: Instant,
    /// When something was heard of it last.
    pub last_seen: Option<Instant>,
    /// Why it is in its state; for silent tasks with what the last probe showed.
    pub message: String,
    /// The exit code that it reported at its end.
    pub exit_code: Option<u8>,
}

impl Lifetime {
    /// How runs are placed; none: the leader has no module, and leads nothing.
    pub fn mode(&self) -> Option<Mode> {
        self.options.mode
    }

    /// One run for each chief and worker, or one driver.
    pub fn replication(&self) -> Replication {
        self.options.replication
    }

    /// The tasks that should attend and don't, in order.
    pub fn silent(&self, now: Instant) -> Vec<Silent> {
        if self.training_ended() {
            return Vec::new();
        }
        self.rows
            .iter()
            .filter(|&(&task, row)| {
                task != self.options.leader
                    && (row.state == TaskState::Suspect || (row.state == TaskState::NeverSeen && row.runner))
            })
            .map(|(&task, row)| Silent {
                task,
                state: row.state,
                silent_for: now.saturating_duration_since(row.since),
                reason: row.why_silent().unwrap_or_else(|| {
                    // The first dial may take as long as the first report does.
                    if row.probing { "dialled, no answer yet".to_owned() } else { "not dialled yet".to_owned() }
                }),
            })
            .collect()
    }

    /// Every row, in order.
    pub fn rows(&self) -> Vec<RowStatus> {
        self.rows.iter().map(|(&task, row)| self.row_status(task, row)).collect()
    }

    /// The row of a task, if it has one.
    pub fn row(&self, task: Task) -> Option<RowStatus> {
        self.rows.get(&task).map(|row| self.row_status(task, row))
    }

    fn row_status(&self, task: Task, row: &Row) -> RowStatus {
        let mut message = row.message.clone();
        if matches!(row.state, TaskState::NeverSeen | TaskState::Suspect)
            && let Some(why) = row.why_silent()
        {
            if !message.is_empty() {
                message.push_str("; ");
            }
            message.push_str(&why);
        }
        RowStatus {
            task,
            address: self.options.cluster.address(task).map(str::to_owned),
            runner: row.runner,
            state: row.state,
            incarnation: row.incarnation,
            since: row.since,
            last_seen: row.last_seen,
            message,
            exit_code: row.end.as_ref().map(|end| end.exit_code),
        }
    }
}
