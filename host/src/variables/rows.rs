//! Rows of a variable: slices along axis 0, read and changed where they lie among its blocks.

use super::{BLOCK_BYTES, Blocks, Payload, Spare, UpdateKind};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{DType, TensorType};
use bytes::Bytes;

/// Most rows of one call: 8 MiB of indices, in memory and on the wire.
pub const ROWS_MAX: usize = 1 << 20;

/// What touching a row costs at least, as bytes that are copied in order: the memory that it lies in was seldom just used.
const ROW_COST_BYTES_MIN: usize = 256;

/// Most rows of one piece, so that making it is short however small they are.
const PIECE_ROWS_MAX: usize = 4096;

/// Checks the number of rows of a call.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`): more than [`ROWS_MAX`].
pub fn check_row_count(name: &str, rows: usize) -> Result<()> {
    if rows <= ROWS_MAX {
        return Ok(());
    }
    let message =
        format!("`{rows}` rows of variable `{name}` in one call, at most `{ROWS_MAX}` are allowed: split the call");
    Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
}

/// Checks that a variable has these rows.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`): a scalar, which has none; `out-of-range` (gRPC `OUT_OF_RANGE`): the first row
/// that isn't below the extent of axis 0, with its place among those asked for.
pub fn check_rows(name: &str, ty: &TensorType, rows: &[u64]) -> Result<()> {
    let Some(&extent) = ty.shape.first() else {
        let message = format!("variable `{name}` is a scalar, `{ty}`, and has no rows");
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
    };
    match rows.iter().position(|&row| row >= extent) {
        None => Ok(()),
        Some(at) => {
            let row = rows[at];
            let message = format!(
                "row `{row}` (number `{at}` of those asked for) of variable `{name}` is out of range: `{ty}` has `{extent}` rows"
            );
            Err(Error::new(ErrorCode::OutOfRange, message).with_names([name]))
        }
    }
}

/// The size of a row, in bytes.
///
/// # Errors
/// `invalid-argument`: it can't be served.
pub fn row_bytes(ty: &TensorType) -> Result<usize> {
    ty.with_rows(1).checked_size_bytes()
}

/// How long touching rows takes, as bytes that are copied in order.
pub(crate) fn row_cost(rows: usize, row_bytes: usize) -> usize {
    rows.saturating_mul(row_bytes.max(ROW_COST_BYTES_MIN))
}

/// Rows out of a value that nobody changes any more, in the order asked for.
#[derive(Clone, Debug)]
pub(crate) struct Picked {
    pub(crate) blocks: Blocks,
    pub(crate) rows: Vec<u64>,
    pub(crate) row_bytes: usize,
}

impl Picked {
    /// The size of all rows, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * self.row_bytes
    }

    /// Copies at most `bytes_max` bytes from byte `offset` on, fewer where the rows are many; none at the end.
    pub(crate) fn piece(&self, offset: usize, bytes_max: usize) -> Vec<u8> {
        let rows_max = PIECE_ROWS_MAX.saturating_mul(self.row_bytes);
        let bytes = (self.len() - offset.min(self.len())).min(bytes_max).min(rows_max);
        let mut piece = Vec::with_capacity(bytes);
        let mut at = offset;
        while piece.len() < bytes {
            let (row, within) = (at / self.row_bytes, at % self.row_bytes);
            let part = (self.row_bytes - within).min(bytes - piece.len());
            self.blocks.copy(self.rows[row] as usize * self.row_bytes + within, part, &mut piece);
            at += part;
        }
        piece
    }

    /// Gives the rows in pieces of at most `bytes_max` bytes, each copied when it is taken. `bytes_max` must be a multiple of every
    /// element size, and not 0.
    pub(crate) fn into_pieces(self, bytes_max: usize) -> impl Iterator<Item = Bytes> + Send {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let piece = self.piece(offset, bytes_max);
            offset += piece.len();
            Some(Bytes::from(piece)).filter(|piece| !piece.is_empty())
        })
    }

    /// All rows in one buffer of `spare`.
    pub(crate) fn contiguous_in(&self, spare: &Spare) -> Bytes {
        self.blocks.rows_in(&self.rows, self.row_bytes, spare)
    }
}

impl Blocks {
    /// Copies rows into one buffer of `spare`, in the order asked for.
    pub(crate) fn rows_in(&self, rows: &[u64], row_bytes: usize, spare: &Spare) -> Bytes {
        if row_bytes == 0 || rows.is_empty() {
            return Bytes::new();
        }
        let mut all = spare.take(rows.len() * row_bytes);
        rows.iter().for_each(|&row| self.copy(row as usize * row_bytes, row_bytes, &mut all));
        spare.lend(all)
    }

    /// Changes rows in order, by as many rows of `value`; copies those blocks that a reader still holds.
    pub(crate) fn apply_rows(
        &mut self,
        kind: UpdateKind,
        dtype: DType,
        rows: &[u64],
        row_bytes: usize,
        value: Payload<'_>,
    ) {
        let mut at = 0;
        let mut apply = |mut piece: &[u8]| {
            // A piece may begin and end within a row, but never within an element.
            while !piece.is_empty() {
                let (row, within) = (at / row_bytes, at % row_bytes);
                let (head, tail) = piece.split_at(piece.len().min(row_bytes - within));
                self.apply_at(kind, dtype, rows[row] as usize * row_bytes + within, head);
                at += head.len();
                piece = tail;
            }
        };
        match value {
            Payload::Borrowed(data) => apply(data),
            Payload::Owned(blocks) => blocks.into_pieces(BLOCK_BYTES).for_each(|piece| apply(&piece)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn rows_are_below_the_extent() {
        let ty = TensorType::new(DType::F32, [3, 2]);
        assert_eq!(check_rows("e", &ty, &[0, 2, 2]), Ok(()));
        assert_eq!(check_rows("e", &ty, &[]), Ok(()));
        let error = check_rows("e", &ty, &[0, 3, u64::MAX]).expect_err("refused");
        assert_eq!(
            (error.code, &*error.message),
            (
                ErrorCode::OutOfRange,
                "row `3` (number `1` of those asked for) of variable `e` is out of range: `f32[3, 2]` has `3` rows"
            )
        );
        let scalar = TensorType::new(DType::F32, []);
        assert_eq!(check_rows("s", &scalar, &[]).expect_err("refused").code, ErrorCode::InvalidArgument);
    }
}
