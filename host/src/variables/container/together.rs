//! Changes of several variables that are applied together or not at all.

use super::cell::Held;
use super::{Cell, Container, Snapshot, Update, check_data, refuse_twice};
use crate::error::{Error, ErrorCode, Result};
use std::sync::Arc;

/// What came of [`Container::try_push`].
#[derive(Debug)]
pub enum TryPush<'a> {
    /// All is applied.
    Applied(Vec<Snapshot>),
    /// Nothing is applied, and here it is again: another change is under way.
    Busy(Vec<Update<'a>>),
}

impl Container {
    /// As [`push`](Container::push), but hands the changes back, none of them applied, where it would have to wait for another
    /// one: for callers that must not block.
    ///
    /// # Errors
    /// Those of `push`.
    pub fn try_push<'u>(&self, updates: Vec<Update<'u>>, want_values: bool) -> Result<TryPush<'u>> {
        for update in &updates {
            check_data(&update.variable.name, &update.variable.ty, update.value.len())?;
        }
        let cells = self.cells(updates.iter().map(|update| &update.variable))?;
        if updates.iter().any(|update| update.base.is_some()) {
            refuse_twice(updates.iter().map(|update| &update.variable))?;
        }
        let mut values = Vec::with_capacity(cells.len());
        for cell in &cells {
            match cell.try_hold() {
                Some(value) => values.push(value),
                // Somebody applies a change, or this very call changes the variable twice.
                None => return Ok(TryPush::Busy(updates)),
            }
        }
        apply_together(&cells, values, updates, want_values).map(TryPush::Applied)
    }
}

/// Applies under all locks at once, taken in the order of names so that two such calls can't wait for each other.
pub(super) fn push_together(cells: &[Arc<Cell>], updates: Vec<Update<'_>>, want_values: bool) -> Result<Vec<Snapshot>> {
    refuse_twice(updates.iter().map(|update| &update.variable))?;
    let mut order: Vec<_> = (0..updates.len()).collect();
    order.sort_by(|&a, &b| updates[a].variable.name.cmp(&updates[b].variable.name));
    let mut values: Vec<Option<Held<'_>>> = (0..updates.len()).map(|_| None).collect();
    for index in order {
        values[index] = Some(cells[index].hold());
    }
    apply_together(cells, values.into_iter().flatten().collect(), updates, want_values)
}

/// Applies all or, where a base version is not the present one, none.
fn apply_together(
    cells: &[Arc<Cell>],
    mut values: Vec<Held<'_>>,
    updates: Vec<Update<'_>>,
    want_values: bool,
) -> Result<Vec<Snapshot>> {
    for (value, update) in values.iter().zip(&updates) {
        if let Some(base) = update.base.filter(|&base| base != value.version) {
            let (name, version) = (&*update.variable.name, value.version);
            let message = format!(
                "variable `{name}` has version `{version}`, but the update is based on version `{base}`; read it again"
            );
            return Err(Error::new(ErrorCode::Aborted, message).with_names([name]));
        }
    }
    let apply = |((cell, value), update): ((&Arc<Cell>, &mut Held<'_>), Update<'_>)| {
        value.apply(update.kind, &cell.ty, update.value);
        cell.snapshot(value, want_values)
    };
    Ok(cells.iter().zip(&mut values).zip(updates).map(apply).collect())
}
