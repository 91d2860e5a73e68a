//! A cluster in this process, for tests: what the host does, on threads.

mod barrier;
mod cluster;
mod gradients;
mod kernels;
mod ops;
mod reads;
mod rows;
mod shard;
mod state;
mod store;
mod sync;

pub use cluster::{MockBuilder, MockCluster};
pub(crate) use kernels::matmul;
pub(crate) use ops::{Call, Remote, Waiting, wait_any};
pub(crate) use reads::Pending;
pub use run::{Failure, Run, TaskRun};
pub use state::{LogLine, Scalar};

#[cfg(test)]
mod read_tests;
mod run;
#[cfg(test)]
mod sync_tests;
#[cfg(test)]
mod tests;

use crate::raw::{InitializeMode, Placement, RawChange, RawValue, Write};
use crate::{ClusterSpec, DType, Error, ErrorCode, Level, Result, Task, tensor};
use shard::Part;
use state::{Shared, Who};
use std::sync::Arc;
use std::time::Duration;
use store::Key;

/// One run's view of the mock cluster, or that of an op which a run has started.
#[derive(Clone)]
pub struct Context {
    shared: Arc<Shared>,
    who: Who,
    /// In an op: the task that runs it.
    op_task: Option<Task>,
}

/// A declared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    key: Key,
    /// Whether the program has named the task.
    placed: bool,
    /// How it is cut, unless it is held otherwise; none: not at all.
    parts: Vec<Part>,
    dtype: DType,
    shape: Vec<usize>,
}

impl Context {
    pub(crate) fn task(&self) -> Option<Task> {
        self.op_task.clone().or_else(|| self.shared.setup.runs[self.who.run].clone())
    }

    pub(crate) fn master_target(&self) -> String {
        match self.task().or_else(|| self.shared.setup.leader()) {
            None => "local".to_owned(),
            Some(task) => format!("grpc://{}", self.shared.setup.cluster.address(&task).unwrap_or_default()),
        }
    }

    pub(crate) fn is_chief(&self) -> bool {
        match &self.op_task {
            None => self.shared.setup.is_chief(self.who.run),
            Some(task) => task.job == "evaluator" || self.shared.setup.leader().as_ref() == Some(task),
        }
    }

    pub(crate) fn num_workers(&self) -> u32 {
        self.shared.setup.cluster.num_tasks("chief") + self.shared.setup.cluster.num_tasks("worker")
    }

    pub(crate) fn distributed_mode(&self) -> bool {
        match &self.op_task {
            None => !self.shared.setup.cluster.is_empty() && !self.shared.setup.is_evaluator(self.who.run),
            Some(task) => task.job != "evaluator",
        }
    }

    pub(crate) fn has_barrier(&self) -> bool {
        // An op has none: its task arrives by its own worker_fn.
        self.shared.setup.barrier && self.op_task.is_none() && self.shared.setup.is_participant(self.who.run)
    }

    pub(crate) fn cluster_spec(&self) -> ClusterSpec {
        self.shared.setup.cluster.clone()
    }

    pub(crate) fn should_checkpoint(&self) -> bool {
        self.is_chief()
    }

    pub(crate) fn should_save_summary(&self) -> bool {
        self.is_chief()
    }

    pub(crate) fn attempt(&self) -> u32 {
        0
    }

    pub(crate) fn training_ended(&self) -> bool {
        // An op is told nothing of the job that its task is in.
        self.op_task.is_none() && self.shared.lock().training_ended(&self.shared.setup)
    }

    pub(crate) fn args(&self) -> Vec<String> {
        self.shared.setup.args.clone()
    }

    pub(crate) fn wait_for_other_workers(&self) -> Result<()> {
        self.check_barrier()?;
        self.shared.barrier(self.who.run, "", None)
    }

    pub(crate) fn barrier(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        // The empty name is that of `wait_for_other_workers`, which must not be met by accident.
        check_name("barrier", name)?;
        self.check_barrier()?;
        self.shared.barrier(self.who.run, name, timeout)
    }

    fn check_barrier(&self) -> Result<()> {
        if self.has_barrier() {
            return Ok(());
        }
        if self.op_task.is_some() {
            let text = "no barrier in an op: let worker_fn wait, and then start ops";
            return Err(Error::new(ErrorCode::FailedPrecondition, text));
        }
        let task = self.task();
        Err(Error::new(
            ErrorCode::FailedPrecondition,
            format!(
                "no barrier in this context (cluster {}, task type {}, task id {})",
                self.shared.setup.describe_cluster(),
                task.as_ref().map_or("none", |task| &task.job),
                task.as_ref().map_or("none".to_owned(), |task| task.index.to_string()),
            ),
        ))
    }

    pub(crate) fn declare(&self, name: &str, dtype: DType, shape: &[usize], place: &Placement) -> Result<Variable> {
        check_name("variable", name)?;
        const RANK_MAX: usize = 32;
        if shape.len() > RANK_MAX {
            let text = format!("variable `{name}` has {} dimensions, at most {RANK_MAX} are allowed", shape.len());
            return Err(Error::invalid(text));
        }
        let bytes = tensor::size_bytes(dtype, shape)?;
        let (task, parts) = self.shared.setup.place(name, shape, bytes, place)?;
        let placed = matches!(place, Placement::On(_));
        Ok(Variable { key: Key { task, name: name.to_owned() }, placed, parts, dtype, shape: shape.to_vec() })
    }

    pub(crate) fn initialize(&self, values: &[(&Variable, &[u8])], mode: InitializeMode) -> Result<()> {
        self.check_writable(values.iter().map(|(variable, _)| *variable))?;
        let mut state = self.shared.ready(self.who)?;
        state.store.initialize(values, mode)?;
        state.reads.written(&self.reader(), values.iter().map(|(variable, _)| &variable.key));
        self.shared.changed.notify_all();
        Ok(())
    }

    pub(crate) fn uninitialized(&self, variables: &[&Variable]) -> Result<Vec<String>> {
        self.shared.ready(self.who)?.store.uninitialized(variables)
    }

    pub(crate) fn wait_initialized(&self, variables: &[&Variable], timeout: Option<Duration>) -> Result<()> {
        self.shared.wait_initialized(self.who, variables, timeout)
    }

    pub(crate) fn update(&self, changes: &[RawChange<'_>], write: Write) -> Result<Vec<RawValue>> {
        self.check_writable(changes.iter().map(|change| change.variable))?;
        if let Some(change) = changes.iter().find(|change| write.relaxed && change.base.is_some()) {
            let name = &change.variable.key.name;
            return Err(Error::invalid(format!(
                "the update of `{name}` is relaxed and has a base version, which needs the whole: make it atomic"
            )));
        }
        let mut state = self.shared.ready(self.who)?;
        let values = state.store.update(changes, write.want_values)?;
        let keys = changes.iter().map(|change| &change.variable.key);
        state.reads.written(&self.reader(), keys);
        self.shared.changed.notify_all();
        Ok(values)
    }

    pub(crate) fn start_update(&self, changes: &[RawChange<'_>], write: Write) -> Result<Pending> {
        Ok(Pending::ready(self.update(changes, write)))
    }

    pub(crate) fn scalar(&self, tag: &str, step: u64, value: f64) {
        // Those of ops are nobody's.
        if self.should_save_summary() && self.op_task.is_none() {
            self.shared.lock().scalars.push(Scalar { task: self.task(), tag: tag.to_owned(), step, value });
        }
    }

    /// Nobody watches a test's progress.
    pub(crate) fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {}

    pub(crate) fn log(&self, level: Level, message: &str) {
        self.shared.lock().log.push(LogLine { task: self.task(), level, message: message.to_owned() });
    }

    /// An evaluator may read the training's variables, and write its own only.
    fn check_writable<'a>(&self, variables: impl Iterator<Item = &'a Variable>) -> Result<()> {
        let Some(task) = self.task().filter(|task| task.job == "evaluator") else { return Ok(()) };
        for Variable { key, .. } in variables {
            if key.task.as_ref() != Some(&task) {
                return Err(Error::new(
                    ErrorCode::FailedPrecondition,
                    format!(
                        "{task} may read `{}` but not write it: an evaluator writes variables on its own task only",
                        key.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// A name as the host accepts it: not empty, not long, and fit to be shown.
fn check_name(of: &str, name: &str) -> Result<()> {
    const NAME_BYTES_MAX: usize = 256;
    if name.is_empty() {
        return Err(Error::invalid(format!("the {of} name is empty")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the {of} name has {} bytes, at most {NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    if name.contains(char::is_control) {
        return Err(Error::invalid(format!("the {of} name `{}` has control characters", name.escape_debug())));
    }
    Ok(())
}
