//! Element types.

use std::fmt;

/// Element type of a tensor or variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `i32`; sums wrap around.
    S32,
    /// `i64`; sums wrap around.
    S64,
    /// `u8`; sums wrap around.
    U8,
}

impl DType {
    /// Size of one element, in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F32 | DType::S32 => 4,
            DType::F64 | DType::S64 => 8,
            DType::U8 => 1,
        }
    }

    /// The name as it prints: `f32`, `s64`, ...
    pub const fn as_str(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::S32 => "s32",
            DType::S64 => "s64",
            DType::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A number on its way from one element type to another, without loss so far.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Float(f64),
    Int(i64),
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tensors and variables may hold: `f32`, `f64`, `i32`, `i64` or `u8`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an element of a tensor",
    label = "not an element of a tensor",
    note = "elements are `f32`, `f64`, `i32`, `i64` and `u8`"
)]
pub trait Element:
    sealed::Sealed + bytemuck::Pod + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The element type's name in the cluster.
    const DTYPE: DType;

    #[doc(hidden)]
    fn to_number(self) -> Number;
    #[doc(hidden)]
    fn from_number(number: Number) -> Self;
    #[doc(hidden)]
    fn sum(self, other: Self) -> Self;
    #[doc(hidden)]
    fn difference(self, other: Self) -> Self;
    // A NaN on either side of these two gives a NaN, as on a host, so that a broken value is never hidden.
    #[doc(hidden)]
    fn smaller(self, other: Self) -> Self;
    #[doc(hidden)]
    fn greater(self, other: Self) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $number:ident as $wide:ty, $sum:expr, $difference:expr, $is_nan:expr) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            fn to_number(self) -> Number {
                Number::$number(<$wide>::from(self))
            }

            fn from_number(number: Number) -> Self {
                match number {
                    Number::Float(float) => float as $type,
                    Number::Int(int) => int as $type,
                }
            }

            fn sum(self, other: Self) -> Self {
                let sum: fn($type, $type) -> $type = $sum;
                sum(self, other)
            }

            fn difference(self, other: Self) -> Self {
                let difference: fn($type, $type) -> $type = $difference;
                difference(self, other)
            }

            fn smaller(self, other: Self) -> Self {
                let is_nan: fn($type) -> bool = $is_nan;
                if other < self || is_nan(other) { other } else { self }
            }

            fn greater(self, other: Self) -> Self {
                let is_nan: fn($type) -> bool = $is_nan;
                if other > self || is_nan(other) { other } else { self }
            }
        }
    };
}

element!(f32, F32, Float as f64, |a, b| a + b, |a, b| a - b, |a| a.is_nan());
element!(f64, F64, Float as f64, |a, b| a + b, |a, b| a - b, |a| a.is_nan());
element!(i32, S32, Int as i64, i32::wrapping_add, i32::wrapping_sub, |_| false);
element!(i64, S64, Int as i64, i64::wrapping_add, i64::wrapping_sub, |_| false);
element!(u8, U8, Int as i64, u8::wrapping_add, u8::wrapping_sub, |_| false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_hidden_by_the_smaller_and_the_greater() {
        for (old, new) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(old.smaller(new).is_nan() && old.greater(new).is_nan());
            assert!(f64::from(old).smaller(f64::from(new)).is_nan() && f64::from(old).greater(f64::from(new)).is_nan());
        }
        assert_eq!((2.0_f32.smaller(1.0), 2.0_f32.greater(1.0), 3_u8.smaller(4), 3_i64.greater(4)), (1.0, 2.0, 3, 4));
    }
}
