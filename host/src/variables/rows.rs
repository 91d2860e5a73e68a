//! Rows of a variable: slices along axis 0.

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;

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
