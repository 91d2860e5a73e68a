//! `dchost:worker/ops`: ops on other tasks; not served yet.

use super::bindings::{types, wit::ops};
use super::calls::HostError;
use super::lift::{Answer, TaskIn, answer, shadowed, text};
use super::state::State;
use crate::error::{Error, ErrorCode};
use crate::text::shown;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, WasmList, WasmStr};
use wasmtime_wasi::p2::DynPollable;

/// A result on another task. None exists while no op can be started.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub enum RemoteValue {}

/// A running op. None exists while no op can be started.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub enum Call {}

/// What every function here answers.
fn unserved() -> Error {
    Error::new(
        ErrorCode::Unimplemented,
        "`dchost:worker/ops` is not served by this dchost: compute in `run`, and share by variables and the barrier",
    )
}

impl ops::Host for State {
    async fn start(
        &mut self,
        _task: types::Task,
        _op: String,
        _inputs: Vec<ops::Input>,
        _timeout: Option<types::Millis>,
    ) -> Result<Resource<Call>, HostError> {
        Err(shadowed().into())
    }
}

/// Defines `start` on guest memory: of a call that isn't served, no more than the op's name is looked at.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance("dchost:worker/ops@0.1.0")?.func_wrap(
        "start",
        |cx: StoreContextMut<'_, State>,
         (_task, op, _inputs, _timeout): (TaskIn, WasmStr, WasmList<ops::Input>, Option<types::Millis>)| {
            let start = || -> Answer<Resource<Call>> {
                cx.data().calls.check()?;
                Err(unserved().with_names([shown(&text(&cx, &op)?)]).into())
            };
            answer(start())
        },
    )
}

impl ops::HostRemoteValue for State {
    async fn fetch(&mut self, value: Resource<RemoteValue>) -> Result<types::Tensor, HostError> {
        match *self.table.get(&value)? {}
    }

    async fn on(&mut self, value: Resource<RemoteValue>) -> wasmtime::Result<types::Task> {
        match *self.table.get(&value)? {}
    }

    async fn drop(&mut self, value: Resource<RemoteValue>) -> wasmtime::Result<()> {
        self.table.delete(value)?;
        Ok(())
    }
}

impl ops::HostCall for State {
    async fn subscribe(&mut self, call: Resource<Call>) -> wasmtime::Result<Resource<DynPollable>> {
        match *self.table.get(&call)? {}
    }

    async fn get(&mut self, call: Resource<Call>) -> Result<Vec<types::Tensor>, HostError> {
        match *self.table.get(&call)? {}
    }

    async fn keep(&mut self, call: Resource<Call>) -> Result<Vec<Resource<RemoteValue>>, HostError> {
        match *self.table.get(&call)? {}
    }

    async fn cancel(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        match *self.table.get(&call)? {}
    }

    async fn drop(&mut self, call: Resource<Call>) -> wasmtime::Result<()> {
        self.table.delete(call)?;
        Ok(())
    }
}
