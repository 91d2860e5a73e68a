//! The host's side of every call: the WIT package `dchost:worker`.

mod gradients;
mod kernels;
pub(crate) mod ops;
mod rows;
pub(crate) use kernels::matmul;
pub(crate) use ops::{Call, Remote, Waiting, wait_any};

use crate::raw::{InitializeMode, Placement, RawChange, RawValue, UpdateKind, Write};
use crate::{ClusterSpec, DType, Error, ErrorCode, Level, Read, Result, Task, Tensor};
use bindings::dchost::worker::{log, pending, summary, types, variables, worker_context};
use std::cell::OnceCell;
use std::time::Duration;

/// Generated from `wit/`: imports, the export macro, and the one place of the SDK with unsafe code.
#[doc(hidden)]
#[allow(unsafe_code, missing_docs, unreachable_pub, reason = "generated: the canonical ABI passes pointers")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "worker",
        generate_all,
        // Tensors go to the host in place; by default a record would own its bytes, at the price of a copy.
        ownership: Borrowing { duplicate_if_necessary: true },
        pub_export_macro: true,
        export_macro_name: "__export_worker",
        default_bindings_module: "dchost_guest::__bindings",
    });
}

/// Generated for components with ops: the one export that `bindings` lacks, with the types of those.
#[doc(hidden)]
#[allow(unsafe_code, missing_docs, unreachable_pub, reason = "generated: the canonical ABI passes pointers")]
pub mod op_bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "op-exports",
        with: {
            "dchost:worker/types@0.1.0": crate::wasm::bindings::dchost::worker::types,
            "dchost:worker/worker-context@0.1.0": crate::wasm::bindings::dchost::worker::worker_context,
            "dchost:worker/pending@0.1.0": crate::wasm::bindings::dchost::worker::pending,
            "dchost:worker/variables@0.1.0": crate::wasm::bindings::dchost::worker::variables,
            "dchost:worker/ops@0.1.0": crate::wasm::bindings::dchost::worker::ops,
            "dchost:worker/kernels@0.1.0": crate::wasm::bindings::dchost::worker::kernels,
            "dchost:worker/summary@0.1.0": crate::wasm::bindings::dchost::worker::summary,
            "dchost:worker/log@0.1.0": crate::wasm::bindings::dchost::worker::log,
            "wasi:io/poll@0.2.0": crate::wasm::bindings::wasi::io::poll,
            "dchost:worker/op-entry@0.1.0": generate,
        },
        ownership: Borrowing { duplicate_if_necessary: true },
        pub_export_macro: true,
        export_macro_name: "__export_op_exports",
        default_bindings_module: "dchost_guest::__op_bindings",
    });
}

/// The only run of this component instance.
#[derive(Clone, Debug, Default)]
pub struct Context;

/// A declared variable, and its type in the host's words.
pub(crate) struct Variable {
    handle: variables::Variable,
    dtype: types::Dtype,
    shape: Vec<u64>,
}

/// An answer that comes later.
pub(crate) struct Pending {
    /// Made when it is first asked for. Stands first to be dropped first: some hosts hold it to be the handle's child.
    pollable: OnceCell<bindings::wasi::io::poll::Pollable>,
    handle: pending::Pending,
}

impl Pending {
    fn new(handle: pending::Pending) -> Self {
        Pending { pollable: OnceCell::new(), handle }
    }

    fn pollable(&self) -> &bindings::wasi::io::poll::Pollable {
        self.pollable.get_or_init(|| self.handle.subscribe())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.pollable().ready()
    }

    pub(crate) fn get(self) -> Result<Vec<RawValue>> {
        raw_values(self.handle.get()?)
    }
}

impl Context {
    pub(crate) fn task(&self) -> Option<Task> {
        worker_context::this_task().map(Task::from)
    }

    pub(crate) fn master_target(&self) -> String {
        worker_context::master_target()
    }

    pub(crate) fn is_chief(&self) -> bool {
        worker_context::is_chief()
    }

    pub(crate) fn num_workers(&self) -> u32 {
        worker_context::num_workers()
    }

    pub(crate) fn distributed_mode(&self) -> bool {
        worker_context::distributed_mode()
    }

    pub(crate) fn has_barrier(&self) -> bool {
        worker_context::has_barrier()
    }

    pub(crate) fn cluster_spec(&self) -> ClusterSpec {
        ClusterSpec::from_jobs(worker_context::cluster_spec())
    }

    pub(crate) fn should_checkpoint(&self) -> bool {
        worker_context::should_checkpoint()
    }

    pub(crate) fn should_save_summary(&self) -> bool {
        worker_context::should_save_summary()
    }

    pub(crate) fn attempt(&self) -> u32 {
        worker_context::attempt()
    }

    pub(crate) fn training_ended(&self) -> bool {
        worker_context::training_ended()
    }

    /// The host puts the module's name before the arguments, as a shell does.
    pub(crate) fn args(&self) -> Vec<String> {
        std::env::args().skip(1).collect()
    }

    pub(crate) fn wait_for_other_workers(&self) -> Result<()> {
        Ok(worker_context::wait_for_other_workers()?)
    }

    pub(crate) fn barrier(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        Ok(worker_context::barrier(name, timeout.map(millis))?)
    }

    pub(crate) fn declare(&self, name: &str, dtype: DType, shape: &[usize], place: &Placement) -> Result<Variable> {
        let shape: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
        let dtype = types::Dtype::from(dtype);
        let handle = match place {
            Placement::Auto => variables::Variable::declare(name, dtype, &shape, variables::Placement::Auto),
            Placement::Sharded => variables::Variable::declare(name, dtype, &shape, variables::Placement::Sharded),
            Placement::On(task) => {
                let task = types::TaskParam { job: &task.job, index: task.index };
                variables::Variable::declare(name, dtype, &shape, variables::Placement::On(task))
            }
        }?;
        Ok(Variable { handle, dtype, shape })
    }

    pub(crate) fn initialize(&self, values: &[(&Variable, &[u8])], mode: InitializeMode) -> Result<()> {
        let values: Vec<_> =
            values.iter().map(|&(variable, value)| (&variable.handle, tensor_param(variable, value))).collect();
        let mode = match mode {
            InitializeMode::Overwrite => variables::InitializeMode::Overwrite,
            InitializeMode::IfAbsent => variables::InitializeMode::IfAbsent,
        };
        Ok(variables::initialize(&values, mode)?)
    }

    pub(crate) fn uninitialized(&self, variables: &[&Variable]) -> Result<Vec<String>> {
        Ok(variables::uninitialized(&handles(variables))?)
    }

    pub(crate) fn wait_initialized(&self, variables: &[&Variable], timeout: Option<Duration>) -> Result<()> {
        Ok(variables::wait_initialized(&handles(variables), timeout.map(millis))?)
    }

    pub(crate) fn read(&self, variables: &[&Variable], read: Read) -> Result<Vec<RawValue>> {
        raw_values(variables::read(&handles(variables), read_options(read))?)
    }

    pub(crate) fn update(&self, changes: &[RawChange<'_>], write: Write) -> Result<Vec<RawValue>> {
        raw_values(variables::update(&change_params(changes), write.want_values, consistency(write.relaxed))?)
    }

    pub(crate) fn start_read(&self, variables: &[&Variable], read: Read) -> Result<Pending> {
        Ok(Pending::new(variables::start_read(&handles(variables), read_options(read))?))
    }

    pub(crate) fn start_update(&self, changes: &[RawChange<'_>], write: Write) -> Result<Pending> {
        let changes = change_params(changes);
        Ok(Pending::new(variables::start_update(&changes, write.want_values, consistency(write.relaxed))?))
    }

    pub(crate) fn scalar(&self, tag: &str, step: u64, value: f64) {
        summary::scalar(tag, step, value);
    }

    pub(crate) fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        summary::progress(done, total, note);
    }

    pub(crate) fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Trace => log::Level::Trace,
            Level::Debug => log::Level::Debug,
            Level::Info => log::Level::Info,
            Level::Warn => log::Level::Warn,
            Level::Error => log::Level::Error,
        };
        log::write(level, message);
    }
}

fn read_options(read: Read) -> variables::ReadOptions {
    // Rounded down: no older than what was asked for.
    let max_age = read.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    variables::ReadOptions { min_version: read.min_version, max_age, consistency: consistency(read.relaxed) }
}

fn consistency(relaxed: bool) -> variables::Consistency {
    if relaxed { variables::Consistency::Relaxed } else { variables::Consistency::Atomic }
}

/// At least one millisecond for a timeout that isn't zero, so that a short wait doesn't become none.
fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn handles<'a>(variables: &[&'a Variable]) -> Vec<&'a variables::Variable> {
    variables.iter().map(|variable| &variable.handle).collect()
}

fn tensor_param<'a>(variable: &'a Variable, data: &'a [u8]) -> types::TensorParam<'a> {
    types::TensorParam { dtype: variable.dtype, shape: &variable.shape, data }
}

fn change_params<'a>(changes: &[RawChange<'a>]) -> Vec<variables::Change<'a>> {
    let param = |change: &RawChange<'a>| variables::Change {
        target: &change.variable.handle,
        kind: update_kind(change.kind),
        value: tensor_param(change.variable, change.data),
        base: change.base,
    };
    changes.iter().map(param).collect()
}

fn update_kind(kind: UpdateKind) -> variables::UpdateKind {
    match kind {
        UpdateKind::Assign => variables::UpdateKind::Assign,
        UpdateKind::Add => variables::UpdateKind::Add,
        UpdateKind::Sub => variables::UpdateKind::Sub,
        UpdateKind::Min => variables::UpdateKind::Min,
        UpdateKind::Max => variables::UpdateKind::Max,
    }
}

fn raw_values(values: Vec<pending::Value>) -> Result<Vec<RawValue>> {
    values.into_iter().map(raw_value).collect()
}

fn raw_value(value: pending::Value) -> Result<RawValue> {
    let types::TensorResult { dtype, shape, data } = value.tensor;
    let dtype = DType::try_from(dtype)?;
    if data.is_empty() {
        // The value wasn't asked for: what counts is the version.
        return Ok(RawValue { tensor: Tensor::from_bytes(dtype, empty_shape(&shape)?, data)?, version: value.version });
    }
    Ok(RawValue { tensor: Tensor::from_bytes(dtype, local_shape(&shape)?, data)?, version: value.version })
}

fn local_shape(shape: &[u64]) -> Result<Vec<usize>> {
    let extent = |&extent| {
        usize::try_from(extent).map_err(|_| Error::invalid(format!("shape {shape:?} is too large for this guest")))
    };
    shape.iter().map(extent).collect()
}

/// The shape itself where it has no elements, else one that has none.
fn empty_shape(shape: &[u64]) -> Result<Vec<usize>> {
    if shape.contains(&0) { local_shape(shape) } else { Ok(vec![0]) }
}

impl From<DType> for types::Dtype {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => types::Dtype::F32,
            DType::F64 => types::Dtype::F64,
            DType::S32 => types::Dtype::S32,
            DType::S64 => types::Dtype::S64,
            DType::U8 => types::Dtype::U8,
        }
    }
}

impl TryFrom<types::Dtype> for DType {
    type Error = Error;

    fn try_from(dtype: types::Dtype) -> Result<Self> {
        Ok(match dtype {
            types::Dtype::F32 => DType::F32,
            types::Dtype::F64 => DType::F64,
            types::Dtype::S32 => DType::S32,
            types::Dtype::S64 => DType::S64,
            types::Dtype::U8 => DType::U8,
            types::Dtype::Bf16 | types::Dtype::F16 | types::Dtype::Bool => {
                let text = format!("a value of type {dtype:?}, which this SDK doesn't know");
                return Err(Error::new(ErrorCode::Unimplemented, text));
            }
        })
    }
}

impl From<types::TaskResult> for Task {
    fn from(task: types::TaskResult) -> Self {
        Task { job: task.job, index: task.index }
    }
}

impl From<types::Error> for Error {
    fn from(error: types::Error) -> Self {
        let code = match error.code {
            types::ErrorCode::Cancelled => ErrorCode::Cancelled,
            types::ErrorCode::Unknown => ErrorCode::Unknown,
            types::ErrorCode::InvalidArgument => ErrorCode::InvalidArgument,
            types::ErrorCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
            types::ErrorCode::NotFound => ErrorCode::NotFound,
            types::ErrorCode::AlreadyExists => ErrorCode::AlreadyExists,
            types::ErrorCode::PermissionDenied => ErrorCode::PermissionDenied,
            types::ErrorCode::ResourceExhausted => ErrorCode::ResourceExhausted,
            types::ErrorCode::FailedPrecondition => ErrorCode::FailedPrecondition,
            types::ErrorCode::Aborted => ErrorCode::Aborted,
            types::ErrorCode::OutOfRange => ErrorCode::OutOfRange,
            types::ErrorCode::Unimplemented => ErrorCode::Unimplemented,
            types::ErrorCode::Internal => ErrorCode::Internal,
            types::ErrorCode::Unavailable => ErrorCode::Unavailable,
            types::ErrorCode::DataLoss => ErrorCode::DataLoss,
            types::ErrorCode::Unauthenticated => ErrorCode::Unauthenticated,
            types::ErrorCode::Uninitialized => ErrorCode::Uninitialized,
            types::ErrorCode::PeerFailed => ErrorCode::PeerFailed,
            types::ErrorCode::PeerRestarted => ErrorCode::PeerRestarted,
        };
        Error { code, message: error.message, tasks: error.tasks.into_iter().map(Task::from).collect() }
    }
}
