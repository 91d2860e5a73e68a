//! How a call reads and writes.

use super::Optimizer;
use crate::error::{Error, ErrorCode, Result};
use std::time::Duration;

/// What a read or an update sees of a large variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// The whole variable at one version.
    #[default]
    Atomic,
    /// Each piece of [`RELAXED_BYTES`](super::RELAXED_BYTES) at one version.
    Relaxed,
}

/// How fresh a read must be, and how whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Waits until each variable has at least this version; `uninitialized` at once where one has no value.
    pub min_version: Option<u64>,
    /// Accepts a value that the run began to read less than this ago, and keeps what it reads; none: the variable's task is asked.
    pub max_age: Option<Duration>,
    /// What the read sees.
    pub consistency: Consistency,
}

/// How a write is seen, and what it answers with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether the answer has the new values, or only their versions.
    pub want_values: bool,
    /// What others see of the write while it is made.
    pub consistency: Consistency,
}

impl WriteOptions {
    /// Atomic; the answer has the new values.
    pub const WITH_VALUES: Self = WriteOptions { want_values: true, consistency: Consistency::Atomic };
}

/// Which step of a synchronous update gradients belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStep {
    /// The step, counted by the caller.
    pub step: u64,
    /// How many gradients are collected for it, before their mean is applied.
    pub replicas: u32,
}

/// Most gradients of one step: more workers than a cluster has, and as many calls that may wait for it.
pub const REPLICAS_MAX: u32 = 4096;

impl SyncStep {
    /// Checks the number of replicas.
    ///
    /// # Errors
    /// `invalid-argument` (gRPC `INVALID_ARGUMENT`): none, or more than [`REPLICAS_MAX`].
    pub fn check(&self) -> Result<()> {
        if (1..=REPLICAS_MAX).contains(&self.replicas) {
            return Ok(());
        }
        let message = format!(
            "step `{}` is to be applied with the gradients of `{}` replicas; give how many workers push for it, 1 to {REPLICAS_MAX}",
            self.step, self.replicas
        );
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names(["replicas"]))
    }
}

/// How gradients are applied to the variables of one task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApplyOptions {
    /// What makes a change of a gradient.
    pub optimizer: Optimizer,
    /// Each gradient is multiplied by it first: 1, or what clipping to a global norm came to.
    pub scale: f64,
    /// None: each call is applied by itself, at once.
    pub sync: Option<SyncStep>,
    /// What others see, and what the answer has.
    pub write: WriteOptions,
}
