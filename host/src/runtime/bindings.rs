//! Code generated from wit/, the hand-written twin of its `types` interface, and the linker that holds it all.

use super::calls::HostError;
use super::state::State;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

/// Hand-written twin of `dchost:worker/types`.
///
/// Generated records hold a `Vec<u8>`; with `Bytes` a tensor is lowered into guest memory straight from the store (those that
/// a guest passes are in `lift`). A twin that is out of step with the WIT is refused when a component is linked.
#[expect(unreachable_pub, reason = "generated code re-exports it; the WIT documents its parts")]
pub mod types {
    use super::HostError;
    use crate::{cluster, error, tensor};
    use bytes::Bytes;
    use wasmtime::component::{ComponentType, HasData, Lift, Linker, Lower};

    /// A task; prints as `worker:0`.
    #[derive(ComponentType, Lift, Lower, Clone, Debug, PartialEq, Eq)]
    #[component(record)]
    pub struct Task {
        pub job: String,
        pub index: u32,
    }

    /// Element types of the WIT, those that aren't served yet included.
    #[derive(ComponentType, Lift, Lower, Clone, Copy, Debug, PartialEq, Eq)]
    #[component(enum)]
    #[repr(u8)]
    pub enum Dtype {
        #[component(name = "f32")]
        F32,
        #[component(name = "f64")]
        F64,
        #[component(name = "s32")]
        S32,
        #[component(name = "s64")]
        S64,
        #[component(name = "u8")]
        U8,
        #[component(name = "bf16")]
        Bf16,
        #[component(name = "f16")]
        F16,
        #[component(name = "bool")]
        Bool,
    }

    /// A tensor that owns its bytes.
    #[derive(ComponentType, Lift, Lower, Clone, Debug)]
    #[component(record)]
    pub struct Tensor {
        pub dtype: Dtype,
        pub shape: Vec<u64>,
        pub data: Bytes,
    }

    #[derive(ComponentType, Lift, Lower, Clone, Copy, Debug, PartialEq, Eq)]
    #[component(enum)]
    #[repr(u8)]
    pub enum ErrorCode {
        #[component(name = "cancelled")]
        Cancelled,
        #[component(name = "unknown")]
        Unknown,
        #[component(name = "invalid-argument")]
        InvalidArgument,
        #[component(name = "deadline-exceeded")]
        DeadlineExceeded,
        #[component(name = "not-found")]
        NotFound,
        #[component(name = "already-exists")]
        AlreadyExists,
        #[component(name = "permission-denied")]
        PermissionDenied,
        #[component(name = "resource-exhausted")]
        ResourceExhausted,
        #[component(name = "failed-precondition")]
        FailedPrecondition,
        #[component(name = "aborted")]
        Aborted,
        #[component(name = "out-of-range")]
        OutOfRange,
        #[component(name = "unimplemented")]
        Unimplemented,
        #[component(name = "internal")]
        Internal,
        #[component(name = "unavailable")]
        Unavailable,
        #[component(name = "data-loss")]
        DataLoss,
        #[component(name = "unauthenticated")]
        Unauthenticated,
        #[component(name = "uninitialized")]
        Uninitialized,
        #[component(name = "peer-failed")]
        PeerFailed,
        #[component(name = "peer-restarted")]
        PeerRestarted,
    }

    #[derive(ComponentType, Lift, Lower, Clone, Debug)]
    #[component(record)]
    pub struct Error {
        pub code: ErrorCode,
        pub message: String,
        pub tasks: Vec<Task>,
    }

    pub type Millis = u64;

    impl From<cluster::Task> for Task {
        fn from(task: cluster::Task) -> Self {
            Task { job: task.job.as_str().to_owned(), index: task.index }
        }
    }

    /// The task that a guest names.
    pub(crate) fn task(job: &str, index: u32) -> error::Result<cluster::Task> {
        let job = job.parse().map_err(|unknown: cluster::UnknownTaskType| {
            error::Error::new(error::ErrorCode::InvalidArgument, unknown.to_string())
        })?;
        Ok(cluster::Task::new(job, index))
    }

    impl From<tensor::DType> for Dtype {
        fn from(dtype: tensor::DType) -> Self {
            match dtype {
                tensor::DType::F32 => Dtype::F32,
                tensor::DType::F64 => Dtype::F64,
                tensor::DType::S32 => Dtype::S32,
                tensor::DType::S64 => Dtype::S64,
                tensor::DType::U8 => Dtype::U8,
            }
        }
    }

    impl TryFrom<Dtype> for tensor::DType {
        type Error = error::Error;

        fn try_from(dtype: Dtype) -> error::Result<Self> {
            let name = match dtype {
                Dtype::F32 => return Ok(tensor::DType::F32),
                Dtype::F64 => return Ok(tensor::DType::F64),
                Dtype::S32 => return Ok(tensor::DType::S32),
                Dtype::S64 => return Ok(tensor::DType::S64),
                Dtype::U8 => return Ok(tensor::DType::U8),
                Dtype::Bf16 => "bf16",
                Dtype::F16 => "f16",
                Dtype::Bool => "bool",
            };
            Err(error::Error::new(
                error::ErrorCode::InvalidArgument,
                format!("dtype `{name}` is not served yet, use f32, f64, s32, s64 or u8"),
            ))
        }
    }

    impl From<tensor::Tensor> for Tensor {
        fn from(tensor: tensor::Tensor) -> Self {
            Tensor { dtype: tensor.ty.dtype.into(), shape: tensor.ty.shape, data: tensor.data }
        }
    }

    impl From<error::ErrorCode> for ErrorCode {
        fn from(code: error::ErrorCode) -> Self {
            match code {
                error::ErrorCode::Cancelled => ErrorCode::Cancelled,
                error::ErrorCode::Unknown => ErrorCode::Unknown,
                error::ErrorCode::InvalidArgument => ErrorCode::InvalidArgument,
                error::ErrorCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
                error::ErrorCode::NotFound => ErrorCode::NotFound,
                error::ErrorCode::AlreadyExists => ErrorCode::AlreadyExists,
                error::ErrorCode::PermissionDenied => ErrorCode::PermissionDenied,
                error::ErrorCode::ResourceExhausted => ErrorCode::ResourceExhausted,
                error::ErrorCode::FailedPrecondition => ErrorCode::FailedPrecondition,
                error::ErrorCode::Aborted => ErrorCode::Aborted,
                error::ErrorCode::OutOfRange => ErrorCode::OutOfRange,
                error::ErrorCode::Unimplemented => ErrorCode::Unimplemented,
                error::ErrorCode::Internal => ErrorCode::Internal,
                error::ErrorCode::Unavailable => ErrorCode::Unavailable,
                error::ErrorCode::DataLoss => ErrorCode::DataLoss,
                error::ErrorCode::Unauthenticated => ErrorCode::Unauthenticated,
                error::ErrorCode::Uninitialized => ErrorCode::Uninitialized,
                error::ErrorCode::PeerFailed => ErrorCode::PeerFailed,
                error::ErrorCode::PeerRestarted => ErrorCode::PeerRestarted,
            }
        }
    }

    impl From<error::Error> for Error {
        fn from(error: error::Error) -> Self {
            Error {
                code: error.code.into(),
                message: error.message,
                tasks: error.tasks.into_iter().map(Task::from).collect(),
            }
        }
    }

    /// What generated code asks of the state.
    pub trait Host {
        fn convert_error(&mut self, error: HostError) -> wasmtime::Result<Error>;
    }

    impl<T: Host + ?Sized> Host for &mut T {
        fn convert_error(&mut self, error: HostError) -> wasmtime::Result<Error> {
            T::convert_error(*self, error)
        }
    }

    // These follow what bindgen of wasmtime 48 generates for an interface; look at them again at an update.
    pub trait HostWithStore<T>: HasData {}
    impl<T, H: HasData + ?Sized> HostWithStore<T> for H {}

    /// Defines the interface, which has types only.
    pub fn add_to_linker<T, D>(linker: &mut Linker<T>, _get: fn(&mut T) -> D::Data<'_>) -> wasmtime::Result<()>
    where
        T: Send + 'static,
        D: HostWithStore<T>,
        for<'a> D::Data<'a>: Host,
    {
        linker.instance("dchost:worker/types@0.1.0")?;
        Ok(())
    }

    /// The bytes of a tensor type, checked against the bytes that came with it.
    pub(crate) fn checked_type(dtype: Dtype, shape: Vec<u64>, data_bytes: usize) -> error::Result<tensor::TensorType> {
        let ty = tensor::TensorType { dtype: dtype.try_into()?, shape };
        match ty.size_bytes() {
            Some(bytes) if bytes == data_bytes => Ok(ty),
            Some(bytes) => Err(error::Error::new(
                error::ErrorCode::InvalidArgument,
                format!("a tensor {ty} has {bytes} bytes, but {data_bytes} came with it"),
            )),
            None => Err(error::Error::new(
                error::ErrorCode::InvalidArgument,
                format!("a tensor {ty} is larger than the address space"),
            )),
        }
    }
}

wasmtime::component::bindgen!({
    path: "../wit",
    world: "worker",
    imports: {
        // Answers that are at hand: as an async function each of these calls would cost an eighth more.
        "dchost:worker/worker-context.this-task": trappable,
        "dchost:worker/worker-context.master-target": trappable,
        "dchost:worker/worker-context.is-chief": trappable,
        "dchost:worker/worker-context.num-workers": trappable,
        "dchost:worker/worker-context.distributed-mode": trappable,
        "dchost:worker/worker-context.has-barrier": trappable,
        "dchost:worker/worker-context.cluster-spec": trappable,
        "dchost:worker/worker-context.should-checkpoint": trappable,
        "dchost:worker/worker-context.should-save-summary": trappable,
        "dchost:worker/worker-context.attempt": trappable,
        "dchost:worker/worker-context.training-ended": trappable,
        default: async | trappable,
    },
    exports: { default: async },
    require_store_data_send: true,
    with: {
        "wasi:io/poll": wasmtime_wasi::p2::bindings::io::poll,
        "dchost:worker/types": crate::runtime::bindings::types,
        "dchost:worker/variables.variable": crate::runtime::variables::Variable,
        "dchost:worker/pending.pending": crate::runtime::pending::Pending,
        "dchost:worker/ops.remote-value": crate::runtime::ops::RemoteValue,
        "dchost:worker/ops.call": crate::runtime::ops::Call,
    },
    trappable_error_type: { "dchost:worker/types.error" => crate::runtime::calls::HostError },
});

pub(super) use self::dchost::worker as wit;

/// Links everything that a component may import.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    super::wasi::add_to_linker(&mut linker)?;
    types::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::worker_context::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::pending::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::variables::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::ops::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::kernels::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::summary::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    wit::log::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    // Functions that take strings or lists read them in guest memory, and replace their generated twins, which copy.
    linker.allow_shadowing(true);
    super::variables::add_in_place(&mut linker)?;
    super::worker_context::add_in_place(&mut linker)?;
    super::ops::add_in_place(&mut linker)?;
    super::kernels::add_in_place(&mut linker)?;
    super::summary::add_in_place(&mut linker)?;
    super::log::add_in_place(&mut linker)?;
    linker.allow_shadowing(false);
    Ok(linker)
}
