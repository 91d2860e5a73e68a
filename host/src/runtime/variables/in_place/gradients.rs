//! `apply-gradients`, and the form of it that is started.

use super::{Cx, check_type, entries, label, value_bytes};
use crate::handles::{self, Adam, Gradient, GradientOptions, Optimizer, SyncStep, WriteOptions};
use crate::runtime::bindings::wit::pending::Value;
use crate::runtime::bindings::wit::variables as wit;
use crate::runtime::calls::CallKind;
use crate::runtime::lift::{self, Answer, TensorIn, answer};
use crate::runtime::pending::Pending;
use crate::runtime::state::State;
use crate::runtime::variables::Variable;
use crate::tensor::TensorView;
use bytes::Bytes;
use wasmtime::component::{LinkerInstance, Resource, WasmList};

type Gradients = WasmList<GradientIn>;
type GradientIn = (Resource<Variable>, TensorIn);

/// Defines both.
pub(super) fn add(interface: &mut LinkerInstance<'_, State>) -> wasmtime::Result<()> {
    interface.func_wrap_async(
        "apply-gradients",
        |mut cx: Cx<'_>, (optimizer, list, options): (wit::Optimizer, Gradients, wit::ApplyOptions)| {
            Box::new(async move {
                let list = match entries(&mut cx, &list) {
                    Ok(list) => list,
                    Err(error) => return answer(Err(error)),
                };
                let started = lift::check_tensors(cx.data(), list.iter().map(|(_, value)| value))
                    .and_then(|_| apply(cx.data(), gradients(&cx, &list)?, gradient_options(optimizer, options)));
                answer(match started {
                    Ok(call) => call.await,
                    Err(error) => Err(error),
                })
            })
        },
    )?;
    interface.func_wrap(
        "start-apply-gradients",
        |mut cx: Cx<'_>, (optimizer, list, options): (wit::Optimizer, Gradients, wit::ApplyOptions)| {
            answer(start_apply(&mut cx, &list, gradient_options(optimizer, options)))
        },
    )
}

fn gradient_options(optimizer: wit::Optimizer, options: wit::ApplyOptions) -> GradientOptions {
    let adam = |adam: wit::Adam| Adam {
        learning_rate: adam.learning_rate,
        beta1: adam.beta1,
        beta2: adam.beta2,
        epsilon: adam.epsilon,
        weight_decay: adam.weight_decay,
    };
    let optimizer = match optimizer {
        wit::Optimizer::Sgd(learning_rate) => Optimizer::Sgd { learning_rate },
        wit::Optimizer::Momentum(wit::Momentum { learning_rate, momentum, nesterov }) => {
            Optimizer::Momentum { learning_rate, momentum, nesterov }
        }
        wit::Optimizer::Adagrad(wit::Adaptive { learning_rate, decay, epsilon }) => {
            Optimizer::Adagrad { learning_rate, decay, epsilon }
        }
        wit::Optimizer::Rmsprop(wit::Adaptive { learning_rate, decay, epsilon }) => {
            Optimizer::RmsProp { learning_rate, decay, epsilon }
        }
        wit::Optimizer::Adam(numbers) => Optimizer::Adam(adam(numbers)),
        wit::Optimizer::Adamw(numbers) => Optimizer::AdamW(adam(numbers)),
    };
    GradientOptions {
        optimizer,
        clip_norm: options.clip_norm,
        sync: options.sync.map(|wit::Sync { step, replicas }| SyncStep { step, replicas }),
        write: WriteOptions { want_values: options.want_values, consistency: options.consistency.into() },
    }
}

/// The gradients with their tensors where they are, checked against their variables.
fn gradients<'a>(cx: &'a Cx<'_>, list: &[GradientIn]) -> Answer<Vec<Gradient<'a, handles::Variable>>> {
    let gradient = |(variable, value): &GradientIn| {
        let (variable, value) = (cx.data().variable(variable)?, lift::tensor(cx, value)?);
        check_type(&variable, &value.ty)?;
        Ok(Gradient { variable, value })
    };
    list.iter().map(gradient).collect()
}

/// Starts the call; the future borrows the tensors, but not the state, which isn't `Sync`.
fn apply<'a>(
    state: &State,
    gradients: Vec<Gradient<'a, handles::Variable>>,
    options: GradientOptions,
) -> Answer<impl Future<Output = Answer<Vec<Value>>> + Send + use<'a>> {
    let (calls, store) = (state.calls.clone(), state.handles.variables.clone());
    let label = label("apply-gradients", gradients.iter().map(|gradient| &gradient.variable));
    Ok(async move {
        let values = calls.wait(CallKind::Other, label, store.apply_gradients(gradients, options)).await?;
        Ok(values.into_iter().map(Value::from).collect())
    })
}

/// Copies the tensors, since the guest goes on while this is under way; but only once there is room for them.
fn start_apply(cx: &mut Cx<'_>, list: &Gradients, options: GradientOptions) -> Answer<Resource<Pending>> {
    let list = entries(cx, list)?;
    lift::check_tensors(cx.data(), list.iter().map(|(_, value)| value))?;
    let gradients = gradients(cx, &list)?;
    let bytes = value_bytes(gradients.iter().map(|gradient| &gradient.variable));
    let label = label("apply-gradients", gradients.iter().map(|gradient| &gradient.variable));
    cx.data().check_room(bytes)?;
    let owned: Vec<(handles::Variable, Bytes)> = gradients
        .into_iter()
        .map(|Gradient { variable, value }| (variable, Bytes::copy_from_slice(value.data)))
        .collect();
    let store = cx.data().handles.variables.clone();
    cx.data_mut().start(label, bytes, async move {
        let gradients = owned
            .iter()
            .map(|(variable, data)| Gradient {
                variable: variable.clone(),
                value: TensorView { ty: variable.ty.clone(), data },
            })
            .collect();
        store.apply_gradients(gradients, options).await
    })
}
