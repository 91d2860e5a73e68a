//! Which server, which runs with which context, join or return: a pure function.
//!
//! | cluster | mode | task | server | runs |
//! | --- | --- | --- | --- | --- |
//! | empty | any | none | none | one, local |
//! | named | split client | none, client | none | between-graph: chief and workers; in-graph: the driver; the evaluator beside them |
//! | named | split client | any other | joined | none |
//! | named | independent worker | chief, worker | yes | its own; in-graph: the driver on the leader, others join |
//! | named | independent worker | evaluator | yes; none where it is not listed | its own |
//! | named | independent worker | ps | joined | none |
//! | named | not known yet | any but client | joined | none |
//!
//! # Source
//! `run_distribute_coordinator` and `_WorkerContext` of TensorFlow's `distribute_coordinator.py`. It differs where that
//! one reports success without training, runs a worker without an index, or starts a server before it refuses.

use crate::attend::{Mode, Replication};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::context::WorkerContext;
use crate::coordinator::resolve::values::RpcLayer;

/// What a plan is made from. The addresses may be any text: those of a run are checked in
/// [`resolve`](crate::coordinator::resolve).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanInput<'a> {
    /// The cluster; empty: a local run.
    pub cluster: &'a ClusterSpec,
    /// This process's task; none: a local run or a split client.
    pub task: Option<Task>,
    /// How runs are placed; none: a standard server that learns it from the leader.
    pub mode: Option<Mode>,
    /// One run for each chief and worker, or one driver.
    pub replication: Replication,
    /// What stands before the addresses in master targets.
    pub rpc_layer: RpcLayer,
    /// Whether independent between-graph workers have a barrier; false is TensorFlow's behaviour.
    pub cluster_barrier: bool,
}

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The standard server of this process.
    pub server: Option<ServerPlan>,
    /// The runs of `worker_fn` in this process, each with its context; they run in parallel.
    pub runs: Vec<WorkerContext>,
    /// How runs are placed; none: learned from the leader.
    pub mode: Option<Mode>,
    /// One run for each chief and worker, or one driver.
    pub replication: Replication,
    /// Who owns the attempt and serves attend; none in a local run, for a split client and its servers, and where the
    /// cluster as seen here has neither chief:0 nor worker:0.
    pub leader: Option<Task>,
}

/// A standard server and its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// The task that it serves.
    pub task: Task,
    /// The listed address.
    pub address: String,
    /// Whether the process only serves: nothing of its own runs here.
    pub joined: bool,
}

/// Why there is no plan. All are mistakes of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A task is named, but no cluster.
    #[error("task `{0}` is named, but no cluster: a local run has no task, and a task needs its cluster")]
    TaskWithoutCluster(Task),
    /// Each process of this mode needs a task.
    #[error("there is a cluster but no task, so it is unclear which task of {0} this process is")]
    NoTask(String),
    /// A client doesn't fit the mode.
    #[error("task `client` does not fit mode `independent-worker`: there each task runs its own worker_fn")]
    ClientInIndependentWorker,
    /// The cluster has no such job.
    #[error("task `{task}` is not in the cluster: it has no job `{}`, only {jobs}{hint}", task.job)]
    UnknownJob {
        /// The task that was asked for.
        task: Task,
        /// The jobs that there are, with their sizes.
        jobs: String,
        /// What may be meant.
        hint: &'static str,
    },
    /// The job has no such task.
    #[error("task `{task}` is not in the cluster: job `{}` has {tasks}", task.job)]
    UnknownIndex {
        /// The task that was asked for.
        task: Task,
        /// The tasks that there are.
        tasks: String,
    },
    /// Nobody can be the master.
    #[error("the cluster has no {missing} to be the master or to run worker_fn, only {jobs}")]
    NoMaster {
        /// What would be needed.
        missing: &'static str,
        /// The jobs that there are, with their sizes.
        jobs: String,
    },
}

impl Plan {
    /// Whether this process runs alone: no cluster.
    pub fn is_local(&self) -> bool {
        self.server.is_none() && matches!(self.runs.as_slice(), [run] if run.cluster.is_empty())
    }

    /// Whether this process is a split client.
    pub fn is_client(&self) -> bool {
        self.mode == Some(Mode::SplitClient) && self.server.is_none()
    }
}

/// Plans what this process does.
///
/// # Errors
/// See [`PlanError`]; nothing has been started.
pub fn plan(input: &PlanInput<'_>) -> Result<Plan, PlanError> {
    let PlanInput { cluster, task, mode, replication, .. } = *input;
    let no_plan = Plan { server: None, runs: Vec::new(), mode, replication, leader: None };
    if cluster.is_empty() {
        return match task {
            Some(task) => Err(PlanError::TaskWithoutCluster(task)),
            None => Ok(Plan { runs: vec![local_context()], ..no_plan }),
        };
    }
    let named = task.filter(|task| task.job != TaskType::Client);
    match (mode, named) {
        (Some(Mode::SplitClient), None) => Ok(Plan { runs: client_runs(input)?, ..no_plan }),
        (Some(Mode::SplitClient), Some(task)) => Ok(Plan { server: Some(server(cluster, task, true)?), ..no_plan }),
        (_, None) if task.is_some() => Err(PlanError::ClientInIndependentWorker),
        (_, None) => Err(PlanError::NoTask(jobs_text(cluster))),
        (None, Some(task)) => {
            Ok(Plan { server: Some(server(cluster, task, true)?), leader: cluster.leader(), ..no_plan })
        }
        (Some(Mode::IndependentWorker), Some(task)) => {
            let run = independent_run(input, task)?;
            // Only an evaluator may be missing from the cluster: it then has no server, but runs.
            let unlisted = task.job == TaskType::Evaluator && !cluster.has_job(TaskType::Evaluator);
            let server = if unlisted { None } else { Some(server(cluster, task, run.is_none())?) };
            Ok(Plan { server, runs: run.into_iter().collect(), leader: cluster.leader(), ..no_plan })
        }
    }
}

fn server(cluster: &ClusterSpec, task: Task, joined: bool) -> Result<ServerPlan, PlanError> {
    match cluster.address(task) {
        Some(address) => Ok(ServerPlan { task, address: address.to_owned(), joined }),
        None if cluster.has_job(task.job) => {
            let tasks: Vec<_> = cluster.tasks(task.job).collect();
            let tasks = if tasks.is_empty() { "no task".to_owned() } else { crate::cluster::list_tasks(tasks.iter()) };
            Err(PlanError::UnknownIndex { task, tasks })
        }
        None => {
            let acts = task.job == TaskType::Chief && cluster.contains(Task::new(TaskType::Worker, 0));
            let hint = if acts { "; without a chief, worker:0 acts as chief" } else { "" };
            Err(PlanError::UnknownJob { task, jobs: jobs_text(cluster), hint })
        }
    }
}

/// Every run of a split client, the evaluator's first.
fn client_runs(input: &PlanInput<'_>) -> Result<Vec<WorkerContext>, PlanError> {
    let cluster = input.cluster;
    let mut runs: Vec<_> = cluster.tasks(TaskType::Evaluator).take(1).map(|task| task_context(input, task)).collect();
    match input.replication {
        Replication::InGraph => runs.push(driver_context(input)?),
        Replication::BetweenGraph if cluster.num_workers() == 0 => {
            return Err(PlanError::NoMaster { missing: "chief or worker", jobs: jobs_text(cluster) });
        }
        Replication::BetweenGraph => runs.extend(cluster.training_tasks().map(|task| task_context(input, task))),
    }
    Ok(runs)
}

/// The run of an independent worker; none where it only serves.
fn independent_run(input: &PlanInput<'_>, task: Task) -> Result<Option<WorkerContext>, PlanError> {
    let drives = task.job == TaskType::Chief
        || task.job == TaskType::Worker && task.index == 0 && !input.cluster.has_job(TaskType::Chief);
    match (task.job, input.replication) {
        (TaskType::Ps | TaskType::Client, _) => Ok(None),
        (TaskType::Evaluator, _) | (_, Replication::BetweenGraph) => Ok(Some(task_context(input, task))),
        (_, Replication::InGraph) if drives => driver_context(input).map(Some),
        (_, Replication::InGraph) => Ok(None),
    }
}

/// What ops on a task see: its place in the cluster, without a barrier.
pub fn op_context(cluster: &ClusterSpec, task: Task, rpc_layer: RpcLayer) -> WorkerContext {
    let input = PlanInput {
        cluster,
        task: Some(task),
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        rpc_layer,
        cluster_barrier: false,
    };
    task_context(&input, task)
}

fn local_context() -> WorkerContext {
    WorkerContext {
        cluster: ClusterSpec::new(),
        task: None,
        master_target: "local".to_owned(),
        num_workers: 0,
        is_chief: true,
        distributed_mode: false,
        has_barrier: false,
    }
}

/// The context of a run for one task.
fn task_context(input: &PlanInput<'_>, task: Task) -> WorkerContext {
    let cluster = input.cluster;
    let evaluator = task.job == TaskType::Evaluator;
    let barrier = match input.mode {
        Some(Mode::SplitClient) => true,
        _ => input.cluster_barrier && cluster.leader().is_some(),
    };
    WorkerContext {
        cluster: cluster.clone(),
        task: Some(task),
        master_target: match cluster.address(task) {
            Some(address) => input.rpc_layer.target(address),
            None => "local".to_owned(),
        },
        num_workers: cluster.num_workers(),
        is_chief: match task.job {
            TaskType::Chief | TaskType::Evaluator => true,
            TaskType::Worker => task.index == 0 && !cluster.has_job(TaskType::Chief),
            TaskType::Ps | TaskType::Client => false,
        },
        distributed_mode: !evaluator,
        has_barrier: barrier && !evaluator,
    }
}

/// The context of an in-graph driver: no task of its own, the leader's address as master.
fn driver_context(input: &PlanInput<'_>) -> Result<WorkerContext, PlanError> {
    let cluster = input.cluster;
    let master = cluster.leader().and_then(|leader| cluster.address(leader));
    let Some(address) = master else {
        let missing = match (cluster.has_job(TaskType::Chief), cluster.has_job(TaskType::Worker)) {
            (true, _) => "chief:0",
            (_, true) => "worker:0",
            _ => "chief or worker",
        };
        return Err(PlanError::NoMaster { missing, jobs: jobs_text(cluster) });
    };
    Ok(WorkerContext {
        cluster: cluster.clone(),
        task: None,
        master_target: input.rpc_layer.target(address),
        num_workers: cluster.num_workers(),
        is_chief: true,
        distributed_mode: true,
        has_barrier: false,
    })
}

/// The jobs of a cluster for a message: `ps (2 tasks), worker (1 task)`.
pub(crate) fn jobs_text(cluster: &ClusterSpec) -> String {
    let job = |job| match cluster.num_tasks(job) {
        1 => format!("{job} (1 task)"),
        tasks => format!("{job} ({tasks} tasks)"),
    };
    cluster.jobs().map(job).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
