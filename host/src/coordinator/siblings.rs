//! The runs of one split client, as they are to each other: one barrier, one first failure, one end.
//!
//! A client is the leader of its own runs, which all live in its process: nobody registers, nobody gets lost, and an answer
//! that was given has arrived. What is left of `lifetime` is this:
//!
//! | a run | ends | what follows |
//! | --- | --- | --- |
//! | of the evaluator | in any way | nothing |
//! | another one | in an error or trap, as the first | the training has ended: the others get `peer-failed` naming it, the evaluator `cancelled` |
//! | another one | well | barriers that it hasn't arrived at abort; it may be the last |
//! | the chief's | well, under `--end chief-done` | the training has ended: the others get `cancelled` |
//! | the last but the evaluator | well | the training has ended: the evaluator gets `cancelled` when its grace has passed |
//!
//! A run that was interrupted and still runs [`GUEST_GRACE`] later is to be dropped.

use super::member::no_barrier;
use super::task_barriers::TaskBarriers;
use crate::attend::{Cause, EndReport, REPORT_INTERVAL};
use crate::barrier::{Answer, Barriers};
use crate::cluster::{Task, TaskType};
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::exit::Exit;
use crate::handles::{BoxFuture, Job};
use crate::lifetime::{EndRule, GUEST_GRACE, peer_failed};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The task that stands for an in-graph driver, which has none of its own.
pub const CLIENT: Task = Task::new(TaskType::Client, 0);

/// What the runs have in common.
#[derive(Clone, Debug)]
pub struct SiblingsOptions {
    /// The context of each run.
    pub contexts: Vec<Arc<WorkerContext>>,
    /// Which attempt they are, from 0.
    pub attempt: u32,
    /// When the training has ended; `never` is for servers, and here the same as `all-done`.
    pub end: EndRule,
    /// How long an evaluator may go on after the training.
    pub evaluator_grace: Duration,
}

/// The clock of a client's runs: ends barriers whose deadline has passed, evaluators whose grace has, and runs that don't end.
pub struct Siblings {
    shared: Arc<Shared>,
}

/// One run of a client. Cheap to clone, pollable on any runtime.
#[derive(Clone)]
pub struct Sibling {
    shared: Arc<Shared>,
    seat: usize,
}

struct Shared {
    attempt: u32,
    end: EndRule,
    evaluator_grace: Duration,
    /// The clock has something new to wait for.
    changed: Notify,
    /// Set once the chief's run has ended: nobody will initialize variables any more.
    chief_ended: watch::Sender<Option<Error>>,
    state: Mutex<State>,
}

struct State {
    barriers: Barriers,
    seats: Vec<Seat>,
    seat_of: BTreeMap<Task, usize>,
    training_ended: bool,
    cause: Option<Cause>,
    /// When the evaluator's grace is over.
    grace_until: Option<Instant>,
}

struct Seat {
    context: Arc<WorkerContext>,
    barriers: TaskBarriers,
    ended: bool,
    interrupt: watch::Sender<Option<Error>>,
    overdue: watch::Sender<bool>,
    /// When it is to be dropped.
    drop_at: Option<Instant>,
}

impl Seat {
    fn task(&self) -> Task {
        self.context.task.unwrap_or(CLIENT)
    }

    fn is_evaluator(&self) -> bool {
        self.task().job == TaskType::Evaluator
    }

    /// Ends the run, if it has not ended. The first reason stays.
    fn interrupt(&mut self, now: Instant, error: &Error) {
        if self.ended || self.interrupt.borrow().is_some() {
            return;
        }
        self.interrupt.send_replace(Some(error.clone()));
        self.barriers.cancel(error);
        self.drop_at = now.checked_add(GUEST_GRACE);
    }
}

impl Siblings {
    /// Makes the clock, to be run on the control runtime, and the runs in the order of their contexts.
    pub fn new(options: SiblingsOptions) -> (Self, Vec<Sibling>) {
        let SiblingsOptions { contexts, attempt, end, evaluator_grace } = options;
        let participants = contexts.iter().filter(|context| context.has_barrier).filter_map(|context| context.task);
        let barriers = Barriers::new(participants);
        let seat = |context: &Arc<WorkerContext>| Seat {
            context: context.clone(),
            barriers: TaskBarriers::default(),
            ended: false,
            interrupt: watch::Sender::new(None),
            overdue: watch::Sender::new(false),
            drop_at: None,
        };
        let seats: Vec<Seat> = contexts.iter().map(seat).collect();
        let seat_of = seats.iter().map(Seat::task).zip(0..).collect();
        let state = State { barriers, seats, seat_of, training_ended: false, cause: None, grace_until: None };
        let shared = Arc::new(Shared {
            attempt,
            end,
            evaluator_grace,
            changed: Notify::new(),
            chief_ended: watch::Sender::new(None),
            state: Mutex::new(state),
        });
        let runs = (0..contexts.len()).map(|seat| Sibling { shared: shared.clone(), seat }).collect();
        (Siblings { shared }, runs)
    }

    /// Lets time pass for the runs, until `shutdown`; logs every few seconds who keeps the others waiting.
    ///
    /// # Cancel safety
    /// Dropping it stops the clock: deadlines pass unnoticed.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut report = tokio::time::interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = lock(&self.shared.state).next_deadline();
            let clock = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.shared.changed.notified() => {}
                () = clock => lock(&self.shared.state).tick(Instant::now()),
                _ = report.tick() => self.report(),
            }
        }
    }

    fn report(&self) {
        let now = Instant::now().into_std();
        for status in lock(&self.shared.state).barriers.status() {
            // The first few seconds of a wait are not worth a line.
            if now.saturating_duration_since(status.since) >= REPORT_INTERVAL {
                info!("{}", status.line(now));
            }
        }
    }
}

impl State {
    /// When [`State::tick`] is due next.
    fn next_deadline(&self) -> Option<Instant> {
        let barrier = self.barriers.next_deadline().map(Instant::from_std);
        let drops = self.seats.iter().filter_map(|seat| seat.drop_at).min();
        [barrier, drops, self.grace_until].into_iter().flatten().min()
    }

    /// Lets what was due by `now` happen.
    fn tick(&mut self, now: Instant) {
        let answers = self.barriers.expire(now.into_std());
        self.deliver(answers);
        if self.grace_until.take_if(|at| *at <= now).is_some() {
            let error = Error::new(ErrorCode::Cancelled, "training has ended, and with it the job (--evaluator-grace)");
            self.seats.iter_mut().for_each(|seat| seat.interrupt(now, &error));
        }
        for seat in &mut self.seats {
            if seat.drop_at.take_if(|at| *at <= now).is_some() {
                seat.overdue.send_replace(true);
            }
        }
    }

    fn deliver(&mut self, answers: Vec<Answer>) {
        for Answer { task, name, generation, result } in answers {
            if let Some(&seat) = self.seat_of.get(&task) {
                self.seats[seat].barriers.answer(&name, generation, result);
            }
        }
    }

    /// Ends the training because a run has failed.
    fn fail(&mut self, now: Instant, cause: Cause) {
        let error = peer_failed(&cause);
        let cancelled = Error::new(ErrorCode::Cancelled, format!("the job has failed: {}", error.message));
        for seat in &mut self.seats {
            // An evaluator has no part in the failure, and no grace after it.
            let error = if seat.is_evaluator() { &cancelled } else { &error };
            seat.interrupt(now, error);
        }
        self.training_ended = true;
        self.cause = Some(cause);
    }
}

impl Sibling {
    /// The run's task; [`CLIENT`] for a driver.
    pub fn task(&self) -> Task {
        lock(&self.shared.state).seats[self.seat].task()
    }

    /// Whether it is the evaluator's, which fails nobody and is failed by nobody.
    pub fn is_evaluator(&self) -> bool {
        self.task().job == TaskType::Evaluator
    }

    /// Notes how the run ended, whatever ended it, and tells the others what it means for them. A second call changes nothing.
    pub fn ended(&self, report: EndReport) {
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        let state = &mut *state;
        let seat = &mut state.seats[self.seat];
        if std::mem::replace(&mut seat.ended, true) {
            return;
        }
        seat.drop_at = None;
        let (task, is_chief) = (seat.task(), seat.context.is_chief);
        if seat.is_evaluator() {
            return;
        }
        let interrupted = seat.interrupt.borrow().is_some();
        if !report.ok && !interrupted && !state.training_ended {
            let cause = Cause { task, exit_code: report.exit_code, message: report.message };
            let answers = state.barriers.failed(task, peer_failed(&cause));
            state.deliver(answers);
            state.fail(now, cause);
        } else {
            let answers = state.barriers.left(task, "its run has ended");
            state.deliver(answers);
            if is_chief && report.ok && self.shared.end == EndRule::ChiefDone && !state.training_ended {
                let text = "the chief's run has ended, and with it the job (--end chief-done)";
                let error = Error::new(ErrorCode::Cancelled, text);
                state.seats.iter_mut().filter(|seat| !seat.is_evaluator()).for_each(|seat| seat.interrupt(now, &error));
                state.training_ended = true;
            }
            if state.cause.is_none() && state.seats.iter().all(|seat| seat.ended || seat.is_evaluator()) {
                state.training_ended = true;
                state.grace_until = now.checked_add(self.shared.evaluator_grace);
            }
        }
        // Last: who fails over it knows then whether the chief had.
        if is_chief {
            let text = format!("the run of {task}, which initializes variables, has ended");
            let error = Error::new(ErrorCode::Uninitialized, text).with_tasks([task]);
            self.shared.chief_ended.send_replace(Some(error));
        }
        self.shared.changed.notify_one();
    }

    /// Set once the run must end: `peer-failed` naming the run that failed, or `cancelled`.
    pub fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        lock(&self.shared.state).seats[self.seat].interrupt.subscribe()
    }

    /// Set once a run that was interrupted has had its 10 s and is to be dropped.
    pub fn overdue(&self) -> watch::Receiver<bool> {
        lock(&self.shared.state).seats[self.seat].overdue.subscribe()
    }

    /// What the run's end is worth after its interrupt: 202, or 0 where it was only cancelled. None: not interrupted.
    pub fn interrupt_exit(&self) -> Option<Exit> {
        let state = lock(&self.shared.state);
        let interrupt = state.seats[self.seat].interrupt.borrow();
        interrupt.as_ref().map(|error| match error.code {
            ErrorCode::Cancelled => Exit::Done,
            _ => Exit::PeerFailed,
        })
    }

    /// Set once the chief's run, or the driver, has ended, well or not: nobody will initialize variables any more.
    pub fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        self.shared.chief_ended.subscribe()
    }

    /// The first failure of a chief, worker or driver.
    pub fn cause(&self) -> Option<Cause> {
        lock(&self.shared.state).cause.clone()
    }

    /// Arrives; the answer comes by the receiver, at once or later.
    fn arrive(&self, name: &str, timeout: Option<Duration>) -> Result<oneshot::Receiver<Result<()>>> {
        let now = Instant::now();
        let (reply, answer) = oneshot::channel();
        let mut state = lock(&self.shared.state);
        let state = &mut *state;
        let seat = &mut state.seats[self.seat];
        let task = match seat.context.task {
            Some(task) if seat.context.has_barrier => task,
            _ => return Err(no_barrier(&seat.context)),
        };
        if let Some(error) = seat.interrupt.borrow().clone() {
            return Err(error);
        }
        if let Some(arrival) = seat.barriers.arrive(now, name, timeout, reply) {
            let answers = state.barriers.arrive(now.into_std(), task, &arrival);
            // Nobody is told of most arrivals; a deadline is news for the clock where it isn't over at once.
            if timeout.is_some() && answers.is_empty() {
                self.shared.changed.notify_one();
            }
            state.deliver(answers);
        }
        Ok(answer)
    }
}

impl Job for Sibling {
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let answer = self.arrive(name, timeout)?;
            let gone = || Err(Error::new(ErrorCode::Cancelled, "this process is shutting down"));
            answer.await.unwrap_or_else(|_| gone())
        })
    }

    fn training_ended(&self) -> bool {
        lock(&self.shared.state).training_ended
    }

    fn attempt(&self) -> u32 {
        self.shared.attempt
    }
}

#[cfg(test)]
mod tests;
