//! `dchost:worker/variables`: variables that live on tasks of the cluster.
//!
//! Arguments are read in guest memory (`in_place`), `read` lowers the store's own bytes once.

mod in_place;

use super::bindings::wit::variables as wit;
use super::bindings::{types, wit::pending::Value};
use super::calls::{CallKind, HostError};
use super::lift::{Answer, shadowed};
use super::pending::Pending;
use super::state::State;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{self, Change, Consistency, InitializeMode, ReadOptions, UpdateKind, WriteOptions};
use crate::tensor::{TensorType, TensorView};
use crate::variables::partly_applied;
pub(super) use in_place::add_in_place;
use std::time::Duration;
use wasmtime::component::Resource;

/// Variables in one call: the request to a server names each of them.
const VARIABLES_PER_CALL_MAX: usize = 65_536;

/// Names that a label shows before it says how many more there are.
const LABEL_NAMES_MAX: usize = 3;

/// A variable as the guest declared it.
#[derive(Clone, Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct Variable(handles::Variable);

impl From<wit::UpdateKind> for UpdateKind {
    fn from(kind: wit::UpdateKind) -> Self {
        match kind {
            wit::UpdateKind::Assign => UpdateKind::Assign,
            wit::UpdateKind::Add => UpdateKind::Add,
            wit::UpdateKind::Sub => UpdateKind::Sub,
            wit::UpdateKind::Min => UpdateKind::Min,
            wit::UpdateKind::Max => UpdateKind::Max,
        }
    }
}

impl From<wit::InitializeMode> for InitializeMode {
    fn from(mode: wit::InitializeMode) -> Self {
        match mode {
            wit::InitializeMode::Overwrite => InitializeMode::Overwrite,
            wit::InitializeMode::IfAbsent => InitializeMode::IfAbsent,
        }
    }
}

impl From<wit::Consistency> for Consistency {
    fn from(consistency: wit::Consistency) -> Self {
        match consistency {
            wit::Consistency::Atomic => Consistency::Atomic,
            wit::Consistency::Relaxed => Consistency::Relaxed,
        }
    }
}

impl From<handles::Value> for Value {
    fn from(value: handles::Value) -> Self {
        Value { tensor: value.tensor.into(), version: value.version }
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, message)
}

impl From<wit::ReadOptions> for ReadOptions {
    fn from(options: wit::ReadOptions) -> Self {
        ReadOptions {
            min_version: options.min_version,
            max_age: options.max_age.map(Duration::from_millis),
            consistency: options.consistency.into(),
        }
    }
}

/// Names a call for whoever looks at it: `` variables.read of `w`, `b` and 4 more ``.
fn label<'a>(call: &str, variables: impl ExactSizeIterator<Item = &'a handles::Variable>) -> String {
    let more = variables.len().saturating_sub(LABEL_NAMES_MAX);
    let names: Vec<_> = variables.take(LABEL_NAMES_MAX).map(|variable| format!("`{}`", variable.name)).collect();
    match more {
        0 => format!("variables.{call} of {}", names.join(", ")),
        more => format!("variables.{call} of {} and {more} more", names.join(", ")),
    }
}

/// The bytes of the values of `variables`.
fn value_bytes<'a>(variables: impl Iterator<Item = &'a handles::Variable>) -> u64 {
    variables.filter_map(|variable| variable.ty.size_bytes()).fold(0_u64, |sum, bytes| sum.saturating_add(bytes as u64))
}

/// Checks that a tensor has its variable's type, before anything is sent.
fn check_type(variable: &handles::Variable, ty: &TensorType) -> Result<()> {
    if variable.ty == *ty {
        return Ok(());
    }
    Err(invalid(format!("variable `{}` is {}, but the tensor is {ty}", variable.name, variable.ty))
        .with_names([variable.name.clone()]))
}

impl State {
    fn variable(&self, variable: &Resource<Variable>) -> Answer<handles::Variable> {
        Ok(self.table.get(variable)?.0.clone())
    }

    fn variables(&self, variables: &[Resource<Variable>]) -> Answer<Vec<handles::Variable>> {
        variables.iter().map(|variable| self.variable(variable)).collect()
    }

    /// Bounds what a call answers as its arguments are bounded: by `--max-tensor`.
    fn check_answer(&self, variables: &[handles::Variable]) -> Result<u64> {
        let bytes = value_bytes(variables.iter());
        self.check_tensor_bytes(bytes)?;
        Ok(bytes)
    }

    fn check_tensor_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.limits.tensor_bytes_max {
            return Err(Error::new(
                ErrorCode::ResourceExhausted,
                format!(
                    "the values of this call have {}, above {} (--max-tensor): ask for fewer at once",
                    super::limits::mib(bytes),
                    super::limits::mib(self.limits.tensor_bytes_max)
                ),
            ));
        }
        Ok(())
    }
}

// Functions that take strings or lists are in `in_place`.
impl wit::Host for State {
    async fn initialize(
        &mut self,
        _values: Vec<(Resource<Variable>, types::Tensor)>,
        _mode: wit::InitializeMode,
    ) -> Answer<()> {
        Err(shadowed().into())
    }

    async fn uninitialized(&mut self, _variables: Vec<Resource<Variable>>) -> Answer<Vec<String>> {
        Err(shadowed().into())
    }

    async fn wait_initialized(
        &mut self,
        _variables: Vec<Resource<Variable>>,
        _timeout: Option<types::Millis>,
    ) -> Answer<()> {
        Err(shadowed().into())
    }

    async fn read(&mut self, _variables: Vec<Resource<Variable>>, _options: wit::ReadOptions) -> Answer<Vec<Value>> {
        Err(shadowed().into())
    }

    async fn update(
        &mut self,
        _changes: Vec<wit::Change>,
        _want_values: bool,
        _consistency: wit::Consistency,
    ) -> Answer<Vec<Value>> {
        Err(shadowed().into())
    }

    async fn apply_gradients(
        &mut self,
        _optimizer: wit::Optimizer,
        _gradients: Vec<(Resource<Variable>, types::Tensor)>,
        _options: wit::ApplyOptions,
    ) -> Answer<Vec<Value>> {
        Err(shadowed().into())
    }

    async fn gather(&mut self, _source: Resource<Variable>, _rows: Vec<u64>) -> Answer<Value> {
        Err(shadowed().into())
    }

    async fn scatter(
        &mut self,
        _target: Resource<Variable>,
        _rows: Vec<u64>,
        _kind: wit::UpdateKind,
        _value: types::Tensor,
    ) -> Answer<()> {
        Err(shadowed().into())
    }

    async fn start_read(
        &mut self,
        _variables: Vec<Resource<Variable>>,
        _options: wit::ReadOptions,
    ) -> Answer<Resource<Pending>> {
        Err(shadowed().into())
    }

    async fn start_update(
        &mut self,
        _changes: Vec<wit::Change>,
        _want_values: bool,
        _consistency: wit::Consistency,
    ) -> Answer<Resource<Pending>> {
        Err(shadowed().into())
    }

    async fn start_apply_gradients(
        &mut self,
        _optimizer: wit::Optimizer,
        _gradients: Vec<(Resource<Variable>, types::Tensor)>,
        _options: wit::ApplyOptions,
    ) -> Answer<Resource<Pending>> {
        Err(shadowed().into())
    }
}

impl wit::HostVariable for State {
    async fn declare(
        &mut self,
        _name: String,
        _dtype: types::Dtype,
        _shape: Vec<u64>,
        _placement: wit::Placement,
    ) -> Answer<Resource<Variable>> {
        Err(shadowed().into())
    }

    async fn name(&mut self, variable: Resource<Variable>) -> wasmtime::Result<String> {
        Ok(self.table.get(&variable)?.0.name.clone())
    }

    async fn dtype(&mut self, variable: Resource<Variable>) -> wasmtime::Result<types::Dtype> {
        Ok(self.table.get(&variable)?.0.ty.dtype.into())
    }

    async fn shape(&mut self, variable: Resource<Variable>) -> wasmtime::Result<Vec<u64>> {
        Ok(self.table.get(&variable)?.0.ty.shape.clone())
    }

    async fn drop(&mut self, variable: Resource<Variable>) -> wasmtime::Result<()> {
        self.table.delete(variable)?;
        Ok(())
    }
}

/// Starts an initialize; the future borrows the tensors, but not the state, which isn't `Sync`.
fn initialize<'a>(
    state: &State,
    values: Vec<(handles::Variable, TensorView<'a>)>,
    mode: wit::InitializeMode,
) -> Answer<impl Future<Output = Answer<()>> + Send + use<'a>> {
    for (variable, value) in &values {
        check_type(variable, &value.ty)?;
    }
    let (calls, store) = (state.calls.clone(), state.handles.variables.clone());
    let label = label("initialize", values.iter().map(|(variable, _)| variable));
    Ok(async move { calls.wait(CallKind::Other, label, store.initialize(values, mode.into())).await })
}

/// Starts an update, as [`initialize`] does.
fn update<'a>(
    state: &State,
    changes: Vec<Change<'a, handles::Variable>>,
    options: WriteOptions,
) -> Answer<impl Future<Output = Answer<Vec<Value>>> + Send + use<'a>> {
    for change in &changes {
        check_type(&change.variable, &change.value.ty)?;
    }
    let (calls, store) = (state.calls.clone(), state.handles.variables.clone());
    let label = label("update", changes.iter().map(|change| &change.variable));
    Ok(async move {
        calls.check()?;
        let values = calls.wait(CallKind::Other, label, store.update(changes, options)).await;
        let values = values.map_err(|error| match (options.consistency, error) {
            // Also where the run was interrupted meanwhile.
            (Consistency::Relaxed, HostError::Wit(error)) => HostError::Wit(partly_applied(error)),
            (_, error) => error,
        })?;
        Ok(values.into_iter().map(Value::from).collect())
    })
}
