//! Variables, as a run calls them and as a task has them.

use super::BoxFuture;
use crate::cluster::Task;
use crate::error::Result;
use crate::tensor::{Tensor, TensorType, TensorView};
use crate::variables::{
    ApplyOptions, InitializeMode, Optimizer, ReadOptions, SyncStep, UpdateKind, VariableRef, WriteOptions,
};
use std::time::Duration;

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// By a stable hash of the name over the ps tasks; without ps, the leader.
    Auto,
    /// On this task.
    On(Task),
    /// Along axis 0 over the ps tasks.
    Sharded,
}

/// A variable as a run declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name, unique on its task within the container.
    pub name: String,
    /// Element type and extents.
    pub ty: TensorType,
    /// Where it lives.
    pub placement: Placement,
}

/// A variable's value and the version that it was read at or that the write made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value; with empty data where it wasn't asked for.
    pub tensor: Tensor,
    /// Counts applied writes; 1 after initialize.
    pub version: u64,
}

/// One update of one variable; `V` names it (a [`Variable`] or a [`VariableRef`]).
#[derive(Clone, Debug)]
pub struct Change<'a, V> {
    /// The variable.
    pub variable: V,
    /// How it changes.
    pub kind: UpdateKind,
    /// By what; has the variable's type.
    pub value: TensorView<'a>,
    /// Only if the variable still has this version.
    pub base: Option<u64>,
}

/// The gradient of one variable; `V` names it (a [`Variable`] or a [`VariableRef`]).
#[derive(Clone, Debug)]
pub struct Gradient<'a, V> {
    /// The variable.
    pub variable: V,
    /// Has the variable's type.
    pub value: TensorView<'a>,
}

/// An update of some rows of one variable; `V` names it (a [`Variable`] or a [`VariableRef`]).
#[derive(Clone, Debug)]
pub struct RowChange<'a, V> {
    /// The variable, of type `[n, ...]`.
    pub variable: V,
    /// Rows along axis 0, each below n. One that is named twice changes twice, in order.
    pub rows: Vec<u64>,
    /// How they change.
    pub kind: UpdateKind,
    /// By what: `[rows, ...]`.
    pub value: TensorView<'a>,
}

/// How a run wants its gradients applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientOptions {
    /// What makes a change of a gradient.
    pub optimizer: Optimizer,
    /// Scales all gradients of the call down to this common norm.
    pub clip_norm: Option<f64>,
    /// None: each call is applied by itself, at once.
    pub sync: Option<SyncStep>,
    /// What others see, and what the answer has.
    pub write: WriteOptions,
}

/// The variables of the cluster, as one run sees them: names are placed on tasks, many tasks are asked in parallel.
///
/// # Errors
/// All calls: `invalid-argument` (type, shape, name), `uninitialized` with the names, `unavailable` after the connect
/// timeout, `peer-failed` and `peer-restarted` with the task, `cancelled`, `resource-exhausted`; writes of an evaluator
/// anywhere but on its own task `failed-precondition`: it is chief of its own run, and would reset what others train.
///
/// # Cancel safety
/// A dropped read has no effect. A dropped write is applied as a whole or not at all, for each variable; a relaxed one maybe in
/// part, which its task tells when the session ends.
pub trait Variables: Send + Sync {
    /// Checks a declaration: name, size, and a placement that the cluster has. Reaches no other task.
    fn declare(&self, variable: &Variable) -> Result<()>;

    /// Sets initial values.
    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>>;

    /// Names of those that have no value yet; asks once.
    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>>;

    /// Waits until all have a value; without `timeout` at most 2 h (TensorFlow's 7200 s).
    ///
    /// # Errors
    /// `deadline-exceeded` with the names that are missing, `uninitialized` where no timeout was given or the chief's run has
    /// ended, besides those of all calls.
    fn wait_initialized(&self, variables: Vec<Variable>, timeout: Option<Duration>) -> BoxFuture<'_, Result<()>>;

    /// Reads values, in the order asked for; waits for the version that the options ask for as long as the run lasts.
    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>>;

    /// Applies changes, each atomic for its variable unless the options are relaxed; answers in the same order.
    ///
    /// # Errors
    /// `aborted` with both versions: a base version isn't the present one; `invalid-argument`: a relaxed change has one; and those
    /// of all calls. Those of a relaxed update say where a part may have been applied.
    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>>;

    /// Applies gradients on the variables' own tasks; answers in the same order.
    ///
    /// # Errors
    /// `invalid-argument`: numbers of the optimizer, a variable that is named twice or has no floats, a gradient that isn't
    /// finite where it is to be clipped; `aborted`: a gradient of a step that is over; and those of all calls.
    fn apply_gradients<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, Variable>>,
        options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>>;

    /// Reads rows of a variable of type `[n, ...]`, in the order asked for, as `[rows, ...]`.
    ///
    /// # Errors
    /// `out-of-range` naming the first row beyond n; and those of all calls.
    fn gather(&self, variable: Variable, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>>;

    /// Changes rows, all or none on each task.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    fn scatter<'a>(&'a self, change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>>;
}

/// The variables of one container on one task: met by this process's own store, and by `client` for another task's.
///
/// Errors and cancel safety are those of [`Variables`].
pub trait TaskVariables: Send + Sync {
    /// Sets initial values; answers with the versions.
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>>;

    /// Names of those that have no value; waits up to `wait` for the answer to become empty.
    fn uninitialized(&self, variables: Vec<VariableRef>, wait: Duration) -> BoxFuture<'_, Result<Vec<String>>>;

    /// Reads values.
    fn pull(&self, variables: Vec<VariableRef>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>>;

    /// Applies changes.
    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>>;

    /// Applies gradients.
    fn apply<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, VariableRef>>,
        options: ApplyOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>>;

    /// Reads rows.
    fn gather(&self, variable: VariableRef, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>>;

    /// Changes rows; answers with the new version.
    fn scatter<'a>(&'a self, change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>>;
}
