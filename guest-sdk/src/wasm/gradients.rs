//! Gradients on their way to the host.

use super::bindings::dchost::worker::{types, variables};
use super::{Context, Pending, raw_values, tensor_param};
use crate::Result;
use crate::raw::{RawAdam, RawApply, RawGradient, RawOptimizer, RawSync, RawValue};

impl Context {
    pub(crate) fn apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        gradients: &[RawGradient<'_>],
        apply: RawApply,
    ) -> Result<Vec<RawValue>> {
        let options = apply_options(apply);
        raw_values(variables::apply_gradients(optimizer_param(optimizer), &gradient_params(gradients), options)?)
    }

    pub(crate) fn start_apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        gradients: &[RawGradient<'_>],
        apply: RawApply,
    ) -> Result<Pending> {
        let (optimizer, gradients) = (optimizer_param(optimizer), gradient_params(gradients));
        let options = apply_options(apply);
        Ok(Pending::new(variables::start_apply_gradients(optimizer, &gradients, options)?))
    }
}

fn apply_options(RawApply { clip_norm, sync, want_values }: RawApply) -> variables::ApplyOptions {
    let sync = sync.map(|RawSync { step, replicas }| variables::Sync { step, replicas });
    variables::ApplyOptions { clip_norm, sync, want_values, consistency: variables::Consistency::Atomic }
}

fn gradient_params<'a>(gradients: &[RawGradient<'a>]) -> Vec<(&'a variables::Variable, types::TensorParam<'a>)> {
    let param =
        |gradient: &RawGradient<'a>| (&gradient.variable.handle, tensor_param(gradient.variable, gradient.data));
    gradients.iter().map(param).collect()
}

fn optimizer_param(optimizer: &RawOptimizer) -> variables::Optimizer {
    let adam = |RawAdam { learning_rate, beta1, beta2, epsilon, weight_decay }| variables::Adam {
        learning_rate,
        beta1,
        beta2,
        epsilon,
        weight_decay,
    };
    match *optimizer {
        RawOptimizer::Sgd { learning_rate } => variables::Optimizer::Sgd(learning_rate),
        RawOptimizer::Momentum { learning_rate, momentum, nesterov } => {
            variables::Optimizer::Momentum(variables::Momentum { learning_rate, momentum, nesterov })
        }
        RawOptimizer::Adagrad { learning_rate, decay, epsilon } => {
            variables::Optimizer::Adagrad(variables::Adaptive { learning_rate, decay, epsilon })
        }
        RawOptimizer::RmsProp { learning_rate, decay, epsilon } => {
            variables::Optimizer::Rmsprop(variables::Adaptive { learning_rate, decay, epsilon })
        }
        RawOptimizer::Adam(numbers) => variables::Optimizer::Adam(adam(numbers)),
        RawOptimizer::AdamW(numbers) => variables::Optimizer::Adamw(adam(numbers)),
    }
}
