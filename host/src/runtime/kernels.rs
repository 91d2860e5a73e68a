//! `dchost:worker/kernels`: native kernels on guest tensors.
//!
//! The guest waits meanwhile, so its memory stays as it is and is read in place. A product runs on the guest's own thread and
//! up to `--kernel-threads` less one beside it, in turns of some 20 ms: between two of them the processor time of all is
//! charged to the guest, an interrupt is heard, and other guests get the thread.

mod gemm;
mod product;

use self::gemm::Float;
use self::product::{Extents, Factors, Product};
use super::bindings::{types, wit::kernels};
use super::calls::{CallKind, Calls, HostError};
use super::lift::{self, Answer, TensorIn, answer, shadowed};
use super::limits::{Limits, mib};
use super::state::State;
use super::store::{CpuExceeded, Meter};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::{DType, Tensor, TensorType, TensorView};
use crate::variables::Spare;
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;
use wasmtime::component::Linker;
use wasmtime::{StoreContextMut, Trap};

/// Multiplications for a unit of fuel. A loop of the component's own takes at least an instruction for four.
const WORK_PER_FUEL: u64 = 4;

/// Bytes of the result from which its memory is kept for the next one: the system hands it out zeroed, page by page.
const SPARE_BYTES_MIN: usize = 64 << 10;

/// Processors that this process may use. Asked once: it takes longer than an instance takes to start.
static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

impl kernels::Host for State {
    async fn matmul(
        &mut self,
        _a: types::Tensor,
        _b: types::Tensor,
        _transpose_a: bool,
        _transpose_b: bool,
        _alpha: f64,
        _beta: f64,
        _c: Option<types::Tensor>,
    ) -> std::result::Result<types::Tensor, HostError> {
        Err(shadowed().into())
    }
}

type Arguments = (TensorIn, TensorIn, bool, bool, f64, f64, Option<TensorIn>);

/// Defines `matmul` on guest memory.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance("dchost:worker/kernels@0.1.0")?.func_wrap_async(
        "matmul",
        |mut cx: StoreContextMut<'_, State>, arguments: Arguments| {
            Box::new(async move {
                let started = begin(&mut cx, &arguments).and_then(|()| matmul(&cx, &arguments));
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )
}

/// Checks everything, and takes the fuel.
fn begin(cx: &mut StoreContextMut<'_, State>, (a, b, transpose_a, transpose_b, _, _, c): &Arguments) -> Answer<()> {
    cx.data().calls.check()?;
    lift::check_tensors(cx.data(), [a, b].into_iter().chain(c))?;
    let [a, b] = [lift::tensor(cx, a)?.ty, lift::tensor(cx, b)?.ty];
    let c = c.as_ref().map(|c| lift::tensor(cx, c)).transpose()?;
    let shape = Shape::new(&a, *transpose_a, &b, *transpose_b, c.as_ref().map(|c| &c.ty))?;
    check_result(&shape.result, cx.data().limits.tensor_bytes_max)?;
    // Only engines that count it have any.
    if let Ok(fuel) = cx.get_fuel() {
        let left = fuel.checked_sub(shape.extents.work() / WORK_PER_FUEL);
        cx.set_fuel(left.unwrap_or(0))?;
        if left.is_none() {
            return Err(wasmtime::Error::from(Trap::OutOfFuel).into());
        }
    }
    Ok(())
}

/// The product, of what [`begin`] has checked; the future borrows the tensors, but not the state, which isn't `Sync`.
fn matmul<'a>(
    cx: &'a StoreContextMut<'_, State>,
    (a, b, transpose_a, transpose_b, alpha, beta, c): &Arguments,
) -> Answer<impl Future<Output = Answer<types::Tensor>> + Send + use<'a>> {
    let [a, b] = [lift::tensor(cx, a)?, lift::tensor(cx, b)?];
    let c = c.as_ref().map(|c| lift::tensor(cx, c)).transpose()?;
    let shape = Shape::new(&a.ty, *transpose_a, &b.ty, *transpose_b, c.as_ref().map(|c| &c.ty))?;
    let call = Call {
        a: a.data,
        b: b.data,
        c: c.map(|TensorView { data, .. }| data),
        transposed: [*transpose_a, *transpose_b],
        factors: [*alpha, *beta],
        shape,
        run: cx.data().kernels.clone(),
    };
    let calls = cx.data().calls.clone();
    Ok(async move {
        let computed = match call.shape.result.dtype {
            DType::F32 => computed(&calls, call.compute::<f32>()).await?,
            _ => computed(&calls, call.compute::<f64>()).await?,
        };
        Ok(Tensor { ty: call.shape.result, data: computed }.into())
    })
}

async fn computed(
    calls: &Calls,
    computing: impl Future<Output = std::result::Result<Bytes, CpuExceeded>>,
) -> Answer<Bytes> {
    let computed = calls.wait(CallKind::Other, "kernels.matmul".to_owned(), async { Ok(computing.await) }).await?;
    computed.map_err(|exceeded| HostError::Trap(exceeded.into()))
}

/// What kernels need of a run.
#[derive(Clone)]
pub(super) struct Kernels {
    threads: usize,
    meter: Arc<Meter>,
    cpu_timeout: Option<Duration>,
    spare: Spare,
}

impl Kernels {
    pub(super) fn new(limits: &Limits, meter: &Arc<Meter>) -> Self {
        let threads = limits.kernel_threads.map_or_else(|| *PROCESSORS, |threads| threads as usize).max(1);
        let spare = Spare::new(limits.tensor_bytes_max);
        Kernels { threads, meter: Arc::clone(meter), cpu_timeout: limits.cpu_timeout, spare }
    }
}

/// How the tensors of a call fit each other.
struct Shape {
    extents: Extents,
    result: TensorType,
}

impl Shape {
    /// # Errors
    /// `invalid-argument`, naming both types.
    fn new(
        a: &TensorType,
        transpose_a: bool,
        b: &TensorType,
        transpose_b: bool,
        c: Option<&TensorType>,
    ) -> Result<Shape> {
        let shown = |ty: &TensorType, transposed: bool| format!("{ty}{}", if transposed { " transposed" } else { "" });
        let refused = |why: String| {
            let (a, b) = (shown(a, transpose_a), shown(b, transpose_b));
            Error::new(ErrorCode::InvalidArgument, format!("matmul of a {a} and b {b}: {why}"))
        };
        if ![DType::F32, DType::F64].contains(&a.dtype) || a.dtype != b.dtype {
            return Err(refused("both have to be f32, or both f64".to_owned()));
        }
        let ([batch_a @ .., a_rows, a_columns], [batch_b @ .., b_rows, b_columns]) = (&*a.shape, &*b.shape) else {
            return Err(refused("each needs at least two dimensions".to_owned()));
        };
        if batch_a != batch_b {
            return Err(refused("the dimensions before the last two have to be the same".to_owned()));
        }
        let (m, k) = if transpose_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
        let (k_of_b, n) = if transpose_b { (b_columns, b_rows) } else { (b_rows, b_columns) };
        if k != k_of_b {
            return Err(refused(format!("a has {k} columns and b {k_of_b} rows")));
        }
        let result = TensorType { dtype: a.dtype, shape: [batch_a, &[*m, *n]].concat() };
        if let Some(c) = c.filter(|c| **c != result) {
            return Err(refused(format!("the result is {result}, c has to be the same and is {c}")));
        }
        let size = |extent: u64| {
            usize::try_from(extent).map_err(|_| refused(format!("{extent} is more than the address space")))
        };
        let batch = batch_a.iter().try_fold(1_u64, |batch, &extent| batch.checked_mul(extent));
        // More matrices than can be counted have no element at all, and then nothing is computed.
        let extents = Extents { batch: size(batch.unwrap_or(0))?, m: size(*m)?, k: size(*k)?, n: size(*n)? };
        Ok(Shape { extents, result })
    }
}

/// Bounds the answer as what is passed: by `--max-tensor`.
fn check_result(result: &TensorType, bytes_max: u64) -> Result<()> {
    let bytes = result.size_bytes().map_or(u64::MAX, |bytes| bytes as u64);
    if bytes > bytes_max {
        let bytes = if bytes == u64::MAX { "more bytes than can be counted".to_owned() } else { mib(bytes) };
        return Err(Error::new(
            ErrorCode::ResourceExhausted,
            format!("the product {result} has {bytes}, above {} (--max-tensor): multiply in parts", mib(bytes_max)),
        ));
    }
    Ok(())
}

/// A call that was checked, its tensors where they are.
struct Call<'a> {
    a: &'a [u8],
    b: &'a [u8],
    c: Option<&'a [u8]>,
    transposed: [bool; 2],
    factors: [f64; 2],
    shape: Shape,
    run: Kernels,
}

impl Call<'_> {
    /// # Cancel safety
    /// Dropping it drops what is computed so far.
    async fn compute<T: Float>(&self) -> std::result::Result<Bytes, CpuExceeded> {
        let Kernels { threads, meter, cpu_timeout, spare } = &self.run;
        let extents = self.shape.extents;
        let bytes = self.shape.result.size_bytes().unwrap_or(0);
        let (mut buffer, keep) =
            if bytes < SPARE_BYTES_MIN { (Vec::with_capacity(bytes), false) } else { (spare.take(bytes), true) };
        let [alpha, beta] = self.factors.map(T::of);
        // A c whose factor is 0 has no effect, whatever it holds.
        let c = self.c.filter(|_| beta != T::ZERO);
        match c {
            Some(c) => buffer.extend_from_slice(c),
            None => buffer.resize(bytes, 0),
        }
        let beta = c.map(|_| beta);
        // Buffers of a size that matters are aligned; where one isn't, it is copied.
        let mut aligned = Vec::new();
        let into: &mut [T] = match bytemuck::try_cast_slice_mut(&mut buffer) {
            Ok(into) => into,
            Err(_) => {
                aligned = bytemuck::pod_collect_to_vec(&buffer);
                &mut aligned
            }
        };
        if extents.work() == 0 || alpha == T::ZERO {
            if let Some(beta) = beta {
                into.iter_mut().for_each(|element| *element = element.times(beta));
            }
        } else {
            let (a, b) = (elements(self.a), elements(self.b));
            let [transpose_a, transpose_b] = self.transposed;
            let factors = Factors { extents, a: &a, b: &b, transpose_a, transpose_b, alpha, beta };
            let mut product = Product::new(factors, into, *threads);
            loop {
                let (left, helped) = product.turn();
                meter.charge(helped);
                if cpu_timeout.is_some_and(|budget| meter.total() >= budget) {
                    return Err(CpuExceeded);
                }
                if !left {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        if !aligned.is_empty() {
            buffer = bytemuck::pod_collect_to_vec(&aligned);
        }
        Ok(if keep { spare.lend(buffer) } else { buffer.into() })
    }
}

/// The product of square matrices by the kernel's crate alone, on this thread: for benches.
///
/// # Panics
/// The slices have other lengths.
#[doc(hidden)]
pub fn native_product(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    gemm::multiply(c, n, gemm::Matrix::new(a, n, n), gemm::Matrix::new(b, n, n), 1.0, None);
}

/// The elements where they are, or copied where their address is odd, which no common language makes.
fn elements<T: Float>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}
