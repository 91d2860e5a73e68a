//! Ops: named functions of a run's component that other tasks run for it.
//!
//! All here is plain data: an instance that runs ops may live in another process than the server that was asked.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Incarnation, check_name};
use crate::tensor::{Tensor, TensorType};
use crate::text::shown;
use std::time::Duration;

/// Most inputs of one call, and most results: each costs a header on the wire and a handle in the guest.
pub const OPERANDS_MAX: usize = 256;

/// What the error names of a task that hasn't got a run's component, or not any more: put there once more, its ops can be called.
pub const MODULE: &str = "module";

/// Longest list of known ops in the error about an unknown one.
const KNOWN_MAX: usize = 32;

/// A result that stays where it was made, until it is released or the session of the run that owns it ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteValue {
    /// The task that holds it.
    pub task: Task,
    /// Of that task: a restarted one has lost it.
    pub incarnation: Incarnation,
    /// The call that made it, unique in the run's session there.
    pub call: u64,
    /// Which of the call's results.
    pub result: u32,
    /// Its type.
    pub ty: TensorType,
}

/// One input of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpInput {
    /// Sent with the call.
    Tensor(Tensor),
    /// Fetched by the task that runs the op from the one that holds it.
    Remote(RemoteValue),
}

/// A call of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpCall {
    /// The op's name.
    pub op: String,
    /// Its inputs, at most [`OPERANDS_MAX`].
    pub inputs: Vec<OpInput>,
    /// How long it may take, from its start; none: without limit.
    pub timeout: Option<Duration>,
}

impl OpCall {
    /// Checks name and number of inputs.
    ///
    /// # Errors
    /// `invalid-argument` (gRPC `INVALID_ARGUMENT`).
    pub fn check(&self) -> Result<()> {
        check_name("op", &self.op)?;
        let count = self.inputs.len();
        if count > OPERANDS_MAX {
            let message =
                format!("op `{}` is given {count} inputs, at most {OPERANDS_MAX} are allowed", shown(&self.op));
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&*self.op]));
        }
        Ok(())
    }
}

/// The error of an op that `task` doesn't know: `not-found` (gRPC `NOT_FOUND`), listing those that it knows.
pub fn unknown_op(task: Task, op: &str, known: &[String]) -> Error {
    let listed: Vec<String> = known.iter().take(KNOWN_MAX).map(|name| format!("`{}`", shown(name))).collect();
    let known = match known.len() {
        0 => "it has none".to_owned(),
        count if count > KNOWN_MAX => format!("it has {} and {} more", listed.join(", "), count - KNOWN_MAX),
        _ => format!("it has {}", listed.join(", ")),
    };
    let message = format!("the component that runs on {task} has no op `{}`: {known}", shown(op));
    Error::new(ErrorCode::NotFound, message).with_tasks([task]).with_names([op])
}

/// What came of an op, in words that name it and its task; `what` says how it ended, with the guest's own words.
pub fn op_failed(code: ErrorCode, task: Task, op: &str, what: &str) -> Error {
    Error::new(code, format!("op `{}` on {task} {what}", shown(op))).with_tasks([task]).with_names([op])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;
    use expect_test::{Expect, expect};

    const WORKER: Task = Task::new(TaskType::Worker, 1);

    #[test]
    fn an_unknown_op_is_told_the_known_ones() {
        fn check(known: &[&str], expected: Expect) {
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            expected.assert_eq(&unknown_op(WORKER, "grad", &known).to_string());
        }
        check(&[], expect!["not-found: the component that runs on worker:1 has no op `grad`: it has none"]);
        check(
            &["gradient", "loss"],
            expect!["not-found: the component that runs on worker:1 has no op `grad`: it has `gradient`, `loss`"],
        );
        let many: Vec<String> = (0..100).map(|index| format!("op{index}")).collect();
        let error = unknown_op(WORKER, "a\n", &many);
        assert!(error.message.contains("`op31` and 68 more") && !error.message.contains('\n'), "{error}");
    }

    #[test]
    fn calls_are_checked_before_anything_is_sent() {
        let call = |op: &str, inputs| OpCall { op: op.to_owned(), inputs: vec![input(); inputs], timeout: None };
        assert_eq!(call("add", OPERANDS_MAX).check(), Ok(()));
        for bad in [call("", 0), call("a\u{0}", 0), call("add", OPERANDS_MAX + 1)] {
            assert_eq!(bad.check().expect_err("refused").code, ErrorCode::InvalidArgument);
        }
    }

    fn input() -> OpInput {
        let ty = TensorType::new(crate::tensor::DType::F32, []);
        OpInput::Remote(RemoteValue { task: WORKER, incarnation: Incarnation(1), call: 1, result: 0, ty })
    }
}
