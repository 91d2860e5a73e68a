//! One call of `worker_fn`: one store, from its grants to how it ended.

use super::calls::{catch_panics, caught};
use super::coredump;
use super::ending::{Ending, bug, no_room};
use super::grants::{DirGrant, NetGrant};
use super::limits::{Limit, Limits};
use super::load::Module;
use super::output::Output;
use super::state::State;
use super::store::{Meter, metered};
use super::watch::RunWatch;
use crate::error::Error;
use crate::handles::Handles;
use crate::text::{escape_block, truncated, with_lines};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::Store;

/// Longest message of a failed `worker_fn` that is kept, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 10;

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
    /// The run did not begin: the system has no memory, or nothing else that it takes, left for it.
    NoRoom {
        /// What the system said, and how to mend it.
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
        let store = self.store(options, handles, &watch, &output, &meter);
        let worker = self.inner.worker.as_ref().ok_or_else(|| format!("`{}` has no worker_fn", self.name()));
        let report = match store.and_then(|store| Ok((store, worker?))) {
            Ok((mut store, worker)) => {
                let outcome = metered(&meter, catch_panics(call(worker, &mut store))).await;
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
    let worker = pre.instantiate_async(&mut *store).await.map_err(no_room)?;
    store.data_mut().limiter.instantiated();
    worker.dchost_worker_entry().call_run(&mut *store).await
}

/// Tells what came out of a call.
fn end(outcome: &wasmtime::Result<Result<(), String>>, state: &State, watch: &RunWatch, output: &Output) -> RunEnd {
    match outcome {
        Ok(Ok(())) => RunEnd::Done,
        Ok(Err(message)) => RunEnd::WorkerError { message: escape_block(truncated(message, MESSAGE_BYTES_MAX)) },
        Err(error) => Ending::of(error, state, watch, output).into(),
    }
}

impl From<Ending> for RunEnd {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Exit { ok, code } => RunEnd::GuestExit { ok, code },
            Ending::Trap { kind, report, .. } => RunEnd::Trap { kind, report },
            Ending::Limit { limit, what, report } => RunEnd::Limit { limit, message: with_lines(&what, &report) },
            Ending::Refused { message } => RunEnd::Refused { message },
            Ending::NoRoom { message } => RunEnd::NoRoom { message },
            Ending::HostBug { message } => RunEnd::HostBug { message },
        }
    }
}
