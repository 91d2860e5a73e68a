//! The leader's service as a server shows it: where tasks attend, and what status tells.

use super::{LeaderHandle, LeaderStatus};
use crate::server::cluster::{BarrierRow, LeaderPart, LeaderReport, TaskRow};
use std::sync::Arc;
use tokio::time::Instant;

impl LeaderHandle {
    /// The leader's half of a server.
    pub fn part(&self) -> LeaderPart {
        let reports = self.clone();
        LeaderPart {
            attend: Arc::new(self.clone()),
            report: Arc::new(move || {
                let leader = reports.clone();
                Box::pin(async move { leader.status().await.map(report) })
            }),
        }
    }
}

/// Points in time as they pass between processes: how long ago.
fn report(status: LeaderStatus) -> LeaderReport {
    let now = Instant::now().into_std();
    let ago = |at: std::time::Instant| now.saturating_duration_since(at);
    LeaderReport {
        attempt: status.attempt,
        tasks: status
            .rows
            .into_iter()
            .map(|row| TaskRow {
                task: row.task,
                state: row.state,
                incarnation: row.incarnation,
                since: ago(row.since),
                last_seen: row.last_seen.map(ago),
                message: row.message,
            })
            .collect(),
        barriers: status
            .barriers
            .into_iter()
            .map(|barrier| BarrierRow {
                name: barrier.name,
                generation: barrier.generation,
                arrived: barrier.arrived,
                missing: barrier.missing,
                since: ago(barrier.since),
            })
            .collect(),
    }
}
