//! Identities that tell one life of a process, one run and one attempt from the next.

mod gate;

pub use gate::{AttemptGate, AttemptOrder};

use crate::cluster::Task;
use rand::Rng;
use std::fmt;

/// Random 64-bit number drawn when a process starts: a restarted task is a different one. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Draws an incarnation.
    pub fn draw(rng: &mut impl Rng) -> Self {
        Incarnation(rng.random_range(1..=u64::MAX))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Random 64-bit number of one start of `worker_fn`. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

impl RunId {
    /// Draws a run id.
    pub fn draw(rng: &mut impl Rng) -> Self {
        RunId(rng.random_range(1..=u64::MAX))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The job's numbered try. Numbers are compared only within one leader incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The incarnation of the leader that owns the attempt.
    pub leader: Incarnation,
    /// Counts from 0.
    pub number: u32,
}

/// Who makes a call: the identity that stands in every request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Namespace of variables and barriers.
    pub container: String,
    /// The caller's task; none for a split client itself, or a tool.
    pub task: Option<Task>,
    /// The caller's run.
    pub run_id: RunId,
    /// The attempt that the caller is in; none before it knows one (a job without a leader, a tool).
    pub attempt: Option<Attempt>,
}
