//! What an optimizer keeps beside a variable.

mod saved;

pub use saved::{STEP_MAX, SlotLayout, SlotState};

use super::blocks::Block;
use super::optimizer::kernel::Step;
use super::{ApplyOptions, BLOCK_BYTES, Blocks, Optimizer, Payload, drop_large, parallel};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::DType;

/// Slot values of a variable, each of its dtype and size, and how many steps made them.
///
/// They appear, as zeros, with the first gradient that is applied, belong to the method that made them, and go when the
/// variable is initialized anew or deleted. Numbers of the method, its learning rate above all, may change with each step.
#[derive(Debug)]
pub(super) struct Slots {
    /// The name of the method that they belong to; Adam's and AdamW's are the same.
    of: &'static str,
    values: Vec<Blocks>,
    /// Counts steps.
    step: u64,
}

/// The method whose slots an optimizer uses, and how many it has.
fn layout(optimizer: &Optimizer) -> (&'static str, usize) {
    match optimizer {
        Optimizer::Sgd { .. } => ("sgd", 0),
        Optimizer::Momentum { .. } => ("momentum", 1),
        Optimizer::Adagrad { .. } => ("adagrad", 1),
        Optimizer::RmsProp { .. } => ("rmsprop", 1),
        Optimizer::Adam(_) | Optimizer::AdamW(_) => ("adam", 2),
    }
}

impl Slots {
    /// Checks that `optimizer` can go on with the slots of variable `name`, if it has any.
    ///
    /// # Errors
    /// `failed-precondition` naming both methods: they belong to another one.
    pub(super) fn check(slots: Option<&Slots>, optimizer: &Optimizer, name: &str) -> Result<()> {
        match slots {
            Some(Slots { of, .. }) if *of != layout(optimizer).0 => {
                let message = format!(
                    "variable `{name}` has the slots of `{of}`, with which `{}` can't go on; initialize the variable anew, with \
                     its present value to keep that, and they are dropped",
                    optimizer.name()
                );
                Err(Error::new(ErrorCode::FailedPrecondition, message).with_names([name]))
            }
            _ => Ok(()),
        }
    }

    /// Bytes that `optimizer` will take beside a value of `value_bytes` that has `slots` now.
    pub(super) fn missing_bytes(slots: Option<&Slots>, optimizer: &Optimizer, value_bytes: usize) -> u64 {
        match slots {
            Some(_) => 0,
            None => (layout(optimizer).1 as u64).saturating_mul(value_bytes as u64),
        }
    }

    /// Bytes of all slots.
    pub(super) fn bytes(&self) -> u64 {
        self.values.iter().map(|value| value.len() as u64).sum()
    }

    /// Makes a step on `value`, whose slots appear with the first. Block by block; those that a reader holds are copied, and the
    /// gradient's own are given up one by one.
    pub(super) fn step(
        slots: &mut Option<Slots>,
        options: &ApplyOptions,
        dtype: DType,
        value: &mut Blocks,
        gradient: Payload<'_>,
    ) {
        let (of, count) = layout(&options.optimizer);
        if count == 0 {
            return Step::new(&options.optimizer, 1, options.scale).run_all(dtype, value, &mut [], gradient);
        }
        let zeros = || (0..count).map(|_| Blocks::zeros(value.len())).collect();
        let slots = slots.get_or_insert_with(|| Slots { of, values: zeros(), step: 0 });
        slots.step += 1;
        Step::new(&options.optimizer, slots.step, options.scale).run_all(dtype, value, &mut slots.values, gradient);
    }

    /// Frees them, without keeping the caller waiting.
    pub(super) fn discard(self) {
        drop_large(usize::try_from(self.bytes()).unwrap_or(usize::MAX), self);
    }
}

impl Step {
    fn run_all(&self, dtype: DType, value: &mut Blocks, slots: &mut [Blocks], gradient: Payload<'_>) {
        let bytes = value.len() * (1 + slots.len());
        let mut slots = slots.iter_mut().map(Blocks::blocks_mut);
        let (mut first, mut second) = (slots.next(), slots.next());
        let mut slots = move || [&mut first, &mut second].map(|slot| slot.as_mut().and_then(Iterator::next));
        let values = value.blocks_mut().map(move |value| (value, slots()));
        let run = |(value, slots): (&mut Block, [Option<&mut Block>; 2]), gradient: &[u8]| {
            let slots = slots.map(|slot| slot.map(|slot| slot.own().as_mut_slice()).unwrap_or_default());
            self.run(dtype, value.own(), slots, gradient);
        };
        match gradient {
            Payload::Borrowed(data) => {
                let items = values.zip(data.chunks(BLOCK_BYTES));
                parallel::for_each(items, bytes, |(value, gradient)| run(value, gradient));
            }
            Payload::Owned(blocks) => {
                let items = values.zip(blocks.into_pieces(BLOCK_BYTES));
                parallel::for_each(items, bytes, |(value, gradient)| run(value, &gradient));
            }
        }
    }
}
