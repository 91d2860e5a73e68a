//! Linear algebra: matrix products, by the host's kernel where that is faster than the component's own code.
//!
//! A product of some size runs natively on the host, on the cores that the task was given (`--kernel-threads`), and reads its
//! factors where they lie; a small one is computed in the component, since a call has its price. Which of both it was can't be told
//! but by the last bits of the result: each sums in an order of its own. The time of a kernel counts as the component's
//! (`-W cpu-timeout`). On the mock cluster everything is computed in place.

mod blocked;

use crate::raw::RawMatmul;
use crate::{Element, Error, ErrorCode, Result, Tensor, imp};

/// Multiplications from which the host's kernel is asked: 54 x 54 x 54, for which either way takes some 15 us, of which a call is 12.
/// The bench `sandbox -- kernels` compares both.
const KERNEL_WORK_MIN: usize = 54 * 54 * 54;

mod sealed {
    pub trait Arithmetic: Copy {
        const ZERO: Self;
        fn of(number: f64) -> Self;
        fn plus(self, other: Self) -> Self;
        fn times(self, other: Self) -> Self;
    }

    macro_rules! arithmetic {
        ($($type:ty),*) => {$(
            impl Arithmetic for $type {
                const ZERO: Self = 0.0;
                fn of(number: f64) -> Self {
                    number as $type
                }
                fn plus(self, other: Self) -> Self {
                    self + other
                }
                fn times(self, other: Self) -> Self {
                    self * other
                }
            }
        )*};
    }

    arithmetic!(f32, f64);
}

/// An element of matrices that are multiplied: `f32` or `f64`.
pub trait Float: Element + sealed::Arithmetic {}

impl Float for f32 {}
impl Float for f64 {}

/// A matrix product `c = alpha a b + beta c`, of row-major slices: `a` is `[m, k]`, `b` is `[k, n]` and `c` is `[m, n]`.
///
/// `alpha` is 1 and `beta` 0 unless set; both are rounded to the element type. Where `beta` is 0, what `c` held has no effect,
/// and where `alpha` is 0, what the factors hold; else NaN and infinity go through as in any sum of products.
///
/// ```
/// use dchost_guest::linalg::Matmul;
///
/// let (x, weights) = ([1.0_f32, 2.0, 3.0, 4.0], [1.0, 0.0, 2.0, 0.0, 1.0, 2.0]); // [2, 2] and [2, 3]
/// let mut y = [0.0; 6];
/// Matmul::new(2, 2, 3).run(&x, &weights, &mut y)?;
/// assert_eq!(y, [1.0, 2.0, 6.0, 3.0, 4.0, 14.0]);
///
/// // The gradient of the weights, xᵀ dy, on top of what is there.
/// let mut gradient = [1.0; 6];
/// Matmul::new(2, 2, 3).transpose_a().beta(1.0).run(&x, &y, &mut gradient)?;
/// assert_eq!(gradient, [11.0, 15.0, 49.0, 15.0, 21.0, 69.0]);
/// # Ok::<(), dchost_guest::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "nothing is multiplied before `run`"]
pub struct Matmul {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
    transpose_a: bool,
    transpose_b: bool,
    alpha: f64,
    beta: f64,
}

impl Matmul {
    /// A product of `[m, k]` and `[k, n]`.
    pub const fn new(m: usize, k: usize, n: usize) -> Self {
        Matmul { batch: 1, m, k, n, transpose_a: false, transpose_b: false, alpha: 1.0, beta: 0.0 }
    }

    /// So many products at once, of matrices one after the other: `a` is `[count, m, k]`, and so on.
    pub const fn batch(self, count: usize) -> Self {
        Matmul { batch: count, ..self }
    }

    /// Takes `a` as its transpose: its slice is `[k, m]`.
    pub const fn transpose_a(self) -> Self {
        Matmul { transpose_a: true, ..self }
    }

    /// Takes `b` as its transpose: its slice is `[n, k]`.
    pub const fn transpose_b(self) -> Self {
        Matmul { transpose_b: true, ..self }
    }

    /// Multiplies the product by a factor.
    pub const fn alpha(self, alpha: f64) -> Self {
        Matmul { alpha, ..self }
    }

    /// Adds what `c` holds, times a factor.
    pub const fn beta(self, beta: f64) -> Self {
        Matmul { beta, ..self }
    }

    /// Multiplies.
    ///
    /// # Errors
    /// `invalid-argument`: a slice of another length than its extents say. Where the host is asked: `resource-exhausted`, a
    /// result above `--max-tensor`, and what any call may fail with when the run is to end. Then `c` is as it was.
    pub fn run<T: Float>(&self, a: &[T], b: &[T], c: &mut [T]) -> Result<()> {
        self.__run_by(self.is_large(), a, b, c)
    }

    /// As [`run`](Matmul::run), by the way that a bench chooses.
    #[doc(hidden)]
    pub fn __run_by<T: Float>(&self, kernel: bool, a: &[T], b: &[T], c: &mut [T]) -> Result<()> {
        let &Matmul { batch, m, k, n, .. } = self;
        for (name, shape, len) in
            [("a", [batch, m, k], a.len()), ("b", [batch, k, n], b.len()), ("c", [batch, m, n], c.len())]
        {
            if crate::tensor::element_count(&shape) != Some(len) {
                let text = format!("{name} has {len} elements, which aren't {batch} of {} x {}", shape[1], shape[2]);
                return Err(Error::invalid(text));
            }
        }
        if kernel {
            let raw = self.raw(T::DTYPE, bytemuck::cast_slice(a), bytemuck::cast_slice(b));
            let there = (self.beta != 0.0).then(|| bytemuck::cast_slice(&*c));
            if let Some(product) = by_kernel(&raw, there)? {
                c.copy_from_slice(&product.values()?);
                return Ok(());
            }
        }
        blocked::multiply(self, a, b, c);
        Ok(())
    }

    /// Whether the host's kernel is faster.
    fn is_large(&self) -> bool {
        let work = [self.batch, self.m, self.k, self.n].into_iter().fold(1_usize, usize::saturating_mul);
        work >= KERNEL_WORK_MIN
    }

    fn raw<'a>(&self, dtype: crate::DType, a: &'a [u8], b: &'a [u8]) -> RawMatmul<'a> {
        let &Matmul { batch, m, k, n, transpose_a, transpose_b, alpha, beta } = self;
        RawMatmul { dtype, batch, m, k, n, a, b, transpose_a, transpose_b, alpha, beta }
    }
}

/// Asks the host; none: it has no kernels.
fn by_kernel(raw: &RawMatmul<'_>, c: Option<&[u8]>) -> Result<Option<Tensor>> {
    match imp::matmul(raw, c) {
        Ok(product) => Ok(product),
        Err(error) if error.code == ErrorCode::Unimplemented => Ok(None),
        Err(error) => Err(error),
    }
}

/// The product of two tensors, both `f32` or both `f64`: `[.., m, k]` and `[.., k, n]` make `[.., m, n]`, where the dimensions
/// before the last two are the same. [`Matmul`] has transposes, factors, and a place for the result.
///
/// ```
/// use dchost_guest::{Tensor, linalg::matmul};
///
/// let a = Tensor::new([2, 2], &[1.0_f64, 2.0, 3.0, 4.0])?;
/// let column = Tensor::new([2, 1], &[1.0_f64, 10.0])?;
/// assert_eq!(matmul(&a, &column)?, Tensor::new([2, 1], &[21.0_f64, 43.0])?);
/// # Ok::<(), dchost_guest::Error>(())
/// ```
///
/// # Errors
/// `invalid-argument`, naming both tensors, where they don't fit; else as [`Matmul::run`].
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let refused = |why: &str| Error::invalid(format!("matmul of {a} and {b}: {why}"));
    let ([batch_a @ .., m, k], [batch_b @ .., k_of_b, n]) = (a.shape(), b.shape()) else {
        return Err(refused("each needs at least two dimensions"));
    };
    if batch_a != batch_b {
        return Err(refused("the dimensions before the last two have to be the same"));
    }
    if k != k_of_b {
        return Err(refused("a needs as many columns as b has rows"));
    }
    let count = crate::tensor::element_count(batch_a).ok_or_else(|| refused("that are too many matrices"))?;
    let product = Matmul::new(*m, *k, *n).batch(count);
    let shape = [batch_a, &[*m, *n]].concat();
    match (a.dtype(), b.dtype()) {
        (crate::DType::F32, crate::DType::F32) => product.tensors::<f32>(a, b, &shape),
        (crate::DType::F64, crate::DType::F64) => product.tensors::<f64>(a, b, &shape),
        _ => Err(refused("both have to be f32, or both f64")),
    }
}

impl Matmul {
    /// The product of tensors that fit it; what the host answers isn't copied.
    fn tensors<T: Float>(&self, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
        if self.is_large()
            && let Some(product) = by_kernel(&self.raw(T::DTYPE, a.bytes(), b.bytes()), None)?
        {
            return product.reshape(shape);
        }
        let mut product = Tensor::zeros::<T>(shape)?.to_vec()?;
        blocked::multiply(self, &a.values::<T>()?, &b.values::<T>()?, &mut product);
        Tensor::new(shape, &product)
    }
}

#[cfg(test)]
mod tests;
