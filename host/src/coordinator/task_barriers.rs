//! A task's half of its barriers: counts generations, remembers arrivals that have no answer.
//!
//! The other half, which knows all participants, is [`Barriers`](crate::barrier::Barriers): with the leader of independent
//! workers, or beside the runs of a split client.

use crate::attend::BarrierArrival;
use crate::barrier::{NAMES_MAX, display_name, ends_generation};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long after its own deadline a call waits for the leader's answer, which names who is missing.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(in crate::coordinator) struct TaskBarriers {
    names: BTreeMap<String, Rendezvous>,
}

/// One name; counts on when a generation's answer is taken by a call.
#[derive(Default)]
struct Rendezvous {
    generation: u64,
    arrival: Option<Arrival>,
    waiters: Vec<Waiter>,
    /// An answer that came when nobody waited any more; the next call takes it.
    answer: Option<Result<()>>,
}

/// An arrival without answer.
struct Arrival {
    since: Instant,
    deadline: Option<Instant>,
}

struct Waiter {
    deadline: Option<Instant>,
    reply: oneshot::Sender<Result<()>>,
}

impl TaskBarriers {
    /// Takes a call; returns the arrival to send, unless its answer is here.
    pub(in crate::coordinator) fn arrive(
        &mut self,
        now: Instant,
        name: &str,
        timeout: Option<Duration>,
        reply: oneshot::Sender<Result<()>>,
    ) -> Option<BarrierArrival> {
        if !self.names.contains_key(name) && self.names.len() >= NAMES_MAX {
            let message = format!("{} would be one more than {NAMES_MAX} names: use a name again", display_name(name));
            // The caller may have gone.
            let _ = reply.send(Err(Error::new(ErrorCode::ResourceExhausted, message).with_names([name])));
            return None;
        }
        let rendezvous = self.names.entry(name.to_owned()).or_default();
        if let Some(answer) = rendezvous.answer.take() {
            rendezvous.generation += 1;
            let _ = reply.send(answer);
            return None;
        }
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        rendezvous.waiters.push(Waiter { deadline, reply });
        let arrival = rendezvous.arrival.get_or_insert(Arrival { since: now, deadline });
        arrival.deadline = [arrival.deadline, deadline].into_iter().flatten().min();
        Some(BarrierArrival { name: name.to_owned(), generation: rendezvous.generation, timeout })
    }

    /// Takes the leader's answer. One to a generation that is over already is a repetition.
    pub(in crate::coordinator) fn answer(&mut self, name: &str, generation: u64, result: Result<()>) {
        let Some(rendezvous) = self.names.get_mut(name).filter(|rendezvous| rendezvous.generation == generation) else {
            return;
        };
        if rendezvous.arrival.take().is_none() {
            return;
        }
        let mut taken = false;
        for waiter in rendezvous.waiters.drain(..) {
            taken |= waiter.reply.send(result.clone()).is_ok();
        }
        if !ends_generation(&result) {
            // The name counts only once the leader knows it.
            if generation == 0 {
                self.names.remove(name);
            }
        } else if taken {
            rendezvous.generation += 1;
        } else {
            rendezvous.answer = Some(result);
        }
    }

    /// The arrivals that a new stream must carry again, with the time that is left of each.
    pub(in crate::coordinator) fn unanswered(&self, now: Instant) -> Vec<BarrierArrival> {
        self.names
            .iter()
            .filter_map(|(name, rendezvous)| {
                let arrival = rendezvous.arrival.as_ref()?;
                let timeout = arrival.deadline.map(|deadline| deadline.saturating_duration_since(now));
                Some(BarrierArrival { name: name.clone(), generation: rendezvous.generation, timeout })
            })
            .collect()
    }

    /// Where calls wait: name, generation, and since when.
    pub(in crate::coordinator) fn waiting(&self) -> impl Iterator<Item = (&str, u64, Instant)> {
        self.names.iter().filter(|(_, rendezvous)| !rendezvous.waiters.is_empty()).filter_map(|(name, rendezvous)| {
            Some((name.as_str(), rendezvous.generation, rendezvous.arrival.as_ref()?.since))
        })
    }

    /// Ends every call that waits.
    pub(in crate::coordinator) fn cancel(&mut self, error: &Error) {
        for rendezvous in self.names.values_mut() {
            for waiter in rendezvous.waiters.drain(..) {
                // The caller may have gone.
                let _ = waiter.reply.send(Err(error.clone()));
            }
        }
    }

    /// When [`TaskBarriers::expire`] is due next.
    pub(in crate::coordinator) fn next_deadline(&self) -> Option<Instant> {
        let waiters = self.names.values().flat_map(|rendezvous| &rendezvous.waiters);
        waiters.filter_map(|waiter| waiter.deadline?.checked_add(ANSWER_GRACE)).min()
    }

    /// Ends the calls that the leader should have answered by now. The arrival stands: a later call finds its answer.
    pub(in crate::coordinator) fn expire(&mut self, now: Instant, leader: Task) {
        for (name, rendezvous) in &mut self.names {
            let due = |waiter: &mut Waiter| {
                waiter.deadline.and_then(|deadline| deadline.checked_add(ANSWER_GRACE)).is_some_and(|at| at <= now)
            };
            for waiter in rendezvous.waiters.extract_if(.., due) {
                let message = format!(
                    "{} not complete in time, and the leader {leader} does not say who is missing",
                    display_name(name)
                );
                let error = Error::new(ErrorCode::DeadlineExceeded, message).with_tasks([leader]);
                // The caller may have gone.
                let _ = waiter.reply.send(Err(error));
            }
        }
    }
}
