//! Gradients of synchronous replicas, as a host collects them.

use super::gradients::{Slots, add_scaled};
use super::state::State;
use super::store::{Key, Stored};
use super::{Context, Pending, Variable};
use crate::raw::{RawGradient, RawOptimizer, RawSync, RawValue};
use crate::{DType, Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Steps that one variable collects gradients for at most, as on a host.
const OPEN_STEPS_MAX: usize = 4;

/// Most gradients of one step, as on a host.
const REPLICAS_MAX: u32 = 4096;

/// What becomes of one gradient of a call, once it is known.
pub(super) type Outcome = Arc<OnceLock<Result<RawValue>>>;

/// The steps of one variable whose gradients are collected.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The last step that was applied.
    applied: Option<u64>,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    replicas: u32,
    optimizer: RawOptimizer,
    sum: Vec<u8>,
    waiters: Vec<(Outcome, bool)>,
}

impl Steps {
    /// Begins anew, where the value of variable `name` is set.
    pub(super) fn reset(&mut self, name: &str) {
        for (step, open) in std::mem::take(self).open {
            let text =
                format!("variable `{name}` was initialized anew while gradients for step `{step}` were collected");
            open.end(&Error::new(ErrorCode::Aborted, text));
        }
    }

    /// Checks whether a gradient of variable `name` can be taken.
    fn check(&self, name: &str, sync: RawSync, optimizer: &RawOptimizer) -> Result<()> {
        let RawSync { step, replicas } = sync;
        if let Some(applied) = self.applied.filter(|&applied| step <= applied) {
            return if step < applied { Err(stale(name, step, applied)) } else { Ok(()) };
        }
        let Some(open) = self.open.get(&step) else {
            if replicas > 1 && self.open.len() >= OPEN_STEPS_MAX {
                let steps: Vec<_> = self.open.keys().map(|step| format!("`{step}`")).collect();
                let text = format!(
                    "variable `{name}` collects gradients of steps {} and takes none of step `{step}`: at most `{OPEN_STEPS_MAX}` \
                     steps are open at a time; let each worker go on to the next step when its own is applied",
                    steps.join(", ")
                );
                return Err(Error::new(ErrorCode::ResourceExhausted, text));
            }
            return Ok(());
        };
        if open.replicas != replicas {
            let text = format!(
                "variable `{name}` collects `{}` gradients for step `{step}`, but this one is of `{replicas}` replicas; give the \
                 same number on all workers",
                open.replicas
            );
            return Err(Error::new(ErrorCode::FailedPrecondition, text));
        }
        if open.optimizer != *optimizer {
            let text = format!(
                "variable `{name}` collects gradients for a step `{step}` of {:?}, but this one is for {optimizer:?}; give the \
                 same method and numbers on all workers",
                open.optimizer
            );
            return Err(Error::new(ErrorCode::FailedPrecondition, text));
        }
        Ok(())
    }
}

impl Open {
    fn end(self, error: &Error) {
        for (outcome, _) in self.waiters {
            // Set once: the step ends once.
            let _ = outcome.set(Err(error.clone()));
        }
    }
}

fn stale(name: &str, step: u64, applied: u64) -> Error {
    let text = format!(
        "gradient of variable `{name}` is of step `{step}`, but step `{applied}` is applied: it is stale; read the variable again \
         and go on with the step after"
    );
    Error::new(ErrorCode::Aborted, text)
}

/// How the gradients of one call are taken.
#[derive(Clone, Copy)]
pub(super) struct How<'o> {
    pub(super) optimizer: &'o RawOptimizer,
    pub(super) sync: RawSync,
    /// What clipping came to.
    pub(super) scale: f64,
    pub(super) want_values: bool,
}

impl How<'_> {
    pub(super) fn check(&self, name: &str, stored: &Stored) -> Result<()> {
        stored.steps.check(name, self.sync, self.optimizer)?;
        // One that is dropped needs no slots.
        if stored.steps.applied == Some(self.sync.step) {
            return Ok(());
        }
        Slots::check(stored.slots.as_ref(), self.optimizer, name)
    }

    /// Takes a gradient that was checked; the last of its step applies it.
    pub(super) fn take(&self, name: &str, stored: &mut Stored, gradient: &[u8]) -> Outcome {
        let How { optimizer, sync: RawSync { step, replicas }, scale, want_values } = *self;
        let outcome = Outcome::default();
        if stored.steps.applied == Some(step) {
            let _ = outcome.set(Ok(stored.written(want_values)));
            return outcome;
        }
        let zeros = || vec![0; gradient.len()];
        let open = || Open { replicas, optimizer: *optimizer, sum: zeros(), waiters: Vec::new() };
        let open = stored.steps.open.entry(step).or_insert_with(open);
        match stored.dtype {
            DType::F32 => add_scaled::<f32>(&mut open.sum, scale, gradient),
            _ => add_scaled::<f64>(&mut open.sum, scale, gradient),
        }
        open.waiters.push((outcome.clone(), want_values));
        if open.waiters.len() == replicas as usize {
            stored.apply_step(name, step);
        }
        outcome
    }
}

impl Stored {
    fn apply_step(&mut self, name: &str, step: u64) {
        let Some(open) = self.steps.open.remove(&step) else { return };
        let above = self.steps.open.split_off(&step);
        let below = std::mem::replace(&mut self.steps.open, above);
        self.steps.applied = Some(step);
        let mean = 1.0 / f64::from(open.replicas);
        Slots::step(&mut self.slots, &open.optimizer, mean, self.dtype, &mut self.data, &open.sum);
        self.version += 1;
        for (outcome, want_value) in open.waiters {
            let _ = outcome.set(Ok(self.written(want_value)));
        }
        for (lower, open) in below {
            open.end(&stale(name, lower, step));
        }
    }
}

/// A call whose gradients are taken.
pub(super) struct Collecting {
    pub(super) context: Context,
    step: u64,
    keys: Vec<Key>,
    outcomes: Vec<Outcome>,
}

impl Collecting {
    /// Whether the call has nothing to wait for: all steps are applied, or it fails.
    pub(super) fn ready(&self, state: &State) -> bool {
        self.context.shared.check_interrupt(state, self.context.who).is_err()
            || self.outcomes.iter().any(|outcome| outcome.get().is_some_and(Result::is_err))
            || self.outcomes.iter().all(|outcome| outcome.get().is_some())
    }

    pub(super) fn get(self) -> Result<Vec<RawValue>> {
        let shared = &self.context.shared;
        let mut state = shared.ready(self.context.who)?;
        while !self.ready(&state) {
            if self.context.is_alone(&state) {
                // The host would wait as long as the run lasts; a test shouldn't.
                let text = format!("step `{}` lacks gradients, and no other run is left to push them", self.step);
                return Err(Error::new(ErrorCode::Cancelled, text));
            }
            (state, _) = shared.wait(state, None);
        }
        // What this run read meanwhile is older.
        state.reads.written(&self.context.reader(), self.keys.iter());
        shared.check_interrupt(&state, self.context.who)?;
        let known = self.outcomes.iter().filter_map(|outcome| outcome.get().cloned());
        known.collect()
    }
}

impl Context {
    /// Takes gradients for a step; the answer comes once it is applied.
    pub(super) fn collect(&self, how: How<'_>, gradients: &[RawGradient<'_>]) -> Result<Pending> {
        let RawSync { step, replicas } = how.sync;
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            return Err(Error::invalid(format!(
                "step `{step}` is to be applied with the gradients of `{replicas}` replicas; give how many workers push for it, 1 to \
                 {REPLICAS_MAX}"
            )));
        }
        let mut state = self.shared.ready(self.who)?;
        let outcomes = state.store.collect(how, gradients)?;
        let keys: Vec<_> =
            gradients.iter().map(|RawGradient { variable: Variable { key, .. }, .. }| key.clone()).collect();
        state.reads.written(&self.reader(), keys.iter());
        self.shared.changed.notify_all();
        Ok(Pending::collects(Collecting { context: self.clone(), step, keys, outcomes }))
    }
}
