//! Ops: functions of the component that other tasks run for a worker_fn.

mod call;
mod entry;
mod input;
mod outcome;
mod param;

pub use call::{Call, OpBuilder, RemoteValue, Wait, wait_any};
pub use entry::{ListedOp, Op, OpEntry, OpSet, check_rest};
pub use input::Input;
pub use outcome::{OpOutcome, OpValue};
pub use param::{OpArg, OpInputs, OpParam};
