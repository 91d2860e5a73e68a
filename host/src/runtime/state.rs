//! What the store of one run holds.

use super::bindings::types;
use super::calls::{Calls, HostError};
use super::kernels::Kernels;
use super::limits::{Limiter, Limits};
use super::output::Output;
use super::pending::PendingUse;
use super::wasi::{FileUse, Network};
use crate::handles::Handles;
use std::sync::Arc;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

/// The store's data: one for each run, dropped with it.
pub(crate) struct State {
    pub(super) wasi: WasiCtx,
    pub(super) table: ResourceTable,
    /// Where the guest may connect to.
    pub(super) network: Arc<Network>,
    /// What the guest does with files.
    pub(super) files: FileUse,
    pub(super) limits: Limits,
    pub(super) limiter: Limiter,
    pub(super) handles: Handles,
    pub(super) calls: Calls,
    pub(super) pending: PendingUse,
    pub(super) kernels: Kernels,
    /// Where stdout, stderr and log lines go.
    pub(super) output: Output,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl types::Host for State {
    fn convert_error(&mut self, error: HostError) -> wasmtime::Result<types::Error> {
        match error {
            HostError::Wit(error) => Ok(error.into()),
            HostError::Trap(error) => Err(error),
        }
    }
}
