//! Gradients, as a host applies them.

use super::sync::How;
use super::{Context, Pending, Variable};
use crate::raw::{RawAdam, RawApply, RawGradient, RawOptimizer, RawValue};
use crate::{DType, Element, Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::ops::{Add, Div, Mul, Sub};

impl Context {
    pub(crate) fn apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        gradients: &[RawGradient<'_>],
        apply: RawApply,
    ) -> Result<Vec<RawValue>> {
        self.begin_apply(optimizer, gradients, apply)?.get()
    }

    pub(crate) fn start_apply_gradients(
        &self,
        optimizer: &RawOptimizer,
        gradients: &[RawGradient<'_>],
        apply: RawApply,
    ) -> Result<Pending> {
        Ok(self.begin_apply(optimizer, gradients, apply).unwrap_or_else(|error| Pending::ready(Err(error))))
    }

    fn begin_apply(
        &self,
        optimizer: &RawOptimizer,
        gradients: &[RawGradient<'_>],
        RawApply { clip_norm, sync, want_values }: RawApply,
    ) -> Result<Pending> {
        check_numbers(optimizer)?;
        let mut keys = BTreeSet::new();
        for RawGradient { variable: Variable { key, dtype, .. }, .. } in gradients {
            check_floats(&key.name, *dtype)?;
            if !keys.insert(key) {
                let name = &key.name;
                return Err(Error::invalid(format!("variable `{name}` has two gradients in one call; add them up")));
            }
        }
        let scale = clip_norm.map_or(Ok(1.0), |norm_max| clip_scale(gradients, norm_max))?;
        self.check_writable(gradients.iter().map(|gradient| gradient.variable))?;
        if let Some(sync) = sync {
            return self.collect(How { optimizer, sync, scale, want_values }, gradients);
        }
        let mut state = self.shared.ready(self.who)?;
        let answer = state.store.apply(optimizer, scale, gradients, want_values);
        state.reads.written(&self.reader(), keys.into_iter());
        self.shared.changed.notify_all();
        Ok(Pending::ready(answer))
    }
}

fn check_floats(name: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F64 => Ok(()),
        DType::S32 | DType::S64 | DType::U8 => Err(Error::invalid(format!(
            "variable `{name}` has elements of {dtype}: gradients are applied to f32 and f64 only"
        ))),
    }
}

fn check_numbers(optimizer: &RawOptimizer) -> Result<()> {
    let check = |what: &str, value: f64, below: f64| {
        if value >= 0.0 && value < below {
            return Ok(());
        }
        let range =
            if below.is_finite() { format!("from 0 to below {below}") } else { "finite and not negative".to_owned() };
        Err(Error::invalid(format!("{what} of {} is `{value}`, it is {range}", optimizer.name())))
    };
    let (free, below_1) = (f64::INFINITY, 1.0);
    match *optimizer {
        RawOptimizer::Sgd { learning_rate } => check("learning-rate", learning_rate, free),
        RawOptimizer::Momentum { learning_rate, momentum, nesterov: _ } => {
            check("learning-rate", learning_rate, free)?;
            check("momentum", momentum, below_1)
        }
        RawOptimizer::Adagrad { learning_rate, decay, epsilon } => {
            check("learning-rate", learning_rate, free)?;
            check("decay", decay, free)?;
            check("epsilon", epsilon, free)
        }
        RawOptimizer::RmsProp { learning_rate, decay, epsilon } => {
            check("learning-rate", learning_rate, free)?;
            check("decay", decay, below_1)?;
            check("epsilon", epsilon, free)
        }
        RawOptimizer::Adam(adam) | RawOptimizer::AdamW(adam) => {
            check("learning-rate", adam.learning_rate, free)?;
            check("beta1", adam.beta1, below_1)?;
            check("beta2", adam.beta2, below_1)?;
            check("epsilon", adam.epsilon, free)?;
            check("weight-decay", adam.weight_decay, free)
        }
    }
}

/// The factor that brings all gradients of a call down to a common norm.
fn clip_scale(gradients: &[RawGradient<'_>], norm_max: f64) -> Result<f64> {
    if !(norm_max > 0.0 && norm_max.is_finite()) {
        return Err(Error::invalid(format!("clip-norm is `{norm_max}`, it is a finite number above 0")));
    }
    let mut squares = 0.0;
    for RawGradient { variable, data } in gradients {
        let sum: f64 = match variable.dtype {
            DType::F32 => elements::<f32>(data).map(|g| f64::from(g).powi(2)).sum(),
            _ => elements::<f64>(data).map(|g| g.powi(2)).sum(),
        };
        if !sum.is_finite() {
            return Err(Error::invalid(format!(
                "gradient of variable `{}` has elements that are infinite or no numbers, or too large to square: it can't be \
                 clipped; look for the cause before the step, or skip the step",
                variable.key.name
            )));
        }
        squares += sum;
    }
    let norm = squares.sqrt();
    if !norm.is_finite() {
        return Err(Error::invalid("gradients are too large for the sum of their squares: they can't be clipped"));
    }
    Ok(if norm > norm_max { norm_max / norm } else { 1.0 })
}

fn elements<T: Element>(data: &[u8]) -> impl Iterator<Item = T> {
    data.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// What a method keeps beside a variable.
#[derive(Debug)]
pub(super) struct Slots {
    /// The method; Adam's and AdamW's are the same.
    of: &'static str,
    /// Two for each element, though few methods use both.
    values: Vec<[Number; 2]>,
    /// Counts steps.
    step: u64,
}

/// A slot's element: an `f64` holds an `f32` without loss.
type Number = f64;

/// The method whose slots an optimizer uses; none without slots.
fn slots_of(optimizer: &RawOptimizer) -> Option<&'static str> {
    match optimizer {
        RawOptimizer::Sgd { .. } => None,
        RawOptimizer::Adam(_) | RawOptimizer::AdamW(_) => Some("adam"),
        other => Some(other.name()),
    }
}

impl Slots {
    /// Checks that `optimizer` can go on with the slots of variable `name`.
    pub(super) fn check(slots: Option<&Slots>, optimizer: &RawOptimizer, name: &str) -> Result<()> {
        match slots {
            Some(Slots { of, .. }) if Some(*of) != slots_of(optimizer) => {
                let text = format!(
                    "variable `{name}` has the slots of `{of}`, with which `{}` can't go on; initialize the variable anew, with \
                     its present value to keep that, and they are dropped",
                    optimizer.name()
                );
                Err(Error::new(ErrorCode::FailedPrecondition, text))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn step(
        slots: &mut Option<Slots>,
        optimizer: &RawOptimizer,
        scale: f64,
        dtype: DType,
        value: &mut [u8],
        gradient: &[u8],
    ) {
        let len = value.len() / dtype.size_bytes();
        let mut fresh = None;
        let place = if slots_of(optimizer).is_some() { slots } else { &mut fresh };
        let of = slots_of(optimizer).unwrap_or_default();
        let slots = place.get_or_insert_with(|| Slots { of, values: vec![[0.0; 2]; len], step: 0 });
        slots.step += 1;
        match dtype {
            DType::F32 => step::<f32>(optimizer, scale, value, slots, gradient),
            _ => step::<f64>(optimizer, scale, value, slots, gradient),
        }
    }
}

/// An element type that has gradients.
pub(super) trait Float:
    Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn of(number: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;
}

impl Float for f32 {
    fn of(number: f64) -> Self {
        number as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Float for f64 {
    fn of(number: f64) -> Self {
        number
    }

    fn wide(self) -> f64 {
        self
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

/// Adds a gradient, each element multiplied by `scale`.
pub(super) fn add_scaled<T: Float>(sum: &mut [u8], scale: f64, gradient: &[u8]) {
    for (place, g) in sum.chunks_exact_mut(size_of::<T>()).zip(elements::<T>(gradient)) {
        let s: T = bytemuck::pod_read_unaligned(place);
        place.copy_from_slice(bytemuck::bytes_of(&(s + T::of(scale) * g)));
    }
}

/// One step, computed in `T` as a host does: numbers of the method are computed in `f64` and rounded.
fn step<T: Float>(optimizer: &RawOptimizer, scale: f64, value: &mut [u8], slots: &mut Slots, gradient: &[u8]) {
    let steps = slots.step as f64;
    let of = T::of;
    let places = value.chunks_exact_mut(size_of::<T>()).zip(&mut slots.values);
    for ((place, slots), g) in places.zip(elements::<T>(gradient)) {
        let w: T = bytemuck::pod_read_unaligned(place);
        let [first, second] = slots.map(of);
        let g = of(scale) * g;
        let (w, first, second) = match *optimizer {
            RawOptimizer::Sgd { learning_rate } => (w - of(learning_rate) * g, first, second),
            RawOptimizer::Momentum { learning_rate, momentum, nesterov } => {
                let v = of(momentum) * first + g;
                let by = if nesterov { g + of(momentum) * v } else { v };
                (w - of(learning_rate) * by, v, second)
            }
            RawOptimizer::Adagrad { learning_rate, decay, epsilon } => {
                let s = first + g * g;
                let rate = learning_rate / (1.0 + (steps - 1.0) * decay);
                (w - of(rate) * g / (s.root() + of(epsilon)), s, second)
            }
            RawOptimizer::RmsProp { learning_rate, decay, epsilon } => {
                let s = of(decay) * first + of(1.0 - decay) * g * g;
                (w - of(learning_rate) * g / (s.root() + of(epsilon)), s, second)
            }
            RawOptimizer::Adam(adam) => {
                let g = g + of(adam.weight_decay) * w;
                adam_step(adam, steps, w, first, second, g)
            }
            RawOptimizer::AdamW(adam) => {
                let w = of(1.0 - adam.learning_rate * adam.weight_decay) * w;
                adam_step(adam, steps, w, first, second, g)
            }
        };
        place.copy_from_slice(bytemuck::bytes_of(&w));
        *slots = [first.wide(), second.wide()];
    }
}

fn adam_step<T: Float>(adam: RawAdam, steps: f64, w: T, m: T, v: T, g: T) -> (T, T, T) {
    let of = T::of;
    let m = of(adam.beta1) * m + of(1.0 - adam.beta1) * g;
    let v = of(adam.beta2) * v + of(1.0 - adam.beta2) * g * g;
    let rate = adam.learning_rate / (1.0 - adam.beta1.powf(steps));
    let correction = (1.0 - adam.beta2.powf(steps)).sqrt();
    (w - of(rate) * m / (v.root() / of(correction) + of(adam.epsilon)), m, v)
}

#[cfg(test)]
mod tests;
