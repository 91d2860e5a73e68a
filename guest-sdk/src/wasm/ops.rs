//! Ops: calls of them on other tasks, and the host's calls of this component's own.

use super::bindings::dchost::worker::{ops, types};
use super::bindings::wasi::io::poll::{self, Pollable};
use super::{Context, Pending, local_shape, millis};
use crate::op::OpSet;
use crate::raw::RawInput;
use crate::{DType, Result, Task, Tensor, WorkerContext};
use std::cell::OnceCell;
use std::time::Duration;

/// An op that was started.
pub(crate) struct Call {
    /// Made when it is first asked for. Stands first to be dropped first: some hosts hold it to be the handle's child.
    pollable: OnceCell<Pollable>,
    handle: ops::Call,
}

/// A result that stays on its task.
pub(crate) struct Remote(ops::RemoteValue);

/// What may be waited for together.
pub(crate) enum Waiting<'a> {
    Pending(&'a Pending),
    Call(&'a Call),
}

impl<'a> Waiting<'a> {
    fn pollable(&self) -> &'a Pollable {
        match *self {
            Waiting::Pending(pending) => pending.pollable(),
            Waiting::Call(call) => call.pollable(),
        }
    }
}

impl Context {
    pub(crate) fn start_op(
        &self,
        task: &Task,
        op: &str,
        inputs: &[RawInput<'_>],
        timeout: Option<Duration>,
    ) -> Result<Call> {
        let shape = |input: &RawInput<'_>| match *input {
            RawInput::Tensor { shape, .. } => shape.iter().map(|&extent| extent as u64).collect(),
            RawInput::Remote(_) => Vec::new(),
        };
        let shapes: Vec<Vec<u64>> = inputs.iter().map(shape).collect();
        let inputs: Vec<_> = inputs.iter().zip(&shapes).map(|(input, shape)| param(*input, shape)).collect();
        let task = types::TaskParam { job: &task.job, index: task.index };
        let handle = ops::start(task, op, &inputs, timeout.map(millis))?;
        Ok(Call { pollable: OnceCell::new(), handle })
    }
}

impl Call {
    fn pollable(&self) -> &Pollable {
        self.pollable.get_or_init(|| self.handle.subscribe())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.pollable().ready()
    }

    pub(crate) fn get(&self) -> Result<Vec<Tensor>> {
        self.handle.get()?.into_iter().map(tensor).collect()
    }

    pub(crate) fn keep(&self) -> Result<Vec<Remote>> {
        Ok(self.handle.keep()?.into_iter().map(Remote).collect())
    }

    pub(crate) fn cancel(&self) {
        self.handle.cancel();
    }
}

impl Remote {
    pub(crate) fn fetch(&self) -> Result<Tensor> {
        tensor(self.0.fetch()?)
    }

    pub(crate) fn on(&self) -> Task {
        self.0.on().into()
    }
}

/// Waits until one is ready, and tells which; the first of several.
pub(crate) fn wait_any(waiting: &[Waiting<'_>]) -> usize {
    let pollables: Vec<_> = waiting.iter().map(Waiting::pollable).collect();
    let ready = poll::poll(&pollables);
    ready.into_iter().min().expect("a host answers when at least one is ready") as usize
}

fn param<'a>(input: RawInput<'a>, shape: &'a [u64]) -> ops::Input<'a> {
    match input {
        RawInput::Tensor { dtype, data, .. } => {
            ops::Input::Tensor(types::TensorParam { dtype: dtype.into(), shape, data })
        }
        RawInput::Remote(value) => ops::Input::Remote(&value.0),
    }
}

fn tensor(tensor: types::TensorResult) -> Result<Tensor> {
    Tensor::from_bytes(DType::try_from(tensor.dtype)?, local_shape(&tensor.shape)?, tensor.data)
}

/// Runs one of this component's ops: the host's call, in the types of its bindings.
#[doc(hidden)]
pub fn call(ops: &OpSet, name: &str, inputs: Vec<types::TensorResult>) -> Result<Vec<types::TensorResult>, String> {
    let Some(entry) = ops.find(name) else { return Err(format!("there is no op `{name}`")) };
    let inputs = inputs.into_iter().map(tensor).collect::<Result<Vec<_>>>().map_err(|error| error.to_string())?;
    let results = (entry.call)(&WorkerContext::__new(Context), inputs)?;
    let exported = |tensor: Tensor| types::TensorResult {
        dtype: tensor.dtype().into(),
        shape: tensor.shape().iter().map(|&extent| extent as u64).collect(),
        data: tensor.into_bytes(),
    };
    Ok(results.into_iter().map(exported).collect())
}
