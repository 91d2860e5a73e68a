//! Named, reusable barriers among the chief's and workers' runs.

use super::state::{Life, Shared, State, Who};
use crate::{Error, ErrorCode, Result, Task};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// The barriers by name; the empty name is that of `wait_for_other_workers`.
#[derive(Debug, Default)]
pub(super) struct Barriers(HashMap<String, Barrier>);

/// One barrier. Each run counts its own generations, so that a late one gets the answer of the generation it missed.
#[derive(Debug, Default)]
struct Barrier {
    /// The generation that gathers now: all before it are over.
    current: u64,
    arrived: BTreeSet<usize>,
    deadline: Option<Instant>,
    /// The generations that are over without having passed.
    failed: BTreeMap<u64, Error>,
    /// The next generation of each run.
    next: HashMap<usize, u64>,
}

impl Barrier {
    /// Ends the current generation and begins the next.
    fn advance(&mut self) {
        self.current += 1;
        self.arrived.clear();
        self.deadline = None;
    }

    /// Takes the answer of a generation that is over.
    fn answer(&mut self, run: usize, generation: u64) -> Option<Result<()>> {
        if generation >= self.current {
            return None;
        }
        let next = self.next.entry(run).or_default();
        *next = (*next).max(generation + 1);
        Some(self.failed.get(&generation).cloned().map_or(Ok(()), Err))
    }
}

impl Shared {
    pub(super) fn barrier(&self, run: usize, name: &str, timeout: Option<Duration>) -> Result<()> {
        let who = Who { run, call: None };
        let mut state = self.ready(who)?;
        let barrier = state.barriers.0.entry(name.to_owned()).or_default();
        let generation = *barrier.next.entry(run).or_default();
        if generation == barrier.current {
            barrier.arrived.insert(run);
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            barrier.deadline = [barrier.deadline, deadline].into_iter().flatten().min();
            if self.setup.participants().all(|participant| barrier.arrived.contains(&participant)) {
                barrier.advance();
            }
            // Also wakes those whose deadline has become an earlier one.
            self.changed.notify_all();
        }
        loop {
            let barrier = state.barriers.0.get_mut(name).expect("made above, and kept while runs go on");
            if let Some(answer) = barrier.answer(run, generation) {
                return answer;
            }
            let deadline = barrier.deadline;
            self.check_interrupt(&state, who)?;
            if let Some(error) = self.left_without_arriving(&state, name) {
                return Err(error);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.expire(&mut state, name);
                continue;
            }
            (state, _) = self.wait(state, deadline);
        }
    }

    /// The error that all waiters get when a participant has ended that this generation needs.
    fn left_without_arriving(&self, state: &State, name: &str) -> Option<Error> {
        let gone = |&run: &usize| state.lives[run] != Life::Running;
        let gone: Vec<usize> = self.missing(state, name).filter(gone).collect();
        if gone.is_empty() {
            return None;
        }
        let tasks = self.setup.tasks(gone);
        let text = format!("{}: {} ended without arriving", describe(name), list(&tasks));
        Some(Error::new(ErrorCode::Aborted, text).with_tasks(tasks))
    }

    fn expire(&self, state: &mut State, name: &str) {
        let missing = self.setup.tasks(self.missing(state, name));
        let text = format!("{} isn't complete in time, missing: {}", describe(name), list(&missing));
        let barrier = state.barriers.0.get_mut(name).expect("made by the caller");
        let error = Error::new(ErrorCode::DeadlineExceeded, text).with_tasks(missing);
        barrier.failed.insert(barrier.current, error);
        barrier.advance();
        self.changed.notify_all();
    }

    fn missing<'a>(&'a self, state: &'a State, name: &str) -> impl Iterator<Item = usize> + 'a {
        let arrived = &state.barriers.0[name].arrived;
        self.setup.participants().filter(|run| !arrived.contains(run))
    }
}

fn describe(name: &str) -> String {
    if name.is_empty() { "the barrier of all workers".to_owned() } else { format!("barrier `{name}`") }
}

fn list(tasks: &[Task]) -> String {
    tasks.iter().map(Task::to_string).collect::<Vec<_>>().join(", ")
}
