//! What is wrong with the arguments of a call, before anything is sent.

use super::maps::Map;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{ApplyOptions, Gradient, GradientOptions, RowChange, Variable};
use crate::tensor::{DType, TensorView, check_data};
use crate::variables::{check_rows as rows_in_range, check_variable, clip_scale, no_floats};
use std::collections::HashSet;

/// Checks gradients before any is sent, and finds out by how much they are scaled.
pub(super) fn check_gradients(
    gradients: &[Gradient<'_, Variable>],
    options: GradientOptions,
    map: impl Fn(&Variable) -> Result<Map>,
) -> Result<ApplyOptions> {
    let GradientOptions { optimizer, clip_norm, sync, write } = options;
    optimizer.check()?;
    let mut seen = HashSet::new();
    for Gradient { variable, value } in gradients {
        check_value(variable, value)?;
        if !matches!(variable.ty.dtype, DType::F32 | DType::F64) {
            return Err(no_floats(&variable.name, variable.ty.dtype));
        }
        // Of one name on two tasks there are two variables.
        if !seen.insert((map(variable)?, &*variable.name)) {
            let message = format!("variable `{}` has two gradients in one call; add them up", variable.name);
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&*variable.name]));
        }
    }
    let scale = match clip_norm {
        Some(norm_max) => {
            let gradients = gradients.iter().map(|gradient| (&*gradient.variable.name, &gradient.value));
            clip_scale(gradients, norm_max)?
        }
        None => 1.0,
    };
    Ok(ApplyOptions { optimizer, scale, sync, write })
}

/// Checks rows against the declared type, before anything is sent.
pub(super) fn check_rows(variable: &Variable, rows: &[u64]) -> Result<()> {
    check_variable(&variable.name, &variable.ty)?;
    rows_in_range(&variable.name, &variable.ty, rows)
}

/// A value must have its variable's type, not only its size.
pub(super) fn check_value(variable: &Variable, value: &TensorView<'_>) -> Result<()> {
    let name = &*variable.name;
    check_variable(name, &variable.ty)?;
    if value.ty != variable.ty {
        let message = format!("variable `{name}` is declared as `{}`, but the value is `{}`", variable.ty, value.ty);
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
    }
    check_data(name, &value.ty, value.data.len())
}

/// Checks rows and their values.
pub(super) fn check_row_change(change: &RowChange<'_, Variable>) -> Result<()> {
    let RowChange { variable, rows, value, .. } = change;
    check_rows(variable, rows)?;
    let ty = variable.ty.with_rows(rows.len() as u64);
    if value.ty != ty {
        let name = &*variable.name;
        let message = format!("`{}` rows of variable `{name}` are `{ty}`, but the value is `{}`", rows.len(), value.ty);
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
    }
    check_data(&variable.name, &value.ty, value.data.len())
}
