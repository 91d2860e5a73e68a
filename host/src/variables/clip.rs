//! Clipping of gradients by their global norm.

use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{DType, TensorView};

/// The factor that brings the gradients of one call down to a common norm of at most `norm_max`; 1 where they are below it.
///
/// The norm is the square root of the sum of all squares, of all gradients together, computed in double precision.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`): `norm_max` is no number above 0; an element isn't finite, naming the variable:
/// there is no factor that would mend it, and to clip it to 0 would hide it; a gradient without floats.
///
/// # Source
/// `tf.clip_by_global_norm`, which answers with gradients that are all NaN where one isn't finite.
pub fn clip_scale<'a>(
    gradients: impl IntoIterator<Item = (&'a str, &'a TensorView<'a>)>,
    norm_max: f64,
) -> Result<f64> {
    if !(norm_max > 0.0 && norm_max.is_finite()) {
        let message = format!("clip-norm is `{norm_max}`, it is a finite number above 0");
        return Err(Error::new(ErrorCode::InvalidArgument, message).with_names(["clip-norm"]));
    }
    let mut squares = 0.0;
    for (name, TensorView { ty, data }) in gradients {
        let sum = match ty.dtype {
            DType::F32 => squares32(data),
            DType::F64 => squares64(data),
            DType::S32 | DType::S64 | DType::U8 => return Err(no_floats(name, ty.dtype)),
        };
        if !sum.is_finite() {
            let message = format!(
                "gradient of variable `{name}` has elements that are infinite or no numbers, or too large to square: it can't \
                 be clipped; look for the cause before the step, or skip the step"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
        }
        squares += sum;
    }
    let norm = f64::sqrt(squares);
    if !norm.is_finite() {
        let message = "gradients are too large for the sum of their squares: they can't be clipped";
        return Err(Error::new(ErrorCode::InvalidArgument, message));
    }
    Ok(if norm > norm_max { norm_max / norm } else { 1.0 })
}

/// The error of a variable whose elements a gradient can't change.
pub fn no_floats(name: &str, dtype: DType) -> Error {
    let message = format!("variable `{name}` has elements of {dtype}: gradients are applied to f32 and f64 only");
    Error::new(ErrorCode::InvalidArgument, message).with_names([name])
}

/// Sums of this many elements run side by side, so that one addition doesn't wait for the last.
const LANES: usize = 8;

fn squares32(data: &[u8]) -> f64 {
    squares::<4>(data, |bytes| f64::from(f32::from_le_bytes(bytes)))
}

fn squares64(data: &[u8]) -> f64 {
    squares::<8>(data, f64::from_le_bytes)
}

#[inline(always)]
fn squares<const N: usize>(data: &[u8], of: impl Fn([u8; N]) -> f64) -> f64 {
    let (elements, _) = data.as_chunks::<N>();
    let (groups, rest) = elements.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for group in groups {
        for (sum, element) in sums.iter_mut().zip(group) {
            let value = of(*element);
            *sum += value * value;
        }
    }
    let rest = rest.iter().map(|element| of(*element) * of(*element));
    sums.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorType;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn scale(gradients: &[&[f32]], norm_max: f64) -> Result<f64> {
        let data: Vec<_> = gradients.iter().map(|values| bytes(values)).collect();
        let views: Vec<_> = data
            .iter()
            .map(|data| TensorView { ty: TensorType::new(DType::F32, [data.len() as u64 / 4]), data })
            .collect();
        clip_scale(views.iter().enumerate().map(|(index, view)| (["a", "b", "c"][index], view)), norm_max)
    }

    #[test]
    fn gradients_above_the_norm_are_scaled_down_together() {
        assert_eq!(scale(&[&[3.0], &[0.0, 4.0]], 10.0), Ok(1.0));
        assert_eq!(scale(&[&[3.0], &[0.0, 4.0]], 5.0), Ok(1.0));
        assert_eq!(scale(&[&[3.0], &[0.0, 4.0]], 1.0), Ok(0.2));
        assert_eq!(scale(&[&[1.0; 100]], 5.0), Ok(0.5), "whole groups and a rest");
        assert_eq!(scale(&[], 1.0), Ok(1.0));
    }

    #[test]
    fn what_is_not_finite_is_refused_with_its_name() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = scale(&[&[1.0], &[0.0, bad]], 1.0).expect_err("refused");
            assert_eq!((error.code, &*error.names[0]), (ErrorCode::InvalidArgument, "b"), "{error}");
        }
        for norm_max in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(scale(&[&[1.0]], norm_max).expect_err("refused").names, ["clip-norm"]);
        }
        let whole = TensorView { ty: TensorType::new(DType::S32, [1]), data: &[0; 4] };
        let error = clip_scale([("n", &whole)], 1.0).expect_err("refused");
        assert!(error.message.contains("f32 and f64 only"), "{error}");
    }
}
