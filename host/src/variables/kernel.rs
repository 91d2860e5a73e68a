//! Element-wise updates of little-endian bytes, of any alignment.
//!
//! The loops convert whole elements with `from_le_bytes`, which compiles to plain vector loads and stores.

use super::UpdateKind;
use crate::tensor::DType;

/// Applies `value` to `target`, element by element; both hold the same number of whole elements of `dtype`.
///
/// Integers wrap around. For floats, a NaN on either side of `min` and `max` gives a NaN, as in NumPy, so that a broken
/// value is never hidden.
pub(crate) fn apply(kind: UpdateKind, dtype: DType, target: &mut [u8], value: &[u8]) {
    debug_assert_eq!(target.len(), value.len());
    match (kind, dtype) {
        (UpdateKind::Assign, _) => target.copy_from_slice(value),
        (_, DType::F32) => float32(kind, target, value),
        (_, DType::F64) => float64(kind, target, value),
        (_, DType::S32) => signed32(kind, target, value),
        (_, DType::S64) => signed64(kind, target, value),
        (_, DType::U8) => unsigned8(kind, target, value),
    }
}

/// Runs `f` over the elements of both sides.
#[inline(always)]
fn zip<const N: usize>(target: &mut [u8], value: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (target, _) = target.as_chunks_mut::<N>();
    let (value, _) = value.as_chunks::<N>();
    for (old, new) in target.iter_mut().zip(value) {
        *old = f(*old, *new);
    }
}

macro_rules! floats {
    ($name:ident, $element:ty) => {
        fn $name(kind: UpdateKind, target: &mut [u8], value: &[u8]) {
            let of = <$element>::from_le_bytes;
            match kind {
                UpdateKind::Assign => target.copy_from_slice(value),
                UpdateKind::Add => zip(target, value, |a, b| (of(a) + of(b)).to_le_bytes()),
                UpdateKind::Sub => zip(target, value, |a, b| (of(a) - of(b)).to_le_bytes()),
                UpdateKind::Min => zip(target, value, |a, b| if of(b) < of(a) || of(b).is_nan() { b } else { a }),
                UpdateKind::Max => zip(target, value, |a, b| if of(b) > of(a) || of(b).is_nan() { b } else { a }),
            }
        }
    };
}

macro_rules! integers {
    ($name:ident, $element:ty) => {
        fn $name(kind: UpdateKind, target: &mut [u8], value: &[u8]) {
            let of = <$element>::from_le_bytes;
            match kind {
                UpdateKind::Assign => target.copy_from_slice(value),
                UpdateKind::Add => zip(target, value, |a, b| of(a).wrapping_add(of(b)).to_le_bytes()),
                UpdateKind::Sub => zip(target, value, |a, b| of(a).wrapping_sub(of(b)).to_le_bytes()),
                UpdateKind::Min => zip(target, value, |a, b| of(a).min(of(b)).to_le_bytes()),
                UpdateKind::Max => zip(target, value, |a, b| of(a).max(of(b)).to_le_bytes()),
            }
        }
    };
}

floats!(float32, f32);
floats!(float64, f64);
integers!(signed32, i32);
integers!(signed64, i64);
integers!(unsigned8, u8);

#[cfg(test)]
mod tests {
    use super::*;
    use UpdateKind::{Add, Assign, Max, Min, Sub};

    /// Applies on bytes that start at an odd address.
    fn run(kind: UpdateKind, dtype: DType, old: &[u8], new: &[u8]) -> Vec<u8> {
        let mut target = [&[0_u8][..], old].concat();
        let value = [&[0_u8][..], new].concat();
        apply(kind, dtype, &mut target[1..], &value[1..]);
        target[1..].to_vec()
    }

    macro_rules! check {
        ($dtype:expr, $element:ty, $kind:expr, $old:expr, $new:expr, $expected:expr) => {{
            let bytes = |values: &[$element]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
            assert_eq!(run($kind, $dtype, &bytes(&$old), &bytes(&$new)), bytes(&$expected), "{:?} {}", $kind, $dtype);
        }};
    }

    #[test]
    fn every_kind_works_on_every_dtype() {
        for dtype in DType::ALL {
            for (kind, expected) in [(Assign, [5_i8, 2]), (Add, [8, 9]), (Sub, [-2, 5]), (Min, [3, 2]), (Max, [5, 7])] {
                match dtype {
                    DType::F32 => check!(dtype, f32, kind, [3.0, 7.0], [5.0, 2.0], expected.map(f32::from)),
                    DType::F64 => check!(dtype, f64, kind, [3.0, 7.0], [5.0, 2.0], expected.map(f64::from)),
                    DType::S32 => check!(dtype, i32, kind, [3, 7], [5, 2], expected.map(i32::from)),
                    DType::S64 => check!(dtype, i64, kind, [3, 7], [5, 2], expected.map(i64::from)),
                    DType::U8 => check!(dtype, u8, kind, [3, 7], [5, 2], expected.map(|v| v as u8)),
                }
            }
        }
    }

    #[test]
    fn integers_wrap_around() {
        check!(DType::S32, i32, Add, [i32::MAX], [1], [i32::MIN]);
        check!(DType::S32, i32, Sub, [i32::MIN], [1], [i32::MAX]);
        check!(DType::S64, i64, Add, [i64::MAX], [1], [i64::MIN]);
        check!(DType::S64, i64, Sub, [i64::MIN], [1], [i64::MAX]);
        check!(DType::U8, u8, Add, [255], [2], [1]);
        check!(DType::U8, u8, Sub, [0], [1], [255]);
        check!(DType::S32, i32, Min, [-1], [1], [-1]);
        check!(DType::U8, u8, Max, [200], [100], [200]);
    }

    #[test]
    fn nan_is_never_hidden_by_min_and_max() {
        for kind in [Min, Max] {
            check!(DType::F32, f32, kind, [f32::NAN, 1.0], [1.0, f32::NAN], [f32::NAN, f32::NAN]);
            check!(DType::F64, f64, kind, [f64::NAN, 1.0], [1.0, f64::NAN], [f64::NAN, f64::NAN]);
        }
    }
}
