//! Values that a run has read, for its reads that take older ones (`max_age`).
//!
//! | call | its entry |
//! | --- | --- |
//! | a read with `max_age` | serves it where the entry is younger, of its type, new enough for `min_version` and as whole; else is kept |
//! | a read without | always asks; renews the entry where there is one, so that reads never go backward |
//! | a write | drops it when it begins and when it ends; what was read meanwhile isn't kept |
//!
//! An entry is as old as the call that read it: it began when the value may have been changed last. The cache is the run's: what
//! others write shows when an entry is too old.

use crate::cluster::Task;
use crate::error::Result;
use crate::handles::{
    ApplyOptions, BoxFuture, Change, Consistency, Gradient, InitializeMode, ReadOptions, RowChange, TaskVariables,
    Value, VariableRef, WriteOptions,
};
use crate::sync::lock;
use crate::tensor::TensorView;
use crate::wire::tensor::CHUNK_BYTES;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// What an entry takes beside its name and value, in bytes.
const ENTRY_BYTES: u64 = 256;

/// The values that one run keeps, of all tasks. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct ReadCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes_max: u64,
    runtime: Handle,
    state: Mutex<State>,
}

type Key = (Task, String);

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// The keys from the oldest on.
    order: BTreeMap<u64, Key>,
    bytes: u64,
    /// Writes under way.
    writing: HashMap<Key, usize>,
    /// Reads under way, and what was written since they began.
    reading: HashMap<u64, HashSet<Key>>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    consistency: Consistency,
    read_at: Instant,
    order: u64,
}

impl ReadCache {
    /// Keeps nothing yet, and at most `bytes_max` bytes: as many as one call may read (`--max-tensor`). `runtime` has the clock.
    pub fn new(bytes_max: u64, runtime: Handle) -> Self {
        ReadCache(Arc::new(Inner { bytes_max, runtime, state: Mutex::default() }))
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        lock(&self.0.state).bytes
    }

    fn now(&self) -> Instant {
        // The guest runtime has no clock of its own.
        let _entered = self.0.runtime.enter();
        Instant::now()
    }

    /// A value that will do, if there is one.
    fn find(&self, task: Task, variable: &VariableRef, options: &ReadOptions, now: Instant) -> Option<Value> {
        let max_age = options.max_age?;
        let state = lock(&self.0.state);
        let entry = state.entries.get(&(task, variable.name.clone()))?;
        let fits = entry.value.tensor.ty == variable.ty
            && now.saturating_duration_since(entry.read_at) < max_age
            && options.min_version.is_none_or(|version| entry.value.version >= version)
            && (entry.consistency == Consistency::Atomic || options.consistency == Consistency::Relaxed);
        fits.then(|| entry.value.clone())
    }

    /// Begins a read.
    fn read(&self) -> Reading {
        let mut state = lock(&self.0.state);
        state.next += 1;
        let id = state.next;
        state.reading.insert(id, HashSet::new());
        drop(state);
        Reading { cache: self.clone(), id, began: self.now() }
    }

    fn write(&self, task: Task, names: impl Iterator<Item = impl Into<String>>) -> Writing {
        let keys: Vec<Key> = names.map(|name| (task, name.into())).collect();
        let mut state = lock(&self.0.state);
        for key in &keys {
            *state.writing.entry(key.clone()).or_default() += 1;
            state.written(key);
        }
        drop(state);
        Writing { cache: self.clone(), keys }
    }
}

impl State {
    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.order);
            self.bytes -= size(key, &entry.value);
        }
    }

    fn written(&mut self, key: &Key) {
        self.remove(key);
        for written in self.reading.values_mut() {
            written.insert(key.clone());
        }
    }

    fn keep(&mut self, key: Key, entry: Entry, bytes_max: u64) {
        let bytes = size(&key, &entry.value);
        if self.entries.get(&key).is_some_and(|kept| kept.read_at > entry.read_at) {
            return;
        }
        self.remove(&key);
        if bytes > bytes_max {
            return;
        }
        while self.bytes + bytes > bytes_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.remove(&oldest);
        }
        self.bytes += bytes;
        self.order.insert(entry.order, key.clone());
        self.entries.insert(key, entry);
    }
}

fn size((_, name): &Key, value: &Value) -> u64 {
    ENTRY_BYTES + name.len() as u64 + value.tensor.data.len() as u64
}

/// The value in memory of its own: one that came in a single chunk would keep all that the connection read with it.
fn own(value: &Value) -> Value {
    let mut value = value.clone();
    if value.tensor.data.len() <= CHUNK_BYTES {
        value.tensor.data = Bytes::copy_from_slice(&value.tensor.data);
    }
    value
}

/// A read that is under way.
struct Reading {
    cache: ReadCache,
    id: u64,
    began: Instant,
}

impl Reading {
    /// Keeps what was read, but for what was written since. `renew`: only in place of older values.
    fn keep(&self, task: Task, variables: &[VariableRef], values: &[Value], consistency: Consistency, renew: bool) {
        let mut state = lock(&self.cache.0.state);
        for (variable, value) in variables.iter().zip(values) {
            let key = (task, variable.name.clone());
            let written = state.reading.get(&self.id).is_none_or(|written| written.contains(&key));
            if written || state.writing.contains_key(&key) || (renew && !state.entries.contains_key(&key)) {
                continue;
            }
            state.next += 1;
            let entry = Entry { value: own(value), consistency, read_at: self.began, order: state.next };
            state.keep(key, entry, self.cache.0.bytes_max);
        }
    }

    /// Drops what could not be read: it may be there no more.
    fn failed(&self, task: Task, variables: &[VariableRef]) {
        let mut state = lock(&self.cache.0.state);
        variables.iter().for_each(|variable| state.remove(&(task, variable.name.clone())));
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        lock(&self.cache.0.state).reading.remove(&self.id);
    }
}

/// A write that is under way.
struct Writing {
    cache: ReadCache,
    keys: Vec<Key>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut state = lock(&self.cache.0.state);
        for key in &self.keys {
            state.written(key);
            match state.writing.get_mut(key) {
                Some(writes) if *writes > 1 => *writes -= 1,
                _ => drop(state.writing.remove(key)),
            }
        }
    }
}

/// Another task's variables behind a run's [`ReadCache`].
#[derive(Clone, Debug)]
pub struct CachedVariables<V> {
    variables: V,
    task: Task,
    cache: ReadCache,
}

impl<V: TaskVariables> CachedVariables<V> {
    /// Puts a cache before the variables of `task`.
    pub fn new(variables: V, task: Task, cache: ReadCache) -> Self {
        CachedVariables { variables, task, cache }
    }

    /// Asks, and keeps what comes.
    async fn ask(&self, variables: Vec<VariableRef>, options: ReadOptions) -> Result<Vec<Value>> {
        let renew = options.max_age.is_none();
        if renew && self.cache.bytes() == 0 {
            return self.variables.pull(variables, options).await;
        }
        let reading = self.cache.read();
        match self.variables.pull(variables.clone(), options).await {
            Ok(values) => {
                reading.keep(self.task, &variables, &values, options.consistency, renew);
                Ok(values)
            }
            Err(error) => {
                reading.failed(self.task, &variables);
                Err(error)
            }
        }
    }
}

impl<V: TaskVariables> TaskVariables for CachedVariables<V> {
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        let writing = self.cache.write(self.task, values.iter().map(|(variable, _)| &*variable.name));
        Box::pin(async move {
            let _writing = writing;
            self.variables.initialize(values, mode).await
        })
    }

    fn uninitialized(&self, variables: Vec<VariableRef>, wait: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        self.variables.uninitialized(variables, wait)
    }

    fn pull(&self, variables: Vec<VariableRef>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            if options.max_age.is_none() {
                return self.ask(variables, options).await;
            }
            let now = self.cache.now();
            let mut values: Vec<_> =
                variables.iter().map(|variable| self.cache.find(self.task, variable, &options, now)).collect();
            let missing: Vec<_> = variables.into_iter().zip(&values).filter(|(_, value)| value.is_none()).collect();
            if missing.is_empty() {
                return Ok(values.into_iter().flatten().collect());
            }
            let missing = missing.into_iter().map(|(variable, _)| variable).collect();
            let mut asked = self.ask(missing, options).await?.into_iter();
            for value in values.iter_mut().filter(|value| value.is_none()) {
                *value = asked.next();
            }
            Ok(values.into_iter().flatten().collect())
        })
    }

    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        let writing = self.cache.write(self.task, changes.iter().map(|change| &*change.variable.name));
        Box::pin(async move {
            let _writing = writing;
            self.variables.push(changes, options).await
        })
    }

    fn apply<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, VariableRef>>,
        options: ApplyOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        let writing = self.cache.write(self.task, gradients.iter().map(|gradient| &*gradient.variable.name));
        Box::pin(async move {
            let _writing = writing;
            self.variables.apply(gradients, options).await
        })
    }

    fn gather(&self, variable: VariableRef, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        self.variables.gather(variable, rows)
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        let writing = self.cache.write(self.task, std::iter::once(&*change.variable.name));
        Box::pin(async move {
            let _writing = writing;
            self.variables.scatter(change).await
        })
    }
}

#[cfg(test)]
mod tests;
