//! `dchost:worker/ops`: ops on other tasks, started over [`Ops`](crate::handles::Ops).

use super::bindings::{types, wit::ops};
use super::calls::CallKind;
use super::lift::{self, Answer, TaskIn, TensorIn, answer, shadowed};
use super::limits::mib;
use super::pending::Waiter;
use super::state::State;
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{self, BoxFuture, StartedOp};
use crate::ids::check_name;
use crate::ops::{OPERANDS_MAX, OpCall, OpInput};
use crate::tensor::{Tensor, TensorView};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Resource, WasmList, WasmStr};
use wasmtime_wasi::p2::DynPollable;

/// A result on another task. One that the guest drops is freed there; those that it leaves go with the run.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct RemoteValue(handles::RemoteValue);

/// An op that was started. Dropping it gives it up.
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct Call {
    started: Arc<dyn StartedOp>,
    task: Task,
    op: String,
    answered: bool,
    /// Tensors that it was started with, in bytes.
    bytes: u64,
}

impl Call {
    /// Names the call for whoever looks at it: `` ops.get of `grad` on worker:1 ``.
    fn label(&self, function: &str) -> String {
        format!("ops.{function} of `{}` on {}", self.op, self.task)
    }
}

/// Twin of the WIT's `input`.
#[derive(ComponentType, Lift)]
#[component(variant)]
enum InputIn {
    #[component(name = "tensor")]
    Tensor(TensorIn),
    #[component(name = "remote")]
    Remote(Resource<RemoteValue>),
}

impl ops::Host for State {
    async fn start(
        &mut self,
        _task: types::Task,
        _op: String,
        _inputs: Vec<ops::Input>,
        _timeout: Option<types::Millis>,
    ) -> Answer<Resource<Call>> {
        Err(shadowed().into())
    }
}

/// Defines `start` on guest memory.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance("dchost:worker/ops@0.1.0")?.func_wrap(
        "start",
        |mut cx: StoreContextMut<'_, State>,
         (task, op, inputs, timeout): (TaskIn, WasmStr, WasmList<InputIn>, Option<types::Millis>)| {
            answer(start(&mut cx, &task, &op, &inputs, timeout))
        },
    )
}

/// Starts an op; an interrupted run gets its interrupt before any other answer.
fn start(
    cx: &mut StoreContextMut<'_, State>,
    TaskIn { job, index }: &TaskIn,
    op: &WasmStr,
    inputs: &WasmList<InputIn>,
    timeout: Option<types::Millis>,
) -> Answer<Resource<Call>> {
    cx.data().calls.check()?;
    let op = lift::text(cx, op)?;
    // Before it is shown or copied.
    check_name("op", &op)?;
    let op = op.into_owned();
    let task = types::task(&lift::text(cx, job)?, *index)
        .map_err(|Error { message, code, .. }| Error::new(code, format!("op `{op}` can't run: {message}")))?;
    let inputs = lift::list(cx, inputs, "inputs", OPERANDS_MAX)?;
    let tensors = inputs.iter().filter_map(|input| match input {
        InputIn::Tensor(tensor) => Some(tensor),
        InputIn::Remote(_) => None,
    });
    let bytes = lift::check_tensors(cx.data(), tensors)?;
    cx.data().check_room(bytes)?;
    // All are looked at before any is copied.
    let inputs = inputs.iter().map(|input| looked_at(cx, input)).collect::<Answer<Vec<_>>>()?;
    let inputs = inputs.into_iter().map(Input::owned).collect();
    let call = OpCall { op: op.clone(), inputs, timeout: timeout.map(Duration::from_millis) };
    let state = cx.data_mut();
    let started = state.handles.ops.start(task, call).map_err(|error| state.calls.tell(CallKind::Other, error))?;
    let call = state.table.push(Call { started: started.into(), task, op, answered: false, bytes })?;
    state.pending.began(bytes);
    Ok(call)
}

/// An input whose tensor is still in guest memory.
enum Input<'a> {
    Tensor(TensorView<'a>),
    Remote(handles::RemoteValue),
}

impl Input<'_> {
    fn owned(self) -> OpInput {
        match self {
            Input::Tensor(TensorView { ty, data }) => {
                OpInput::Tensor(Tensor { ty, data: Bytes::copy_from_slice(data) })
            }
            Input::Remote(value) => OpInput::Remote(value),
        }
    }
}

fn looked_at<'a>(cx: &'a StoreContextMut<'_, State>, input: &InputIn) -> Answer<Input<'a>> {
    Ok(match input {
        InputIn::Tensor(tensor) => Input::Tensor(lift::tensor(cx, tensor)?),
        InputIn::Remote(value) => Input::Remote(cx.data().table.get(value)?.0.clone()),
    })
}

impl State {
    /// Waits for the results of a call, once. An interrupted wait has taken nothing.
    async fn answered<T>(
        &mut self,
        call: &Resource<Call>,
        function: &str,
        results: impl FnOnce(&dyn StartedOp) -> BoxFuture<'static, Result<T>> + Send,
    ) -> Answer<T> {
        let entry = self.table.get(call)?;
        let label = entry.label(function);
        if entry.answered {
            let message =
                format!("the results of {} were taken already: `get` and `keep` answer once", entry.label("start"));
            return Err(Error::new(ErrorCode::FailedPrecondition, message).into());
        }
        let started = Arc::clone(&entry.started);
        let calls = self.calls.clone();
        // The op's own end comes as a value, so that it is told from an interrupt.
        let ended = calls.wait(CallKind::Other, label, async move { Ok(results(&*started).await) }).await?;
        let entry = self.table.get_mut(call)?;
        entry.answered = true;
        self.pending.freed(std::mem::take(&mut entry.bytes));
        ended.map_err(|error| self.calls.tell(CallKind::Other, error))
    }

    /// Bounds what an op answers as what is passed to it: by `--max-tensor`.
    fn check_results(&self, what: &str, bytes: u64) -> Result<()> {
        let bytes_max = self.limits.tensor_bytes_max;
        if bytes <= bytes_max {
            return Ok(());
        }
        let message = format!("{what} {}, above {} (--max-tensor): let it return less", mib(bytes), mib(bytes_max));
        Err(Error::new(ErrorCode::ResourceExhausted, message))
    }
}

impl ops::HostRemoteValue for State {
    async fn fetch(&mut self, value: Resource<RemoteValue>) -> Answer<types::Tensor> {
        let value = self.table.get(&value)?.0.clone();
        self.calls.check()?;
        let bytes = value.ty.size_bytes().map_or(u64::MAX, |bytes| bytes as u64);
        self.check_results(&format!("the value {} on {} has", value.ty, value.task), bytes)?;
        let label = format!("remote-value.fetch from {}", value.task);
        let (calls, ops) = (self.calls.clone(), self.handles.ops.clone());
        let tensor = calls.wait(CallKind::Other, label, async move { ops.fetch(value).await }).await?;
        self.check_results("the value has", tensor.data.len() as u64)?;
        Ok(tensor.into())
    }

    async fn on(&mut self, value: Resource<RemoteValue>) -> wasmtime::Result<types::Task> {
        Ok(self.table.get(&value)?.0.task.into())
    }

    async fn drop(&mut self, value: Resource<RemoteValue>) -> wasmtime::Result<()> {
        let RemoteValue(value) = self.table.delete(value)?;
        self.handles.ops.release(value);
        Ok(())
    }
}

impl ops::HostCall for State {
    async fn subscribe(&mut self, call: Resource<Call>) -> wasmtime::Result<Resource<DynPollable>> {
        let waiter = Waiter::new(self.table.get(&call)?.started.ended(), self.calls.interrupt());
        let waiter = self.table.push(waiter)?;
        wasmtime_wasi::p2::subscribe(&mut self.table, waiter)
    }

    async fn get(&mut self, call: Resource<Call>) -> Answer<Vec<types::Tensor>> {
        let results = self.answered(&call, "get", |started| started.take()).await?;
        let bytes = results.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.data.len() as u64));
        let Call { task, op, .. } = self.table.get(&call)?;
        self.check_results(&format!("the results of op `{op}` on {task} have"), bytes)?;
        Ok(results.into_iter().map(types::Tensor::from).collect())
    }

    async fn keep(&mut self, call: Resource<Call>) -> Answer<Vec<Resource<RemoteValue>>> {
        let results = self.answered(&call, "keep", |started| started.keep()).await?;
        results.into_iter().map(|value| Ok(self.table.push(RemoteValue(value))?)).collect()
    }

    async fn cancel(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        self.table.get(&call)?.started.cancel();
        Ok(())
    }

    async fn drop(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        let Call { bytes, .. } = self.table.delete(call)?;
        self.pending.ended(bytes);
        Ok(())
    }
}
