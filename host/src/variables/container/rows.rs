//! Rows: read at one moment, and changed in order.

use super::cell::Held;
use super::{Cell, Container, Payload, VariableRef};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use crate::variables::rows::{Picked, check_row_count, check_rows, row_bytes, row_cost};
use crate::variables::{BLOCK_BYTES, Spare, UpdateKind};
use bytes::Bytes;
use std::sync::Arc;

/// Rows that cost at most this, as bytes that are copied, are copied while the variable is held, in about a millisecond. More are
/// copied later, out of the blocks as they were, which whoever changes them meanwhile has to copy.
const HELD_COST_MAX: usize = 4 << 20;

/// As [`HELD_COST_MAX`], for callers that must not block.
const AT_ONCE_COST_MAX: usize = 1 << 20;

/// Rows of a variable as one moment saw them. Later writes don't change them.
#[derive(Clone, Debug)]
pub struct Gathered {
    ty: TensorType,
    version: u64,
    from: From,
}

#[derive(Clone, Debug)]
enum From {
    Copied(Bytes),
    Blocks(Picked),
}

impl Gathered {
    /// Element type and extents: `[rows, ...]`.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The variable's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rows in pieces of at most `bytes_max` bytes; where they are many, each is made when it is taken. `bytes_max` must be a
    /// multiple of every element size, and not 0.
    pub fn into_pieces(self, bytes_max: usize) -> Box<dyn Iterator<Item = Bytes> + Send> {
        match self.from {
            From::Blocks(picked) => Box::new(picked.into_pieces(bytes_max)),
            From::Copied(data) => Box::new(
                (0..data.len())
                    .step_by(bytes_max)
                    .map(move |start| data.slice(start..data.len().min(start.saturating_add(bytes_max)))),
            ),
        }
    }

    /// All rows in one piece, with memory of `spare`.
    pub fn contiguous_in(self, spare: &Spare) -> Bytes {
        match self.from {
            From::Copied(data) => data,
            From::Blocks(picked) => picked.contiguous_in(spare),
        }
    }
}

/// What came of [`Container::try_scatter`].
#[derive(Debug)]
pub enum TryScatter<'a> {
    /// It is applied, and made this version.
    Applied(u64),
    /// Nothing is applied, and here it is again: it would take long, or another change is under way.
    Later(Payload<'a>),
}

impl Container {
    /// Reads rows of a variable of type `[n, ...]`, in the order asked for, all as one moment has them.
    ///
    /// # Errors
    /// `invalid-argument`: a scalar, more rows than [`ROWS_MAX`](crate::variables::ROWS_MAX), another type; `out-of-range` naming the
    /// first row beyond n and its place; `uninitialized`; `aborted`: the container is over.
    pub fn gather(&self, variable: &VariableRef, rows: Vec<u64>, spare: &Spare) -> Result<Gathered> {
        let (ty, row_bytes) = answer_type(variable, &rows)?;
        let cell = self.cell(variable)?;
        Ok(gather_under(&cell.hold(), ty, rows, row_bytes, spare))
    }

    /// As [`gather`](Self::gather), but gives the rows back where it would take long or have to wait for a change: for callers that
    /// must not block.
    ///
    /// # Errors
    /// Those of `gather`.
    pub fn try_gather(
        &self,
        variable: &VariableRef,
        rows: Vec<u64>,
        spare: &Spare,
    ) -> Result<std::result::Result<Gathered, Vec<u64>>> {
        let (ty, row_bytes) = answer_type(variable, &rows)?;
        let cell = self.cell(variable)?;
        let cost = row_cost(rows.len(), row_bytes);
        if cost > AT_ONCE_COST_MAX && cost <= HELD_COST_MAX {
            return Ok(Err(rows));
        }
        Ok(match cell.try_hold() {
            Some(value) => Ok(gather_under(&value, ty, rows, row_bytes, spare)),
            None => Err(rows),
        })
    }

    /// Checks whether [`scatter`](Self::scatter) would be accepted now, before its bytes are on their way.
    ///
    /// # Errors
    /// Those of `scatter`.
    pub fn check_scatter(&self, variable: &VariableRef, rows: &[u64]) -> Result<()> {
        check_row_count(&variable.name, rows.len())?;
        check_rows(&variable.name, &variable.ty, rows)?;
        self.cell(variable).map(drop)
    }

    /// Changes rows of a variable of type `[n, ...]` by `value`, `[rows, ...]`; answers with the version. One that is named twice
    /// changes twice, in order. The change is atomic, and nothing of it is applied where a row isn't there.
    ///
    /// Without rows there is no change, and the version stays as it is.
    ///
    /// # Errors
    /// `invalid-argument`: a scalar, more rows than [`ROWS_MAX`](crate::variables::ROWS_MAX), another type, a value of the wrong
    /// size; `out-of-range` naming the first row beyond n and its place; `uninitialized`; `aborted`: the container is over.
    pub fn scatter(&self, variable: &VariableRef, rows: &[u64], kind: UpdateKind, value: Payload<'_>) -> Result<u64> {
        let row_bytes = check_value(variable, rows, &value)?;
        let cell = self.cell(variable)?;
        let mut held = cell.hold();
        scatter_under(&mut held, &cell, rows, row_bytes, kind, value);
        Ok(held.version)
    }

    /// As [`scatter`](Self::scatter), but hands the value back, nothing of it applied, where it would take long or have to wait for
    /// another change: for callers that must not block.
    ///
    /// # Errors
    /// Those of `scatter`.
    pub fn try_scatter<'v>(
        &self,
        variable: &VariableRef,
        rows: &[u64],
        kind: UpdateKind,
        value: Payload<'v>,
    ) -> Result<TryScatter<'v>> {
        let row_bytes = check_value(variable, rows, &value)?;
        let cell = self.cell(variable)?;
        if row_cost(rows.len(), row_bytes) > AT_ONCE_COST_MAX {
            return Ok(TryScatter::Later(value));
        }
        let Some(mut held) = cell.try_hold() else { return Ok(TryScatter::Later(value)) };
        // A few rows may lie in many blocks, each to be copied where somebody reads it.
        let copied = rows.iter().filter(|&&row| held.blocks.is_shared(row as usize * row_bytes)).count();
        if copied * BLOCK_BYTES.min(held.blocks.len()) > AT_ONCE_COST_MAX {
            return Ok(TryScatter::Later(value));
        }
        scatter_under(&mut held, &cell, rows, row_bytes, kind, value);
        Ok(TryScatter::Applied(held.version))
    }

    fn cell(&self, variable: &VariableRef) -> Result<Arc<Cell>> {
        let mut cells = self.cells([variable])?;
        cells.pop().ok_or_else(|| Error::new(ErrorCode::Internal, "a variable was asked for and none was found"))
    }
}

/// The answer's type, and the size of a row.
fn answer_type(variable: &VariableRef, rows: &[u64]) -> Result<(TensorType, usize)> {
    check_row_count(&variable.name, rows.len())?;
    check_rows(&variable.name, &variable.ty, rows)?;
    let ty = variable.ty.with_rows(rows.len() as u64);
    ty.checked_size_bytes()?;
    Ok((ty, row_bytes(&variable.ty)?))
}

/// Checks rows and value; answers with the size of a row.
fn check_value(variable: &VariableRef, rows: &[u64], value: &Payload<'_>) -> Result<usize> {
    let (ty, row_bytes) = answer_type(variable, rows)?;
    super::check_data(&variable.name, &ty, value.len())?;
    Ok(row_bytes)
}

fn gather_under(value: &Held<'_>, ty: TensorType, rows: Vec<u64>, row_bytes: usize, spare: &Spare) -> Gathered {
    let from = if row_cost(rows.len(), row_bytes) <= HELD_COST_MAX {
        From::Copied(value.blocks.rows_in(&rows, row_bytes, spare))
    } else {
        From::Blocks(Picked { blocks: value.blocks.clone(), rows, row_bytes })
    };
    Gathered { ty, version: value.version, from }
}

fn scatter_under(
    held: &mut Held<'_>,
    cell: &Cell,
    rows: &[u64],
    row_bytes: usize,
    kind: UpdateKind,
    value: Payload<'_>,
) {
    if !rows.is_empty() {
        held.blocks.apply_rows(kind, cell.ty.dtype, rows, row_bytes, value);
        held.version += 1;
    }
}
