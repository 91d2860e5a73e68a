//! Values that were read from variables.

use crate::raw::RawValue;
use crate::{Element, Error, Result, Tensor};
use std::fmt;
use std::ops::Deref;

/// A variable's value as it was at one version: a slice of its elements, row-major, that knows its shape.
///
/// ```
/// # use dchost_guest::{MockCluster, Result, WorkerContext, chief};
/// # MockCluster::local().run(|ctx| -> Result<()> {
/// let w = ctx.variable::<f32>("w").shape([2, 2]).declare()?;
/// w.initialize(&[1.0, 2.0, 3.0, 4.0])?;
/// let value = w.read()?;
/// assert_eq!(value[3], 4.0);
/// assert_eq!(value.iter().sum::<f32>(), 10.0);
/// assert_eq!((value.shape(), value.version()), (&[2, 2][..], 1));
/// # Ok(()) }).unwrap();
/// ```
#[derive(Clone, PartialEq)]
pub struct Value<T: Element> {
    shape: Vec<usize>,
    storage: Storage<T>,
    version: u64,
}

/// Bytes as they came from the host where they are aligned for `T`, else a copy that is.
#[derive(Clone, PartialEq)]
enum Storage<T> {
    Aligned(Vec<u8>),
    Copied(Vec<T>),
}

impl<T: Element> Value<T> {
    pub(crate) fn from_raw(raw: RawValue) -> Result<Self> {
        let RawValue { tensor, version } = raw;
        if tensor.dtype() != T::DTYPE {
            return Err(Error::invalid(format!("the variable holds {tensor}, not {}", T::DTYPE)));
        }
        let shape = tensor.shape().to_vec();
        let bytes = tensor.into_bytes();
        let storage = if bytemuck::try_cast_slice::<u8, T>(&bytes).is_ok() {
            Storage::Aligned(bytes)
        } else {
            Storage::Copied(bytemuck::pod_collect_to_vec(&bytes))
        };
        Ok(Value { shape, storage, version })
    }

    /// Extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The variable's version: 1 after its first initialization, one more with each write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The value of a scalar variable, or of one with a single element.
    ///
    /// # Panics
    /// Where there are more elements than one, or none.
    pub fn scalar(&self) -> T {
        match **self {
            [value] => value,
            _ => panic!("a value of shape {:?} isn't a scalar", self.shape),
        }
    }

    /// Copies the elements out; use it as a slice where that will do.
    pub fn into_vec(self) -> Vec<T> {
        match self.storage {
            Storage::Aligned(bytes) => bytemuck::pod_collect_to_vec(&bytes),
            Storage::Copied(values) => values,
        }
    }

    /// The value as a tensor, without its version.
    pub fn into_tensor(self) -> Tensor {
        let data = match self.storage {
            Storage::Aligned(bytes) => bytes,
            Storage::Copied(values) => bytemuck::cast_slice(&values).to_vec(),
        };
        Tensor::from_bytes(T::DTYPE, self.shape, data).expect("the bytes were a tensor of this shape")
    }
}

impl<T: Element> Deref for Value<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.storage {
            Storage::Aligned(bytes) => bytemuck::cast_slice(bytes),
            Storage::Copied(values) => values,
        }
    }
}

impl<T: Element> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({}{:?} at version {})", T::DTYPE, self.shape, self.version)
    }
}
