//! Where the lines of runs go that have no console: into tracing, under the target `dchost::guest`.

use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::handles::{Console, Level, Origin};
use std::sync::Arc;
use tracing::{debug, error, info, trace, warn};

/// The target of the events, which a subscriber may filter by.
const TARGET: &str = "dchost::guest";

/// The console of a run that writes nowhere but to tracing, which does nothing where nobody subscribes.
pub(super) fn of_run(context: &WorkerContext) -> Arc<dyn Console> {
    Arc::new(Lines { name: context.task.as_ref().map(Task::to_string).unwrap_or_default() })
}

struct Lines {
    /// The run's task; empty where it has none.
    name: String,
}

impl Console for Lines {
    fn line(&self, origin: Origin, text: &str) {
        let task = self.name.as_str();
        match origin {
            Origin::Stdout | Origin::Stderr | Origin::Log(Level::Info) => info!(target: TARGET, task, "{text}"),
            Origin::Log(Level::Trace) => trace!(target: TARGET, task, "{text}"),
            Origin::Log(Level::Debug) => debug!(target: TARGET, task, "{text}"),
            Origin::Log(Level::Warn) => warn!(target: TARGET, task, "{text}"),
            Origin::Log(Level::Error) => error!(target: TARGET, task, "{text}"),
        }
    }

    fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        info!(target: TARGET, task = self.name, done, total, "{note}");
    }
}
