//! The store of one instance: its grants, its limits, and the processor time that it takes.

use super::calls::Calls;
use super::engine::EngineInner;
use super::kernels::Kernels;
use super::limits::Limiter;
use super::load::Module;
use super::output::Output;
use super::pending::PendingUse;
use super::run::GuestOptions;
use super::state::State;
use super::wasi::{self, Denials, FileUse, Network};
use super::watch::RunWatch;
use crate::handles::Handles;
use rustix::time::{ClockId, clock_gettime};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::ResourceTable;
use wasmtime::{Store, UpdateDeadline};

/// The CPU budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the CPU budget is used up")]
pub(super) struct CpuExceeded;

impl Module {
    /// Makes the store with its grants and limits, or says which can't be had.
    pub(super) fn store(
        &self,
        options: GuestOptions,
        handles: Handles,
        watch: &RunWatch,
        output: &Output,
        meter: &Arc<Meter>,
    ) -> Result<Store<State>, String> {
        let denials = Arc::new(Denials::default());
        let network = Arc::new(Network::new(options.net.clone(), Arc::clone(&denials)));
        let wasi = wasi::context(self.name(), &options, output, &network)?;
        let files = FileUse::new(options.dirs, denials);
        let EngineInner { wasmtime, options: engine, .. } = &*self.inner.engine;
        let limits = options.limits;
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles_max);
        let state = State {
            wasi,
            table,
            network,
            files,
            limiter: Limiter::new(limits.memory_bytes_max),
            calls: Calls::new(handles.interrupt.clone(), watch.clone()),
            handles,
            pending: PendingUse::default(),
            kernels: Kernels::new(&limits, meter),
            output: output.clone(),
            limits: limits.clone(),
        };
        let mut store = Store::new(wasmtime, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(limits.hostcall_bytes());
        store.set_max_component_handles(limits.handles_max);
        if limits.fuel.is_some() && !engine.fuel {
            return Err("`-W fuel` needs an engine that counts fuel".to_owned());
        }
        self.refuel(&mut store)?;
        // Before instantiation: the first check comes at the first function, and a deadline of 0 traps there.
        store.set_epoch_deadline(1);
        let meter = Arc::clone(meter);
        store.epoch_deadline_callback(move |_| {
            if limits.cpu_timeout.is_some_and(|budget| meter.total() >= budget) {
                return Err(CpuExceeded.into());
            }
            // tokio's own yield goes to the end of the queue; the default one may be polled again at once.
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        Ok(store)
    }

    /// Fills the store with the fuel of one call, where fuel is counted.
    pub(super) fn refuel(&self, store: &mut Store<State>) -> Result<(), String> {
        if !self.inner.engine.options.fuel {
            return Ok(());
        }
        let fuel = store.data().limits.fuel.unwrap_or(u64::MAX);
        store.set_fuel(fuel).map_err(|error| format!("`-W fuel` can't be set: {error:#}"))
    }
}

/// Processor time of one run: that of the threads that poll it, while they poll it, and of those that kernels take beside.
///
/// Waits don't count, neither in dchost's host functions nor in WASI's, and nor does time in which other guests have the
/// thread.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Of polls that are over, in ns.
    spent_ns: AtomicU64,
    /// The thread's clock when the present poll began, in ns.
    began_ns: AtomicU64,
}

impl Meter {
    /// The time so far. Within a poll it must be asked on the polling thread, as the epoch callback is; after, anywhere.
    pub(super) fn total(&self) -> Duration {
        let spent = self.spent_ns.load(Ordering::Relaxed);
        let running = match self.began_ns.load(Ordering::Relaxed) {
            0 => 0,
            began => thread_ns().saturating_sub(began),
        };
        Duration::from_nanos(spent + running)
    }

    /// Adds time of another thread.
    pub(super) fn charge(&self, spent: Duration) {
        self.spent_ns.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Starts anew: what was spent so far belongs to a call that is over.
    pub(super) fn reset(&self) {
        self.spent_ns.store(0, Ordering::Relaxed);
    }

    fn begin(&self) {
        self.began_ns.store(thread_ns().max(1), Ordering::Relaxed);
    }

    fn end(&self) {
        let began = self.began_ns.swap(0, Ordering::Relaxed);
        self.spent_ns.fetch_add(thread_ns().saturating_sub(began), Ordering::Relaxed);
    }
}

/// Processor time of this thread, in ns.
pub(super) fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// Polls a future, metering each poll.
pub(super) async fn metered<F: Future>(meter: &Meter, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        meter.begin();
        let poll = future.as_mut().poll(cx);
        meter.end();
        poll
    })
    .await
}
