//! Tasks and the cluster spec: who takes part in a job, and where.

use crate::text::shown;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What a task does in the job; TensorFlow's task types.
///
/// # Source
/// `_TaskType` of TensorFlow's `distribute_coordinator.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskType {
    /// Runs `worker_fn` and initializes and saves; at most one.
    Chief,
    /// Reads the training state and reports how good it is; never counted in num workers.
    Evaluator,
    /// Hosts variables.
    Ps,
    /// Runs `worker_fn`, or ops for an in-graph driver.
    Worker,
    /// Drives a split-client run; never listed in a cluster.
    Client,
}

impl TaskType {
    /// Every task type, in the canonical order of a cluster spec (by name, `client` last).
    pub const ALL: [TaskType; 5] =
        [TaskType::Chief, TaskType::Evaluator, TaskType::Ps, TaskType::Worker, TaskType::Client];

    /// Returns the job name: `chief`, `worker`, `ps`, `evaluator` or `client`.
    pub const fn as_str(self) -> &'static str {
        match self {
            TaskType::Chief => "chief",
            TaskType::Evaluator => "evaluator",
            TaskType::Ps => "ps",
            TaskType::Worker => "worker",
            TaskType::Client => "client",
        }
    }
}

impl fmt::Display for TaskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A job name that is none of dchost's task types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown task type `{0}`, known are chief, worker, ps, evaluator and client")]
pub struct UnknownTaskType(pub String);

impl FromStr for TaskType {
    type Err = UnknownTaskType;

    /// Parses a job name; case matters, as in TensorFlow.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        TaskType::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| UnknownTaskType(shown(name)))
    }
}

/// One task of the cluster; prints as `worker:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// The job that the task belongs to.
    pub job: TaskType,
    /// The task id: its index within the job.
    pub index: u32,
}

impl Task {
    /// Makes a task of its job and index.
    pub const fn new(job: TaskType, index: u32) -> Self {
        Task { job, index }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.job, self.index)
    }
}

/// Lists tasks for a message: `worker:1, ps:0`.
pub fn list_tasks<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> String {
    tasks.into_iter().map(Task::to_string).collect::<Vec<_>>().join(", ")
}

/// Map from job to the addresses of its tasks by index; dense or sparse.
///
/// # Source
/// `ClusterSpec` of TensorFlow's `server_lib.py`. Jobs iterate by name and tasks by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    jobs: BTreeMap<TaskType, BTreeMap<u32, String>>,
}

impl ClusterSpec {
    /// Makes an empty spec, that of a local run.
    pub fn new() -> Self {
        ClusterSpec::default()
    }

    /// Adds a job with the addresses of its tasks 0, 1, ...; replaces the job if it was there.
    pub fn with_job<A: Into<String>>(mut self, job: TaskType, addresses: impl IntoIterator<Item = A>) -> Self {
        self.jobs.insert(job, (0..).zip(addresses.into_iter().map(Into::into)).collect());
        self
    }

    /// Adds one task; replaces its address if it was there.
    pub fn insert(&mut self, task: Task, address: impl Into<String>) {
        self.jobs.entry(task.job).or_default().insert(task.index, address.into());
    }

    /// Adds a job, so that one without tasks is remembered too.
    pub fn insert_job(&mut self, job: TaskType) {
        self.jobs.entry(job).or_default();
    }

    /// Whether no job is named. A job without tasks makes a spec non-empty, as in TensorFlow.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether `job` is named, even without tasks.
    pub fn has_job(&self, job: TaskType) -> bool {
        self.jobs.contains_key(&job)
    }

    /// The jobs that are named, by name.
    pub fn jobs(&self) -> impl Iterator<Item = TaskType> + '_ {
        self.jobs.keys().copied()
    }

    /// The number of tasks that are defined in `job` (entries, not the largest index plus one).
    pub fn num_tasks(&self, job: TaskType) -> u32 {
        self.jobs.get(&job).map_or(0, |tasks| u32::try_from(tasks.len()).unwrap_or(u32::MAX))
    }

    /// The tasks of `job`, by index.
    pub fn tasks(&self, job: TaskType) -> impl Iterator<Item = Task> + '_ {
        self.jobs.get(&job).into_iter().flat_map(move |tasks| tasks.keys().map(move |&index| Task { job, index }))
    }

    /// Every task with its address, by job name and index.
    pub fn iter(&self) -> impl Iterator<Item = (Task, &str)> + '_ {
        self.jobs.iter().flat_map(|(&job, tasks)| {
            tasks.iter().map(move |(&index, address)| (Task { job, index }, address.as_str()))
        })
    }

    /// The listed address of `task`, if the spec has the task.
    pub fn address(&self, task: Task) -> Option<&str> {
        self.jobs.get(&task.job)?.get(&task.index).map(String::as_str)
    }

    /// Whether the spec has `task`.
    pub fn contains(&self, task: Task) -> bool {
        self.address(task).is_some()
    }

    /// Chief and worker tasks, chief first: those that num workers counts and the barrier expects.
    pub fn training_tasks(&self) -> impl Iterator<Item = Task> + '_ {
        self.tasks(TaskType::Chief).chain(self.tasks(TaskType::Worker))
    }

    /// The number of chief and worker tasks; ps and evaluator never count.
    pub fn num_workers(&self) -> u32 {
        self.num_tasks(TaskType::Chief) + self.num_tasks(TaskType::Worker)
    }

    /// The leader: chief:0, else worker:0; none where the spec has neither.
    ///
    /// A cluster with a chief job but no chief:0 has no leader, even where it has worker:0.
    pub fn leader(&self) -> Option<Task> {
        let job = if self.has_job(TaskType::Chief) { TaskType::Chief } else { TaskType::Worker };
        Some(Task::new(job, 0)).filter(|&task| self.contains(task))
    }
}
