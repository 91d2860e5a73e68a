//! Which tasks a cluster has, and which of them answer.

use super::{CheckpointError, CheckpointOptions};
use crate::attend::TaskState;
use crate::client::channel::{Connections, Peers, PeersOptions};
use crate::client::status::{StatusClient, StatusError};
use crate::client::variables::RemoteVariables;
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::coordinator::resolve::Target;
use crate::coordinator::survey::{Seen, Survey};
use crate::error::{Error, ErrorCode};
use crate::ids::{Caller, RunId};
use crate::status::TaskStatus;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A cluster, as far as it answers.
pub(super) struct Reached {
    pub(super) cluster: ClusterSpec,
    /// Those that answer, in order.
    pub(super) tasks: Vec<Task>,
    /// Those that don't, and needn't, with why.
    pub(super) silent: Vec<(Task, String)>,
    peers: Peers,
}

impl Reached {
    /// Asks the server at the address for the cluster, and then everybody who may hold variables: ps tasks, which have to answer, and
    /// chief and workers, which have to where there are no ps tasks (the leader), or where the leader says that they run. An
    /// evaluator's variables are those of its own run.
    ///
    /// # Errors
    /// [`CheckpointError::NotReached`]; [`CheckpointError::Task`]: an address is no `host:port`.
    ///
    /// # Cancel safety
    /// Asking has no effect.
    pub(super) async fn new(options: &CheckpointOptions) -> Result<Self, CheckpointError> {
        let CheckpointOptions { address, container, connect_timeout, .. } = options;
        let run_id = RunId::draw(&mut rand::rng());
        let caller = Caller { container: container.clone(), task: None, run_id, attempt: None };
        let not_reached = |task: String, address: &str, error| CheckpointError::NotReached {
            task,
            address: address.to_owned(),
            error: Box::new(error),
        };
        let mut asked = StatusClient::new(address, caller.clone())?;
        let status = asked.ask_patiently(*connect_timeout).await;
        let status = status.map_err(|error| not_reached("the server".to_owned(), address, error))?;
        let mut cluster = status.cluster.clone();
        let Some(own) = status.task.filter(|_| !cluster.is_empty()) else {
            let why = format!("it tells of no cluster; it runs dchost {}, ask one of this version", status.version);
            return Err(not_reached("the server".to_owned(), address, StatusError::Foreign(why)));
        };
        // Whatever the cluster calls it, it has answered here.
        cluster.insert(own, address.clone());

        let target =
            |task: Task| Target { task: Some(task), address: cluster.address(task).unwrap_or_default().to_owned() };
        let ps: Vec<Task> = cluster.tasks(TaskType::Ps).collect();
        let needed: Vec<Task> = if ps.is_empty() { cluster.leader().into_iter().collect() } else { ps };
        let others = cluster.training_tasks().filter(|task| !needed.contains(task));
        let survey = |targets: Vec<Target>, again| Survey::new(targets, container, *connect_timeout, again);
        let patient = survey(needed.iter().copied().map(target).collect(), true)?;
        let others = survey(others.map(target).collect(), false)?;
        let (patient, others) = tokio::join!(patient.take(), others.take());

        let mut reached: Vec<Task> = Vec::new();
        let mut silent: Vec<(Target, StatusError)> = Vec::new();
        let mut rows: Vec<TaskStatus> = status.tasks.rows;
        for Seen { target, outcome } in patient.into_iter().chain(others) {
            match (outcome, target.task) {
                (Ok(status), Some(task)) => {
                    rows.extend(status.tasks.rows);
                    reached.push(task);
                }
                (Err(error), _) => silent.push((target, error)),
                (Ok(_), None) => {}
            }
        }
        let mut left_out = Vec::new();
        for (target, error) in silent {
            let Some(task) = target.task else { continue };
            let runs =
                |row: &TaskStatus| row.task == task && matches!(row.state, TaskState::Running | TaskState::Suspect);
            if needed.contains(&task) || rows.iter().any(runs) {
                return Err(not_reached(task.to_string(), &target.address, error));
            }
            left_out.push((task, error.to_string()));
        }
        reached.sort_unstable();
        let peers = Peers::new(PeersOptions {
            cluster: cluster.clone(),
            caller,
            client_use: None,
            leader: None,
            connections: Connections::default(),
            runtime: Handle::current(),
            connect_timeout: *connect_timeout,
            rejoin_timeout: *connect_timeout,
        });
        Ok(Reached { cluster, tasks: reached, silent: left_out, peers })
    }

    /// The variables of a task.
    pub(super) fn variables(&self, task: Task) -> RemoteVariables {
        RemoteVariables::new(self.peers.clone(), task)
    }

    /// Asks several tasks at the same time; the answers in their order.
    ///
    /// # Errors
    /// The first in that order, after all have answered.
    ///
    /// # Cancel safety
    /// Dropping it gives all calls up.
    pub(super) async fn ask<T, A, Fut>(
        &self,
        tasks: impl IntoIterator<Item = (Task, A)>,
        call: impl Fn(RemoteVariables, A) -> Fut,
    ) -> Result<Vec<(Task, T)>, Error>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let ask = |(task, with)| (task, AbortOnDropHandle::new(tokio::spawn(call(self.variables(task), with))));
        let asked: Vec<_> = tasks.into_iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for (task, answer) in asked {
            let answer = answer
                .await
                .unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, format!("a call ended early: {error}"))));
            answers.push(answer.map(|answer| (task, answer)));
        }
        answers.into_iter().collect()
    }

    /// Ends the sessions.
    ///
    /// # Cancel safety
    /// The end goes on when the wait for it is dropped.
    pub(super) async fn close(self) {
        self.peers.close().await;
    }
}
