//! `dchost:worker/variables`: variables that live on tasks of the cluster.
//!
//! `initialize` and `update` read tensors in guest memory; `read` lowers the store's own bytes once.

use super::bindings::wit::variables as wit;
use super::bindings::{types, wit::pending::Value};
use super::calls::{CallKind, HostError};
use super::pending::Pending;
use super::state::State;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{self, Change, InitializeMode, Placement, UpdateKind};
use crate::tensor::{TensorType, TensorView};
use crate::text::shown;
use bytes::Bytes;
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Resource};

/// Longest name of a variable or barrier, in bytes; names are kept on servers and shown in messages.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// Variables in one call: the request to a server names each of them.
pub(super) const VARIABLES_PER_CALL_MAX: usize = 65_536;

/// Most dimensions of a variable; shapes are kept and sent with every header.
const RANK_MAX: usize = 32;

/// Names that a label shows before it says how many more there are.
const LABEL_NAMES_MAX: usize = 3;

/// A variable as the guest declared it.
#[derive(Clone, Debug)]
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct Variable(handles::Variable);

/// A change whose tensor is read in guest memory; twin of the WIT's `change`.
#[derive(ComponentType, Lift)]
#[component(record)]
struct ChangeIn {
    target: Resource<Variable>,
    kind: wit::UpdateKind,
    value: types::TensorIn,
    base: Option<u64>,
}

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

impl From<handles::Value> for Value {
    fn from(value: handles::Value) -> Self {
        Value { tensor: value.tensor.into(), version: value.version }
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, message)
}

fn unserved(what: &str, instead: &str) -> Error {
    Error::new(ErrorCode::Unimplemented, format!("{what} is not served by this dchost: {instead}")).with_names([what])
}

/// Checks a name that the guest gave: not empty, at most [`NAME_BYTES_MAX`] bytes, no control characters.
pub(super) fn check_name(of: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(invalid(format!("the name of a {of} is empty")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(invalid(format!(
            "the name of a {of} has {} bytes, at most {NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    if name.contains(char::is_control) {
        return Err(invalid(format!("the {of} name `{}` has control characters", shown(name))));
    }
    Ok(())
}

fn check_count(count: usize) -> Result<()> {
    if count > VARIABLES_PER_CALL_MAX {
        return Err(invalid(format!(
            "{count} variables in one call, at most {VARIABLES_PER_CALL_MAX} are allowed: split the call"
        )));
    }
    Ok(())
}

/// Refuses options that this host doesn't serve: a stale answer would be worse than none.
fn check_read_options(options: wit::ReadOptions) -> Result<()> {
    if options.min_version.is_some() {
        return Err(unserved("read with min-version", "read again until the version is reached"));
    }
    // Every read asks the variable's task, so it is never older than any age; relaxed may be served as atomic.
    Ok(())
}

fn placement(placement: wit::Placement) -> Result<Placement> {
    match placement {
        wit::Placement::Auto => Ok(Placement::Auto),
        wit::Placement::On(task) => Ok(Placement::On(task.try_into()?)),
        wit::Placement::Sharded => {
            Err(unserved("placement sharded", "declare one variable for each part, on ps tasks of your choice"))
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

fn view(value: &types::Tensor) -> Result<TensorView<'_>> {
    let ty = types::checked_type(value.dtype, value.shape.clone(), value.data.len())?;
    Ok(TensorView { ty, data: &value.data })
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
    fn variable(&self, variable: &Resource<Variable>) -> std::result::Result<handles::Variable, HostError> {
        Ok(self.table.get(variable)?.0.clone())
    }

    fn variables(&self, variables: &[Resource<Variable>]) -> std::result::Result<Vec<handles::Variable>, HostError> {
        check_count(variables.len())?;
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

impl wit::Host for State {
    /// Stands in for [`add_in_place`], which shadows it.
    async fn initialize(
        &mut self,
        values: Vec<(Resource<Variable>, types::Tensor)>,
        mode: wit::InitializeMode,
    ) -> std::result::Result<(), HostError> {
        check_count(values.len())?;
        let values = values
            .iter()
            .map(|(variable, value)| Ok((self.variable(variable)?, view(value)?)))
            .collect::<std::result::Result<Vec<_>, HostError>>()?;
        initialize(self, values, mode)?.await
    }

    async fn uninitialized(
        &mut self,
        variables: Vec<Resource<Variable>>,
    ) -> std::result::Result<Vec<String>, HostError> {
        let variables = self.variables(&variables)?;
        let (calls, store) = (self.calls.clone(), self.handles.variables.clone());
        let label = label("uninitialized", variables.iter());
        calls.wait(CallKind::Other, label, store.uninitialized(variables)).await
    }

    async fn wait_initialized(
        &mut self,
        variables: Vec<Resource<Variable>>,
        timeout: Option<types::Millis>,
    ) -> std::result::Result<(), HostError> {
        let variables = self.variables(&variables)?;
        let (calls, store) = (self.calls.clone(), self.handles.variables.clone());
        let label = label("wait-initialized", variables.iter());
        calls.wait(CallKind::Other, label, store.wait_initialized(variables, timeout.map(Duration::from_millis))).await
    }

    async fn read(
        &mut self,
        variables: Vec<Resource<Variable>>,
        options: wit::ReadOptions,
    ) -> std::result::Result<Vec<Value>, HostError> {
        check_read_options(options)?;
        let variables = self.variables(&variables)?;
        self.check_answer(&variables)?;
        let (calls, store) = (self.calls.clone(), self.handles.variables.clone());
        let label = label("read", variables.iter());
        let values = calls.wait(CallKind::Other, label, store.read(variables)).await?;
        Ok(values.into_iter().map(Value::from).collect())
    }

    /// Stands in for [`add_in_place`], which shadows it.
    async fn update(
        &mut self,
        changes: Vec<wit::Change>,
        want_values: bool,
        _consistency: wit::Consistency,
    ) -> std::result::Result<Vec<Value>, HostError> {
        check_count(changes.len())?;
        let changes = changes
            .iter()
            .map(|change| {
                Ok(Change {
                    variable: self.variable(&change.target)?,
                    kind: change.kind.into(),
                    value: view(&change.value)?,
                    base: change.base,
                })
            })
            .collect::<std::result::Result<Vec<_>, HostError>>()?;
        update(self, changes, want_values)?.await
    }

    async fn apply_gradients(
        &mut self,
        _optimizer: wit::Optimizer,
        _gradients: Vec<(Resource<Variable>, types::Tensor)>,
        _options: wit::ApplyOptions,
    ) -> std::result::Result<Vec<Value>, HostError> {
        Err(unserved("apply-gradients", "compute the step in the component and `update` with add or sub").into())
    }

    async fn gather(&mut self, _source: Resource<Variable>, _rows: Vec<u64>) -> std::result::Result<Value, HostError> {
        Err(unserved("gather", "`read` the whole variable").into())
    }

    async fn scatter(
        &mut self,
        _target: Resource<Variable>,
        _rows: Vec<u64>,
        _kind: wit::UpdateKind,
        _value: types::Tensor,
    ) -> std::result::Result<(), HostError> {
        Err(unserved("scatter", "`update` the whole variable, with zeros where nothing changes").into())
    }

    async fn start_read(
        &mut self,
        variables: Vec<Resource<Variable>>,
        options: wit::ReadOptions,
    ) -> std::result::Result<Resource<Pending>, HostError> {
        self.calls.check()?;
        check_read_options(options)?;
        let variables = self.variables(&variables)?;
        let bytes = self.check_answer(&variables)?;
        let store = self.handles.variables.clone();
        let label = label("read", variables.iter());
        self.start(label, bytes, async move { store.read(variables).await })
    }

    async fn start_update(
        &mut self,
        changes: Vec<wit::Change>,
        want_values: bool,
        _consistency: wit::Consistency,
    ) -> std::result::Result<Resource<Pending>, HostError> {
        self.calls.check()?;
        check_count(changes.len())?;
        // The tensors were copied out of guest memory: the guest may reuse it while this is under way.
        let changes = changes
            .into_iter()
            .map(|change| {
                let variable = self.variable(&change.target)?;
                let ty = view(&change.value)?.ty;
                check_type(&variable, &ty)?;
                Ok((variable, UpdateKind::from(change.kind), ty, change.value.data, change.base))
            })
            .collect::<std::result::Result<Vec<(_, _, _, Bytes, _)>, HostError>>()?;
        let bytes = value_bytes(changes.iter().map(|change| &change.0));
        let label = label("update", changes.iter().map(|change| &change.0));
        let store = self.handles.variables.clone();
        self.start(label, bytes, async move {
            let changes = changes
                .iter()
                .map(|(variable, kind, ty, data, base)| Change {
                    variable: variable.clone(),
                    kind: *kind,
                    value: TensorView { ty: ty.clone(), data },
                    base: *base,
                })
                .collect();
            store.update(changes, want_values).await
        })
    }

    async fn start_apply_gradients(
        &mut self,
        _optimizer: wit::Optimizer,
        _gradients: Vec<(Resource<Variable>, types::Tensor)>,
        _options: wit::ApplyOptions,
    ) -> std::result::Result<Resource<Pending>, HostError> {
        Err(unserved("apply-gradients", "compute the step in the component and `start-update` with add or sub").into())
    }
}

impl wit::HostVariable for State {
    async fn declare(
        &mut self,
        name: String,
        dtype: types::Dtype,
        shape: Vec<u64>,
        place: wit::Placement,
    ) -> std::result::Result<Resource<Variable>, HostError> {
        self.calls.check()?;
        check_name("variable", &name)?;
        if shape.len() > RANK_MAX {
            return Err(invalid(format!(
                "variable `{name}` has {} dimensions, at most {RANK_MAX} are allowed",
                shape.len()
            ))
            .into());
        }
        let ty = TensorType { dtype: dtype.try_into()?, shape };
        if ty.size_bytes().is_none() {
            return Err(invalid(format!("variable `{name}` of {ty} is larger than the address space")).into());
        }
        let variable = handles::Variable { name, ty, placement: placement(place)? };
        self.handles.variables.declare(&variable)?;
        Ok(self.table.push(Variable(variable))?)
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
) -> std::result::Result<impl Future<Output = std::result::Result<(), HostError>> + Send + use<'a>, HostError> {
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
    want_values: bool,
) -> std::result::Result<impl Future<Output = std::result::Result<Vec<Value>, HostError>> + Send + use<'a>, HostError> {
    for change in &changes {
        check_type(&change.variable, &change.value.ty)?;
    }
    let (calls, store) = (state.calls.clone(), state.handles.variables.clone());
    let label = label("update", changes.iter().map(|change| &change.variable));
    Ok(async move {
        let values = calls.wait(CallKind::Other, label, store.update(changes, want_values)).await?;
        Ok(values.into_iter().map(Value::from).collect())
    })
}

/// Splits an answer as generated code does: an error of the WIT is an answer, anything else traps.
fn answer<T>(result: std::result::Result<T, HostError>) -> wasmtime::Result<(std::result::Result<T, types::Error>,)> {
    match result {
        Ok(value) => Ok((Ok(value),)),
        Err(HostError::Wit(error)) => Ok((Err(error.into()),)),
        Err(HostError::Trap(error)) => Err(error),
    }
}

/// Defines `initialize` and `update` on guest memory, without a copy of any tensor.
///
/// The guest can't run meanwhile, so its memory stays as it is.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut interface = linker.instance("dchost:worker/variables@0.1.0")?;
    interface.func_wrap_async(
        "initialize",
        |cx: StoreContextMut<'_, State>,
         (values, mode): (Vec<(Resource<Variable>, types::TensorIn)>, wit::InitializeMode)| {
            Box::new(async move {
                let started = check_count(values.len()).map_err(HostError::from).and_then(|()| {
                    let views = values
                        .into_iter()
                        .map(|(variable, value)| {
                            let data = value.data.as_le_slice(&cx);
                            let ty = types::checked_type(value.dtype, value.shape, data.len())?;
                            Ok((cx.data().variable(&variable)?, TensorView { ty, data }))
                        })
                        .collect::<std::result::Result<Vec<_>, HostError>>()?;
                    initialize(cx.data(), views, mode)
                });
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )?;
    interface.func_wrap_async(
        "update",
        |cx: StoreContextMut<'_, State>,
         (changes, want_values, _consistency): (Vec<ChangeIn>, bool, wit::Consistency)| {
            Box::new(async move {
                let started = check_count(changes.len()).map_err(HostError::from).and_then(|()| {
                    let changes = changes
                        .into_iter()
                        .map(|change| {
                            let data = change.value.data.as_le_slice(&cx);
                            let ty = types::checked_type(change.value.dtype, change.value.shape, data.len())?;
                            Ok(Change {
                                variable: cx.data().variable(&change.target)?,
                                kind: change.kind.into(),
                                value: TensorView { ty, data },
                                base: change.base,
                            })
                        })
                        .collect::<std::result::Result<Vec<_>, HostError>>()?;
                    update(cx.data(), changes, want_values)
                });
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )
}
