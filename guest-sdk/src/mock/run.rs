//! What came of a run.

use crate::Task;
use std::convert::Infallible;
use std::fmt::{self, Display};

/// The results of all tasks that ran worker_fn: chief, workers by index, evaluator.
#[derive(Clone, Debug)]
pub struct Run<V = (), E = Infallible> {
    /// One for each task.
    pub tasks: Vec<TaskRun<V, E>>,
}

/// One task's result.
#[derive(Clone, Debug)]
pub struct TaskRun<V = (), E = Infallible> {
    /// The task; none in a local run.
    pub task: Option<Task>,
    /// What its worker_fn returned.
    pub result: Result<V, Failure<E>>,
}

/// Why a task's run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// It returned an error.
    Error(E),
    /// It panicked, with this message.
    Panic(String),
}

impl<E: Display> Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(error) => error.fmt(f),
            Failure::Panic(message) => write!(f, "panicked: {message}"),
        }
    }
}

impl<E> Failure<E> {
    /// The error that was returned.
    ///
    /// # Panics
    /// Where the run panicked instead.
    pub fn error(&self) -> &E {
        match self {
            Failure::Error(error) => error,
            Failure::Panic(message) => panic!("the run panicked instead of returning an error: {message}"),
        }
    }
}

impl<V, E> Run<V, E> {
    /// The result of `task`.
    ///
    /// # Panics
    /// Where the cluster has no such task that runs worker_fn.
    pub fn result(&self, task: &Task) -> &Result<V, Failure<E>> {
        let found = self.tasks.iter().find(|run| run.task.as_ref() == Some(task));
        &found.unwrap_or_else(|| panic!("{task} doesn't run worker_fn in this cluster")).result
    }

    /// The failure of `task`.
    ///
    /// # Panics
    /// Where it did well, or the cluster has no such task that runs worker_fn.
    pub fn failure(&self, task: &Task) -> &Failure<E> {
        match self.result(task) {
            Ok(_) => panic!("{task} did well"),
            Err(failure) => failure,
        }
    }
}

impl<V, E: Display> Run<V, E> {
    /// The values of all tasks, in their order.
    ///
    /// # Panics
    /// Where a task failed; the message tells of all that did.
    #[track_caller]
    pub fn unwrap(self) -> Vec<V> {
        let mut values = Vec::new();
        let mut failures = String::new();
        for TaskRun { task, result } in self.tasks {
            let task = task.map_or("the local run".to_owned(), |task| task.to_string());
            match result {
                Ok(value) => values.push(value),
                Err(failure) => failures.push_str(&format!("\n  {task}: {failure}")),
            }
        }
        assert!(failures.is_empty(), "not every task did well:{failures}");
        values
    }
}
