//! Gradients on their way to the host.

use super::bindings::dchost::worker::{types, variables};
use super::{Context, Pending, raw_values, tensor_param};
use crate::Result;
use crate::raw::{RawAdam, RawGradient, RawOptimizer, RawValue};

impl Context {
    pub(crate) fn apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        clip_norm: Option<f64>,
        gradients: &[RawGradient<'_>],
        want_values: bool,
    ) -> Result<Vec<RawValue>> {
        let options = apply_options(clip_norm, want_values);
        raw_values(variables::apply_gradients(optimizer_param(optimizer), &gradient_params(gradients), options)?)
    }

    pub(crate) fn start_apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        clip_norm: Option<f64>,
        gradients: &[RawGradient<'_>],
        want_values: bool,
    ) -> Result<Pending> {
        let (optimizer, gradients) = (optimizer_param(optimizer), gradient_params(gradients));
        let options = apply_options(clip_norm, want_values);
        Ok(Pending::new(variables::start_apply_gradients(optimizer, &gradients, options)?))
    }
}

fn apply_options(clip_norm: Option<f64>, want_values: bool) -> variables::ApplyOptions {
    variables::ApplyOptions { clip_norm, sync: None, want_values, consistency: variables::Consistency::Atomic }
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
