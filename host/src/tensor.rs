//! Tensors: element type, extents and bytes.

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

impl Tensor {
    /// Borrows the tensor's bytes.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { ty: self.ty.clone(), data: &self.data }
    }
}
