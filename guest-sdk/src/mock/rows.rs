//! Rows, as a host reads and changes them.

use super::{Context, Variable};
use crate::raw::{RawRowChange, RawValue};
use crate::{DType, Error, ErrorCode, Result};

/// Most rows of one call.
const ROWS_MAX: usize = 1 << 20;

impl Context {
    pub(crate) fn gather(&self, variable: &Variable, rows: &[u64]) -> Result<RawValue> {
        self.shared.ready(self.who)?.store.gather(variable, rows)
    }

    pub(crate) fn scatter(&self, change: RawRowChange<'_>) -> Result<()> {
        self.check_writable(std::iter::once(change.variable))?;
        let mut state = self.shared.ready(self.who)?;
        state.store.scatter(&change)?;
        state.reads.written(&self.reader(), std::iter::once(&change.variable.key));
        self.shared.changed.notify_all();
        Ok(())
    }
}

impl Variable {
    pub(super) fn row_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.size_bytes()
    }
}

/// Refuses rows that a variable hasn't.
pub(super) fn check_rows(name: &str, dtype: DType, shape: &[usize], rows: &[u64]) -> Result<()> {
    let Some(&extent) = shape.first() else {
        return Err(Error::invalid(format!("variable `{name}` is a scalar and has no rows")));
    };
    if rows.len() > ROWS_MAX {
        return Err(Error::invalid(format!(
            "{} rows of variable `{name}` in one call, at most {ROWS_MAX} are allowed: split the call",
            rows.len()
        )));
    }
    match rows.iter().position(|&row| row >= extent as u64) {
        None => Ok(()),
        Some(at) => Err(Error::new(
            ErrorCode::OutOfRange,
            format!(
                "row {} (number {at} of those asked for) of variable `{name}` is out of range: {dtype}{shape:?} has {extent} rows",
                rows[at]
            ),
        )),
    }
}

pub(super) fn pick_rows(data: &[u8], row_bytes: usize, rows: &[u64]) -> Vec<u8> {
    rows.iter().flat_map(|&row| &data[row as usize * row_bytes..][..row_bytes]).copied().collect()
}

/// Changes each row by the next one of `value`.
pub(super) fn change_rows(
    data: &mut [u8],
    row_bytes: usize,
    rows: &[u64],
    value: &[u8],
    change: impl Fn(&mut [u8], &[u8]),
) {
    for (at, &row) in rows.iter().enumerate() {
        change(&mut data[row as usize * row_bytes..][..row_bytes], &value[at * row_bytes..][..row_bytes]);
    }
}
