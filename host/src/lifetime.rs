//! The leader's rows, and what follows from them: loss, end, leaving; a pure state machine.
//!
//! [`Lifetime`] holds a row for each runner (a task whose plan runs `worker_fn`, evaluator excluded) from the attempt's
//! start and for every other task from its first attend. Events go in with `now`, [`Effect`]s come out in the order in
//! which they are to happen; `server::leader` carries them out.
//!
//! | row | event | next row | what follows |
//! | --- | --- | --- | --- |
//! | never seen | registers | running | |
//! | never seen | connect timeout after the attempt's start (runners) | lost | the attempt ends, 201 |
//! | running | its stream breaks, or it is silent for [`HEARTBEAT_SILENCE`] | suspect | its address is dialled |
//! | running | reports its end | ended | in error or by a trap: the attempt ends |
//! | running, suspect | another incarnation registers | same | the first is dialled; if it lives: already-exists |
//! | suspect | the same incarnation registers | running | |
//! | suspect | dialling it is refused, or another incarnation answers | lost | the attempt ends, 202 |
//! | suspect | rejoin timeout | lost | the attempt ends, 202 |
//! | ended | the same incarnation registers (its end report was not acknowledged) | ended | |
//! | ended, lost | another incarnation registers | same | complete, or refused; an evaluator's failed one: running |
//!
//! An evaluator's end or loss never ends an attempt. The job goes through phases:
//!
//! | phase | ends when | what follows |
//! | --- | --- | --- |
//! | training | every runner has ended (`--end chief-done`: the leader's), or the attempt has failed for good | training-ended to all |
//! | training ended | no runner runs (at most [`GUEST_GRACE`] and a little), and evaluators have ended or had their grace (listed ones that have not attended: at most [`LEAVE_GRACE`] of it) | job-ended to all; `--end never` stays here unless the job failed |
//! | job ended | the others have gone, and every listed task has heard of it; at most [`LEAVE_GRACE`] | the leader leaves |
//!
//! A leader without module serves: it keeps rows, and its job never ends by itself.

mod loss;
mod register;
mod report;
mod row;

pub use report::{RowStatus, Silent};

use crate::attend::ProbeOutcome;
use crate::attend::{
    AttendError, Cause, EndReport, LeaderEvent, Mode, Registered, Registration, Replication, TaskState,
};
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::ids::{Attempt, Incarnation};
use row::Row;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often a task and its leader tell each other that they live.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// A stream that was silent for so long counts as broken: five heartbeats, so that one slow moment harms nobody.
pub const HEARTBEAT_SILENCE: Duration = Duration::from_secs(10);

/// How long a guest goes on after the training has ended before its process drops it.
pub const GUEST_GRACE: Duration = Duration::from_secs(10);

/// How long the leader stays after job-ended for tasks that have not gone.
pub const LEAVE_GRACE: Duration = Duration::from_secs(10);

/// What the leader waits beyond [`GUEST_GRACE`] for the end reports of dropped guests.
const END_REPORT_GRACE: Duration = Duration::from_secs(5);

/// How often a silent task is dialled.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// When a task that was never seen is dialled first: most have attended by then.
const FIRST_PROBE: Duration = Duration::from_secs(2);

/// A run that ended because of another task (201, 202) is taken for the first cause only after this time: the loss of
/// that other task may be noticed a moment later.
const CONSEQUENCE_GRACE: Duration = Duration::from_secs(2);

/// What is kept and passed on of an end report's message, in bytes; every task of the job is told.
const MESSAGE_BYTES_MAX: usize = 4096;

/// When ps and joined tasks leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndRule {
    /// Every runner has ended.
    #[default]
    AllDone,
    /// The chief's run has ended.
    ChiefDone,
    /// They serve until they are stopped, unless the job fails.
    Never,
}

/// What the leader knows and wants.
#[derive(Clone, Debug)]
pub struct Options {
    /// The leader's own task: chief:0, else worker:0.
    pub leader: Task,
    /// Of the leader's process.
    pub incarnation: Incarnation,
    /// The leader's view of the cluster.
    pub cluster: ClusterSpec,
    /// None: the leader is a standard server without module; then rows are kept, and nothing ends.
    pub mode: Option<Mode>,
    /// How runs are placed.
    pub replication: Replication,
    /// Whether chief and workers have the cluster barrier.
    pub barrier: bool,
    /// sha256 of the leader's module.
    pub module_digest: Option<[u8; 32]>,
    /// When ps and joined tasks leave.
    pub end: EndRule,
    /// How long a runner may take to attend, from the attempt's start.
    pub connect_timeout: Duration,
    /// How long a task whose stream broke may take to attend again.
    pub rejoin_timeout: Duration,
    /// How long evaluators may go on after the training has ended well.
    pub evaluator_grace: Duration,
}

impl Options {
    /// Whether the leader runs `worker_fn`, so that there is a job which ends.
    fn has_job(&self) -> bool {
        self.mode == Some(Mode::IndependentWorker)
    }

    /// Whether the plan of `task` runs `worker_fn`, evaluators excluded.
    fn is_runner(&self, task: Task) -> bool {
        self.has_job()
            && match self.replication {
                Replication::BetweenGraph => {
                    matches!(task.job, TaskType::Chief | TaskType::Worker) && self.cluster.contains(task)
                }
                Replication::InGraph => task == self.leader,
            }
    }
}

/// One attend stream, as its service numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the service has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer the registration of a connection; on an error the connection is over.
    Answer {
        /// Which.
        connection: ConnectionId,
        /// The answer.
        result: Result<Registered, AttendError>,
    },
    /// Send an event.
    Send {
        /// Where to.
        connection: ConnectionId,
        /// What.
        event: LeaderEvent,
    },
    /// Close a stream; its end is not to be reported back.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Dial a task and report what it shows.
    Probe {
        /// Whom.
        task: Task,
        /// The address that the cluster lists.
        address: String,
    },
    /// A task has failed or was restarted: its barriers fail with this error.
    Failed {
        /// Who.
        task: Task,
        /// What waiters are told.
        error: Error,
    },
    /// A task's run has ended or left: barriers that it has not arrived at abort.
    Left {
        /// Who.
        task: Task,
        /// What happened.
        message: String,
    },
    /// No barrier passes any more.
    CancelBarriers {
        /// What waiters are told.
        error: Error,
    },
    /// The leader may leave.
    Leave {
        /// The first cause of a failure; none where all is well.
        cause: Option<Cause>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Training,
    TrainingEnded { at: Instant },
    JobEnded { at: Instant },
    Left,
}

/// How long something is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Over,
    Until(Instant),
    Unlimited,
}

/// The state machine; see the module's tables.
#[derive(Debug)]
pub struct Lifetime {
    options: Options,
    attempt: Attempt,
    rows: BTreeMap<Task, Row>,
    /// Whose stream it is; a connection that waits for a probe of the task's first incarnation is not here yet.
    connections: BTreeMap<ConnectionId, Task>,
    phase: Phase,
    cause: Option<Cause>,
    /// When the attempt began.
    started: Instant,
    /// Who has heard that the training is over when it came to attend; others that never attended still wait for a leader.
    told: BTreeSet<Task>,
    /// A failure that looks like a consequence, and when it counts as the cause.
    consequence: Option<(Instant, Cause)>,
}

impl Lifetime {
    /// Starts the first attempt.
    pub fn new(now: Instant, options: Options) -> Self {
        let attempt = Attempt { leader: options.incarnation, number: 0 };
        let rows = options
            .cluster
            .training_tasks()
            .filter(|&task| options.is_runner(task))
            .map(|task| {
                // The leader's own process is here; it needs no dialling, and no deadline to find itself.
                let lost_at = if task == options.leader { None } else { now.checked_add(options.connect_timeout) };
                (task, Row::never_seen(now, true, lost_at, now + FIRST_PROBE))
            })
            .collect();
        Lifetime {
            options,
            attempt,
            rows,
            connections: BTreeMap::new(),
            phase: Phase::Training,
            cause: None,
            started: now,
            told: BTreeSet::new(),
            consequence: None,
        }
    }

    /// The attempt that runs now.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// What the leader was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Whether the training has ended, well or not.
    pub fn training_ended(&self) -> bool {
        self.phase != Phase::Training
    }

    /// The first cause of a failure.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// Whose stream a connection is.
    pub fn task_of(&self, connection: ConnectionId) -> Option<Task> {
        self.connections.get(&connection).copied()
    }

    /// The open stream of a task.
    pub fn connection_of(&self, task: Task) -> Option<ConnectionId> {
        self.rows.get(&task)?.connection
    }

    /// Every open stream.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.connections.keys().copied()
    }

    /// Takes a registration. Its answer may have to wait for a probe.
    pub fn attend(&mut self, now: Instant, connection: ConnectionId, registration: Registration) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.register(now, connection, registration, &mut effects);
        self.advance(now, &mut effects);
        effects
    }

    /// Notes that a message came in on a connection; every one counts as a heartbeat.
    pub fn heard(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(row) = self.connections.get(&connection).and_then(|task| self.rows.get_mut(task)) {
            row.last_seen = Some(now);
        }
    }

    /// Takes a task's end report, and acknowledges it. A second one of the same task changes nothing.
    pub fn end(&mut self, now: Instant, connection: ConnectionId, mut report: EndReport) -> Vec<Effect> {
        let mut effects = Vec::new();
        report.message.truncate(report.message.floor_char_boundary(MESSAGE_BYTES_MAX));
        let Some(&task) = self.connections.get(&connection) else { return effects };
        let Some(row) = self.rows.get_mut(&task) else { return effects };
        row.last_seen = Some(now);
        let first = row.state == TaskState::Running;
        if first {
            row.set(now, TaskState::Ended, report.message.clone());
            row.end = Some(report.clone());
        }
        let event = LeaderEvent::Task { task, state: TaskState::Ended, message: report.message.clone() };
        // First what it means for the job: who fails over the chief's end, told below, knows then that the chief had failed.
        if first && task.job != TaskType::Evaluator {
            self.ended(now, task, &report, &mut effects);
        }
        if first && task == self.options.leader {
            // Who waits for what the chief initializes has to know.
            self.broadcast(event, &mut effects);
        } else {
            effects.push(Effect::Send { connection, event });
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Takes the end of a stream that the service did not close itself.
    pub fn broken(&mut self, now: Instant, connection: ConnectionId) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(&task) = self.connections.get(&connection) {
            self.suspect(now, task, "its attend stream broke", &mut effects);
        } else {
            for row in self.rows.values_mut() {
                // The second incarnation gave up before the first was dialled.
                row.challenger.take_if(|challenger| challenger.connection == connection);
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Takes what a probe showed.
    pub fn probed(&mut self, now: Instant, task: Task, outcome: ProbeOutcome) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.take_probe(now, task, outcome, &mut effects);
        self.advance(now, &mut effects);
        effects
    }

    /// Lets time pass: what was due by `now` happens.
    pub fn tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        let silent: Vec<Task> = self.rows.iter().filter(|(_, row)| row.is_silent(now)).map(|(&task, _)| task).collect();
        for task in silent {
            self.suspect(now, task, "it sent no heartbeat", &mut effects);
        }
        let overdue: Vec<Task> =
            self.rows.iter().filter(|(_, row)| row.is_overdue(now)).map(|(&task, _)| task).collect();
        for task in overdue {
            self.lose_overdue(now, task, &mut effects);
        }
        if let Some((_, cause)) = self.consequence.take_if(|(at, _)| *at <= now) {
            self.fail(now, cause, &mut effects);
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Ends the job at once, because the leader's process is told to stop.
    pub fn stop(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.options.has_job() && self.phase == Phase::Training {
            let task = self.options.leader;
            let message = "the leader was told to stop".to_owned();
            self.fail(now, Cause { task, exit_code: Exit::Terminated.code(), message }, &mut effects);
        }
        if self.options.has_job() && !matches!(self.phase, Phase::JobEnded { .. } | Phase::Left) {
            self.end_job(now, &mut effects);
        }
        if self.phase != Phase::Left {
            self.phase = Phase::Left;
            effects.push(Effect::Leave { cause: self.cause.clone() });
        }
        effects
    }

    /// When [`Lifetime::tick`] is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Training | Phase::Left => None,
            Phase::TrainingEnded { .. } if self.stays() => None,
            Phase::TrainingEnded { at } => {
                let guests = at + GUEST_GRACE + END_REPORT_GRACE;
                let evaluators = self.evaluators_done_at(at);
                match (self.runner_runs(), evaluators) {
                    (true, Wait::Until(evaluators)) => Some(guests.max(evaluators)),
                    (true, Wait::Over) => Some(guests),
                    (false, Wait::Until(evaluators)) => Some(evaluators),
                    (_, Wait::Unlimited) | (false, Wait::Over) => None,
                }
            }
            Phase::JobEnded { at } => Some(if self.others_attend() { at + LEAVE_GRACE } else { self.told_by(at) }),
        };
        let jobless = matches!(self.phase, Phase::JobEnded { .. } | Phase::Left);
        let rows = self.rows.iter().filter(|_| !jobless).filter_map(|(&task, row)| {
            row.next_deadline(self.options.cluster.contains(task) && task != self.options.leader)
        });
        rows.chain(phase).chain(self.consequence.as_ref().map(|(at, _)| *at)).min()
    }

    /// What follows from a run's end while the training goes on.
    fn ended(&mut self, now: Instant, task: Task, report: &EndReport, effects: &mut Vec<Effect>) {
        if report.leaving || report.ok {
            // With the chief goes the training, then: who waits is cancelled, and that is no failure.
            let ends_all = self.options.end == EndRule::ChiefDone && task == self.options.leader && report.ok;
            if !ends_all {
                let message = if report.message.is_empty() { "its run has ended" } else { &report.message };
                effects.push(Effect::Left { task, message: message.to_owned() });
            }
            // Nothing goes on without the leader; another task that leaves didn't fail.
            if report.leaving && !report.ok && task == self.options.leader {
                let message = format!("{task} left: {}", report.message);
                self.fail(now, Cause { task, exit_code: report.exit_code, message }, effects);
            }
            return;
        }
        let cause = Cause { task, exit_code: report.exit_code, message: report.message.clone() };
        effects.push(Effect::Failed { task, error: peer_failed(&cause) });
        let consequence = [Exit::Unreachable.code(), Exit::PeerFailed.code()].contains(&report.exit_code);
        if consequence {
            if self.phase == Phase::Training {
                self.consequence.get_or_insert((now + CONSEQUENCE_GRACE, cause));
            }
        } else {
            self.fail(now, cause, effects);
        }
    }

    /// Ends the attempt with a cause. There is one attempt, so the training has ended; the first cause stays.
    fn fail(&mut self, now: Instant, cause: Cause, effects: &mut Vec<Effect>) {
        if !self.options.has_job() || self.phase != Phase::Training {
            return;
        }
        self.consequence = None;
        let error = peer_failed(&cause);
        self.cause = Some(cause);
        self.end_training(now, effects);
        effects.push(Effect::CancelBarriers { error });
    }

    fn end_training(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.phase = Phase::TrainingEnded { at: now };
        self.broadcast(LeaderEvent::TrainingEnded { cause: self.cause.clone() }, effects);
    }

    fn end_job(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.phase = Phase::JobEnded { at: now };
        self.broadcast(LeaderEvent::JobEnded { cause: self.cause.clone() }, effects);
    }

    /// Goes on to the next phase where it is time, and dials who has to be dialled.
    fn advance(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.options.has_job() {
            if self.phase == Phase::Training && self.consequence.is_none() {
                let ended = |row: &Row| row.state == TaskState::Ended;
                let all_done = self.rows.values().filter(|row| row.runner).all(ended);
                let chief_done =
                    self.options.end == EndRule::ChiefDone && self.rows.get(&self.options.leader).is_some_and(ended);
                if all_done || chief_done {
                    let error = Error::new(ErrorCode::Cancelled, "the training has ended");
                    effects.push(Effect::CancelBarriers { error });
                    self.end_training(now, effects);
                }
            }
            if let Phase::TrainingEnded { at } = self.phase {
                let guests_done = !self.runner_runs() || now >= at + GUEST_GRACE + END_REPORT_GRACE;
                let evaluators_done = match self.evaluators_done_at(at) {
                    Wait::Over => true,
                    Wait::Until(end) => now >= end,
                    Wait::Unlimited => false,
                };
                if guests_done && evaluators_done && !self.stays() {
                    self.end_job(now, effects);
                }
            }
            if let Phase::JobEnded { at } = self.phase {
                let all_told = !self.somebody_is_untold() || now >= self.told_by(at);
                if (!self.others_attend() && all_told) || now >= at + LEAVE_GRACE {
                    self.phase = Phase::Left;
                    effects.push(Effect::Leave { cause: self.cause.clone() });
                }
            }
        }
        if matches!(self.phase, Phase::JobEnded { .. } | Phase::Left) {
            return;
        }
        let mut unreachable = Vec::new();
        for (&task, row) in &mut self.rows {
            if task == self.options.leader || !row.wants_probe(now) {
                continue;
            }
            row.probing = true;
            match self.options.cluster.address(task) {
                Some(address) => effects.push(Effect::Probe { task, address: address.to_owned() }),
                None => unreachable.push(task),
            }
        }
        for task in unreachable {
            self.take_probe(now, task, ProbeOutcome::NoAnswer("it has no server to dial".to_owned()), effects);
        }
    }

    /// Whether the job goes on after the training.
    fn stays(&self) -> bool {
        self.options.end == EndRule::Never && self.cause.is_none()
    }

    fn others_attend(&self) -> bool {
        self.connections.values().any(|&task| task != self.options.leader)
    }

    /// Listed tasks that the end waits for because they have not attended: only a leader that stays can tell them.
    pub fn awaited(&self) -> Vec<Task> {
        if !matches!(self.phase, Phase::TrainingEnded { .. } | Phase::JobEnded { .. }) {
            return Vec::new();
        }
        let listed = self.options.cluster.iter().map(|(task, _)| task);
        listed.filter(|&task| self.is_untold(task)).collect()
    }

    /// Whether a listed task never attended, and has not been refused since the training's end either.
    fn is_untold(&self, task: Task) -> bool {
        self.is_unseen(task) && !self.told.contains(&task)
    }

    fn somebody_is_untold(&self) -> bool {
        let mut listed = self.options.cluster.iter().map(|(task, _)| task);
        // The job's end has waited for evaluators already.
        listed.any(|task| task.job != TaskType::Evaluator && self.is_untold(task))
    }

    /// How long the leader stays for those; who is later than the connect timeout is not waited for.
    fn told_by(&self, job_ended: Instant) -> Instant {
        let late = self.started.checked_add(self.options.connect_timeout);
        late.map_or(job_ended + LEAVE_GRACE, |late| late.clamp(job_ended, job_ended + LEAVE_GRACE))
    }

    fn runner_runs(&self) -> bool {
        self.rows.values().any(|row| row.runner && row.runs())
    }

    /// How long the job goes on for its evaluators; no longer once it has failed.
    fn evaluators_done_at(&self, training_ended: Instant) -> Wait {
        let grace = self.options.evaluator_grace;
        let end = |grace| training_ended.checked_add(grace).map_or(Wait::Unlimited, Wait::Until);
        let mut listed = self.options.cluster.tasks(TaskType::Evaluator);
        if self.cause.is_some() {
            Wait::Over
        } else if self.evaluator_runs() {
            end(grace)
        } else if listed.any(|task| self.is_untold(task)) {
            // It may be starting; the training's end is what it is there for.
            end(grace.min(LEAVE_GRACE))
        } else {
            Wait::Over
        }
    }

    fn is_unseen(&self, task: Task) -> bool {
        self.rows.get(&task).is_none_or(|row| row.state == TaskState::NeverSeen)
    }

    fn evaluator_runs(&self) -> bool {
        self.rows.iter().any(|(task, row)| task.job == TaskType::Evaluator && row.runs())
    }

    fn broadcast(&self, event: LeaderEvent, effects: &mut Vec<Effect>) {
        effects.extend(self.connections.keys().map(|&connection| Effect::Send { connection, event: event.clone() }));
    }
}

/// What guests are told when the attempt has ended with a cause.
pub fn peer_failed(cause: &Cause) -> Error {
    let (task, code) = (cause.task, cause.exit_code);
    let message = match cause.message.as_str() {
        "" => format!("{task} ended with exit code {code}"),
        // Codes from 128 say that something happened to the task, not that its run failed; the message says what.
        message if code >= Exit::Interrupted.code() && message.contains(&task.to_string()) => message.to_owned(),
        message if code >= Exit::Interrupted.code() => format!("{task}: {message}"),
        message => format!("{task} failed with exit code {code}: {message}"),
    };
    Error::new(ErrorCode::PeerFailed, message).with_tasks([task])
}

#[cfg(test)]
mod tests;
