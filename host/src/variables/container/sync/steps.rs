//! The steps of one variable whose gradients are collected.
//!
//! | a gradient's step is | the gradient |
//! | --- | --- |
//! | below the last one applied | is stale: `aborted` |
//! | the last one applied | is late, of a backup worker: dropped |
//! | above it, and open | joins; the last of `replicas` applies their mean, and ends open steps below |
//! | above it, and not open | opens the step, where there aren't too many |

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::DType;
use crate::variables::optimizer::kernel::accumulate;
use crate::variables::{BLOCK_BYTES, Blocks, Optimizer, Payload, Snapshot, SyncStep, drop_large, parallel};
use std::collections::BTreeMap;
use tokio::sync::mpsc::UnboundedSender;

/// Steps that one variable collects gradients for at most: workers are a step apart, a few where some hang behind. Each holds a value.
pub(super) const OPEN_STEPS_MAX: usize = 4;

/// What is collected for one variable.
#[derive(Debug, Default)]
pub(in crate::variables) struct Steps {
    /// The last step that was applied.
    applied: Option<u64>,
    open: BTreeMap<u64, Open>,
}

/// A step whose gradients aren't all there.
#[derive(Debug)]
struct Open {
    replicas: u32,
    optimizer: Optimizer,
    /// Of the gradients that have come, each scaled as its call told.
    sum: Blocks,
    taken: u32,
    waiters: Vec<Waiter>,
}

/// Where one variable's outcome goes.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) call: UnboundedSender<(usize, Result<Snapshot>)>,
    /// The variable's place in its call.
    pub(super) index: usize,
    pub(super) want_value: bool,
}

impl Waiter {
    /// Whether the caller still waits makes no difference to the others.
    pub(super) fn tell(self, outcome: &Result<Snapshot>) {
        let outcome = match outcome {
            Ok(snapshot) if !self.want_value => Ok(Snapshot { blocks: Blocks::default(), ..snapshot.clone() }),
            outcome => outcome.clone(),
        };
        let _ = self.call.send((self.index, outcome));
    }
}

/// What a gradient is to its variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Dropped: its step was applied without it.
    Late,
    /// The first of its step, but not the only one.
    Opens,
    /// One of those in between.
    Joins,
    /// The last of its step. `opened`: not the only one.
    Completes { opened: bool },
}

/// Why a gradient can't be taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Its step is over.
    Stale(Error),
    Other(Error),
}

/// All gradients of a step.
pub(super) struct Complete {
    sum: Blocks,
    waiters: Vec<Waiter>,
}

impl Complete {
    /// Whether anybody who waits wants the new value.
    pub(super) fn wants_value(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.want_value)
    }

    /// The sum, and who waits for what it makes.
    pub(super) fn into_parts(self) -> (Blocks, Vec<Waiter>) {
        (self.sum, self.waiters)
    }
}

/// Steps that ended without being applied.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Gradients that were collected for them.
    pub(super) gradients: u64,
    /// Bytes of their sums.
    pub(super) bytes: u64,
}

impl Steps {
    /// What a gradient of variable `name` would be now.
    pub(super) fn turn(&self, name: &str, sync: SyncStep, optimizer: &Optimizer) -> Result<Turn, Refused> {
        let SyncStep { step, replicas } = sync;
        let other = |code, message| Err(Refused::Other(Error::new(code, message).with_names([name])));
        match self.applied {
            Some(applied) if step < applied => return Err(Refused::Stale(stale(name, step, applied))),
            Some(applied) if step == applied => return Ok(Turn::Late),
            _ => {}
        }
        let Some(open) = self.open.get(&step) else {
            if replicas == 1 {
                return Ok(Turn::Completes { opened: false });
            }
            if self.open.len() >= OPEN_STEPS_MAX {
                let steps: Vec<_> = self.open.keys().map(|step| format!("`{step}`")).collect();
                let message = format!(
                    "variable `{name}` collects gradients of steps {} and takes none of step `{step}`: at most `{OPEN_STEPS_MAX}` \
                     steps are open at a time; let each worker go on to the next step when its own is applied",
                    steps.join(", ")
                );
                return other(ErrorCode::ResourceExhausted, message);
            }
            return Ok(Turn::Opens);
        };
        if open.replicas != replicas {
            let message = format!(
                "variable `{name}` collects `{}` gradients for step `{step}`, but this one is of `{replicas}` replicas; give the \
                 same number on all workers",
                open.replicas
            );
            return other(ErrorCode::FailedPrecondition, message);
        }
        if open.optimizer != *optimizer {
            let message = format!(
                "variable `{name}` collects gradients for a step `{step}` of {}, but this one is for {optimizer}; give the same \
                 method and numbers on all workers",
                open.optimizer
            );
            return other(ErrorCode::FailedPrecondition, message);
        }
        Ok(if open.taken + 1 == replicas { Turn::Completes { opened: true } } else { Turn::Joins })
    }

    /// Takes a gradient that opens or joins its step.
    pub(super) fn take(
        &mut self,
        sync: SyncStep,
        optimizer: Optimizer,
        gradient: Gradient<'_>,
        waiter: Option<Waiter>,
    ) {
        let open = self.open.entry(sync.step).or_insert_with(|| Open {
            replicas: sync.replicas,
            optimizer,
            sum: Blocks::default(),
            taken: 0,
            waiters: Vec::new(),
        });
        gradient.add_to(&mut open.sum);
        open.taken += 1;
        open.waiters.extend(waiter);
    }

    /// Takes all that was collected for a step, which counts as applied from now on, and ends the open ones below.
    pub(super) fn complete(&mut self, name: &str, step: u64) -> (Option<Complete>, Ended) {
        let complete = self.open.remove(&step).map(|open| Complete { sum: open.sum, waiters: open.waiters });
        let above = self.open.split_off(&step);
        let below = std::mem::replace(&mut self.open, above);
        self.applied = Some(step);
        (complete, end(below, |open| stale(name, open, step)))
    }

    /// Begins anew: forgets what was applied, and ends what is open.
    pub(super) fn reset(&mut self, why: impl Fn(u64) -> Error) -> Ended {
        let steps = std::mem::take(self);
        end(steps.open, why)
    }
}

fn end(steps: BTreeMap<u64, Open>, why: impl Fn(u64) -> Error) -> Ended {
    let mut ended = Ended::default();
    for (step, open) in steps {
        ended.gradients += u64::from(open.taken);
        ended.bytes += open.sum.len() as u64;
        let outcome = Err(why(step));
        open.waiters.into_iter().for_each(|waiter| waiter.tell(&outcome));
        drop_large(open.sum.len(), open.sum);
    }
    ended
}

fn stale(name: &str, step: u64, applied: u64) -> Error {
    let message = format!(
        "gradient of variable `{name}` is of step `{step}`, but step `{applied}` is applied: it is stale; read the variable again and \
         go on with the step after"
    );
    Error::new(ErrorCode::Aborted, message).with_names([name])
}

/// A gradient on its way into a sum.
pub(super) struct Gradient<'g> {
    pub(super) dtype: DType,
    /// Each element is multiplied by it.
    pub(super) scale: f64,
    pub(super) value: Payload<'g>,
}

impl Gradient<'_> {
    /// Adds the gradient; the first of a step is the sum, where it comes in blocks of its own.
    pub(super) fn add_to(self, sum: &mut Blocks) {
        let Gradient { dtype, scale, value } = self;
        if sum.is_empty() {
            match value {
                Payload::Owned(blocks) if scale == 1.0 => return *sum = blocks,
                _ => *sum = Blocks::zeros(value.len()),
            }
        }
        let bytes = sum.len();
        match value {
            Payload::Borrowed(data) => {
                let blocks = sum.blocks_mut().zip(data.chunks(BLOCK_BYTES));
                parallel::for_each(blocks, bytes, |(sum, gradient)| accumulate(dtype, sum.own(), gradient, scale));
            }
            Payload::Owned(blocks) => {
                let blocks = sum.blocks_mut().zip(blocks.into_pieces(BLOCK_BYTES));
                parallel::for_each(blocks, bytes, |(sum, gradient)| accumulate(dtype, sum.own(), &gradient, scale));
            }
        }
    }
}
