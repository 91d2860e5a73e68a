//! Asks the leader of a job whether a task that can't be reached has left it.

use super::{Lane, Shared};
use crate::attend::{Mode, TaskState};
use crate::cluster::{Task, TaskType};
use crate::ids::Caller;
use crate::status::{ServerStatus, TaskStatus};
use crate::wire::header::Header;
use crate::wire::v1;
use crate::wire::v1::cluster_client::ClusterClient;
use std::time::Duration;
use tokio::time::timeout;

/// How long the answer is waited for; the leader has its own ways to be found lost.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// How `task` has left the job for good; none where it hasn't, where the leader doesn't say, or where there is no job to leave.
///
/// # Cancel safety
/// Asking has no effect.
pub(super) async fn how_left(shared: &Shared, task: Task) -> Option<String> {
    let leader = shared.leader.filter(|&leader| leader != task)?;
    let address = shared.cluster.address(leader)?;
    let channel = shared.connections.channel(leader, Lane::Control, address, &shared.runtime).ok()?;
    let header = Header::new(Caller { attempt: None, ..shared.caller() });
    let request = v1::GetStatusRequest { header: Some((&header).into()), brief: true, row: Some(task.into()) };
    let mut leader = ClusterClient::new(channel);
    let answer = timeout(ASK_TIMEOUT, leader.get_status(request)).await.ok()?.ok()?.into_inner();
    let ServerStatus { job, tasks, .. } = answer.try_into().ok()?;
    // Servers of a leader that runs nothing serve whoever comes, and may be started anew.
    job.filter(|job| job.mode == Some(Mode::IndependentWorker))?;
    tasks.rows.into_iter().find(|row| row.task == task).and_then(how)
}

fn how(row: TaskStatus) -> Option<String> {
    // An evaluator that has failed may be started anew.
    let for_good = row.task.job != TaskType::Evaluator || row.exit_code == Some(0);
    let left = row.state == TaskState::Ended && for_good;
    left.then(|| if row.message.is_empty() { "its run has ended".to_owned() } else { row.message })
}
