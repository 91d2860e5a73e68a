//! What an onlooker sees of a run, while it runs and after its future was dropped.

use super::run::RunReport;
use crate::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A view of one run, kept by the one who started it. Cheap to clone.
///
/// It stays as it was when the run's future is dropped, so that a timeout can name the host call that was pending.
#[derive(Clone, Default)]
pub struct RunWatch {
    seen: Arc<Mutex<Seen>>,
    end: Arc<watch::Sender<Option<RunReport>>>,
    dump_given_up: Arc<AtomicBool>,
}

#[derive(Default)]
struct Seen {
    pending: Option<String>,
    cluster_failure: Option<Error>,
    host_bug: Option<String>,
}

impl RunWatch {
    /// Makes the watch of one run.
    pub fn new() -> Self {
        RunWatch::default()
    }

    /// The host call that the guest waits in: ``barrier `start` ``, ``variables.read of `w` ``; none while it computes.
    ///
    /// Waits in WASI (sleeping, polling, files) have no label.
    pub fn pending_host_call(&self) -> Option<String> {
        self.lock().pending.clone()
    }

    /// The first answer to the guest that told of a cluster failure; decides the exit code of a run that then fails.
    ///
    /// Such are peer-failed, peer-restarted and unavailable, a barrier's deadline-exceeded and aborted, and a container that is
    /// refused to a split client.
    pub fn cluster_failure(&self) -> Option<Error> {
        self.lock().cluster_failure.clone()
    }

    /// Waits until the run has ended, and tells how. That is known before [`Module::run`](super::Module::run) returns where a core
    /// dump is being written, which takes as long as the disk does.
    ///
    /// Never ends for a run whose future was dropped before its end.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn ended(&self) -> RunReport {
        let mut end = self.end.subscribe();
        let end = end.wait_for(Option::is_some).await.expect("`self` holds the sender");
        end.clone().expect("waited until it was there")
    }

    /// Gives up the core dump that is being written, if there is one: what is there of it is removed, and
    /// [`Module::run`](super::Module::run) returns.
    pub fn give_up_dump(&self) {
        self.dump_given_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_dump_given_up(&self) -> bool {
        self.dump_given_up.load(Ordering::Relaxed)
    }

    /// Tells how the run ended; the first time counts.
    pub(super) fn note_end(&self, report: &RunReport) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            if first {
                *end = Some(report.clone());
            }
            first
        });
    }

    pub(super) fn set_pending(&self, label: Option<String>) {
        self.lock().pending = label;
    }

    pub(super) fn note_cluster_failure(&self, error: &Error) {
        self.lock().cluster_failure.get_or_insert_with(|| error.clone());
    }

    pub(super) fn note_host_bug(&self, message: String) {
        self.lock().host_bug.get_or_insert(message);
    }

    pub(super) fn host_bug(&self) -> Option<String> {
        self.lock().host_bug.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Every write is one assignment, so a panic elsewhere leaves nothing half done.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RunWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.lock();
        f.debug_struct("RunWatch")
            .field("pending", &seen.pending)
            .field("cluster_failure", &seen.cluster_failure)
            .finish_non_exhaustive()
    }
}
