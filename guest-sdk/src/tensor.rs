//! Tensors: element type, extents and bytes.

use crate::{DType, Element, Error, Result};
use bytemuck::cast_slice;
use std::borrow::Cow;
use std::fmt;

/// A dense tensor of any element type, row-major; rank 0 is a scalar. Prints as `f32[3, 4]`.
///
/// ```
/// use dchost_guest::{DType, Tensor};
///
/// let rows = Tensor::new([2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(rows.dtype(), DType::F32);
/// assert_eq!(rows.shape(), [2, 3]);
/// assert_eq!(rows.values::<f32>()?[4], 5.0);
/// assert_eq!(rows.convert::<i64>().to_vec::<i64>()?, [1, 2, 3, 4, 5, 6]);
/// # Ok::<(), dchost_guest::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Tensor {
    /// Makes a tensor of its extents and values, which are copied.
    ///
    /// # Errors
    /// `invalid-argument` where the shape holds another number of elements.
    pub fn new<T: Element>(shape: impl AsRef<[usize]>, values: &[T]) -> Result<Self> {
        let shape = shape.as_ref();
        if element_count(shape) != Some(values.len()) {
            return Err(Error::invalid(format!("shape {shape:?} doesn't hold {} values", values.len())));
        }
        Ok(Tensor { dtype: T::DTYPE, shape: shape.to_vec(), data: cast_slice(values).to_vec() })
    }

    /// Makes a scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        Tensor { dtype: T::DTYPE, shape: Vec::new(), data: bytemuck::bytes_of(&value).to_vec() }
    }

    /// Makes a tensor of rank 1 of the values, which are copied.
    pub fn vector<T: Element>(values: &[T]) -> Self {
        Tensor { dtype: T::DTYPE, shape: vec![values.len()], data: cast_slice(values).to_vec() }
    }

    /// Makes a tensor of zeros.
    ///
    /// # Errors
    /// `invalid-argument` where the size overflows the address space.
    pub fn zeros<T: Element>(shape: impl AsRef<[usize]>) -> Result<Self> {
        let shape = shape.as_ref();
        let size_bytes = size_bytes(T::DTYPE, shape)?;
        Ok(Tensor { dtype: T::DTYPE, shape: shape.to_vec(), data: vec![0; size_bytes] })
    }

    /// Makes a tensor of its little-endian bytes, which are taken over.
    ///
    /// # Errors
    /// `invalid-argument` where dtype and shape need another number of bytes.
    pub fn from_bytes(dtype: DType, shape: impl AsRef<[usize]>, data: Vec<u8>) -> Result<Self> {
        let shape = shape.as_ref();
        let expected = size_bytes(dtype, shape)?;
        if data.len() != expected {
            return Err(Error::invalid(format!("{dtype}{shape:?} has {expected} bytes, not {}", data.len())));
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), data })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size_bytes()
    }

    /// Whether an extent is zero.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The values as little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Gives the little-endian bytes away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// The values, row-major: in place, or copied where the bytes lie at an odd address (they practically never do).
    ///
    /// # Errors
    /// `invalid-argument` where the elements are of another type; [`convert`](Tensor::convert) changes it.
    pub fn values<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        self.check_dtype::<T>()?;
        Ok(match bytemuck::try_cast_slice(&self.data) {
            Ok(values) => Cow::Borrowed(values),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.data)),
        })
    }

    /// Copies the values out.
    ///
    /// # Errors
    /// As [`values`](Tensor::values).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>()?;
        Ok(bytemuck::pod_collect_to_vec(&self.data))
    }

    /// The only element.
    ///
    /// # Errors
    /// `invalid-argument` where there are more or none, or of another type.
    pub fn item<T: Element>(&self) -> Result<T> {
        match *self.values::<T>()? {
            [value] => Ok(value),
            _ => Err(Error::invalid(format!("{self} isn't a single value"))),
        }
    }

    /// Converts every element as Rust's `as` does: rounding towards zero, saturating from floats, wrapping among integers.
    pub fn convert<T: Element>(&self) -> Tensor {
        let data = match self.dtype {
            DType::F32 => converted::<f32, T>(&self.data),
            DType::F64 => converted::<f64, T>(&self.data),
            DType::S32 => converted::<i32, T>(&self.data),
            DType::S64 => converted::<i64, T>(&self.data),
            DType::U8 => converted::<u8, T>(&self.data),
        };
        Tensor { dtype: T::DTYPE, shape: self.shape.clone(), data }
    }

    /// Gives the same values other extents.
    ///
    /// # Errors
    /// `invalid-argument` where the new shape holds another number of elements.
    pub fn reshape(mut self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        if element_count(shape) != Some(self.len()) {
            return Err(Error::invalid(format!("{self} can't take the shape {shape:?}")));
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::invalid(format!("{self} doesn't hold {} values; convert it first", T::DTYPE)))
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({self})")
    }
}

/// The number of elements; none where it overflows.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent))
}

/// The size of a whole tensor, in bytes.
pub(crate) fn size_bytes(dtype: DType, shape: &[usize]) -> Result<usize> {
    element_count(shape)
        .and_then(|count| count.checked_mul(dtype.size_bytes()))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::invalid(format!("the size of {dtype}{shape:?} overflows")))
}

fn converted<S: Element, T: Element>(bytes: &[u8]) -> Vec<u8> {
    let mut converted = Vec::with_capacity(bytes.len() / size_of::<S>() * size_of::<T>());
    for element in bytes.chunks_exact(size_of::<S>()) {
        let value = T::from_number(bytemuck::pod_read_unaligned::<S>(element).to_number());
        converted.extend_from_slice(bytemuck::bytes_of(&value));
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn shape_and_values_must_agree() {
        assert_eq!(Tensor::new([2, 2], &[1_i32, 2, 3]).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(Tensor::new([], &[7_u8]).unwrap(), Tensor::scalar(7_u8));
        assert_eq!(Tensor::new([0, 5], &[] as &[f64]).unwrap().len(), 0);
        assert_eq!(Tensor::zeros::<f64>([usize::MAX, 2]).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(Tensor::from_bytes(DType::F32, [2], vec![0; 7]).unwrap_err().code, ErrorCode::InvalidArgument);
    }

    #[test]
    fn views_check_the_element_type() {
        let tensor = Tensor::vector(&[1.5_f32, -2.0]);
        assert_eq!(*tensor.values::<f32>().unwrap(), [1.5, -2.0]);
        assert_eq!(tensor.values::<i32>().unwrap_err().message, "f32[2] doesn't hold s32 values; convert it first");
        assert_eq!(tensor.item::<f32>().unwrap_err().message, "f32[2] isn't a single value");
        assert_eq!(tensor.reshape([1, 2]).unwrap().shape(), [1, 2]);
    }

    #[test]
    fn conversion_rounds_towards_zero_and_keeps_large_integers() {
        let floats = Tensor::vector(&[1.9_f64, -1.9, 300.0, f64::NAN]);
        assert_eq!(floats.convert::<u8>().to_vec::<u8>().unwrap(), [1, 0, 255, 0]);
        assert_eq!(floats.convert::<i32>().to_vec::<i32>().unwrap(), [1, -1, 300, 0]);
        let large = Tensor::vector(&[i64::MAX, i64::MIN]);
        assert_eq!(large.convert::<i64>(), large);
        assert_eq!(large.convert::<i32>().to_vec::<i32>().unwrap(), [-1, 0]);
    }
}
