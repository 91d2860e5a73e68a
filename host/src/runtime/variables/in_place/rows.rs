//! `gather` and `scatter`: rows of a variable.

use super::{Cx, label};
use crate::handles::{self, RowChange};
use crate::runtime::bindings::wit::pending::Value;
use crate::runtime::bindings::wit::variables as wit;
use crate::runtime::calls::CallKind;
use crate::runtime::lift::{self, Answer, TensorIn, answer};
use crate::runtime::state::State;
use crate::runtime::variables::Variable;
use crate::variables::{check_row_count, check_rows};
use wasmtime::component::{LinkerInstance, Resource, WasmList};

/// Defines both.
pub(super) fn add(interface: &mut LinkerInstance<'_, State>) -> wasmtime::Result<()> {
    interface.func_wrap_async("gather", |cx: Cx<'_>, (source, rows): (Resource<Variable>, WasmList<u64>)| {
        Box::new(async move {
            let (variable, rows) = match row_list(&cx, &source, &rows) {
                Ok(wanted) => wanted,
                Err(error) => return answer(Err(error)),
            };
            let answered = handles::Variable { ty: variable.ty.with_rows(rows.len() as u64), ..variable.clone() };
            if let Err(error) = cx.data().check_answer(&[answered]) {
                return answer(Err(error.into()));
            }
            let (calls, store) = (cx.data().calls.clone(), cx.data().handles.variables.clone());
            let label = label("gather", [&variable].into_iter());
            answer(calls.wait(CallKind::Other, label, store.gather(variable, rows)).await.map(Value::from))
        })
    })?;
    interface.func_wrap_async(
        "scatter",
        |cx: Cx<'_>, (target, rows, kind, value): (Resource<Variable>, WasmList<u64>, wit::UpdateKind, TensorIn)| {
            Box::new(async move {
                let started = lift::check_tensors(cx.data(), [&value].into_iter()).and_then(|_| {
                    let (variable, rows) = row_list(&cx, &target, &rows)?;
                    let value = lift::tensor(&cx, &value)?;
                    scatter(cx.data(), RowChange { variable, rows, kind: kind.into(), value })
                });
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )
}

/// The variable and the rows, each of which it has as it is declared.
fn row_list(cx: &Cx<'_>, variable: &Resource<Variable>, rows: &WasmList<u64>) -> Answer<(handles::Variable, Vec<u64>)> {
    cx.data().calls.check()?;
    let variable = cx.data().variable(variable)?;
    check_row_count(&variable.name, rows.len())?;
    let rows: Vec<u64> = rows.as_le_slice(cx).iter().map(|&row| u64::from_le(row)).collect();
    check_rows(&variable.name, &variable.ty, &rows)?;
    Ok((variable, rows))
}

/// Starts the call; the future borrows the tensor, but not the state, which isn't `Sync`.
fn scatter<'a>(
    state: &State,
    change: RowChange<'a, handles::Variable>,
) -> Answer<impl Future<Output = Answer<()>> + Send + use<'a>> {
    let (calls, store) = (state.calls.clone(), state.handles.variables.clone());
    let label = label("scatter", [&change.variable].into_iter());
    Ok(async move { calls.wait(CallKind::Other, label, store.scatter(change)).await })
}
