//! The caller's side: starting ops, and what comes of them.

use crate::batch::{PendingRead, PendingUpdate, VariableSet};
use crate::op::{Input, OpArg, OpValue};
use crate::{Error, Result, Task, Tensor, imp};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// A call of an op that is being put together; [`start`](OpBuilder::start) starts it.
///
/// It comes from [`WorkerContext::op`](crate::WorkerContext::op) or from an op's own `prepare`, which knows its type.
#[must_use = "`start` starts the op"]
pub struct OpBuilder<'a, R: OpValue = Vec<Tensor>> {
    context: imp::Context,
    op: String,
    inputs: Vec<Input<'a>>,
    timeout: Option<Duration>,
    value: PhantomData<fn() -> R>,
}

impl<'a, R: OpValue> OpBuilder<'a, R> {
    pub(crate) fn new(context: imp::Context, op: String) -> Self {
        OpBuilder { context, op, inputs: Vec::new(), timeout: None, value: PhantomData }
    }

    #[doc(hidden)]
    pub fn __arg<P: ?Sized>(mut self, arg: impl OpArg<'a, P>) -> Self {
        arg.give(&mut self.inputs);
        self
    }

    /// Adds an input: a tensor, slice, number or remote value.
    pub fn input(mut self, input: impl Into<Input<'a>>) -> Self {
        self.inputs.push(input.into());
        self
    }

    /// Adds inputs, in their order.
    pub fn inputs<I: Into<Input<'a>>>(mut self, inputs: impl IntoIterator<Item = I>) -> Self {
        self.inputs.extend(inputs.into_iter().map(Into::into));
        self
    }

    /// Sets how long the op may take, from its start and with its wait for those before it; without limit without this call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says what the results are: `ctx.op("loss").returning::<f32>()`. An op's own `prepare` knows it already.
    pub fn returning<T: OpValue>(self) -> OpBuilder<'a, T> {
        let OpBuilder { context, op, inputs, timeout, value: _ } = self;
        OpBuilder { context, op, inputs, timeout, value: PhantomData }
    }

    /// Starts the op on `task`, and returns at once. The inputs are taken before that.
    ///
    /// # Errors
    /// What shows at once: `invalid-argument` where the cluster has no such task, for a name that is empty, has more than
    /// 256 bytes or control characters, and for more than 256 inputs; `failed-precondition` in a local run and within an op;
    /// `resource-exhausted` with too many calls in flight (256, unless the host says otherwise by `-W max-ops`). The others
    /// come [with the results](Call#errors).
    pub fn start(self, task: impl Into<Task>) -> Result<Call<R>> {
        let task = task.into();
        let inputs: Vec<_> = self.inputs.iter().map(Input::raw).collect();
        let imp = self.context.start_op(&task, &self.op, &inputs, self.timeout)?;
        Ok(Call { imp, op: self.op, task, value: PhantomData })
    }
}

/// An op that was started on a task. The calls that a run starts on one task are run there one after the other, in their
/// order; different tasks work at the same time. Dropping a call gives the op up.
///
/// # Errors
/// All that take results: `not-found` listing the ops that the component has; `unknown` with the error that the op
/// returned; `aborted` where it panicked or trapped, with its report; `resource-exhausted` with the flag of the limit that it reached on its task;
/// `deadline-exceeded` when the timeout passes; `cancelled`; `invalid-argument` where the results are other than the caller
/// expects; `unavailable`, `peer-failed` and `peer-restarted` with the task. All name op and task.
#[must_use = "dropping a call gives the op up; its results come from `get`"]
pub struct Call<R: OpValue = Vec<Tensor>> {
    imp: imp::Call,
    op: String,
    task: Task,
    value: PhantomData<fn() -> R>,
}

impl<R: OpValue> Call<R> {
    /// The op's name.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// The task that runs it.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Whether [`get`](Call::get) returns at once. Many calls: [`wait_any`].
    pub fn is_ready(&self) -> bool {
        self.imp.is_ready()
    }

    /// Waits for the op and copies its results here.
    ///
    /// # Errors
    /// Those of [all calls](Call#errors).
    pub fn get(self) -> Result<R> {
        R::from_results(self.imp.get()?).map_err(|error| self.unfit(error))
    }

    /// Waits for the op and leaves its results on its task, as inputs of other ops or to be fetched later.
    ///
    /// # Errors
    /// Those of [all calls](Call#errors).
    pub fn keep(self) -> Result<R::Kept> {
        let values = self.imp.keep()?.into_iter().map(|imp| RemoteValue { imp }).collect();
        R::kept(values).map_err(|error| self.unfit(error))
    }

    /// Ends the op where it runs; [`get`](Call::get) then fails with `cancelled`. Does nothing where it has ended.
    ///
    /// An op that is ended while it runs takes the state of its instance with it.
    pub fn cancel(&self) {
        self.imp.cancel();
    }

    fn unfit(&self, error: Error) -> Error {
        let Error { code, message, .. } = error;
        Error::new(code, format!("op `{}` on {}: {message}", self.op, self.task))
    }
}

impl<R: OpValue> fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(`{}` on {})", self.op, self.task)
    }
}

/// A result that stays on the task where it was made, until this is dropped or the run ends.
///
/// As an [`Input`] of another op it goes from task to task, or stays where it is, without coming here.
pub struct RemoteValue {
    pub(crate) imp: imp::Remote,
}

impl RemoteValue {
    /// Copies the value here; can be called again.
    ///
    /// # Errors
    /// `resource-exhausted` where it is larger than this task takes (`--max-tensor`); `unavailable`, `peer-failed` and
    /// `peer-restarted` with the task; `cancelled`.
    pub fn fetch(&self) -> Result<Tensor> {
        self.imp.fetch()
    }

    /// The task that holds it.
    pub fn on(&self) -> Task {
        self.imp.on()
    }
}

impl fmt::Debug for RemoteValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteValue(on {})", self.on())
    }
}

/// What [`wait_any`] waits for: a [`Call`], a [`PendingRead`] or a [`PendingUpdate`].
pub trait Wait {
    #[doc(hidden)]
    fn waiting(&self) -> Waiting<'_>;
}

/// One of those, without its type.
#[doc(hidden)]
pub struct Waiting<'a>(imp::Waiting<'a>);

impl<R: OpValue> Wait for Call<R> {
    fn waiting(&self) -> Waiting<'_> {
        Waiting(imp::Waiting::Call(&self.imp))
    }
}

impl<S: VariableSet> Wait for PendingRead<S> {
    fn waiting(&self) -> Waiting<'_> {
        Waiting(imp::Waiting::Pending(self.imp()))
    }
}

impl Wait for PendingUpdate {
    fn waiting(&self) -> Waiting<'_> {
        Waiting(imp::Waiting::Pending(self.imp()))
    }
}

/// Waits until one of many calls is ready, and returns its place among them; none where there are no calls.
///
/// `get` of that call returns at once. Where several are ready it is the first of them. Calls of different types go together
/// as `wait_any([&call as &dyn Wait, &pending_read])`.
///
/// ```
/// # use dchost_guest::{Call, Error, MockCluster, Result, WorkerContext, op, ops, wait_any, worker};
/// #[op]
/// fn square(x: f32) -> f32 {
///     x * x
/// }
///
/// ops![square];
///
/// fn sum_of_squares(ctx: &WorkerContext) -> Result<f32> {
///     let start = |index| square::start(ctx, worker(index), index as f32);
///     let mut calls = (0..ctx.num_workers()).map(start).collect::<Result<Vec<_>>>()?;
///     let mut sum = 0.0;
///     while let Some(ready) = wait_any(&calls) {
///         sum += calls.swap_remove(ready).get()?;
///     }
///     Ok(sum)
/// }
///
/// # fn main() {
/// let cluster = MockCluster::builder().workers(4).ops(OPS).build();
/// assert_eq!(cluster.run(sum_of_squares).unwrap(), [14.0; 4]);
/// # }
/// ```
pub fn wait_any<'a, W: Wait + ?Sized + 'a>(calls: impl IntoIterator<Item = &'a W>) -> Option<usize> {
    let waiting: Vec<_> = calls.into_iter().map(|call| call.waiting().0).collect();
    if waiting.is_empty() { None } else { Some(imp::wait_any(&waiting)) }
}
