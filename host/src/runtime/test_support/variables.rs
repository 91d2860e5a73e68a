//! Variables in a map.

use crate::error::{Error, ErrorCode, Result};
use crate::handles::{
    BoxFuture, Change, Gradient, GradientOptions, InitializeMode, ReadOptions, RowChange, UpdateKind, Value, Variable,
    Variables, WriteOptions,
};
use crate::tensor::{Tensor, TensorView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Variables of this process, bytes only: `add` and the like are done on `u8`.
#[derive(Debug, Default)]
pub(crate) struct FakeVariables {
    values: Mutex<BTreeMap<String, Value>>,
    options: Mutex<(Option<ReadOptions>, Option<WriteOptions>)>,
}

impl FakeVariables {
    /// The value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<Value> {
        self.values.lock().unwrap().get(name).cloned()
    }

    /// The options of the last read and update.
    pub(crate) fn options(&self) -> (Option<ReadOptions>, Option<WriteOptions>) {
        *self.options.lock().unwrap()
    }
}

fn uninitialized(name: &str) -> Error {
    Error::new(ErrorCode::Uninitialized, format!("variable `{name}` is not initialized")).with_names([name])
}

impl Variables for FakeVariables {
    fn declare(&self, _variable: &Variable) -> Result<()> {
        Ok(())
    }

    fn initialize<'a>(
        &'a self,
        values: Vec<(Variable, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut stored = self.values.lock().unwrap();
            for (variable, value) in values {
                if mode == InitializeMode::Overwrite || !stored.contains_key(&variable.name) {
                    let tensor = Tensor { ty: value.ty, data: Bytes::copy_from_slice(value.data) };
                    stored.insert(variable.name, Value { tensor, version: 1 });
                }
            }
            Ok(())
        })
    }

    fn uninitialized(&self, variables: Vec<Variable>) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let stored = self.values.lock().unwrap();
            Ok(variables.into_iter().map(|variable| variable.name).filter(|name| !stored.contains_key(name)).collect())
        })
    }

    fn wait_initialized(&self, variables: Vec<Variable>, _timeout: Option<Duration>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let missing = self.uninitialized(variables).await?;
            if missing.is_empty() { Ok(()) } else { std::future::pending().await }
        })
    }

    fn read(&self, variables: Vec<Variable>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            self.options.lock().unwrap().0 = Some(options);
            // A read that is not ready at once, as one over a network.
            tokio::task::yield_now().await;
            variables
                .iter()
                .map(|variable| self.value(&variable.name).ok_or_else(|| uninitialized(&variable.name)))
                .collect()
        })
    }

    fn update<'a>(
        &'a self,
        changes: Vec<Change<'a, Variable>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            self.options.lock().unwrap().1 = Some(options);
            tokio::task::yield_now().await;
            let mut stored = self.values.lock().unwrap();
            changes
                .into_iter()
                .map(|change| {
                    let value =
                        stored.get_mut(&change.variable.name).ok_or_else(|| uninitialized(&change.variable.name))?;
                    let data = value.tensor.data.iter().zip(change.value.data).map(|(&old, &by)| match change.kind {
                        UpdateKind::Assign => by,
                        UpdateKind::Add => old.wrapping_add(by),
                        UpdateKind::Sub => old.wrapping_sub(by),
                        UpdateKind::Min => old.min(by),
                        UpdateKind::Max => old.max(by),
                    });
                    value.tensor.data = data.collect();
                    value.version += 1;
                    let mut answer = value.clone();
                    if !options.want_values {
                        answer.tensor.data = Bytes::new();
                    }
                    Ok(answer)
                })
                .collect()
        })
    }

    fn apply_gradients<'a>(
        &'a self,
        _gradients: Vec<Gradient<'a, Variable>>,
        _options: GradientOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async { Err(unserved("apply-gradients")) })
    }

    fn gather(&self, _variable: Variable, _rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async { Err(unserved("gather")) })
    }

    fn scatter<'a>(&'a self, _change: RowChange<'a, Variable>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Err(unserved("scatter")) })
    }
}

fn unserved(what: &str) -> Error {
    Error::new(ErrorCode::Unimplemented, format!("{what} is not served by a fake"))
}
