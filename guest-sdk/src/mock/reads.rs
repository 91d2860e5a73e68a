//! Reads of a mock cluster: waits for versions, and what runs keep of what they have read.

use super::state::{Life, Shared, State};
use super::store::Key;
use super::sync::Collecting;
use super::{Context, Variable};
use crate::raw::RawValue;
use crate::{Error, ErrorCode, Read, Result, Task};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Who keeps values: a run, or the ops that it has on a task.
pub(super) type Reader = (usize, Option<Task>);

/// The values that runs keep for reads with a maximum age.
#[derive(Debug, Default)]
pub(super) struct Reads(BTreeMap<(Reader, Key), Kept>);

#[derive(Debug)]
struct Kept {
    value: RawValue,
    read_at: Instant,
    relaxed: bool,
}

impl Reads {
    /// Drops what a run keeps of variables that it writes.
    pub(super) fn written<'k>(&mut self, reader: &Reader, keys: impl Iterator<Item = &'k Key>) {
        for key in keys {
            self.0.remove(&(reader.clone(), key.clone()));
        }
    }

    fn find(&self, reader: &Reader, variable: &Variable, read: Read, now: Instant) -> Option<RawValue> {
        let max_age = read.max_age?;
        let kept = self.0.get(&(reader.clone(), variable.key.clone()))?;
        let fits = kept.value.tensor.dtype() == variable.dtype
            && kept.value.tensor.shape() == variable.shape
            && now.saturating_duration_since(kept.read_at) < max_age
            && read.min_version.is_none_or(|version| kept.value.version >= version)
            && (read.relaxed || !kept.relaxed);
        fits.then(|| kept.value.clone())
    }

    fn keep(&mut self, reader: &Reader, variable: &Variable, read: Read, value: &RawValue, now: Instant) {
        let place = (reader.clone(), variable.key.clone());
        // A read without an age only renews what is there, so that reads never go backward.
        if read.max_age.is_some() || self.0.contains_key(&place) {
            self.0.insert(place, Kept { value: value.clone(), read_at: now, relaxed: read.relaxed });
        }
    }
}

/// An answer: known at once, or to a read that waits for a version, or to gradients that wait for others.
pub(crate) struct Pending(Answer);

enum Answer {
    Known(Result<Vec<RawValue>>),
    Waits { context: Context, variables: Vec<Variable>, read: Read },
    Collects(Collecting),
}

impl Pending {
    pub(super) fn ready(answer: Result<Vec<RawValue>>) -> Self {
        Pending(Answer::Known(answer))
    }

    pub(super) fn collects(collecting: Collecting) -> Self {
        Pending(Answer::Collects(collecting))
    }

    pub(super) fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.0 {
            Answer::Known(_) => None,
            Answer::Waits { context, .. } | Answer::Collects(Collecting { context, .. }) => Some(&context.shared),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        match &self.0 {
            Answer::Known(_) => true,
            Answer::Waits { context, variables, read } => context.reached(&context.shared.lock(), variables, *read),
            Answer::Collects(collecting) => collecting.ready(&collecting.context.shared.lock()),
        }
    }

    /// Whether waiting for it has an end by now.
    pub(super) fn ended(&self, state: &State) -> bool {
        match &self.0 {
            Answer::Known(_) => true,
            Answer::Waits { context, variables, read } => {
                context.reached(state, variables, *read) || context.is_alone(state)
            }
            Answer::Collects(collecting) => collecting.ready(state) || collecting.context.is_alone(state),
        }
    }

    pub(crate) fn get(self) -> Result<Vec<RawValue>> {
        match self.0 {
            Answer::Known(answer) => answer,
            Answer::Waits { context, variables, read } => context.read(&variables.iter().collect::<Vec<_>>(), read),
            Answer::Collects(collecting) => collecting.get(),
        }
    }
}

impl Context {
    pub(crate) fn read(&self, variables: &[&Variable], read: Read) -> Result<Vec<RawValue>> {
        let mut state = self.shared.ready(self.who)?;
        while !self.reached(&state, variables.iter().copied(), read) {
            if self.is_alone(&state) {
                // The host would wait as long as the run lasts; a test shouldn't.
                let behind = behind(&state, variables, read).map(|variable| format!("`{}`", variable.key.name));
                let text = format!(
                    "{} doesn't reach version {}, and no other run is left to write it",
                    behind.unwrap_or_default(),
                    read.min_version.unwrap_or_default()
                );
                return Err(Error::new(ErrorCode::Cancelled, text));
            }
            (state, _) = self.shared.wait(state, None);
        }
        self.shared.check_interrupt(&state, self.who)?;
        let (reader, now) = (self.reader(), Instant::now());
        let kept: Vec<_> = variables.iter().map(|variable| state.reads.find(&reader, variable, read, now)).collect();
        let asked: Vec<_> = variables.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(v, _)| *v).collect();
        let values = state.store.read(&asked)?;
        for (variable, value) in asked.iter().zip(&values) {
            // What a task has itself is never old.
            if variable.key.task != self.task() {
                state.reads.keep(&reader, variable, read, value, now);
            }
        }
        let mut values = values.into_iter();
        Ok(kept.into_iter().filter_map(|kept| kept.or_else(|| values.next())).collect())
    }

    pub(crate) fn start_read(&self, variables: &[&Variable], read: Read) -> Result<Pending> {
        let waits = !self.reached(&self.shared.lock(), variables.iter().copied(), read);
        if !waits {
            return Ok(Pending::ready(self.read(variables, read)));
        }
        let variables = variables.iter().map(|&variable| variable.clone()).collect();
        Ok(Pending(Answer::Waits { context: self.clone(), variables, read }))
    }

    pub(super) fn reader(&self) -> Reader {
        (self.who.run, self.op_task.clone())
    }

    /// Whether a read has nothing to wait for: all versions are there, or it fails.
    fn reached<'v>(&self, state: &State, variables: impl IntoIterator<Item = &'v Variable>, read: Read) -> bool {
        if self.shared.check_interrupt(state, self.who).is_err() {
            return true;
        }
        let Some(version) = read.min_version else { return true };
        let mut behind = false;
        for variable in variables {
            match state.store.version(variable) {
                None => return true,
                Some(now) => behind |= now < version,
            }
        }
        !behind
    }

    /// Whether nobody else is left who could write.
    pub(super) fn is_alone(&self, state: &State) -> bool {
        let other_runs = |run: usize| run != self.who.run || self.who.call.is_some();
        (0..state.lives.len()).all(|run| !other_runs(run) || state.lives[run] != Life::Running) && !state.ops.any_runs()
    }
}

fn behind<'v>(state: &State, variables: &[&'v Variable], read: Read) -> Option<&'v Variable> {
    let version = read.min_version.unwrap_or_default();
    variables.iter().copied().find(|variable| state.store.version(variable).is_some_and(|now| now < version))
}
