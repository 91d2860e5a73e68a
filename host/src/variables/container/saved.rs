//! Reads all variables for a checkpoint, and sets them from one.

use super::cell::Held;
use super::{Cell, Container, check_data, check_variable, refuse_twice};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{DType, TensorType};
use crate::variables::slots::Slots;
use crate::variables::{Blocks, Payload, SlotState, UpdateKind, VariableRef, no_floats};
use std::cmp::Reverse;
use std::sync::Arc;

/// What is saved of a variable, but for its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Which, as its task holds it.
    pub variable: VariableRef,
    /// Counts applied writes.
    pub version: u64,
    /// What an optimizer keeps beside it.
    pub slots: Option<SlotState>,
}

/// What a variable is set to.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Which, as its task holds it.
    pub variable: VariableRef,
    /// What an optimizer keeps beside it.
    pub slots: Option<SlotState>,
    /// Its value, and those of its slots; each of its type.
    pub tensors: Vec<Blocks>,
}

/// How many tensors a variable is saved as: its value and its slots.
pub fn tensor_count(slots: Option<SlotState>) -> usize {
    1 + slots.map_or(0, |slots| slots.layout.names.len())
}

/// The order of variables in what is saved: those with the widest elements first, so that every tensor of a file is aligned,
/// then by name.
pub fn saved_order<'n>(ty: &TensorType, name: &'n str) -> (Reverse<usize>, &'n str) {
    (Reverse(ty.dtype.size_bytes()), name)
}

/// Bytes that a variable will take with its slots.
fn bytes(variable: &VariableRef, slots: Option<SlotState>) -> Result<u64> {
    Ok((variable.ty.checked_size_bytes()? as u64).saturating_mul(tensor_count(slots) as u64))
}

impl Container {
    /// Every variable that there is with its value and its slots, in [`saved_order`], all as one moment has them: what was written
    /// before something else is there where that is. Updates wait meanwhile, and it for those that are under way. It takes no copy:
    /// until the blocks are dropped, an update copies those that it changes.
    ///
    /// # Errors
    /// `aborted`: the container is over.
    pub fn save(&self) -> Result<Vec<(Saved, Vec<Blocks>)>> {
        let mut cells: Vec<_> = {
            let state = self.read();
            state.check()?;
            state.cells.iter().map(|(name, cell)| (name.to_string(), cell.clone())).collect()
        };
        // All at once, in the order of names, so that a call that holds several and this one can't wait for each other.
        cells.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let values: Vec<_> = cells.iter().map(|(_, cell)| cell.hold()).collect();
        let save = |((name, cell), value): (&(String, Arc<Cell>), &Held<'_>)| {
            let variable = VariableRef { name: name.clone(), ty: cell.ty.clone(), shard: cell.shard.clone() };
            let mut tensors = vec![value.blocks.clone()];
            let slots = value.slots.as_ref().map(|slots| {
                let (state, values) = slots.saved();
                tensors.extend_from_slice(values);
                state
            });
            (Saved { variable, version: value.version, slots }, tensors)
        };
        let mut all: Vec<_> = cells.iter().zip(&values).map(save).collect();
        drop(values);
        all.sort_by(|(Saved { variable: a, .. }, _), (Saved { variable: b, .. }, _)| {
            saved_order(&a.ty, &a.name).cmp(&saved_order(&b.ty, &b.name))
        });
        Ok(all)
    }

    /// Sets variables and what stands beside them, each atomically and by itself. Answers with the versions: 1 of one that is new,
    /// else one more than before.
    ///
    /// # Errors
    /// `invalid-argument`: another type or part than the variable has, slots beside a variable without floats, a bad name or size, a
    /// variable named twice; `aborted`: the container is over. Then nothing is set. `resource-exhausted`: `--max-variable-bytes`, in
    /// which slots count, or [`VARIABLES_MAX`](super::VARIABLES_MAX); where others have taken the room that
    /// [`check_restore`](Self::check_restore) saw, those before are set.
    pub fn restore(&self, values: Vec<Restored>) -> Result<Vec<u64>> {
        for Restored { variable, slots, tensors } in &values {
            check(variable, *slots)?;
            if tensors.len() != tensor_count(*slots) {
                let message = format!("variable `{}` comes with `{}` tensors", variable.name, tensors.len());
                return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&*variable.name]));
            }
            tensors.iter().try_for_each(|blocks| check_data(&variable.name, &variable.ty, blocks.len()))?;
        }
        refuse_twice(values.iter().map(|value| &value.variable))?;
        {
            let state = self.read();
            state.check()?;
            self.check_room_in(&state, values.iter().map(|value| &value.variable))?;
        }
        let versions = values.into_iter().map(|value| self.restore_one(value)).collect();
        self.0.changed.send_replace(());
        versions
    }

    /// Checks whether [`restore`](Self::restore) would be accepted now, before its bytes are on their way.
    ///
    /// # Errors
    /// Those of `restore`.
    pub fn check_restore(&self, variables: &[(VariableRef, Option<SlotState>)]) -> Result<()> {
        variables.iter().try_for_each(|(variable, slots)| check(variable, *slots))?;
        refuse_twice(variables.iter().map(|(variable, _)| variable))?;
        let cells: Vec<_> = {
            let state = self.read();
            state.check()?;
            self.check_room_in(&state, variables.iter().map(|(variable, _)| variable))?;
            variables.iter().map(|(variable, _)| state.cells.get(&*variable.name).cloned()).collect()
        };
        let mut more = Vec::with_capacity(cells.len());
        for (cell, (variable, slots)) in cells.iter().zip(variables) {
            // Of one that is being changed now, the room shows when it is set.
            let has = match cell {
                None => 0,
                Some(cell) => cell.try_hold().map_or(u64::MAX, |value| held_bytes(&value)),
            };
            more.push(bytes(variable, *slots)?.saturating_sub(has));
        }
        self.0.room.check(more)
    }

    fn restore_one(&self, Restored { variable, slots, tensors }: Restored) -> Result<u64> {
        let bytes = bytes(&variable, slots)?;
        let mut tensors = tensors.into_iter();
        let blocks = tensors.next().unwrap_or_default();
        let slots = slots.map(|state| Slots::restored(state, tensors.collect()));
        let existing = self.read().cells.get(&*variable.name).cloned();
        let cell = match existing {
            Some(cell) => cell,
            None => {
                let charge = self.0.room.take(std::iter::once(bytes))?.into_iter().next();
                let charge = charge.expect("one was taken");
                let mut state = self.write();
                state.check()?;
                // Somebody may have initialized it meanwhile; then the room goes back with the charge.
                match state.cells.get(&*variable.name) {
                    Some(cell) => cell.clone(),
                    None => {
                        // Others may have come since all were counted.
                        self.check_room_in(&state, [&variable])?;
                        let name = variable.name.clone().into();
                        state.cells.insert(name, Arc::new(Cell::with_slots(variable, blocks, slots, charge)));
                        return Ok(1);
                    }
                }
            }
        };
        if cell.ty != variable.ty || cell.shard != variable.shard {
            // It was checked before; this one has come in between.
            let message = format!("variable `{}` was initialized with another type meanwhile", variable.name);
            return Err(Error::new(ErrorCode::Aborted, message).with_names([&*variable.name]));
        }
        let (version, old) = {
            let mut steps = cell.hold_steps();
            let mut value = cell.hold();
            let had = held_bytes(&value);
            if bytes > had {
                self.0.room.grow(std::iter::once((&cell.charge, bytes - had)))?;
            }
            cell.end_steps(&mut steps, &variable.name);
            value.apply(UpdateKind::Assign, &cell.ty, Payload::Owned(blocks));
            let old = std::mem::replace(&mut value.slots, slots);
            if bytes < had {
                cell.charge.shrink(had - bytes);
            }
            (value.version, old)
        };
        if let Some(old) = old {
            old.discard();
        }
        Ok(version)
    }
}

fn held_bytes(value: &Held<'_>) -> u64 {
    value.blocks.len() as u64 + value.slots.as_ref().map_or(0, Slots::bytes)
}

fn check(variable: &VariableRef, slots: Option<SlotState>) -> Result<()> {
    check_variable(&variable.name, &variable.ty)?;
    if slots.is_some() && !matches!(variable.ty.dtype, DType::F32 | DType::F64) {
        return Err(no_floats(&variable.name, variable.ty.dtype));
    }
    bytes(variable, slots).map(drop)
}
