//! The worker context: a run's place in the cluster, and all that it may reach.

use crate::batch::{self, PendingRead, PendingUpdate, VariableSet};
use crate::change::Change;
use crate::op::OpBuilder;
use crate::optimizer::{GradientSet, Optimizer};
use crate::overlap::Overlap;
use crate::raw::{InitializeMode, Write};
use crate::variable::VariableBuilder;
use crate::{ClusterSpec, Element, Level, Read, Result, Task, imp};
use std::time::Duration;

/// A run's place in the cluster, and the way to its barrier, variables, summaries and log.
///
/// `worker_fn` gets one. Its values are computed once, before the run starts. It can be shared among threads of a native test.
pub struct WorkerContext {
    imp: imp::Context,
}

impl WorkerContext {
    #[doc(hidden)]
    pub fn __new(imp: imp::Context) -> Self {
        WorkerContext { imp }
    }

    /// The task that runs; none in a local run and for an in-graph driver.
    pub fn task(&self) -> Option<Task> {
        self.imp.task()
    }

    /// Where the run's master is: `local`, or an address under the rpc layer's prefix (`grpc://host:2222`). It informs; calls go by task.
    pub fn master_target(&self) -> String {
        self.imp.master_target()
    }

    /// Whether this run initializes and saves: the chief task, else `worker:0`; the only task of a local run; an evaluator, of its own run.
    pub fn is_chief(&self) -> bool {
        self.imp.is_chief()
    }

    /// The number of chief and worker tasks; ps and evaluator never count. 0 in a local run.
    pub fn num_workers(&self) -> u32 {
        self.imp.num_workers()
    }

    /// Whether the run trains together with others: false in a local run and for an evaluator.
    pub fn distributed_mode(&self) -> bool {
        self.imp.distributed_mode()
    }

    /// Whether [`wait_for_other_workers`](WorkerContext::wait_for_other_workers) and [`barrier`](WorkerContext::barrier) work here.
    pub fn has_barrier(&self) -> bool {
        self.imp.has_barrier()
    }

    /// The cluster: jobs, tasks and their addresses. A copy; empty in a local run.
    pub fn cluster_spec(&self) -> ClusterSpec {
        self.imp.cluster_spec()
    }

    /// Whether this run should write checkpoints; the chief's business, and the evaluator's own.
    pub fn should_checkpoint(&self) -> bool {
        self.imp.should_checkpoint()
    }

    /// Whether this run should write summaries; the chief's business, and the evaluator's own.
    pub fn should_save_summary(&self) -> bool {
        self.imp.should_save_summary()
    }

    /// The job's attempt, from 0: above 0 the job was started again after a failure.
    pub fn attempt(&self) -> u32 {
        self.imp.attempt()
    }

    /// Whether chief and workers have all ended: when an evaluator's loop should end.
    pub fn training_ended(&self) -> bool {
        self.imp.training_ended()
    }

    /// The arguments given after `--` on the command line, without a program name.
    pub fn args(&self) -> Vec<String> {
        self.imp.args()
    }

    /// Waits until every chief and worker task has called it; can be used any number of times.
    ///
    /// Writes made before it are visible to everyone after it. Nobody passes a second time before all have passed the
    /// first time. A task that calls twice in one generation, from two threads, counts once.
    ///
    /// # Errors
    /// `failed-precondition` without a barrier in this context; `aborted` naming who left without arriving;
    /// `peer-failed`, `peer-restarted` naming who; `deadline-exceeded` naming who is missing, where the host was given a
    /// barrier timeout; `cancelled`.
    ///
    /// # Source
    /// `wait_for_other_workers` of TensorFlow's `_WorkerContext`, which waits for ever when a participant is gone.
    pub fn wait_for_other_workers(&self) -> Result<()> {
        self.imp.wait_for_other_workers()
    }

    /// Waits at the barrier `name` until every chief and worker task has arrived there: `ctx.barrier("epoch", None)`.
    ///
    /// Barriers of different names are independent of each other; each is reusable like [`wait_for_other_workers`](WorkerContext::wait_for_other_workers).
    /// The earliest deadline of those who wait ends the generation for all of them.
    ///
    /// # Errors
    /// Those of [`wait_for_other_workers`](WorkerContext::wait_for_other_workers); `invalid-argument` for a name that is empty, has more
    /// than 256 bytes or control characters.
    pub fn barrier(&self, name: &str, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.imp.barrier(name, timeout.into())
    }

    /// Begins to declare the variable `name`: `ctx.variable::<f32>("w").shape([3, 4]).on(ps(0)).declare()?`.
    pub fn variable<T: Element>(&self, name: impl Into<String>) -> VariableBuilder<T> {
        VariableBuilder::new(self.imp.clone(), name.into())
    }

    /// Sets initial values of many variables in one call; returns when all are set.
    ///
    /// Takes [`Change::assign`]s; overwrites values that are there.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), but never `uninitialized`; `invalid-argument` for another kind of change.
    pub fn initialize<'a>(&self, values: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        self.imp.initialize_changes(values.into_iter().collect(), InitializeMode::Overwrite)
    }

    /// Sets initial values of those variables that have none.
    ///
    /// # Errors
    /// As [`initialize`](WorkerContext::initialize).
    pub fn initialize_if_absent<'a>(&self, values: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        self.imp.initialize_changes(values.into_iter().collect(), InitializeMode::IfAbsent)
    }

    /// Names of those variables that have no value yet; asks once.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), but never `uninitialized`.
    pub fn uninitialized(&self, variables: impl VariableSet) -> Result<Vec<String>> {
        self.imp.uninitialized(&batch::handles(&variables))
    }

    /// Waits until all the variables have values; `None` waits at most two hours.
    ///
    /// # Errors
    /// `deadline-exceeded` with the missing names when the timeout passes; `uninitialized` when the chief's run has
    /// ended without initializing them; else those of [all calls](crate::Variable#errors).
    pub fn wait_initialized(&self, variables: impl VariableSet, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.imp.wait_initialized(&batch::handles(&variables), timeout.into())
    }

    /// Reads many variables in one call, from all their tasks in parallel: `let [x, y] = ctx.read([&x, &y])?`.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors).
    pub fn read<S: VariableSet>(&self, variables: S) -> Result<S::Values> {
        self.read_with(variables, Read::new())
    }

    /// Reads many variables in one call, as `read` says: `ctx.read_with([&x, &y], Read::new().relaxed())?`.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors).
    pub fn read_with<S: VariableSet>(&self, variables: S, read: Read) -> Result<S::Values> {
        batch::collect::<S>(self.imp.read(&batch::handles(&variables), read)?)
    }

    /// Makes many changes in one call, on all their tasks in parallel; returns the new versions in their order.
    ///
    /// Each is atomic for its variable; their order is free. Where one fails, others may have been made.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors); `aborted` where a base version is stale.
    pub fn update<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<Vec<u64>> {
        let values = self.imp.update_changes(changes.into_iter().collect(), Write::default())?;
        Ok(values.into_iter().map(|value| value.version).collect())
    }

    /// As [`update`](WorkerContext::update), but others may see a part of a change while it is made, in whole blocks of 256 KiB.
    ///
    /// The tasks apply a large change as it arrives, instead of keeping all of it first: it takes no memory there, holds up nobody
    /// and is done sooner. It suits additions to large variables that are read all the time, as asynchronous training has them; a
    /// value that has to be whole wants `update`, and so does a change with a base version.
    ///
    /// Each block is applied once, also where a connection breaks. A change of which only a part was sent before this run ended, or
    /// its call was given up, stays made in part: the variable's version rises, and `dchost status` counts a partial write.
    ///
    /// ```
    /// # use dchost_guest::{Change, MockCluster, Read, Result, WorkerContext};
    /// # MockCluster::local().run(|ctx| -> Result<()> {
    /// let w = ctx.variable::<f32>("w").shape([1000, 1000]).declare()?;
    /// w.initialize(1.0)?;
    /// let gradient = vec![0.5_f32; w.len()];
    /// ctx.update_relaxed([Change::sub(&w, &gradient)])?;
    /// assert_eq!(w.read_with(Read::new().relaxed())?[7], 0.5);
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), of which `peer-failed`, `cancelled` and `aborted` say that a part may have been
    /// applied; `invalid-argument` where a change has a base version.
    pub fn update_relaxed<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<Vec<u64>> {
        let values = self.imp.update_changes(changes.into_iter().collect(), Write::RELAXED)?;
        Ok(values.into_iter().map(|value| value.version).collect())
    }

    /// Begins a read, so that the guest can compute meanwhile.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), as far as they show at once; the others come from `get`.
    pub fn start_read<S: VariableSet>(&self, variables: S) -> Result<PendingRead<S>> {
        self.start_read_with(variables, Read::new())
    }

    /// Begins a read as `read` says, so that the guest can compute until a version is there for instance.
    ///
    /// # Errors
    /// As [`start_read`](WorkerContext::start_read).
    pub fn start_read_with<S: VariableSet>(&self, variables: S, read: Read) -> Result<PendingRead<S>> {
        Ok(PendingRead::new(self.imp.start_read(&batch::handles(&variables), read)?))
    }

    /// Begins an update, so that the guest can compute meanwhile. The values are taken before this returns.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), as far as they show at once; the others come from `get`.
    pub fn start_update<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<PendingUpdate> {
        Ok(PendingUpdate::new(self.imp.start_update_changes(changes.into_iter().collect(), Write::default())?))
    }

    /// Begins a [relaxed update](WorkerContext::update_relaxed). The values are taken before this returns.
    ///
    /// # Errors
    /// As [`start_update`](WorkerContext::start_update).
    pub fn start_update_relaxed<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<PendingUpdate> {
        Ok(PendingUpdate::new(self.imp.start_update_changes(changes.into_iter().collect(), Write::RELAXED)?))
    }

    /// Applies gradients on the tasks of their variables, all in parallel; returns the new versions in their order:
    /// `ctx.apply_gradients(&adam, [(&w, &gw), (&b, &gb)])?`.
    ///
    /// Each is atomic for its variable. The gradients of one call are clipped together, and no variable is named twice.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors); `invalid-argument` for a number of the optimizer, a variable without floats,
    /// or a gradient that isn't finite where it is to be clipped; `failed-precondition` where a variable has the slots of another
    /// method; `resource-exhausted` where slots don't fit in the host's `--max-variable-bytes`. With [`sync`](Optimizer::sync) also
    /// `aborted` where a gradient is stale, `failed-precondition` where others of the step have other replicas, another method or
    /// other numbers, and `resource-exhausted` where gradients of more than four steps of a variable wait.
    pub fn apply_gradients<'a>(&self, optimizer: &Optimizer, gradients: impl GradientSet<'a>) -> Result<Vec<u64>> {
        let values = self.imp.apply_gradient_set(optimizer, gradients, false)?;
        Ok(values.into_iter().map(|value| value.version).collect())
    }

    /// Applies gradients, and reads what the values became, in one round trip:
    /// `let [w, b] = ctx.apply_gradients_and_read(&adam, [(&w, &gw), (&b, &gb)])?`.
    ///
    /// # Errors
    /// Those of [`apply_gradients`](WorkerContext::apply_gradients).
    pub fn apply_gradients_and_read<'a, S: GradientSet<'a>>(
        &self,
        optimizer: &Optimizer,
        gradients: S,
    ) -> Result<<S::Variables as VariableSet>::Values> {
        batch::collect::<S::Variables>(self.imp.apply_gradient_set(optimizer, gradients, true)?)
    }

    /// Begins to apply gradients, so that the guest can compute meanwhile. They are taken before this returns.
    ///
    /// # Errors
    /// Those of [`apply_gradients`](WorkerContext::apply_gradients), as far as they show at once; the others come from `get`.
    pub fn start_apply_gradients<'a>(
        &self,
        optimizer: &Optimizer,
        gradients: impl GradientSet<'a>,
    ) -> Result<PendingUpdate> {
        Ok(PendingUpdate::new(self.imp.start_apply_gradient_set(optimizer, gradients, false)?))
    }

    /// Begins to apply gradients and to read what the values become.
    ///
    /// # Errors
    /// As [`start_apply_gradients`](WorkerContext::start_apply_gradients).
    pub fn start_apply_gradients_and_read<'a, S: GradientSet<'a>>(
        &self,
        optimizer: &Optimizer,
        gradients: S,
    ) -> Result<PendingRead<S::Variables>> {
        Ok(PendingRead::new(self.imp.start_apply_gradient_set(optimizer, gradients, true)?))
    }

    /// Makes a loop that reads `variables` and pushes changes or gradients while it computes: `ctx.overlap([&w, &b]).depth(2)`.
    /// Reaches no other task; see [`Overlap`].
    pub fn overlap<S: VariableSet>(&self, variables: S) -> Overlap<S> {
        Overlap::new(self.imp.clone(), variables)
    }

    /// Begins to call the op `name` of this component, by its name alone: `ctx.op("loss").input(&x).start(worker(1))?`.
    ///
    /// An op of this crate is called better by its own `start`, which knows its inputs and results.
    pub fn op<'a>(&self, name: impl Into<String>) -> OpBuilder<'a> {
        OpBuilder::new(self.imp.clone(), name.into())
    }

    /// Keeps a value of the series `tag` at `step`, where this run should save summaries and the host was given a
    /// directory; else does nothing.
    pub fn scalar(&self, tag: &str, step: u64, value: f64) {
        self.imp.scalar(tag, step, value);
    }

    /// Shows how far the run is: `done` of `total`, where the total is known.
    pub fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        self.imp.progress(done, total, note);
    }

    /// Writes a line to the host's log. The macros [`info!`](crate::info) and its kin format it.
    pub fn log(&self, level: Level, message: &str) {
        self.imp.log(level, message);
    }
}
