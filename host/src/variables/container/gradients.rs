//! Gradients, applied by an optimizer whose slots stand beside each variable.

use super::cell::{Held, Versioned};
use super::{Cell, Container, Payload, Slots, Snapshot, check_data, refuse_twice};
use crate::error::Result;
use crate::tensor::DType;
use crate::variables::{ApplyOptions, Optimizer, VariableRef, no_floats};
use std::sync::Arc;

/// What came of [`Container::try_apply`].
#[derive(Debug)]
pub enum TryApply<'a> {
    /// All is applied.
    Applied(Vec<Snapshot>),
    /// Nothing is applied, and here it is again: another change is under way.
    Busy(Vec<(VariableRef, Payload<'a>)>),
}

impl Container {
    /// Applies gradients; answers with the versions, and the new values if wanted. Each is atomic for its variable, and its step
    /// is counted beside it. A gradient that isn't finite is applied as told.
    ///
    /// The call is checked, and has its room, before the first gradient is applied; then each variable is free for others as soon
    /// as its own is.
    ///
    /// # Errors
    /// `uninitialized` with the names; `invalid-argument`: another type, a variable without floats or named twice, a gradient of the
    /// wrong size, numbers of the optimizer; `failed-precondition`: a variable has the slots of another method;
    /// `resource-exhausted`: `--max-variable-bytes`, in which slots count; `aborted`: the container is over. Then nothing is applied.
    pub fn apply(&self, gradients: Vec<(VariableRef, Payload<'_>)>, options: &ApplyOptions) -> Result<Vec<Snapshot>> {
        let cells = self.cells_of_gradients(&gradients, options)?;
        // In the order of names, so that two such calls can't wait for each other.
        let mut order: Vec<_> = (0..cells.len()).collect();
        order.sort_by(|&a, &b| gradients[a].0.name.cmp(&gradients[b].0.name));
        let mut values: Vec<Option<Held<'_>>> = (0..cells.len()).map(|_| None).collect();
        for index in order {
            values[index] = Some(cells[index].hold());
        }
        self.apply_under(&cells, values.into_iter().flatten().collect(), gradients, options)
    }

    /// As [`apply`](Self::apply), but hands the gradients back, none of them applied, where it would have to wait for another
    /// change: for callers that must not block.
    ///
    /// # Errors
    /// Those of `apply`.
    pub fn try_apply<'g>(
        &self,
        gradients: Vec<(VariableRef, Payload<'g>)>,
        options: &ApplyOptions,
    ) -> Result<TryApply<'g>> {
        let cells = self.cells_of_gradients(&gradients, options)?;
        let mut values = Vec::with_capacity(cells.len());
        for cell in &cells {
            match cell.try_hold() {
                Some(value) => values.push(value),
                None => return Ok(TryApply::Busy(gradients)),
            }
        }
        self.apply_under(&cells, values, gradients, options).map(TryApply::Applied)
    }

    /// Checks whether [`apply`](Self::apply) would be accepted now, before the gradients' bytes are on their way; of variables
    /// that are being changed, only what shows without waiting.
    ///
    /// # Errors
    /// Those of `apply`.
    pub fn check_apply(&self, variables: &[VariableRef], optimizer: &Optimizer) -> Result<()> {
        let cells = self.cells_with_floats(variables, optimizer)?;
        let mut missing = Vec::with_capacity(cells.len());
        for (cell, variable) in cells.iter().zip(variables) {
            let Some(value) = cell.try_hold() else { continue };
            Slots::check(value.slots.as_ref(), optimizer, &variable.name)?;
            missing.push(Slots::missing_bytes(value.slots.as_ref(), optimizer, value.blocks.len()));
        }
        self.0.room.check(missing)
    }

    pub(super) fn cells_of_gradients(
        &self,
        gradients: &[(VariableRef, Payload<'_>)],
        options: &ApplyOptions,
    ) -> Result<Vec<Arc<Cell>>> {
        for (variable, gradient) in gradients {
            check_data(&variable.name, &variable.ty, gradient.len())?;
        }
        self.cells_with_floats(gradients.iter().map(|(variable, _)| variable), &options.optimizer)
    }

    pub(super) fn cells_with_floats<'v>(
        &self,
        variables: impl IntoIterator<Item = &'v VariableRef> + Clone,
        optimizer: &Optimizer,
    ) -> Result<Vec<Arc<Cell>>> {
        optimizer.check()?;
        for variable in variables.clone() {
            if !matches!(variable.ty.dtype, DType::F32 | DType::F64) {
                return Err(no_floats(&variable.name, variable.ty.dtype));
            }
        }
        refuse_twice(variables.clone())?;
        self.cells(variables)
    }

    /// Applies all, or none where one can't be.
    fn apply_under(
        &self,
        cells: &[Arc<Cell>],
        values: Vec<Held<'_>>,
        gradients: Vec<(VariableRef, Payload<'_>)>,
        options: &ApplyOptions,
    ) -> Result<Vec<Snapshot>> {
        for (value, (variable, _)) in values.iter().zip(&gradients) {
            Slots::check(value.slots.as_ref(), &options.optimizer, &variable.name)?;
        }
        let more = cells.iter().zip(&values).map(|(cell, value)| {
            (&cell.charge, Slots::missing_bytes(value.slots.as_ref(), &options.optimizer, value.blocks.len()))
        });
        self.0.room.grow(more)?;
        // Each lock is given up with its gradient.
        let apply = |((cell, mut value), (_, gradient)): ((&Arc<Cell>, Held<'_>), (_, Payload<'_>))| {
            value.step(options, cell.ty.dtype, gradient);
            cell.snapshot(&value, options.write.want_values)
        };
        Ok(cells.iter().zip(values).zip(gradients).map(apply).collect())
    }
}

impl Versioned {
    pub(super) fn step(&mut self, options: &ApplyOptions, dtype: DType, gradient: Payload<'_>) {
        Slots::step(&mut self.slots, options, dtype, &mut self.blocks, gradient);
        self.version += 1;
    }
}
