#![doc = include_str!("../README.md")]

mod batch;
mod change;
mod context;
mod element;
mod entry;
mod error;
pub mod linalg;
mod log;
mod op;
mod optimizer;
mod overlap;
mod raw;
mod read;
mod rows;
mod task;
mod tensor;
mod value;
mod variable;

#[cfg(not(target_arch = "wasm32"))]
mod mock;
#[cfg(target_arch = "wasm32")]
mod wasm;
#[cfg(not(target_arch = "wasm32"))]
use mock as imp;
#[cfg(target_arch = "wasm32")]
use wasm as imp;

pub use batch::{PendingRead, PendingUpdate, VariableSet};
pub use change::{Change, Operand};
pub use context::WorkerContext;
pub use dchost_guest_macros::{op, worker_fn};
pub use element::{DType, Element};
pub use entry::Outcome;
pub use error::{Error, ErrorCode, Result};
pub use log::Level;
#[cfg(not(target_arch = "wasm32"))]
pub use mock::{Failure, LogLine, MockBuilder, MockCluster, Run, Scalar, TaskRun};
pub use op::{Call, Input, Op, OpArg, OpBuilder, OpOutcome, OpParam, OpSet, OpValue, RemoteValue, Wait, wait_any};
pub use optimizer::{GradientSet, Optimizer};
pub use overlap::Overlap;
pub use read::Read;
pub use task::{ClusterSpec, Task, chief, evaluator, ps, worker};
pub use tensor::Tensor;
pub use value::Value;
pub use variable::{Variable, VariableBuilder};

#[doc(hidden)]
pub use op::{ListedOp as __ListedOp, OpEntry as __OpEntry, OpInputs as __OpInputs, check_rest as __check_rest};
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use wasm::bindings as __bindings;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use wasm::bindings::__export_worker;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use wasm::op_bindings as __op_bindings;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use wasm::op_bindings::__export_op_exports;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use wasm::ops::call as __call_op;
