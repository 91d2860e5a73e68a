//! Adapters of domain state in this process to handles.

use crate::error::Result;
use crate::handles::{BoxFuture, Change, Gradient, RowChange, TaskVariables, Value};
use crate::ids::Attempt;
use crate::tensor::{Tensor, TensorView};
use crate::variables::{
    ApplyOptions, Consistency, Container, InitializeMode, Payload, ReadOptions, RelaxedValue, Snapshot, Spare, Store,
    Update, VariableRef, WriteOptions,
};
use std::future::ready;
use std::time::Duration;
use tokio::runtime::Handle;

/// This process's own variables, as a run in it sees them: the very state that its server serves, without gRPC.
///
/// Values are read from and written to the store by the thread that polls the call, the guest's own.
#[derive(Debug)]
pub struct LocalVariables {
    store: Store,
    container: String,
    attempt: Option<Attempt>,
    runtime: Handle,
    spare: Spare,
}

impl LocalVariables {
    /// Makes the view of one container. `runtime` is the control runtime, whose timers end waits.
    pub fn new(store: Store, container: impl Into<String>, attempt: Option<Attempt>, runtime: Handle) -> Self {
        LocalVariables { store, container: container.into(), attempt, runtime, spare: Spare::default() }
    }

    /// Shares the memory of large values with other views.
    pub fn with_spare(self, spare: Spare) -> Self {
        LocalVariables { spare, ..self }
    }

    /// Opened for each call, so that a deleted container is made anew and an attempt that is over is refused.
    fn open(&self) -> Result<Container> {
        self.store.open(&self.container, self.attempt)
    }

    fn value(&self, snapshot: Snapshot) -> Value {
        let data = snapshot.blocks.contiguous_in(&self.spare);
        Value { tensor: Tensor { ty: snapshot.ty, data }, version: snapshot.version }
    }

    fn relaxed(&self, value: &RelaxedValue) -> Value {
        let data = value.contiguous_in(&self.spare);
        Value { tensor: Tensor { ty: value.ty().clone(), data }, version: value.version() }
    }
}

impl TaskVariables for LocalVariables {
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        Box::pin(async move {
            let values = values.into_iter().map(|(variable, view)| (variable, Payload::Borrowed(view.data))).collect();
            self.open()?.initialize(values, mode)
        })
    }

    fn uninitialized(&self, variables: Vec<VariableRef>, wait: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let timeout = {
                // The guest runtime has no timers of its own.
                let _entered = self.runtime.enter();
                tokio::time::sleep(wait)
            };
            self.open()?.uninitialized_after(&variables, timeout).await
        })
    }

    fn pull(&self, variables: Vec<VariableRef>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        // What is here is always the present value, young enough for any maximum age.
        let ReadOptions { min_version, max_age: _, consistency } = options;
        Box::pin(async move {
            let container = self.open()?;
            let read = || -> Result<Vec<Value>> {
                Ok(match consistency {
                    Consistency::Atomic => {
                        container.pull(&variables)?.into_iter().map(|snapshot| self.value(snapshot)).collect()
                    }
                    Consistency::Relaxed => {
                        container.relaxed_read(&variables)?.iter().map(|value| self.relaxed(value)).collect()
                    }
                })
            };
            let min_version = min_version.unwrap_or_default();
            container.read_at_least(&variables, min_version, |value: &Value| value.version, || ready(read())).await
        })
    }

    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let update = |Change { variable, kind, value, base }: Change<'a, VariableRef>| Update {
                variable,
                kind,
                value: Payload::Borrowed(value.data),
                base,
            };
            let updates = changes.into_iter().map(update).collect();
            let WriteOptions { want_values, consistency } = options;
            let container = self.open()?;
            let snapshots = match consistency {
                Consistency::Atomic => container.push(updates, want_values)?,
                Consistency::Relaxed => container.push_relaxed(updates, want_values)?,
            };
            Ok(snapshots.into_iter().map(|snapshot| self.value(snapshot)).collect())
        })
    }

    fn apply<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, VariableRef>>,
        options: ApplyOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let gradients =
                gradients.into_iter().map(|Gradient { variable, value }| (variable, Payload::Borrowed(value.data)));
            let container = self.open()?;
            let snapshots = match options.sync {
                None => container.apply(gradients.collect(), &options)?,
                Some(sync) => container.join(gradients.collect(), sync, &options)?.applied().await?,
            };
            Ok(snapshots.into_iter().map(|snapshot| self.value(snapshot)).collect())
        })
    }

    fn gather(&self, variable: VariableRef, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(async move {
            let gathered = self.open()?.gather(&variable, rows, &self.spare)?;
            let (ty, version) = (gathered.ty().clone(), gathered.version());
            Ok(Value { tensor: Tensor { ty, data: gathered.contiguous_in(&self.spare) }, version })
        })
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        let RowChange { variable, rows, kind, value } = change;
        Box::pin(async move { self.open()?.scatter(&variable, &rows, kind, Payload::Borrowed(value.data)) })
    }
}
