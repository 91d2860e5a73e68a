//! Rows on their way to the host.

use super::bindings::dchost::worker::{types, variables};
use super::{Context, Variable, raw_value, update_kind};
use crate::Result;
use crate::raw::{RawRowChange, RawValue};

impl Context {
    pub(crate) fn gather(&self, variable: &Variable, rows: &[u64]) -> Result<RawValue> {
        raw_value(variables::gather(&variable.handle, rows)?)
    }

    pub(crate) fn scatter(&self, change: RawRowChange<'_>) -> Result<()> {
        let RawRowChange { variable, kind, rows, data } = change;
        let mut shape = variable.shape.clone();
        if let Some(extent) = shape.first_mut() {
            *extent = rows.len() as u64;
        }
        let value = types::TensorParam { dtype: variable.dtype, shape: &shape, data };
        Ok(variables::scatter(&variable.handle, rows, update_kind(kind), value)?)
    }
}
