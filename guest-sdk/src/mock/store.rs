//! The variables of a mock cluster.

use super::Variable;
use super::gradients::Slots;
use super::rows::{change_rows, check_rows, pick_rows};
use super::shard::{Part, refuse_base};
use super::sync::{How, Outcome, Steps};
use crate::raw::{InitializeMode, RawChange, RawGradient, RawOptimizer, RawRowChange, RawValue, UpdateKind};
use crate::{DType, Element, Error, ErrorCode, Result, Task, Tensor};
use std::collections::BTreeMap;

/// Same task and name is the same storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// None in a local run.
    pub(super) task: Option<Task>,
    pub(super) name: String,
}

/// Every variable that was initialized.
#[derive(Debug, Default)]
pub(super) struct Store(BTreeMap<Key, Stored>);

#[derive(Debug)]
pub(super) struct Stored {
    pub(super) dtype: DType,
    shape: Vec<usize>,
    /// How it was cut when it was initialized; none: not at all.
    parts: Vec<Part>,
    pub(super) data: Vec<u8>,
    /// Counts applied writes.
    pub(super) version: u64,
    /// What an optimizer keeps; none before its first step.
    pub(super) slots: Option<Slots>,
    /// Gradients for synchronous steps.
    pub(super) steps: Steps,
}

impl Stored {
    fn value(&self) -> RawValue {
        RawValue { tensor: tensor(self.dtype, &self.shape, self.data.clone()), version: self.version }
    }

    /// What `task` has of it.
    fn part(&self, task: &Task) -> Option<Tensor> {
        let part = self.parts.iter().find(|part| part.task == *task)?;
        let row_bytes = self.data.len() / self.shape[0];
        let data = &self.data[part.first_row * row_bytes..][..part.rows * row_bytes];
        let mut shape = self.shape.clone();
        shape[0] = part.rows;
        Some(tensor(self.dtype, &shape, data.to_vec()))
    }

    pub(super) fn written(&self, want_value: bool) -> RawValue {
        if want_value {
            self.value()
        } else {
            RawValue { tensor: tensor(self.dtype, &[0], Vec::new()), version: self.version }
        }
    }
}

fn tensor(dtype: DType, shape: &[usize], data: Vec<u8>) -> Tensor {
    Tensor::from_bytes(dtype, shape, data).expect("the store keeps whole tensors")
}

impl Store {
    /// The value, or what `task` has of it, for a test to look at.
    pub(super) fn find(&self, task: Option<&Task>, name: &str) -> Option<Tensor> {
        let mut named = self.0.iter().filter(|(key, _)| key.name == name);
        named.find_map(|(key, stored)| match task {
            Some(task) if !stored.parts.is_empty() => stored.part(task),
            _ if task.is_none() || key.task.as_ref() == task => Some(stored.value().tensor),
            _ => None,
        })
    }

    pub(super) fn initialize(&mut self, values: &[(&Variable, &[u8])], mode: InitializeMode) -> Result<()> {
        for (variable, _) in values {
            self.get(variable)?;
        }
        for (variable, value) in values {
            match self.0.get_mut(&variable.key) {
                Some(_) if mode == InitializeMode::IfAbsent => {}
                Some(stored) => {
                    stored.data.copy_from_slice(value);
                    stored.version += 1;
                    stored.slots = None;
                    stored.steps.reset(&variable.key.name);
                }
                None => {
                    let Variable { key, parts, dtype, shape, .. } = (*variable).clone();
                    let (data, steps) = (value.to_vec(), Steps::default());
                    self.0.insert(key, Stored { dtype, shape, parts, data, version: 1, slots: None, steps });
                }
            }
        }
        Ok(())
    }

    pub(super) fn uninitialized(&self, variables: &[&Variable]) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for variable in variables {
            if self.get(variable)?.is_none() {
                names.push(variable.key.name.clone());
            }
        }
        Ok(names)
    }

    /// The present version; none before it was initialized.
    pub(super) fn version(&self, variable: &Variable) -> Option<u64> {
        self.0.get(&variable.key).map(|stored| stored.version)
    }

    pub(super) fn read(&self, variables: &[&Variable]) -> Result<Vec<RawValue>> {
        self.check_initialized(variables)?;
        variables.iter().map(|variable| Ok(self.0[&variable.key].value())).collect()
    }

    pub(super) fn update(&mut self, changes: &[RawChange<'_>], want_values: bool) -> Result<Vec<RawValue>> {
        let variables: Vec<&Variable> = changes.iter().map(|change| change.variable).collect();
        self.check_initialized(&variables)?;
        for RawChange { variable, base, .. } in changes {
            let Key { name, .. } = &variable.key;
            let Stored { version, parts, .. } = &self.0[&variable.key];
            let version = *version;
            if base.is_some() {
                refuse_base(name, parts)?;
            }
            if let Some(base) = base.filter(|&base| base != version) {
                let text = format!("`{name}` is at version {version}, the change is based on version {base}");
                return Err(Error::new(ErrorCode::Aborted, text));
            }
        }
        let apply = |change: &RawChange<'_>| {
            let stored = self.0.get_mut(&change.variable.key).expect("checked above");
            apply_as(stored.dtype, change.kind, &mut stored.data, change.data);
            stored.version += 1;
            stored.written(want_values)
        };
        Ok(changes.iter().map(apply).collect())
    }

    /// Rows, in the order asked for.
    pub(super) fn gather(&self, variable: &Variable, rows: &[u64]) -> Result<RawValue> {
        check_rows(&variable.key.name, variable.dtype, &variable.shape, rows)?;
        self.check_initialized(&[variable])?;
        let Stored { dtype, shape, data, version, .. } = &self.0[&variable.key];
        let mut shape = shape.clone();
        shape[0] = rows.len();
        Ok(RawValue { tensor: tensor(*dtype, &shape, pick_rows(data, variable.row_bytes(), rows)), version: *version })
    }

    /// Changes rows in order, all or none.
    pub(super) fn scatter(&mut self, change: &RawRowChange<'_>) -> Result<()> {
        let RawRowChange { variable, kind, rows, data } = *change;
        check_rows(&variable.key.name, variable.dtype, &variable.shape, rows)?;
        self.check_initialized(&[variable])?;
        let stored = self.0.get_mut(&variable.key).expect("checked above");
        let dtype = stored.dtype;
        change_rows(&mut stored.data, variable.row_bytes(), rows, data, |row, by| apply_as(dtype, kind, row, by));
        stored.version += u64::from(!rows.is_empty());
        Ok(())
    }

    /// Makes a step for each gradient, or none where one can't be made; `scale` is what clipping came to.
    pub(super) fn apply(
        &mut self,
        optimizer: &RawOptimizer,
        scale: f64,
        gradients: &[RawGradient<'_>],
        want_values: bool,
    ) -> Result<Vec<RawValue>> {
        let variables: Vec<&Variable> = gradients.iter().map(|gradient| gradient.variable).collect();
        self.check_initialized(&variables)?;
        for Variable { key, .. } in variables {
            Slots::check(self.0[key].slots.as_ref(), optimizer, &key.name)?;
        }
        let apply = |gradient: &RawGradient<'_>| {
            let stored = self.0.get_mut(&gradient.variable.key).expect("checked above");
            Slots::step(&mut stored.slots, optimizer, scale, stored.dtype, &mut stored.data, gradient.data);
            stored.version += 1;
            stored.written(want_values)
        };
        Ok(gradients.iter().map(apply).collect())
    }

    /// Takes all gradients for a step, or none where one can't be.
    pub(super) fn collect(&mut self, how: How<'_>, gradients: &[RawGradient<'_>]) -> Result<Vec<Outcome>> {
        let variables: Vec<&Variable> = gradients.iter().map(|gradient| gradient.variable).collect();
        self.check_initialized(&variables)?;
        for Variable { key, .. } in variables {
            how.check(&key.name, &self.0[key])?;
        }
        let take = |RawGradient { variable: Variable { key, .. }, data }: &RawGradient<'_>| {
            how.take(&key.name, self.0.get_mut(key).expect("checked above"), data)
        };
        Ok(gradients.iter().map(take).collect())
    }

    /// What is stored, if it is of the declared type.
    fn get(&self, variable: &Variable) -> Result<Option<&Stored>> {
        let Some(stored) = self.0.get(&variable.key) else {
            self.check_part(variable)?;
            return Ok(None);
        };
        if variable.placed && !stored.parts.is_empty() {
            return Err(held_in_part(&variable.key, &stored.parts));
        }
        if stored.dtype == variable.dtype && stored.shape == variable.shape {
            return Ok(Some(stored));
        }
        Err(Error::invalid(format!(
            "`{}` is {}{:?}, but is declared here as {}{:?}",
            variable.key.name, stored.dtype, stored.shape, variable.dtype, variable.shape
        )))
    }

    /// Refuses a variable on a task that has a part of another one of that name.
    fn check_part(&self, variable: &Variable) -> Result<()> {
        let Some(task) = variable.key.task.as_ref().filter(|_| variable.placed) else { return Ok(()) };
        let parts = self.0.iter().filter(|(key, _)| key.name == variable.key.name).map(|(_, stored)| &stored.parts);
        match parts.into_iter().find(|parts| parts.iter().any(|part| part.task == *task)) {
            None => Ok(()),
            Some(parts) => Err(held_in_part(&variable.key, parts)),
        }
    }

    fn check_initialized(&self, variables: &[&Variable]) -> Result<()> {
        let missing = self.uninitialized(variables)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::Uninitialized, format!("{} without a value: initialize first", list_names(&missing))))
    }
}

fn held_in_part(key: &Key, parts: &[Part]) -> Error {
    let tasks: Vec<_> = parts.iter().map(|part| part.task.to_string()).collect();
    Error::invalid(format!(
        "`{}` is in {} parts on {}, but is declared here on one task; declare it with the same placement everywhere",
        key.name,
        parts.len(),
        tasks.join(", ")
    ))
}

pub(super) fn list_names(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn apply_as(dtype: DType, kind: UpdateKind, stored: &mut [u8], value: &[u8]) {
    match dtype {
        DType::F32 => apply::<f32>(kind, stored, value),
        DType::F64 => apply::<f64>(kind, stored, value),
        DType::S32 => apply::<i32>(kind, stored, value),
        DType::S64 => apply::<i64>(kind, stored, value),
        DType::U8 => apply::<u8>(kind, stored, value),
    }
}

fn apply<T: Element>(kind: UpdateKind, stored: &mut [u8], value: &[u8]) {
    let combine: fn(T, T) -> T = match kind {
        UpdateKind::Assign => |_, value| value,
        UpdateKind::Add => T::sum,
        UpdateKind::Sub => T::difference,
        UpdateKind::Min => T::smaller,
        UpdateKind::Max => T::greater,
    };
    let size = size_of::<T>();
    for (stored, value) in stored.chunks_exact_mut(size).zip(value.chunks_exact(size)) {
        let combined = combine(bytemuck::pod_read_unaligned(stored), bytemuck::pod_read_unaligned(value));
        stored.copy_from_slice(bytemuck::bytes_of(&combined));
    }
}
