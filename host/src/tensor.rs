//! Tensors: element type, extents and bytes.

use crate::error::{Error, ErrorCode, Result};
use bytes::Bytes;
use std::fmt;

/// Element type of a tensor that dchost serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Signed 32-bit integer; sums wrap around.
    S32,
    /// Signed 64-bit integer; sums wrap around.
    S64,
    /// Unsigned 8-bit integer; sums wrap around.
    U8,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 5] = [DType::F32, DType::F64, DType::S32, DType::S64, DType::U8];

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

/// Element type and extents of a tensor; rank 0 is a scalar. Prints as `f32[3, 4]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first (row-major).
    pub shape: Vec<u64>,
}

impl TensorType {
    /// Makes a tensor type.
    pub fn new(dtype: DType, shape: impl Into<Vec<u64>>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// Size of a whole tensor, in bytes; none where it overflows the address space.
    pub fn size_bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))?;
        usize::try_from(elements)
            .ok()?
            .checked_mul(self.dtype.size_bytes())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
    }
}

impl TensorType {
    /// Greatest rank of a tensor: what TensorFlow's own limit (254) is to programs, with headers that stay small.
    pub const RANK_MAX: usize = 32;

    /// Size of a whole tensor, in bytes, after checking that the type can be served at all.
    ///
    /// # Errors
    /// `invalid-argument` (gRPC `INVALID_ARGUMENT`): the rank is above [`RANK_MAX`](Self::RANK_MAX), or the size overflows
    /// the address space.
    pub fn checked_size_bytes(&self) -> Result<usize> {
        Self::check_rank(self.shape.len())?;
        self.size_bytes().ok_or_else(|| {
            let message =
                format!("size of tensor `{self}` overflows the address space; split it into several variables");
            Error::new(ErrorCode::InvalidArgument, message)
        })
    }

    /// The type of so many rows of such a tensor: slices along axis 0. That of a scalar, which has none, is its own.
    pub fn with_rows(&self, rows: u64) -> TensorType {
        let mut ty = self.clone();
        if let Some(extent) = ty.shape.first_mut() {
            *extent = rows;
        }
        ty
    }

    /// Checks a number of axes.
    ///
    /// # Errors
    /// `invalid-argument` (gRPC `INVALID_ARGUMENT`): it is above [`RANK_MAX`](Self::RANK_MAX).
    pub fn check_rank(rank: usize) -> Result<()> {
        let max = Self::RANK_MAX;
        if rank > max {
            let message = format!("rank `{rank}` of a tensor is above the greatest, `{max}`; merge some of its axes");
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
        Ok(())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// A dense tensor that owns its bytes (shared, cheap to clone): row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Element type and extents.
    pub ty: TensorType,
    /// `ty.size_bytes()` bytes.
    pub data: Bytes,
}

/// A dense tensor whose bytes are borrowed, from guest memory for instance: row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Element type and extents.
    pub ty: TensorType,
    /// `ty.size_bytes()` bytes, without any alignment.
    pub data: &'a [u8],
}

/// Refuses bytes that are not as many as their type says.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`) with both sizes; and those of [`TensorType::checked_size_bytes`].
pub fn check_data(name: &str, ty: &TensorType, data_bytes: usize) -> Result<()> {
    let expected =
        ty.checked_size_bytes().map_err(|error| Error::new(error.code, format!("`{name}`: {}", error.message)))?;
    if data_bytes == expected {
        return Ok(());
    }
    let message = format!("value of `{name}` has `{data_bytes}` bytes, but `{ty}` takes `{expected}`");
    Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
}

impl Tensor {
    /// Borrows the tensor's bytes.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { ty: self.ty.clone(), data: &self.data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_elements_and_refuse_overflow() {
        let cases: [(DType, &[u64], Option<usize>); 7] = [
            (DType::F32, &[], Some(4)),
            (DType::F32, &[3, 4], Some(48)),
            (DType::U8, &[0, u64::MAX], Some(0)),
            (DType::S64, &[5], Some(40)),
            (DType::F64, &[u64::MAX], None),
            (DType::U8, &[1 << 63], None),
            (DType::U8, &[1 << 40, 1 << 40], None),
        ];
        for (dtype, shape, expected) in cases {
            let ty = TensorType::new(dtype, shape);
            assert_eq!(ty.size_bytes(), expected, "{ty}");
            assert_eq!(ty.checked_size_bytes().ok(), expected, "{ty}");
        }
    }

    #[test]
    fn rank_is_bounded() {
        assert_eq!(TensorType::new(DType::U8, vec![1; TensorType::RANK_MAX]).checked_size_bytes(), Ok(1));
        let error = TensorType::new(DType::U8, vec![1; TensorType::RANK_MAX + 1]).checked_size_bytes().unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("`33`") && error.message.contains("`32`"), "{error}");
    }

    #[test]
    fn data_of_the_wrong_size_names_both_sizes() {
        let ty = TensorType::new(DType::F32, [2, 2]);
        assert_eq!(check_data("w", &ty, 16), Ok(()));
        let error = check_data("w", &ty, 12).unwrap_err();
        assert!(error.message.contains("`12`") && error.message.contains("`16`"), "{error}");
        assert_eq!(error.names, ["w"]);
    }
}
