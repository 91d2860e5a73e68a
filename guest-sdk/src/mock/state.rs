//! What the runs of a mock cluster share.

use super::Variable;
use super::barrier::Barriers;
use super::ops::Ops;
use super::reads::Reads;
use super::shard::{AUTO_SHARD_BYTES_MIN, Part, parts};
use super::store::Store;
use crate::op::OpSet;
use crate::raw::Placement;
use crate::{ClusterSpec, Error, ErrorCode, Level, Result, Task, chief, ps, worker};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// TensorFlow's session creator waits so long for the chief.
const WAIT_INITIALIZED_MAX: Duration = Duration::from_secs(7200);

/// A line that a run logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Who logged it; none in a local run.
    pub task: Option<Task>,
    /// Its severity.
    pub level: Level,
    /// Its text.
    pub message: String,
}

/// A value that a run kept for its summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Who kept it; none in a local run.
    pub task: Option<Task>,
    /// The series.
    pub tag: String,
    /// Where in the series.
    pub step: u64,
    /// The value.
    pub value: f64,
}

/// What doesn't change: the cluster as it was built.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) cluster: ClusterSpec,
    /// Who runs worker_fn: chief, workers, evaluator. `None` is a local run, or an in-graph driver where there is a cluster.
    pub(super) runs: Vec<Option<Task>>,
    pub(super) barrier: bool,
    pub(super) args: Vec<String>,
    /// Those of the component, where the test gave them.
    pub(super) ops: Option<OpSet>,
}

/// Who calls: a run, or an op that the run has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    /// Which of the cluster's runs.
    pub(super) run: usize,
    /// The op's own call.
    pub(super) call: Option<u64>,
}

impl Setup {
    pub(super) fn is_evaluator(&self, run: usize) -> bool {
        self.runs[run].as_ref().is_some_and(|task| task.job == "evaluator")
    }

    /// Whether the run is a chief's or worker's, which barrier and num workers count.
    pub(super) fn is_participant(&self, run: usize) -> bool {
        self.runs[run].is_some() && !self.is_evaluator(run)
    }

    /// The first run is the chief's, else worker:0's, the driver's or the local one.
    pub(super) fn is_chief(&self, run: usize) -> bool {
        run == 0 || self.is_evaluator(run)
    }

    /// The chief, else worker:0; none in a local run.
    pub(super) fn leader(&self) -> Option<Task> {
        [chief(), worker(0)].into_iter().find(|task| self.cluster.address(task).is_some())
    }

    pub(super) fn participants(&self) -> impl Iterator<Item = usize> {
        (0..self.runs.len()).filter(|&run| self.is_participant(run))
    }

    pub(super) fn task(&self, run: usize) -> Task {
        self.runs[run].clone().expect("a participant has a task")
    }

    pub(super) fn tasks(&self, runs: impl IntoIterator<Item = usize>) -> Vec<Task> {
        runs.into_iter().map(|run| self.task(run)).collect()
    }

    pub(super) fn describe_cluster(&self) -> String {
        if self.cluster.is_empty() {
            return "none".to_owned();
        }
        let jobs: Vec<String> =
            self.cluster.jobs().map(|job| format!("{job}: {}", self.cluster.num_tasks(job))).collect();
        format!("{{{}}}", jobs.join(", "))
    }

    /// The task that a variable of `bytes` bytes lives on, that of its first part if it is cut; none is the local run's own store.
    pub(super) fn place(
        &self,
        name: &str,
        shape: &[usize],
        bytes: usize,
        placement: &Placement,
    ) -> Result<(Option<Task>, Vec<Part>)> {
        match placement {
            Placement::On(task) if self.cluster.is_empty() => {
                Err(Error::invalid(format!("`{name}` can't live on {task}: this is a local run, which has no tasks")))
            }
            Placement::On(task) if self.cluster.address(task).is_none() => Err(Error::invalid(format!(
                "`{name}` can't live on {task}: the cluster is {}",
                self.describe_cluster()
            ))),
            Placement::On(task) => Ok((Some(task.clone()), Vec::new())),
            Placement::Auto | Placement::Sharded => match self.cluster.num_tasks("ps") {
                0 => Ok((self.leader(), Vec::new())),
                count => {
                    let first = u32::try_from(fnv1a(name) % u64::from(count)).expect("less than a u32");
                    let cut = *placement == Placement::Sharded || bytes >= AUTO_SHARD_BYTES_MIN;
                    let parts = if cut { parts(shape, bytes, first, count) } else { Vec::new() };
                    Ok((Some(ps(first)), parts))
                }
            },
        }
    }
}

/// The 64-bit FNV-1a hash: stable, and spread enough for a few servers.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Ended,
    Failed,
}

/// What changes.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) lives: Vec<Life>,
    /// Why the training ended, where a chief or worker failed: what calls of the other runs fail with.
    pub(super) cause: Option<Error>,
    pub(super) barriers: Barriers,
    pub(super) store: Store,
    pub(super) reads: Reads,
    pub(super) ops: Ops,
    pub(super) log: Vec<LogLine>,
    pub(super) scalars: Vec<Scalar>,
}

impl State {
    pub(super) fn training_ended(&self, setup: &Setup) -> bool {
        let trains = |run: &usize| !setup.is_evaluator(*run);
        self.cause.is_some() || (0..self.lives.len()).filter(trains).all(|run| self.lives[run] != Life::Running)
    }
}

/// Setup, state, and the news of its changes.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) setup: Setup,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn new(setup: Setup) -> Self {
        Shared { setup, state: Mutex::default(), changed: Condvar::new() }
    }

    /// A run that panics does so outside the lock's critical sections; were it not so, the others should still go on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the run's calls fail by now.
    pub(super) fn ready(&self, who: Who) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        self.check_interrupt(&state, who)?;
        Ok(state)
    }

    pub(super) fn check_interrupt(&self, state: &State, who: Who) -> Result<()> {
        if who.call.is_some_and(|call| !state.ops.is_wanted(call)) {
            return Err(Error::new(ErrorCode::Cancelled, "the op is not wanted any more"));
        }
        match &state.cause {
            None => Ok(()),
            Some(cause) if self.setup.is_evaluator(who.run) => {
                Err(Error::new(ErrorCode::Cancelled, format!("the training has ended: {}", cause.message)))
            }
            Some(cause) => Err(cause.clone()),
        }
    }

    /// Waits for news, at most until `deadline`; false when that has passed.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, State>, bool) {
        let Some(deadline) = deadline else {
            return (self.changed.wait(state).unwrap_or_else(PoisonError::into_inner), true);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        (state, Instant::now() < deadline)
    }

    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.lives = vec![Life::Running; self.setup.runs.len()];
        state.cause = None;
        state.reads = Reads::default();
        state.barriers = Barriers::default();
    }

    /// Notes how a run ended, and tells those who wait.
    pub(super) fn end(&self, run: usize, failure: Option<String>) {
        let mut state = self.lock();
        state.lives[run] = if failure.is_some() { Life::Failed } else { Life::Ended };
        if let Some(text) = failure
            && !self.setup.is_evaluator(run)
            && state.cause.is_none()
        {
            let task = self.setup.runs[run].clone();
            let who = task.as_ref().map_or("the driver".to_owned(), Task::to_string);
            let error = Error::new(ErrorCode::PeerFailed, format!("{who} failed: {text}"));
            state.cause = Some(error.with_tasks(task));
        }
        state.ops.end_run(run);
        self.changed.notify_all();
    }

    pub(super) fn wait_initialized(&self, who: Who, variables: &[&Variable], timeout: Option<Duration>) -> Result<()> {
        let deadline = Instant::now() + timeout.unwrap_or(WAIT_INITIALIZED_MAX).min(WAIT_INITIALIZED_MAX);
        let mut state = self.ready(who)?;
        let mut in_time = true;
        loop {
            self.check_interrupt(&state, who)?;
            let missing = state.store.uninitialized(variables)?;
            if missing.is_empty() {
                return Ok(());
            }
            let names = super::store::list_names(&missing);
            if state.lives[0] != Life::Running {
                let text = format!("{names} without a value, and the chief's run has ended");
                return Err(Error::new(ErrorCode::Uninitialized, text));
            }
            let alone = (0..state.lives.len()).all(|other| other == who.run || state.lives[other] != Life::Running);
            if timeout.is_none() && alone {
                // The host would wait for its two hours; a test shouldn't.
                let text = format!("{names} without a value, and no other run is left to initialize");
                return Err(Error::new(ErrorCode::Uninitialized, text));
            }
            if !in_time {
                let code = if timeout.is_some() { ErrorCode::DeadlineExceeded } else { ErrorCode::Uninitialized };
                return Err(Error::new(code, format!("{names} still without a value; the chief initializes")));
            }
            (state, in_time) = self.wait(state, Some(deadline));
        }
    }
}
