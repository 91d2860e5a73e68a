//! The barrier: a reusable rendezvous of chief and workers, as a pure state machine.
//!
//! [`Barriers`] holds every named barrier of one attempt. Time is an argument, waiting is the caller's business: an
//! arrival or a failure returns the [`Answer`]s that are due, each to one task.
//!
//! | state of a generation | event | what follows |
//! | --- | --- | --- |
//! | open | the last participant arrives | passed: all are answered, the next generation opens |
//! | open | a task arrives again | nothing: it counts once |
//! | open | the earliest deadline of its waiters passes | `deadline-exceeded` naming who is missing, for all |
//! | open | a participant leaves without having arrived | `aborted` naming it, for all |
//! | open | a participant fails or restarts, arrived or not | `peer-failed`, `peer-restarted` naming it, for all |
//! | open | [`Barriers::cancel`] | the given error, for all |
//! | ended | a task arrives again, because its answer was lost | the stored result |
//! | ended without it | a task arrives late | the stored error |
//! | any | a task arrives at another generation than its last or its next | `failed-precondition` with both numbers, for the caller |
//!
//! A generation that ended in an error is over like one that passed: its participants meet again in the next one, those
//! that came late after they were told of each generation that ended without them.

use crate::attend::BarrierArrival;
use crate::cluster::{Task, list_tasks};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::check_name;
use crate::text::shown;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The most barrier names of one attempt. Each name is kept to its end, because its last result may be asked for again.
pub const NAMES_MAX: usize = 1024;

/// Results kept for each name: tasks may be so many failed generations behind and still be told how each ended.
const RESULTS_MAX: usize = 16;

/// What a task is to be told about a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who is told.
    pub task: Task,
    /// The barrier's name.
    pub name: String,
    /// The generation that the answer is about.
    pub generation: u64,
    /// Passed, or why not.
    pub result: Result<()>,
}

/// A generation that tasks wait in, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierStatus {
    /// The barrier's name; empty for `wait_for_other_workers`.
    pub name: String,
    /// The open generation.
    pub generation: u64,
    /// Who has arrived.
    pub arrived: Vec<Task>,
    /// Who is missing.
    pub missing: Vec<Task>,
    /// When the first task arrived.
    pub since: Instant,
}

impl BarrierStatus {
    /// Says for how long who keeps the others waiting.
    pub fn line(&self, now: Instant) -> String {
        format!(
            "{}, generation {}: {} of {} arrived, waiting {} s for {}",
            display_name(&self.name),
            self.generation,
            self.arrived.len(),
            self.arrived.len() + self.missing.len(),
            now.saturating_duration_since(self.since).as_secs(),
            list_tasks(&self.missing)
        )
    }
}

/// Whether a barrier's answer ends its generation; the caller counts on to the next one only then.
///
/// `failed-precondition`, `invalid-argument` and `resource-exhausted` refuse the one call and leave the generation open.
pub fn ends_generation(result: &Result<()>) -> bool {
    !matches!(
        result,
        Err(Error {
            code: ErrorCode::FailedPrecondition | ErrorCode::InvalidArgument | ErrorCode::ResourceExhausted,
            ..
        })
    )
}

/// Prints a barrier for a message: the unnamed one by the call that waits at it.
pub fn display_name(name: &str) -> String {
    if name.is_empty() { "wait_for_other_workers".to_owned() } else { format!("barrier `{}`", shown(name)) }
}

/// Every barrier of one attempt.
///
/// # Source
/// `_Barrier` of TensorFlow's `distribute_coordinator.py`, which counts calls, has no name and no way out; and the
/// coordination service's `Barrier`, from which names, participants, failures and replayed results come.
#[derive(Debug)]
pub struct Barriers {
    participants: BTreeSet<Task>,
    barriers: BTreeMap<String, Barrier>,
    /// Participants that will never arrive again, and what a generation without them ends in.
    gone: BTreeMap<Task, Error>,
    /// Set when no generation may pass any more.
    cancelled: Option<Error>,
}

#[derive(Debug, Default)]
struct Barrier {
    generation: u64,
    arrived: BTreeSet<Task>,
    since: Option<Instant>,
    /// The earliest of its waiters, with the timeout that it came from.
    deadline: Option<(Instant, Duration)>,
    /// For each task the generation that it has to arrive at next.
    next: BTreeMap<Task, u64>,
    /// How the generations before ended, the latest last.
    results: VecDeque<Result<()>>,
}

impl Barriers {
    /// Makes the barriers of these participants.
    pub fn new(participants: impl IntoIterator<Item = Task>) -> Self {
        Barriers {
            participants: participants.into_iter().collect(),
            barriers: BTreeMap::new(),
            gone: BTreeMap::new(),
            cancelled: None,
        }
    }

    /// Takes a task's arrival; returns the answers that are due now, to it and to others.
    ///
    /// No answer means that the task waits. A repeated arrival counts once; it may bring an earlier deadline, never a
    /// later one.
    pub fn arrive(&mut self, now: Instant, task: Task, arrival: &BarrierArrival) -> Vec<Answer> {
        let answer = |result| vec![Answer { task, name: arrival.name.clone(), generation: arrival.generation, result }];
        if let Err(error) = self.admit(task, &arrival.name) {
            return answer(Err(error));
        }
        let participants = self.participants.len();
        let barrier = self.barriers.entry(arrival.name.clone()).or_default();
        let (given, open) = (arrival.generation, barrier.generation);
        let next = barrier.next.get(&task).copied().unwrap_or_default();
        if given != next && given.checked_add(1) != Some(next) {
            return answer(Err(Error::new(
                ErrorCode::FailedPrecondition,
                format!(
                    "{task} arrived at generation {given} of {}, but its next one is {next}: each task must pass a \
                     barrier as often as the others",
                    display_name(&arrival.name)
                ),
            )
            .with_tasks([task])));
        }
        barrier.next.insert(task, given + 1);
        if given < open {
            return answer(barrier.result_of(&arrival.name, given));
        }
        barrier.arrived.insert(task);
        barrier.since.get_or_insert(now);
        if let Some(timeout) = arrival.timeout
            && let Some(deadline) = now.checked_add(timeout)
            && barrier.deadline.is_none_or(|(earliest, _)| deadline < earliest)
        {
            barrier.deadline = Some((deadline, timeout));
        }
        let outcome = if let Some(error) = &self.cancelled {
            Some(Err(error.clone()))
        } else if barrier.arrived.len() == participants {
            Some(Ok(()))
        } else {
            self.gone.iter().find(|(gone, _)| !barrier.arrived.contains(gone)).map(|(_, error)| Err(error.clone()))
        };
        match outcome {
            Some(result) => barrier.end(&arrival.name, result),
            // A timeout of zero asks whether the others are there already.
            None => self.expire(now),
        }
    }

    /// Ends the open generations of a participant that has failed or was restarted, and all later ones.
    ///
    /// `error` is what waiters are told; it should name the task. Anybody but a participant is ignored.
    pub fn failed(&mut self, task: Task, error: Error) -> Vec<Answer> {
        if !self.participants.contains(&task) {
            return Vec::new();
        }
        let answers = self.end_where(|_| true, &error);
        self.gone.insert(task, error);
        answers
    }

    /// Ends the open generations that a participant which has left will never arrive at, and all later ones.
    ///
    /// A generation that it had arrived at stays open: it may still pass.
    pub fn left(&mut self, task: Task, message: &str) -> Vec<Answer> {
        if !self.participants.contains(&task) || self.gone.contains_key(&task) {
            return Vec::new();
        }
        let error =
            Error::new(ErrorCode::Aborted, format!("{task} left without arriving: {message}")).with_tasks([task]);
        let answers = self.end_where(|barrier| !barrier.arrived.contains(&task), &error);
        self.gone.insert(task, error);
        answers
    }

    /// Ends every open generation, and every later one at its first arrival, with `error`. The first call counts.
    pub fn cancel(&mut self, error: Error) -> Vec<Answer> {
        let answers = self.end_where(|_| true, &error);
        self.cancelled.get_or_insert(error);
        answers
    }

    /// Ends the generations whose deadline has passed.
    pub fn expire(&mut self, now: Instant) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (name, barrier) in &mut self.barriers {
            let Some((_, timeout)) = barrier.deadline.filter(|&(deadline, _)| deadline <= now) else { continue };
            let missing: Vec<Task> = self.participants.difference(&barrier.arrived).copied().collect();
            let error = Error::new(
                ErrorCode::DeadlineExceeded,
                format!(
                    "{} not complete after {}: {} of {} arrived, missing {}",
                    display_name(name),
                    humantime::format_duration(timeout),
                    barrier.arrived.len(),
                    self.participants.len(),
                    list_tasks(&missing)
                ),
            )
            .with_tasks(missing);
            answers.extend(barrier.end(name, Err(error)));
        }
        answers
    }

    /// When [`Barriers::expire`] is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.barriers.values().filter_map(|barrier| barrier.deadline).map(|(deadline, _)| deadline).min()
    }

    /// The generations that tasks wait in, by name.
    pub fn status(&self) -> Vec<BarrierStatus> {
        self.barriers
            .iter()
            .filter_map(|(name, barrier)| {
                Some(BarrierStatus {
                    name: name.clone(),
                    generation: barrier.generation,
                    arrived: barrier.arrived.iter().copied().collect(),
                    missing: self.participants.difference(&barrier.arrived).copied().collect(),
                    since: barrier.since?,
                })
            })
            .collect()
    }

    fn admit(&self, task: Task, name: &str) -> Result<()> {
        if !self.participants.contains(&task) {
            return Err(Error::new(
                ErrorCode::FailedPrecondition,
                format!(
                    "{task} does not take part in {}: its participants are {}",
                    display_name(name),
                    list_tasks(&self.participants)
                ),
            )
            .with_tasks([task]));
        }
        // The empty name is that of `wait_for_other_workers`.
        if !name.is_empty() {
            check_name("barrier", name)?;
        }
        if !self.barriers.contains_key(name) && self.barriers.len() >= NAMES_MAX {
            return Err(Error::new(
                ErrorCode::ResourceExhausted,
                format!("{} would be one more than {NAMES_MAX} names: use a name again", display_name(name)),
            )
            .with_names([name]));
        }
        Ok(())
    }

    fn end_where(&mut self, which: impl Fn(&Barrier) -> bool, error: &Error) -> Vec<Answer> {
        self.barriers
            .iter_mut()
            .filter(|(_, barrier)| barrier.since.is_some() && which(barrier))
            .flat_map(|(name, barrier)| barrier.end(name, Err(error.clone())))
            .collect()
    }
}

impl Barrier {
    /// How a generation before the open one ended.
    fn result_of(&self, name: &str, generation: u64) -> Result<()> {
        let back = usize::try_from(self.generation - generation).unwrap_or(usize::MAX);
        let stored = self.results.len().checked_sub(back).and_then(|index| self.results.get(index));
        stored.cloned().unwrap_or_else(|| {
            let message = format!(
                "generation {generation} of {} ended long ago: generation {} is open",
                display_name(name),
                self.generation
            );
            Err(Error::new(ErrorCode::Aborted, message))
        })
    }

    /// Ends the open generation and opens the next.
    fn end(&mut self, name: &str, result: Result<()>) -> Vec<Answer> {
        let generation = self.generation;
        let arrived = std::mem::take(&mut self.arrived);
        self.generation += 1;
        self.since = None;
        self.deadline = None;
        self.results.push_back(result.clone());
        if self.results.len() > RESULTS_MAX {
            self.results.pop_front();
        }
        arrived
            .into_iter()
            .map(|task| Answer { task, name: name.to_owned(), generation, result: result.clone() })
            .collect()
    }
}

#[cfg(test)]
mod tests;
