//! How runs are placed: what is stated, else what follows from task and module.

use super::{Purpose, Resolver};
use crate::attend::{Mode, Replication};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::coordinator::plan::PlanError;

impl Resolver<'_> {
    /// Whether worker_fn is there, or taken to be there because only the plan is wanted.
    fn has_worker_fn(&self) -> bool {
        self.settings.module.is_some() || self.purpose != Purpose::Run && self.settings.mode.is_some()
    }

    /// Infers how runs are placed. The outer none is a fault.
    #[expect(clippy::option_option, reason = "none is a mode here: not known before the leader says it")]
    pub(super) fn mode(&mut self, cluster: &ClusterSpec, task: Option<Task>) -> Option<Option<Mode>> {
        let stated = self.settings.mode.as_ref().map(|mode| mode.value);
        let place = self.settings.mode.as_ref().map_or_else(|| "mode".to_owned(), |mode| mode.origin.place("mode"));
        let running = self.purpose == Purpose::Run;
        if cluster.is_empty() {
            if running && task.is_none() && self.settings.module.is_none() {
                self.fault("`--module`", "is missing, and there is no cluster to serve", "give --module FILE");
                return None;
            }
            return Some(None);
        }
        match (task, stated) {
            (None, Some(Mode::SplitClient))
            | (Some(Task { job: TaskType::Client, .. }), None | Some(Mode::SplitClient)) => {
                if running && self.settings.module.is_none() {
                    self.fault("`--module`", "is missing: a split client runs worker_fn", "give --module FILE");
                    return None;
                }
                Some(Some(Mode::SplitClient))
            }
            (Some(Task { job: TaskType::Client, .. }), Some(Mode::IndependentWorker)) => {
                self.fault(
                    place,
                    PlanError::ClientInIndependentWorker.to_string(),
                    "leave out the mode, or name another task",
                );
                None
            }
            (None, _) => {
                let jobs = crate::coordinator::plan::jobs_text(cluster);
                let what =
                    if self.has_worker_fn() { "a cluster and a module, but no task" } else { "a cluster, but no task" };
                self.fault(
                    "task",
                    format!("{what}: it is unclear which part of {jobs} this process is"),
                    "to run as one of its tasks (independent worker), give --task TYPE:INDEX or `task` in TF_CONFIG; to \
                     drive standard servers that run already (split client), give --mode split-client or --task client",
                );
                None
            }
            (Some(_), Some(Mode::SplitClient)) => Some(Some(Mode::SplitClient)),
            (Some(task), Some(Mode::IndependentWorker)) => {
                // Only a ps, and in-graph any task but the driver, can do without.
                let needs = matches!(task.job, TaskType::Evaluator)
                    || matches!(task.job, TaskType::Chief | TaskType::Worker)
                        && (self.settings.replication.value == Replication::BetweenGraph
                            || cluster.leader() == Some(task));
                if running && needs && self.settings.module.is_none() {
                    let mode = Mode::IndependentWorker.as_str();
                    let what = format!("`{task}` runs without --module, but under mode `{mode}` it runs worker_fn");
                    self.fault(place, what, "give --module FILE, or leave out --mode");
                    return None;
                }
                Some(Some(Mode::IndependentWorker))
            }
            // A ps does the same with and without a module.
            (Some(Task { job: TaskType::Ps, .. }), None) => Some(None),
            (Some(task), None) if self.has_worker_fn() => {
                debug_assert_ne!(task.job, TaskType::Client, "clients are matched above");
                Some(Some(Mode::IndependentWorker))
            }
            (Some(Task { job: TaskType::Evaluator, .. }), None) if !cluster.has_job(TaskType::Evaluator) => {
                let what =
                    "the evaluator is not in the cluster, so it has no server, and without --module it has no run";
                self.fault(self.task_place(), what, "give --module FILE, or list the evaluator");
                None
            }
            (Some(_), None) => Some(None),
        }
    }
}
