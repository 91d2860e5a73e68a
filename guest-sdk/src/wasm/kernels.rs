//! Kernels of the host.

use super::bindings::dchost::worker::{kernels, types};
use super::local_shape;
use crate::raw::RawMatmul;
use crate::{DType, Result, Tensor};

/// The product, as `[batch, m, n]`.
pub(crate) fn matmul(raw: &RawMatmul<'_>, c: Option<&[u8]>) -> Result<Option<Tensor>> {
    let dtype = types::Dtype::from(raw.dtype);
    let shape = |transposed: bool, rows: usize, columns: usize| {
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        [raw.batch, rows, columns].map(|extent| extent as u64)
    };
    let shape_of_a = shape(raw.transpose_a, raw.m, raw.k);
    let shape_of_b = shape(raw.transpose_b, raw.k, raw.n);
    let shape_of_c = shape(false, raw.m, raw.n);
    let types::TensorResult { dtype, shape, data } = kernels::matmul(
        types::TensorParam { dtype, shape: &shape_of_a, data: raw.a },
        types::TensorParam { dtype, shape: &shape_of_b, data: raw.b },
        raw.transpose_a,
        raw.transpose_b,
        raw.alpha,
        raw.beta,
        c.map(|data| types::TensorParam { dtype, shape: &shape_of_c, data }),
    )?;
    Tensor::from_bytes(DType::try_from(dtype)?, local_shape(&shape)?, data).map(Some)
}
