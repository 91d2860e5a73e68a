//! Tasks and the cluster spec.

use std::collections::BTreeMap;
use std::fmt;

/// One task of the cluster; prints as `worker:0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// The job: `chief`, `worker`, `ps` or `evaluator`.
    pub job: String,
    /// The index within the job.
    pub index: u32,
}

impl Task {
    /// Makes a task of its job and index; whether the cluster has it shows when it is used.
    pub fn new(job: impl Into<String>, index: u32) -> Self {
        Task { job: job.into(), index }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.job, self.index)
    }
}

impl From<&Task> for Task {
    fn from(task: &Task) -> Self {
        task.clone()
    }
}

/// `chief:0`.
pub fn chief() -> Task {
    Task::new("chief", 0)
}

/// `worker:index`.
pub fn worker(index: u32) -> Task {
    Task::new("worker", index)
}

/// `ps:index`: a task that hosts variables.
pub fn ps(index: u32) -> Task {
    Task::new("ps", index)
}

/// `evaluator:0`.
pub fn evaluator() -> Task {
    Task::new("evaluator", 0)
}

/// Map from job to the addresses of its tasks; a copy, empty in a local run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    jobs: BTreeMap<String, BTreeMap<u32, String>>,
}

impl ClusterSpec {
    pub(crate) fn from_jobs(jobs: impl IntoIterator<Item = (String, Vec<(u32, String)>)>) -> Self {
        ClusterSpec { jobs: jobs.into_iter().map(|(job, tasks)| (job, tasks.into_iter().collect())).collect() }
    }

    /// Whether there is no job: a local run.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The jobs, by name.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// The number of tasks of `job`; 0 where the cluster has no such job.
    pub fn num_tasks(&self, job: &str) -> u32 {
        self.jobs.get(job).map_or(0, |tasks| u32::try_from(tasks.len()).unwrap_or(u32::MAX))
    }

    /// The tasks of `job`, by index. A sparse job has gaps.
    pub fn tasks(&self, job: &str) -> Vec<Task> {
        self.jobs.get(job).into_iter().flatten().map(|(&index, _)| Task::new(job, index)).collect()
    }

    /// The listed address of `task`, if the cluster has it.
    pub fn address(&self, task: &Task) -> Option<&str> {
        self.jobs.get(&task.job)?.get(&task.index).map(String::as_str)
    }

    /// Every task with its address, by job name and index.
    pub fn iter(&self) -> impl Iterator<Item = (Task, &str)> {
        self.jobs.iter().flat_map(|(job, tasks)| {
            tasks.iter().map(move |(&index, address)| (Task::new(job.as_str(), index), address.as_str()))
        })
    }
}
