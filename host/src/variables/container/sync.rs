//! Gradients of synchronous replicas: collected for a step, and applied once as their mean.
//!
//! What is collected has a lock of its own beside the value's, so that gradients add up while others read or write. Where both are
//! taken, it is first.

mod steps;

use super::cell::Held;
use super::{Cell, Container, Payload, Slots, Snapshot, name_some};
use crate::error::{Error, ErrorCode, Result};
use crate::variables::{ApplyOptions, Blocks, SyncStep, VariableRef};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
pub(in crate::variables) use steps::Steps;
use steps::{Complete, Gradient, Refused, Turn, Waiter};
use tokio::sync::{mpsc, watch};

/// What a variable collects, and counts of what it refused.
#[derive(Debug, Default)]
pub(in crate::variables) struct Collected {
    steps: Mutex<Steps>,
    stale: AtomicU64,
    dropped: AtomicU64,
}

impl Collected {
    /// Gradients of steps that were over.
    pub(super) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Gradients beyond the replicas of the step that was applied last.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Holds the steps; waits for a gradient that is being added. Before the variable's value is held.
    fn hold(&self) -> MutexGuard<'_, Steps> {
        super::lock(&self.steps)
    }

    fn try_hold(&self) -> Option<MutexGuard<'_, Steps>> {
        match self.steps.try_lock() {
            Ok(steps) => Some(steps),
            Err(TryLockError::Poisoned(steps)) => Some(steps.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Cell {
    /// The steps of a value that is set anew are others: ends those that are open. Holds them until the guard is dropped, so that
    /// none begins before the value is set.
    pub(super) fn reset_steps(&self, name: &str) -> impl Drop + use<'_> {
        let mut steps = self.hold_steps();
        self.end_steps(&mut steps, name);
        steps
    }

    /// Holds the steps. Before the value is held.
    pub(super) fn hold_steps(&self) -> MutexGuard<'_, Steps> {
        self.collected.hold()
    }

    /// Ends those that are open.
    pub(super) fn end_steps(&self, steps: &mut Steps, name: &str) {
        let ended = steps.reset(|step| {
            let message =
                format!("variable `{name}` was initialized anew while gradients for step `{step}` were collected");
            Error::new(ErrorCode::Aborted, message).with_names([name])
        });
        self.charge.shrink(ended.bytes);
    }
}

/// What came of [`Container::try_join`].
#[derive(Debug)]
pub enum TryJoin<'a> {
    /// All gradients are taken.
    Joined(Joined),
    /// None is taken, and here they are again: another change is under way.
    Busy(Vec<(VariableRef, Payload<'a>)>),
}

/// A call whose gradients are taken. Dropping it leaves them where they are.
#[derive(Debug)]
pub struct Joined {
    container: Container,
    /// Tells of variables that are deleted, from before this call found them.
    changed: watch::Receiver<()>,
    step: u64,
    variables: Vec<(String, Weak<Cell>)>,
    outcomes: Vec<Option<Snapshot>>,
    told: mpsc::UnboundedReceiver<(usize, Result<Snapshot>)>,
}

impl Container {
    /// Collects gradients for a step, each scaled as `options` says: of each variable the last of `replicas` makes one optimizer
    /// step with their mean, and only then all of them are answered, by [`Joined::applied`].
    ///
    /// The call is checked, and has its room, before the first gradient is taken. A gradient of the step that was applied last is
    /// dropped, and is answered with what is there.
    ///
    /// # Errors
    /// Those of [`apply`](Container::apply); `invalid-argument`: no replicas; `aborted`: a gradient is of a step below the last
    /// one applied; `failed-precondition`: others of the step have another number of replicas or another optimizer;
    /// `resource-exhausted`: so many steps of a variable are open; what is collected counts in `--max-variable-bytes`. Then no gradient
    /// is taken.
    ///
    /// # Source
    /// TensorFlow's `SyncReplicasOptimizer` and its `ConditionalAccumulator`, which drops stale gradients and lets workers go on by
    /// tokens; here the answer is the token, and who is stale is told.
    pub fn join(
        &self,
        gradients: Vec<(VariableRef, Payload<'_>)>,
        sync: SyncStep,
        options: &ApplyOptions,
    ) -> Result<Joined> {
        let changed = self.0.changed.subscribe();
        sync.check()?;
        let cells = self.cells_of_gradients(&gradients, options)?;
        // In the order of names, so that two such calls can't wait for each other.
        let mut order: Vec<_> = (0..cells.len()).collect();
        order.sort_by(|&a, &b| gradients[a].0.name.cmp(&gradients[b].0.name));
        let mut steps: Vec<_> = cells.iter().map(|_| None).collect();
        for &index in &order {
            steps[index] = Some(cells[index].collected.hold());
        }
        let steps: Vec<_> = steps.into_iter().flatten().collect();
        let names = names(&gradients);
        let call = Call { container: self, sync, options, names: &names, cells: &cells };
        let turns = call.turns(&steps)?;
        let mut values: Vec<_> = cells.iter().map(|_| None).collect();
        for &index in order.iter().filter(|&&index| turns[index] != Turn::Joins) {
            values[index] = Some(cells[index].hold());
        }
        call.check(&turns, &values)?;
        Ok(call.take(changed, Locked { steps, values, turns }, gradients))
    }

    /// As [`join`](Self::join), but hands the gradients back, none of them taken, where it would have to wait for another change:
    /// for callers that must not block.
    ///
    /// # Errors
    /// Those of `join`.
    pub fn try_join<'g>(
        &self,
        gradients: Vec<(VariableRef, Payload<'g>)>,
        sync: SyncStep,
        options: &ApplyOptions,
    ) -> Result<TryJoin<'g>> {
        let changed = self.0.changed.subscribe();
        sync.check()?;
        let cells = self.cells_of_gradients(&gradients, options)?;
        let steps: Option<Vec<_>> = cells.iter().map(|cell| cell.collected.try_hold()).collect();
        let Some(steps) = steps else { return Ok(TryJoin::Busy(gradients)) };
        let names = names(&gradients);
        let call = Call { container: self, sync, options, names: &names, cells: &cells };
        let turns = call.turns(&steps)?;
        let mut values = Vec::with_capacity(cells.len());
        for (cell, turn) in cells.iter().zip(&turns) {
            let value = if *turn == Turn::Joins { None } else { cell.try_hold() };
            if value.is_none() && *turn != Turn::Joins {
                drop(values);
                drop(steps);
                return Ok(TryJoin::Busy(gradients));
            }
            values.push(value);
        }
        call.check(&turns, &values)?;
        Ok(TryJoin::Joined(call.take(changed, Locked { steps, values, turns }, gradients)))
    }

    /// Checks whether [`join`](Self::join) would be accepted now, before the gradients' bytes are on their way; of variables that are
    /// being changed, only what shows without waiting.
    ///
    /// # Errors
    /// Those of `join`.
    pub fn check_join(&self, variables: &[VariableRef], sync: SyncStep, options: &ApplyOptions) -> Result<()> {
        sync.check()?;
        let cells = self.cells_with_floats(variables, &options.optimizer)?;
        let steps: Option<Vec<_>> = cells.iter().map(|cell| cell.collected.try_hold()).collect();
        let Some(steps) = steps else { return Ok(()) };
        let names: Vec<_> = variables.iter().map(|variable| variable.name.clone()).collect();
        let call = Call { container: self, sync, options, names: &names, cells: &cells };
        let turns = call.turns(&steps)?;
        let values: Vec<_> = cells.iter().map(|cell| cell.try_hold()).collect();
        call.check_room(&turns, &values)
    }
}

/// A call, and the variables that it is about.
struct Call<'c> {
    container: &'c Container,
    sync: SyncStep,
    options: &'c ApplyOptions,
    names: &'c [String],
    cells: &'c [Arc<Cell>],
}

/// A call's variables while it holds them, in order; the value only where it is needed.
struct Locked<'c> {
    steps: Vec<MutexGuard<'c, Steps>>,
    values: Vec<Option<Held<'c>>>,
    turns: Vec<Turn>,
}

impl Call<'_> {
    /// What each gradient is; those that are stale are counted.
    fn turns(&self, steps: &[MutexGuard<'_, Steps>]) -> Result<Vec<Turn>> {
        let (mut turns, mut stale, mut refused) = (Vec::with_capacity(steps.len()), None, None);
        for ((steps, name), cell) in steps.iter().zip(self.names).zip(self.cells) {
            match steps.turn(name, self.sync, &self.options.optimizer) {
                Ok(turn) => turns.push(turn),
                Err(Refused::Stale(error)) => {
                    cell.collected.stale.fetch_add(1, Ordering::Relaxed);
                    stale = stale.or(Some(error));
                }
                Err(Refused::Other(error)) => refused = refused.or(Some(error)),
            }
        }
        // A step that is over explains all else.
        stale.or(refused).map_or(Ok(turns), Err)
    }

    /// Checks slots and room, and takes the room.
    fn check(&self, turns: &[Turn], values: &[Option<Held<'_>>]) -> Result<()> {
        self.check_room(turns, values)?;
        let more = self.cells.iter().zip(values).zip(turns).map(|((cell, value), turn)| {
            let more = match (turn, value) {
                (Turn::Opens, Some(value)) => value.blocks.len() as u64,
                (Turn::Completes { .. }, Some(value)) => self.slot_bytes(value),
                _ => 0,
            };
            (&cell.charge, more)
        });
        self.container.0.room.grow(more)
    }

    /// Checks slots, and whether all would fit that the step needs in the end: who opens it learns that, rather than who completes
    /// it.
    fn check_room(&self, turns: &[Turn], values: &[Option<Held<'_>>]) -> Result<()> {
        let mut more = Vec::with_capacity(turns.len());
        for ((name, value), turn) in self.names.iter().zip(values).zip(turns) {
            let (Some(value), false) = (value, *turn == Turn::Late) else { continue };
            Slots::check(value.slots.as_ref(), &self.options.optimizer, name)?;
            more.push(match turn {
                Turn::Opens => (value.blocks.len() as u64).saturating_add(self.slot_bytes(value)),
                Turn::Completes { .. } => self.slot_bytes(value),
                Turn::Joins | Turn::Late => 0,
            });
        }
        self.container.0.room.check(more)
    }

    fn slot_bytes(&self, value: &Held<'_>) -> u64 {
        Slots::missing_bytes(value.slots.as_ref(), &self.options.optimizer, value.blocks.len())
    }

    /// Takes all gradients. Each variable is free for others as soon as its own is taken.
    fn take(
        &self,
        changed: watch::Receiver<()>,
        locked: Locked<'_>,
        gradients: Vec<(VariableRef, Payload<'_>)>,
    ) -> Joined {
        let want_value = self.options.write.want_values;
        let (call, told) = mpsc::unbounded_channel();
        let mut outcomes = Vec::with_capacity(gradients.len());
        let parts = locked.steps.into_iter().zip(locked.values).zip(locked.turns);
        for (index, ((cell, (_, value)), ((mut steps, held), turn))) in
            self.cells.iter().zip(gradients).zip(parts).enumerate()
        {
            let gradient = Gradient { dtype: cell.ty.dtype, scale: self.options.scale, value };
            let waiter = Waiter { call: call.clone(), index, want_value };
            outcomes.push(match (turn, held) {
                (Turn::Opens | Turn::Joins, _) | (_, None) => {
                    steps.take(self.sync, self.options.optimizer, gradient, Some(waiter));
                    None
                }
                (Turn::Late, Some(held)) => {
                    cell.collected.dropped.fetch_add(1, Ordering::Relaxed);
                    Some(cell.snapshot(&held, want_value))
                }
                (Turn::Completes { opened }, Some(held)) => {
                    Some(self.complete(cell, &self.names[index], &mut steps, held, gradient, opened))
                }
            });
        }
        let variables = self.names.iter().cloned().zip(self.cells.iter().map(Arc::downgrade)).collect();
        Joined { container: self.container.clone(), changed, step: self.sync.step, variables, outcomes, told }
    }

    /// Makes the step, with the last of its gradients.
    fn complete(
        &self,
        cell: &Cell,
        name: &str,
        steps: &mut Steps,
        mut held: Held<'_>,
        gradient: Gradient<'_>,
        opened: bool,
    ) -> Snapshot {
        let want_value = self.options.write.want_values;
        let (mut options, mut mean) = (*self.options, None);
        if opened {
            options.scale = 1.0 / f64::from(self.sync.replicas);
            steps.take(self.sync, self.options.optimizer, gradient, None);
        } else {
            mean = Some(gradient.value);
        }
        let (complete, ended) = steps.complete(name, self.sync.step);
        cell.collected.stale.fetch_add(ended.gradients, Ordering::Relaxed);
        let wanted = want_value || complete.as_ref().is_some_and(Complete::wants_value);
        let (sum, waiters) = complete.map(Complete::into_parts).unwrap_or_default();
        cell.charge.shrink(ended.bytes + sum.len() as u64);
        held.step(&options, cell.ty.dtype, mean.unwrap_or(Payload::Owned(sum)));
        let mut snapshot = cell.snapshot(&held, wanted);
        // Who is woken finds the value free.
        drop(held);
        waiters.into_iter().for_each(|waiter| waiter.tell(&Ok(snapshot.clone())));
        if !want_value {
            snapshot.blocks = Blocks::default();
        }
        snapshot
    }
}

fn names(gradients: &[(VariableRef, Payload<'_>)]) -> Vec<String> {
    gradients.iter().map(|(variable, _)| variable.name.clone()).collect()
}

impl Joined {
    /// Waits until the step of every variable is applied; answers with the versions, and the new values if wanted.
    ///
    /// # Errors
    /// `aborted`, as soon as it holds for one variable: a later step of it was applied first, it was initialized anew or deleted, or
    /// the container is over.
    ///
    /// # Cancel safety
    /// Dropping it leaves the gradients where they are: they count for their step.
    pub async fn applied(mut self) -> Result<Vec<Snapshot>> {
        let mut left = self.outcomes.iter().filter(|outcome| outcome.is_none()).count();
        while left > 0 {
            tokio::select! {
                biased;
                told = self.told.recv() => match told {
                    Some((index, outcome)) => {
                        self.outcomes[index] = Some(outcome?);
                        left -= 1;
                    }
                    None => {
                        // All who could tell have gone, which they do with their variables.
                        self.check_there()?;
                        return Err(Error::new(ErrorCode::Internal, "variables went away while a step was waited for"));
                    }
                },
                // The sender is the container's own, which `self` holds.
                _ = self.changed.changed() => self.check_there()?,
            }
        }
        Ok(self.outcomes.into_iter().flatten().collect())
    }

    /// Checks that those that are waited for can still be applied.
    fn check_there(&self) -> Result<()> {
        let state = self.container.read();
        state.check()?;
        let gone = |(name, cell): &(&str, &Weak<Cell>)| {
            !state.cells.get(*name).is_some_and(|present| std::ptr::eq(Arc::as_ptr(present), cell.as_ptr()))
        };
        let waited = self.variables.iter().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_none());
        let gone: Vec<_> = waited.map(|((name, cell), _)| (&**name, cell)).filter(gone).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let what = format!("variables were deleted while gradients for step `{}` were collected", self.step);
        Err(name_some(ErrorCode::Aborted, &what, gone.into_iter().map(|(name, _)| name), ""))
    }
}
