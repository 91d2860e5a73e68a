//! `dchost:worker/pending`: answers that come later, so that a guest computes meanwhile.

use super::bindings::wit::pending::{self as wit, Value};
use super::calls::{CallKind, HostError, HostPanic, catch_panics, interrupted};
use super::limits::mib;
use super::state::State;
use crate::error::{Error, ErrorCode, Result};
use crate::handles;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::{DynPollable, Pollable};

/// Tensor bytes that pendings of one run may hold together, as a multiple of `--max-tensor`.
const PENDING_TENSORS_MAX: u64 = 4;

/// An answer, or the panic that came instead.
type Outcome = std::result::Result<Result<Vec<handles::Value>>, HostPanic>;

/// A call under way. Dropping it gives the call up.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct Pending {
    task: JoinHandle<()>,
    outcome: Arc<Mutex<Option<Outcome>>>,
    done: watch::Receiver<bool>,
    taken: bool,
    label: String,
    bytes: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the calls in flight of a run hold: its pendings and its ops.
#[derive(Debug, Default)]
pub(super) struct PendingUse {
    calls: u32,
    bytes: u64,
}

impl PendingUse {
    /// Counts a call that was started and holds `bytes`.
    pub(super) fn began(&mut self, bytes: u64) {
        self.calls += 1;
        self.bytes += bytes;
    }

    /// Takes back bytes that a call doesn't hold any more.
    pub(super) fn freed(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    /// Takes back a call that was dropped, with the bytes that it still held.
    pub(super) fn ended(&mut self, bytes: u64) {
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

/// What a pollable of a call in flight waits for. Nobody's child, so that a guest may drop either first.
pub(super) struct Waiter {
    done: watch::Receiver<bool>,
    interrupt: watch::Receiver<Option<Error>>,
}

impl Waiter {
    pub(super) fn new(done: watch::Receiver<bool>, interrupt: watch::Receiver<Option<Error>>) -> Self {
        Waiter { done, interrupt }
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Waiter {
    async fn ready(&mut self) {
        tokio::select! {
            // A closed channel means that the call is gone: whoever polls must not wait for it.
            _ = self.done.wait_for(|&done| done) => {}
            _ = interrupted(&mut self.interrupt) => {}
        }
    }
}

impl State {
    /// Refuses a call to be started where too many are in flight, or hold too much.
    ///
    /// # Errors
    /// `resource-exhausted`, naming the flag.
    pub(super) fn check_room(&self, bytes: u64) -> Result<()> {
        let exhausted = |message| Err(Error::new(ErrorCode::ResourceExhausted, message));
        let calls_max = self.limits.ops_max;
        if self.pending.calls >= calls_max {
            return exhausted(format!(
                "{calls_max} calls are in flight, the most that is allowed (-W max-ops): `get` or drop some first"
            ));
        }
        let bytes_max = self.limits.tensor_bytes_max.saturating_mul(PENDING_TENSORS_MAX);
        if self.pending.bytes.saturating_add(bytes) > bytes_max {
            return exhausted(format!(
                "calls in flight hold {}, {} more would be above {} ({PENDING_TENSORS_MAX} times --max-tensor): `get` or \
                 drop some first",
                mib(self.pending.bytes),
                mib(bytes),
                mib(bytes_max),
            ));
        }
        Ok(())
    }

    /// Starts a call whose answer is fetched later; `bytes` is what it holds at most.
    pub(super) fn start(
        &mut self,
        label: String,
        bytes: u64,
        call: impl Future<Output = Result<Vec<handles::Value>>> + Send + 'static,
    ) -> std::result::Result<Resource<Pending>, HostError> {
        self.check_room(bytes)?;
        let outcome = Arc::new(Mutex::new(None));
        let (finished, done) = watch::channel(false);
        let task = tokio::spawn({
            let outcome = Arc::clone(&outcome);
            async move {
                let answer = catch_panics(call).await;
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
                finished.send_replace(true);
            }
        });
        let pending = self.table.push(Pending { task, outcome, done, taken: false, label, bytes })?;
        self.pending.began(bytes);
        Ok(pending)
    }
}

impl wit::Host for State {}

impl wit::HostPending for State {
    async fn subscribe(&mut self, pending: Resource<Pending>) -> wasmtime::Result<Resource<DynPollable>> {
        let waiter = Waiter::new(self.table.get(&pending)?.done.clone(), self.calls.interrupt());
        let waiter = self.table.push(waiter)?;
        wasmtime_wasi::p2::subscribe(&mut self.table, waiter)
    }

    async fn get(&mut self, pending: Resource<Pending>) -> std::result::Result<Vec<Value>, HostError> {
        let entry = self.table.get_mut(&pending)?;
        if entry.taken {
            return Err(Error::new(
                ErrorCode::FailedPrecondition,
                format!("the answer of {} was taken already, `get` answers once", entry.label),
            )
            .into());
        }
        let (mut done, outcome, label) = (entry.done.clone(), Arc::clone(&entry.outcome), entry.label.clone());
        let calls = self.calls.clone();
        let answer = calls
            .wait(CallKind::Other, label, async move {
                // The task sends before it ends; a channel closed without that means it was torn down with its runtime.
                let ended = done.wait_for(|&done| done).await.is_ok();
                outcome
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
                    .filter(|_| ended)
                    .ok_or_else(|| Error::new(ErrorCode::Cancelled, "the host is shutting down"))
            })
            .await?;
        // Set only now: an interrupted `get` has taken nothing.
        let entry = self.table.get_mut(&pending)?;
        entry.taken = true;
        self.pending.freed(std::mem::take(&mut entry.bytes));
        match answer {
            Ok(Ok(values)) => Ok(values.into_iter().map(Value::from).collect()),
            Ok(Err(error)) => Err(self.calls.tell(CallKind::Other, error)),
            Err(panic) => Err(self.calls.bug(panic)),
        }
    }

    async fn drop(&mut self, pending: Resource<Pending>) -> wasmtime::Result<()> {
        let pending = self.table.delete(pending)?;
        self.pending.ended(pending.bytes);
        Ok(())
    }
}
