//! One call of `worker_fn`: one store, from its grants to how it ended.

use super::calls::{Calls, HostPanic, catch_panics, caught};
use super::coredump;
use super::engine::EngineInner;
use super::grants::{DirGrant, NetGrant};
use super::limits::{INSTANCES_MAX, Limit, Limiter, Limits, MEMORIES_MAX, TABLES_MAX, TensorExceeded, mib};
use super::load::Module;
use super::output::Output;
use super::pending::PendingUse;
use super::state::State;
use super::trap;
use super::wasi::{self, Denials, FileUse, Network};
use super::watch::RunWatch;
use crate::error::Error;
use crate::handles::Handles;
use crate::text::{escape_block, truncated, with_lines};
use rustix::time::{ClockId, clock_gettime};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::{ResourceTable, ResourceTableError};
use wasmtime::{Store, Trap, UpdateDeadline};
use wasmtime_wasi::I32Exit;

/// Longest message of a failed `worker_fn` that is kept, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// What a guest is given. The default is nothing but the clock, random numbers and an output.
#[derive(Clone, Debug, Default)]
pub struct GuestOptions {
    /// Its arguments, without argv\[0\], which is the module's name.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Its directories.
    pub dirs: Vec<DirGrant>,
    /// Where it may connect to.
    pub net: Vec<NetGrant>,
    /// Where a trap or a limit leaves the guest's memory, one file each; none: nowhere (`-D coredump`). Needs
    /// [`EngineOptions::coredump`](super::EngineOptions::coredump).
    pub coredump_dir: Option<PathBuf>,
    /// What it may use.
    pub limits: Limits,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// `worker_fn` returned without an error.
    Done,
    /// `worker_fn` returned an error.
    WorkerError {
        /// The error, its control characters escaped.
        message: String,
    },
    /// The guest called `exit`.
    GuestExit {
        /// Whether it exited with success.
        ok: bool,
        /// Its number, where the guest passed one: WASI 0.2's `exit` only tells success (0) from failure (none).
        code: Option<u8>,
    },
    /// The guest trapped.
    Trap {
        /// Why, in a few words.
        kind: String,
        /// Last words, frames and hint, in several lines; empty where none is known.
        report: String,
    },
    /// A limit was reached, or a trap followed the refusal of more.
    Limit {
        /// Which.
        limit: Limit,
        /// What, how much and the flag; then the guest's state as in a trap's report.
        message: String,
    },
    /// The run did not begin: its grants or its declared sizes can't be met.
    Refused {
        /// What, why and how to mend it.
        message: String,
    },
    /// A bug in dchost: a host function panicked.
    HostBug {
        /// What is known.
        message: String,
    },
}

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it ended.
    pub end: RunEnd,
    /// The first cluster failure that the host answered to the guest; see [`RunWatch::cluster_failure`].
    pub cluster_failure: Option<Error>,
    /// Processor time of the guest and the host functions on its thread.
    pub cpu_time: Duration,
    /// Memories and tables at their largest, in bytes.
    pub memory_bytes_peak: u64,
}

/// The CPU budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the CPU budget is used up")]
struct CpuExceeded;

impl Module {
    /// Runs `worker_fn` in a store of its own. `watch` shows the run while it lasts; give each run a new one.
    ///
    /// Must be polled within a tokio runtime, best one of its own: a guest computes on the thread that polls it, and
    /// yields every 10 ms.
    ///
    /// A core dump ([`GuestOptions::coredump_dir`]) is written on a thread of the runtime's for blocking calls, after
    /// [`RunWatch::ended`] has told of the end. There is none where `handles.interrupt` is set: the run had to end in any case.
    ///
    /// # Panics
    /// Not for what the guest, a handle or the console does: where a panic unwinds, one of those ends the run with
    /// [`RunEnd::HostBug`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the guest at its next yield or host call. What it wrote without a newline is shown. A core
    /// dump that is being written is given up.
    pub async fn run(&self, options: GuestOptions, handles: Handles, watch: RunWatch) -> RunReport {
        let output = Output::new(handles.console.clone(), &options.limits);
        // Also where the future is dropped: last words are what explains a hang.
        let _finish = Finish(output.clone());
        let meter = Arc::new(Meter::default());
        let coredump_dir = options.coredump_dir.clone();
        let report = |end: RunEnd, memory_bytes_peak: u64| RunReport {
            end,
            cluster_failure: watch.cluster_failure(),
            cpu_time: meter.total(),
            memory_bytes_peak,
        };
        let report = match self.store(options, handles, &watch, &output, &meter) {
            Ok(mut store) => {
                let outcome = metered(&meter, catch_panics(call(&self.inner.pre, &mut store))).await;
                let finished = caught(|| output.finish());
                let end = match (&outcome, &finished) {
                    (Ok(outcome), Ok(())) => end(outcome, store.data(), &watch, &output),
                    (Err(panic), _) | (_, Err(panic)) => RunEnd::HostBug { message: bug(panic) },
                };
                let memory_bytes_peak = store.data().limiter.used_bytes();
                let store = match (coredump_dir, &end, outcome) {
                    (Some(dir), RunEnd::Trap { .. } | RunEnd::Limit { .. }, Ok(Err(error))) => {
                        let told = || watch.note_end(&report(end.clone(), memory_bytes_peak));
                        self.leave_dump(dir, store, error, &watch, told).await
                    }
                    _ => Some(store),
                };
                // What the store holds may panic too when it goes: handles, and what the guest left undropped.
                let dropped = caught(|| drop(store));
                let end = match (end, dropped) {
                    (end @ RunEnd::HostBug { .. }, _) | (end, Ok(())) => end,
                    (_, Err(panic)) => RunEnd::HostBug { message: bug(&panic) },
                };
                report(end, memory_bytes_peak)
            }
            Err(message) => report(RunEnd::Refused { message }, 0),
        };
        watch.note_end(&report);
        report
    }

    /// Writes a core dump of a store, and gives the store back. It may take long, so that the end is told first, and the
    /// guest's thread is free meanwhile.
    async fn leave_dump(
        &self,
        dir: PathBuf,
        mut store: Store<State>,
        error: wasmtime::Error,
        watch: &RunWatch,
        tell_end: impl FnOnce(),
    ) -> Option<Store<State>> {
        // Looked at first: what the end brings about in the cluster may interrupt this run too.
        let had_to_end = store.data().handles.interrupt.borrow().clone();
        tell_end();
        if let Some(why) = had_to_end {
            tracing::info!("no core dump: the run had to end: {why}");
            return Some(store);
        }
        // Where the future is dropped, nobody waits for the dump.
        let give_up = GiveUpDump(watch.clone());
        let (name, watch) = (self.name().to_owned(), watch.clone());
        let written = tokio::task::spawn_blocking(move || {
            coredump::leave(&dir, &mut store, &error, &name, &watch);
            store
        });
        let store = written.await;
        drop(give_up);
        // What may panic there is caught there.
        store.ok()
    }

    /// Makes the store with its grants and limits, or says which can't be had.
    fn store(
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
            output: output.clone(),
            limits: limits.clone(),
        };
        let mut store = Store::new(wasmtime, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(limits.hostcall_bytes());
        store.set_max_component_handles(limits.handles_max);
        match (engine.fuel, limits.fuel) {
            (true, fuel) => store
                .set_fuel(fuel.unwrap_or(u64::MAX))
                .map_err(|error| format!("`-W fuel` can't be set: {error:#}"))?,
            (false, Some(_)) => return Err("`-W fuel` needs an engine that counts fuel".to_owned()),
            (false, None) => {}
        }
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
}

/// Gives up a core dump when it goes, which harms none that is written.
struct GiveUpDump(RunWatch);

impl Drop for GiveUpDump {
    fn drop(&mut self) {
        self.0.give_up_dump();
    }
}

/// Shows last words however the run ends.
struct Finish(Output);

impl Drop for Finish {
    fn drop(&mut self) {
        // A console that panics here, perhaps while another panic is under way, would end the process.
        let _ = caught(|| self.0.finish());
    }
}

/// Instantiates and calls `run`.
async fn call(
    pre: &super::bindings::WorkerPre<State>,
    store: &mut Store<State>,
) -> wasmtime::Result<Result<(), String>> {
    let worker = pre.instantiate_async(&mut *store).await?;
    store.data_mut().limiter.instantiated();
    worker.dchost_worker_entry().call_run(&mut *store).await
}

/// Tells what came out of a call; an error's first match counts, the most specific first.
fn end(outcome: &wasmtime::Result<Result<(), String>>, state: &State, watch: &RunWatch, output: &Output) -> RunEnd {
    let error = match outcome {
        Ok(Ok(())) => return RunEnd::Done,
        Ok(Err(message)) => {
            return RunEnd::WorkerError { message: escape_block(truncated(message, MESSAGE_BYTES_MAX)) };
        }
        Err(error) => error,
    };
    if let Some(&I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        // 1 is what WASI 0.2 makes of any failure, so it isn't the guest's own number.
        let code = u8::try_from(code).ok().filter(|&code| code != 1);
        return RunEnd::GuestExit { ok: code == Some(0), code };
    }
    let report = || trap::report(error, &output.tail());
    if let Some(message) = watch.host_bug() {
        let message = with_lines(&format!("{message}; a bug in dchost, please report it"), &report());
        return RunEnd::HostBug { message };
    }
    match reached(error, state) {
        Some(Reached::Declared(message)) => RunEnd::Refused { message },
        Some(Reached::Limit(limit, message)) => RunEnd::Limit { limit, message: with_lines(&message, &report()) },
        None => RunEnd::Trap { kind: trap::kind_of(error), report: report() },
    }
}

/// What an error says about limits.
enum Reached {
    /// Declared sizes alone are too large.
    Declared(String),
    /// A limit was reached.
    Limit(Limit, String),
}

fn reached(error: &wasmtime::Error, state: &State) -> Option<Reached> {
    let limits = &state.limits;
    let flag = |limit: Limit, what: String| Some(Reached::Limit(limit, format!("{what} ({limit})")));
    if error.downcast_ref::<CpuExceeded>().is_some() {
        let budget = limits.cpu_timeout.unwrap_or_default();
        return flag(Limit::Cpu, format!("cpu limit {budget:?} reached"));
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        return flag(Limit::Fuel, format!("fuel limit {} reached", limits.fuel.unwrap_or(u64::MAX)));
    }
    if let Some(TensorExceeded { bytes }) = error.downcast_ref() {
        let (bytes, most) = (mib(*bytes), mib(limits.tensor_bytes_max));
        return flag(Limit::Tensor, format!("one host call passed tensors of {bytes}, above {most}"));
    }
    // Without the frames: a function could be named as one of these texts.
    let text = trap::cause(error);
    // Fixed by the component, so it is refused rather than ended; wasmtime has no type for these either.
    for (what, most) in [("instance", INSTANCES_MAX), ("memory", MEMORIES_MAX), ("table", TABLES_MAX)] {
        if text.contains(&format!("resource limit exceeded: {what} count too high")) {
            let what = if what == "instance" {
                "core instances"
            } else if what == "table" {
                "tables"
            } else {
                "memories"
            };
            return Some(Reached::Declared(format!(
                "the component has more than {most} {what}, which is the most that one run may have: link it from fewer parts"
            )));
        }
    }
    if matches!(error.downcast_ref::<ResourceTableError>(), Some(ResourceTableError::Full))
        || text.contains("handle limit exceeded")
        || text.contains("resource table has no free keys")
    {
        return flag(Limit::Handles, format!("too many handles, limit {} reached", limits.handles_max));
    }
    // wasmtime has no type for this one.
    if text.contains("fuel allocated for hostcalls has been exhausted") {
        let asked = mib(limits.tensor_bytes_max);
        return flag(Limit::Tensor, format!("one host call passed more than {asked} and what goes with it"));
    }
    // As wasmtime-wasi words it, which has no type for it.
    if text.contains("requested len ") && text.contains(" exceeds limit ") {
        let most = mib(wasi::RANDOM_BYTES_MAX);
        return flag(
            Limit::Random,
            format!("one call asked for more than {most} of random bytes, ask for fewer at once"),
        );
    }
    let refusal = state.limiter.refused()?;
    // A start function may grow a memory from nothing as well; what it then does is a trap, and declared sizes aren't.
    let initial = refusal.initial && error.downcast_ref::<Trap>().is_none();
    let limit = mib(limits.memory_bytes_max);
    let (used, asked) = (mib(refusal.used_bytes), mib(refusal.asked_bytes));
    if initial {
        return Some(Reached::Declared(format!(
            "the component declares {asked} of memory beside {used}, above the limit of {limit} ({})",
            Limit::Memory
        )));
    }
    let what = format!("memory limit {limit} reached: {used} in use, {asked} more refused");
    // The only limit whose refusal the guest may live with: what it then did is another thing.
    Some(Reached::Limit(
        Limit::Memory,
        format!("{what} ({})\nthe guest then trapped: {}", Limit::Memory, trap::kind_of(error)),
    ))
}

fn bug(panic: &HostPanic) -> String {
    format!("{panic}; a bug in dchost, please report it")
}

/// Processor time of one run: that of the threads that poll it, while they poll it.
///
/// Waits don't count, neither in dchost's host functions nor in WASI's, and nor does time in which other guests have the
/// thread.
#[derive(Debug, Default)]
struct Meter {
    /// Of polls that are over, in ns.
    spent_ns: AtomicU64,
    /// The thread's clock when the present poll began, in ns.
    began_ns: AtomicU64,
}

impl Meter {
    /// The time so far. Within a poll it must be asked on the polling thread, as the epoch callback is; after, anywhere.
    fn total(&self) -> Duration {
        let spent = self.spent_ns.load(Ordering::Relaxed);
        let running = match self.began_ns.load(Ordering::Relaxed) {
            0 => 0,
            began => thread_ns().saturating_sub(began),
        };
        Duration::from_nanos(spent + running)
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
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// Polls a future, metering each poll.
async fn metered<F: Future>(meter: &Meter, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        meter.begin();
        let poll = future.as_mut().poll(cx);
        meter.end();
        poll
    })
    .await
}
