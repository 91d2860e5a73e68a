//! The functions of `variables` that take strings or lists, on guest memory: nothing is copied before it is measured, and a
//! tensor only where the call outlives the guest's wait.

mod gradients;
mod rows;

use super::{VARIABLES_PER_CALL_MAX, Variable, check_type, initialize, label, update, value_bytes, wit};
use crate::handles::{self, Change, Placement, ReadOptions, UpdateKind, WriteOptions};
use crate::runtime::bindings::types;
use crate::runtime::bindings::wit::pending::Value;
use crate::runtime::calls::CallKind;
use crate::runtime::lift::{self, Answer, TaskIn, TensorIn, answer};
use crate::runtime::pending::Pending;
use crate::runtime::state::State;
use crate::tensor::{TensorType, TensorView};
use crate::variables::check_variable;
use bytes::Bytes;
use std::time::Duration;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, LinkerInstance, Resource, WasmList, WasmStr};

type Cx<'a> = StoreContextMut<'a, State>;
type Variables = WasmList<Resource<Variable>>;
type Gradients = WasmList<(Resource<Variable>, TensorIn)>;

/// Twin of the WIT's `placement`.
#[derive(ComponentType, Lift)]
#[component(variant)]
enum PlacementIn {
    #[component(name = "auto")]
    Auto,
    #[component(name = "on")]
    On(TaskIn),
    #[component(name = "sharded")]
    Sharded,
}

/// Twin of the WIT's `change`.
#[derive(ComponentType, Lift)]
#[component(record)]
struct ChangeIn {
    target: Resource<Variable>,
    kind: wit::UpdateKind,
    value: TensorIn,
    base: Option<u64>,
}

/// Defines the functions.
pub(in crate::runtime) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut interface = linker.instance("dchost:worker/variables@0.1.0")?;
    interface.func_wrap(
        "[static]variable.declare",
        |mut cx: Cx<'_>, (name, dtype, shape, placement): (WasmStr, types::Dtype, WasmList<u64>, PlacementIn)| {
            answer(declare(&mut cx, &name, dtype, &shape, &placement))
        },
    )?;
    add_reads(&mut interface)?;
    add_writes(&mut interface)?;
    gradients::add(&mut interface)?;
    rows::add(&mut interface)
}

fn add_reads(interface: &mut LinkerInstance<'_, State>) -> wasmtime::Result<()> {
    interface.func_wrap_async("uninitialized", |mut cx: Cx<'_>, (list,): (Variables,)| {
        Box::new(async move {
            let variables = match variables(&mut cx, &list) {
                Ok(variables) => variables,
                Err(error) => return answer(Err(error)),
            };
            let (calls, store) = (cx.data().calls.clone(), cx.data().handles.variables.clone());
            let label = label("uninitialized", variables.iter());
            answer(calls.wait(CallKind::Other, label, store.uninitialized(variables)).await)
        })
    })?;
    interface.func_wrap_async(
        "wait-initialized",
        |mut cx: Cx<'_>, (list, timeout): (Variables, Option<types::Millis>)| {
            Box::new(async move {
                let variables = match variables(&mut cx, &list) {
                    Ok(variables) => variables,
                    Err(error) => return answer(Err(error)),
                };
                let (calls, store) = (cx.data().calls.clone(), cx.data().handles.variables.clone());
                let label = label("wait-initialized", variables.iter());
                let initialized = store.wait_initialized(variables, timeout.map(Duration::from_millis));
                answer(calls.wait(CallKind::Other, label, initialized).await)
            })
        },
    )?;
    interface.func_wrap_async("read", |mut cx: Cx<'_>, (list, options): (Variables, wit::ReadOptions)| {
        Box::new(async move {
            let Readable { variables, options, .. } = match readable(&mut cx, &list, options) {
                Ok(readable) => readable,
                Err(error) => return answer(Err(error)),
            };
            let (calls, store) = (cx.data().calls.clone(), cx.data().handles.variables.clone());
            let label = label("read", variables.iter());
            let values = calls.wait(CallKind::Other, label, store.read(variables, options)).await;
            answer(values.map(|values| values.into_iter().map(Value::from).collect::<Vec<_>>()))
        })
    })?;
    interface.func_wrap("start-read", |mut cx: Cx<'_>, (list, options): (Variables, wit::ReadOptions)| {
        answer(readable(&mut cx, &list, options).and_then(|Readable { variables, options, bytes }| {
            let store = cx.data().handles.variables.clone();
            let label = label("read", variables.iter());
            cx.data_mut().start(label, bytes, async move { store.read(variables, options).await })
        }))
    })
}

fn add_writes(interface: &mut LinkerInstance<'_, State>) -> wasmtime::Result<()> {
    interface.func_wrap_async("initialize", |mut cx: Cx<'_>, (list, mode): (Gradients, wit::InitializeMode)| {
        Box::new(async move {
            let entries = match entries(&mut cx, &list) {
                Ok(entries) => entries,
                Err(error) => return answer(Err(error)),
            };
            let started = lift::check_tensors(cx.data(), entries.iter().map(|(_, value)| value)).and_then(|_| {
                let values = entries
                    .iter()
                    .map(|(variable, value)| Ok((cx.data().variable(variable)?, lift::tensor(&cx, value)?)))
                    .collect::<Answer<Vec<_>>>()?;
                initialize(cx.data(), values, mode)
            });
            answer(match started {
                Ok(call) => call.await,
                Err(error) => Err(error),
            })
        })
    })?;
    interface.func_wrap_async(
        "update",
        |mut cx: Cx<'_>, (list, want_values, consistency): (WasmList<ChangeIn>, bool, wit::Consistency)| {
            let options = WriteOptions { want_values, consistency: consistency.into() };
            Box::new(async move {
                let changes = match entries(&mut cx, &list) {
                    Ok(changes) => changes,
                    Err(error) => return answer(Err(error)),
                };
                let started = lift::check_tensors(cx.data(), changes.iter().map(|change| &change.value))
                    .and_then(|_| update(cx.data(), changed(&cx, &changes)?, options));
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )?;
    interface.func_wrap(
        "start-update",
        |mut cx: Cx<'_>, (list, want_values, consistency): (WasmList<ChangeIn>, bool, wit::Consistency)| {
            let options = WriteOptions { want_values, consistency: consistency.into() };
            answer(start_update(&mut cx, &list, options))
        },
    )
}

fn declare(
    cx: &mut Cx<'_>,
    name: &WasmStr,
    dtype: types::Dtype,
    shape: &WasmList<u64>,
    placement: &PlacementIn,
) -> Answer<Resource<Variable>> {
    cx.data().calls.check()?;
    let name = lift::text(cx, name)?;
    // Before the name is shown or copied.
    check_variable(&name, &TensorType::new(crate::tensor::DType::U8, []))?;
    let name = name.into_owned();
    let shape = lift::extents(cx, shape, &format!("variable `{name}`"))?;
    let ty = TensorType { dtype: dtype.try_into()?, shape };
    check_variable(&name, &ty)?;
    let placement = match placement {
        PlacementIn::Auto => Placement::Auto,
        PlacementIn::Sharded => Placement::Sharded,
        PlacementIn::On(TaskIn { job, index }) => Placement::On(types::task(&lift::text(cx, job)?, *index)?),
    };
    let variable = handles::Variable { name, ty, placement };
    cx.data().handles.variables.declare(&variable)?;
    Ok(cx.data_mut().table.push(Variable(variable))?)
}

/// The entries of a call about variables; an interrupted run gets its interrupt before any other answer.
fn entries<T: Lift>(cx: &mut Cx<'_>, list: &WasmList<T>) -> Answer<Vec<T>> {
    cx.data().calls.check()?;
    lift::list(cx, list, "variables", VARIABLES_PER_CALL_MAX)
}

fn variables(cx: &mut Cx<'_>, list: &Variables) -> Answer<Vec<handles::Variable>> {
    let list = entries(cx, list)?;
    cx.data().variables(&list)
}

/// What a read is asked for.
struct Readable {
    variables: Vec<handles::Variable>,
    options: ReadOptions,
    /// Of the values, in all.
    bytes: u64,
}

/// The variables of a read and the bytes of their values, which are bounded as arguments are.
fn readable(cx: &mut Cx<'_>, list: &Variables, options: wit::ReadOptions) -> Answer<Readable> {
    cx.data().calls.check()?;
    let variables = variables(cx, list)?;
    let bytes = cx.data().check_answer(&variables)?;
    Ok(Readable { variables, options: options.into(), bytes })
}

/// The changes with their tensors where they are.
fn changed<'a>(cx: &'a Cx<'_>, changes: &[ChangeIn]) -> Answer<Vec<Change<'a, handles::Variable>>> {
    let change = |change: &ChangeIn| {
        Ok(Change {
            variable: cx.data().variable(&change.target)?,
            kind: change.kind.into(),
            value: lift::tensor(cx, &change.value)?,
            base: change.base,
        })
    };
    changes.iter().map(change).collect()
}

/// Copies the tensors, since the guest goes on while this is under way; but only once there is room for them.
fn start_update(cx: &mut Cx<'_>, list: &WasmList<ChangeIn>, options: WriteOptions) -> Answer<Resource<Pending>> {
    let changes = entries(cx, list)?;
    lift::check_tensors(cx.data(), changes.iter().map(|change| &change.value))?;
    let changes = changed(cx, &changes)?;
    for change in &changes {
        check_type(&change.variable, &change.value.ty)?;
    }
    let bytes = value_bytes(changes.iter().map(|change| &change.variable));
    let label = label("update", changes.iter().map(|change| &change.variable));
    cx.data().check_room(bytes)?;
    let owned: Vec<(handles::Variable, UpdateKind, Bytes, Option<u64>)> = changes
        .into_iter()
        .map(|change| (change.variable, change.kind, Bytes::copy_from_slice(change.value.data), change.base))
        .collect();
    let store = cx.data().handles.variables.clone();
    cx.data_mut().start(label, bytes, async move {
        let changes = owned
            .iter()
            .map(|(variable, kind, data, base)| Change {
                variable: variable.clone(),
                kind: *kind,
                value: TensorView { ty: variable.ty.clone(), data },
                base: *base,
            })
            .collect();
        store.update(changes, options).await
    })
}
