//! Reads and pushes that travel while the guest computes.

use crate::batch::{self, PendingRead, PendingUpdate, VariableSet};
use crate::change::Change;
use crate::optimizer::{GradientSet, Optimizer};
use crate::raw::Write;
use crate::{Error, Read, Result, imp};
use std::collections::VecDeque;
use std::fmt;

/// A training loop whose values travel while it computes, from [`WorkerContext::overlap`](crate::WorkerContext::overlap).
///
/// The plain loop reads, computes and pushes, and each waits for the one before. Here the read for the next step is under way
/// while this step computes, and so are the pushes of the steps before:
///
/// ```
/// use dchost_guest::{Change, MockCluster, Optimizer, Result, WorkerContext};
///
/// fn train(ctx: &WorkerContext) -> Result<f32> {
///     let w = ctx.variable::<f32>("w").shape([3]).declare()?;
///     let steps = ctx.variable::<i64>("steps").declare()?;
///     if ctx.is_chief() {
///         ctx.initialize([Change::assign(&w, 4.0), Change::assign(&steps, 0)])?;
///     }
///     ctx.wait_initialized((&w, &steps), None)?;
///
///     let sgd = Optimizer::sgd(0.05);
///     let mut weights = ctx.overlap([&w]).depth(2);
///     for _ in 0..100 {
///         let [now] = weights.read()?; // and the next read begins
///         let gradient: Vec<f32> = now.iter().map(|w| 2.0 * w).collect(); // of w²
///         weights.apply_gradients(&sgd, [(&w, &gradient)])?; // only begins
///         weights.update([Change::add(&steps, 1)])?;
///     }
///     weights.finish()?; // all is pushed from here on
///
///     ctx.wait_for_other_workers()?;
///     assert_eq!(steps.read()?.scalar(), 100 * i64::from(ctx.num_workers()));
///     Ok(w.read()?[0])
/// }
///
/// let results = MockCluster::builder().workers(2).ps(1).build().run(train).unwrap();
/// assert!(results.iter().all(|w| w.abs() < 0.01), "{results:?}");
/// ```
///
/// # How old a value may be
/// A push is a call of [`update`](Overlap::update), [`update_relaxed`](Overlap::update_relaxed) or
/// [`apply_gradients`](Overlap::apply_gradients). What [`read`](Overlap::read) returns lacks none of this loop's pushes but the
/// last `depth` before the previous `read`, and those after it: with one push a step, the last `depth + 1` at most. Pushes of
/// others are in it as far as they were made when the read was begun, one step ago. The first `read` begins its own, as does the one
/// after [`flush`](Overlap::flush).
///
/// # Order
/// With a depth of 1, which it is unless set, or 0, each push is made before the next one begins. With more, additions, subtractions and
/// gradients that are under way together are made in any order; any other change, and one with a base version, is made after
/// all pushes before it and before all after it.
///
/// # Errors
/// A push that has begun and then fails tells so at a later call, whichever comes first: that call then returns the push's error, of
/// which the message begins with `push 7: ` where it was the seventh, and does nothing else; a push that it was to begin isn't begun.
/// With a depth of 0 it is the call that began the push. An error is told once, and the loop can go on after it.
///
/// What is under way counts in `-W max-ops` and, with its bytes, in four times `--max-tensor`: a call that goes beyond is
/// `resource-exhausted` and begins nothing. Choose a smaller depth then.
///
/// # When it is dropped
/// Without [`finish`](Overlap::finish), as where an error ends the run, what is under way is given up: each change is made whole
/// or not at all, a relaxed one maybe in part, and errors are lost.
#[must_use = "pushes are only known to be made after `finish`"]
pub struct Overlap<S: VariableSet> {
    context: imp::Context,
    variables: S,
    read: Read,
    flight: Flight<PendingRead<S>, PendingUpdate>,
}

impl<S: VariableSet> Overlap<S> {
    pub(crate) fn new(context: imp::Context, variables: S) -> Self {
        Overlap { context, variables, read: Read::new(), flight: Flight::new() }
    }

    /// Sets how many pushes may be under way when a push returns; 1 without this call.
    ///
    /// With 0 a push returns when it is made, and only reads overlap. A step takes as long as its read in any case, so that 1
    /// suffices where a push takes no longer; more helps where it does, or where a step has several pushes, at the price of
    /// older values and of memory for so many pushes.
    pub fn depth(mut self, pushes: usize) -> Self {
        self.flight.depth = pushes;
        self
    }

    /// Sets how the reads are made; plain ones without this call.
    ///
    /// [`relaxed`](Read::relaxed) suits large variables that many runs push to.
    pub fn reading(mut self, read: Read) -> Self {
        self.read = read;
        self
    }

    /// Waits for the values that are on their way, and begins the next read.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), which come from this read, and [those of earlier pushes](Overlap#errors). The next
    /// `read` begins anew.
    pub fn read(&mut self) -> Result<S::Values> {
        let Overlap { context, variables, read, flight } = self;
        flight.read(|| Ok(PendingRead::new(context.start_read(&batch::handles(&*variables), *read)?)))
    }

    /// Begins an update as [`WorkerContext::update`](crate::WorkerContext::update) makes it; waits first where `depth` pushes are
    /// under way. The values are taken before this returns.
    ///
    /// # Errors
    /// Those of [all calls](crate::Variable#errors), as far as they show at once, and [those of earlier pushes](Overlap#errors).
    pub fn update<'a>(&mut self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        self.push_changes(changes.into_iter().collect(), Write::default())
    }

    /// Begins an update as [`WorkerContext::update_relaxed`](crate::WorkerContext::update_relaxed) makes it; else as
    /// [`update`](Overlap::update).
    ///
    /// # Errors
    /// As [`update`](Overlap::update); `invalid-argument` where a change has a base version.
    pub fn update_relaxed<'a>(&mut self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        self.push_changes(changes.into_iter().collect(), Write::RELAXED)
    }

    fn push_changes(&mut self, changes: Vec<Change<'_>>, write: Write) -> Result<()> {
        let order = if changes.iter().all(Change::commutes) { Order::Free } else { Order::Kept };
        let Overlap { context, flight, .. } = self;
        flight.push(order, || Ok(PendingUpdate::new(context.start_update_changes(changes, write)?)))
    }

    /// Begins to apply gradients as [`WorkerContext::apply_gradients`](crate::WorkerContext::apply_gradients) does; waits first where
    /// `depth` pushes are under way. The gradients are taken before this returns.
    ///
    /// # Errors
    /// Those of that method, as far as they show at once, and [those of earlier pushes](Overlap#errors).
    pub fn apply_gradients<'a>(&mut self, optimizer: &Optimizer, gradients: impl GradientSet<'a>) -> Result<()> {
        let Overlap { context, flight, .. } = self;
        flight.push(Order::Free, || {
            Ok(PendingUpdate::new(context.start_apply_gradient_set(optimizer, gradients, false)?))
        })
    }

    /// Waits until all pushes are made, and gives the read up that is under way: the next one sees them all.
    ///
    /// It belongs before a barrier behind which others rely on this run's pushes.
    ///
    /// # Errors
    /// [Those of earlier pushes](Overlap#errors), when all have ended; of several the first.
    pub fn flush(&mut self) -> Result<()> {
        self.flight.flush()
    }

    /// Waits until all pushes are made, and ends the loop.
    ///
    /// # Errors
    /// As [`flush`](Overlap::flush).
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

impl<S: VariableSet> fmt::Debug for Overlap<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flight { depth, begun, pushes, .. } = &self.flight;
        write!(f, "Overlap({begun} pushes, {} of at most {depth} under way)", pushes.len())
    }
}

/// An answer that comes later.
trait Later {
    type Value;

    fn is_ready(&self) -> bool;
    fn get(self) -> Result<Self::Value>;
}

impl<S: VariableSet> Later for PendingRead<S> {
    type Value = S::Values;

    fn is_ready(&self) -> bool {
        PendingRead::is_ready(self)
    }

    fn get(self) -> Result<S::Values> {
        PendingRead::get(self)
    }
}

impl Later for PendingUpdate {
    type Value = Vec<u64>;

    fn is_ready(&self) -> bool {
        PendingUpdate::is_ready(self)
    }

    fn get(self) -> Result<Vec<u64>> {
        PendingUpdate::get(self)
    }
}

/// Whether pushes that are under way together may be made in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Free,
    Kept,
}

/// What is under way.
struct Flight<R, P> {
    depth: usize,
    /// The read for the next step, or why it could not be begun; none before the first and after a failure.
    next: Option<Result<R>>,
    /// Oldest first.
    pushes: VecDeque<Push<P>>,
    /// Counts pushes.
    begun: u64,
}

struct Push<P> {
    number: u64,
    order: Order,
    later: P,
}

impl<P: Later> Push<P> {
    fn get(self) -> Result<()> {
        let Push { number, later, order: _ } = self;
        let name = |error: Error| Error { message: format!("push {number}: {}", error.message), ..error };
        later.get().map(drop).map_err(name)
    }
}

impl<R: Later, P: Later> Flight<R, P> {
    fn new() -> Self {
        Flight { depth: 1, next: None, pushes: VecDeque::new(), begun: 0 }
    }

    fn read(&mut self, begin: impl Fn() -> Result<R>) -> Result<R::Value> {
        self.reap()?;
        let values = self.next.take().unwrap_or_else(&begin)?.get()?;
        // A failure to begin it is the next call's: this one has its values.
        self.next = Some(begin());
        Ok(values)
    }

    fn push(&mut self, order: Order, begin: impl FnOnce() -> Result<P>) -> Result<()> {
        self.reap()?;
        let number = self.begun + 1;
        let depth = u64::try_from(self.depth).unwrap_or(u64::MAX);
        let alone = order == Order::Kept || self.pushes.iter().any(|push| push.order == Order::Kept);
        self.wait(if alone { self.begun } else { number.saturating_sub(depth.max(1)) })?;
        let later = begin()?;
        self.begun = number;
        self.pushes.push_back(Push { number, order, later });
        self.wait(number.saturating_sub(depth))
    }

    fn flush(&mut self) -> Result<()> {
        self.next = None;
        let mut result = Ok(());
        while let Some(push) = self.pushes.pop_front() {
            result = result.and(push.get());
        }
        result
    }

    /// Takes the answers that are there.
    fn reap(&mut self) -> Result<()> {
        while let Some(ready) = self.pushes.iter().position(|push| push.later.is_ready()) {
            self.pushes.remove(ready).map_or(Ok(()), Push::get)?;
        }
        Ok(())
    }

    /// Waits for all pushes up to `number`: later ones that are faster leave no older one behind.
    fn wait(&mut self, number: u64) -> Result<()> {
        while let Some(push) = self.pushes.pop_front_if(|push| push.number <= number) {
            push.get()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
