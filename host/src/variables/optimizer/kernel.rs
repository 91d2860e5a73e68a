//! Steps of optimizers over little-endian bytes, of any alignment.
//!
//! One pass reads gradient, slots and value and writes slots and value. The loops are over whole elements that are read with
//! `from_le_bytes`, which compiles to plain vector loads and stores. Numbers are computed in double precision once a call and
//! rounded to the element's type; the elements are computed in their own, in the order of `torch.optim`'s operations.

use super::Optimizer;
use crate::tensor::DType;
use std::ops::{Add, Div, Mul, Sub};

/// An optimizer's numbers for one step of one variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    rule: Rule,
    /// Each gradient is multiplied by it first.
    scale: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Sgd { rate: f64 },
    Momentum { rate: f64, momentum: f64, nesterov: bool },
    Adagrad { rate: f64, epsilon: f64 },
    RmsProp { rate: f64, decay: f64, epsilon: f64 },
    Adam(AdamStep),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct AdamStep {
    /// The learning rate, with the first mean's correction.
    rate: f64,
    beta1: f64,
    beta2: f64,
    /// The root of the second mean's correction.
    correction: f64,
    epsilon: f64,
    /// How much of a weight counts as gradient: Adam's decay.
    decay: f64,
    /// What is left of a weight before the step: AdamW's decay.
    left: f64,
}

impl Step {
    /// The numbers of step `step`, counted from 1, with gradients that are multiplied by `scale`.
    pub(crate) fn new(optimizer: &Optimizer, step: u64, scale: f64) -> Self {
        let rule = match *optimizer {
            Optimizer::Sgd { learning_rate } => Rule::Sgd { rate: learning_rate },
            Optimizer::Momentum { learning_rate, momentum, nesterov } => {
                Rule::Momentum { rate: learning_rate, momentum, nesterov }
            }
            Optimizer::Adagrad { learning_rate, decay, epsilon } => {
                Rule::Adagrad { rate: learning_rate / (1.0 + (step - 1) as f64 * decay), epsilon }
            }
            Optimizer::RmsProp { learning_rate, decay, epsilon } => {
                Rule::RmsProp { rate: learning_rate, decay, epsilon }
            }
            Optimizer::Adam(adam) | Optimizer::AdamW(adam) => {
                let apart = matches!(optimizer, Optimizer::AdamW(_));
                Rule::Adam(AdamStep {
                    rate: adam.learning_rate / (1.0 - adam.beta1.powf(step as f64)),
                    beta1: adam.beta1,
                    beta2: adam.beta2,
                    correction: (1.0 - adam.beta2.powf(step as f64)).sqrt(),
                    epsilon: adam.epsilon,
                    decay: if apart { 0.0 } else { adam.weight_decay },
                    left: if apart { 1.0 - adam.learning_rate * adam.weight_decay } else { 1.0 },
                })
            }
        };
        Step { rule, scale }
    }

    /// Makes the step on a block of `value`, whose slots are `slots`: as many as the optimizer has. All hold the same number of
    /// whole elements of `dtype`, `f32` or `f64`.
    pub(crate) fn run(&self, dtype: DType, value: &mut [u8], slots: [&mut [u8]; 2], gradient: &[u8]) {
        match dtype {
            DType::F32 => self.run_in::<f32>(value, slots, gradient),
            DType::F64 => self.run_in::<f64>(value, slots, gradient),
            DType::S32 | DType::S64 | DType::U8 => debug_assert!(false, "gradients have floats, as checked before"),
        }
    }

    fn run_in<F: Float>(&self, value: &mut [u8], [first, second]: [&mut [u8]; 2], gradient: &[u8]) {
        debug_assert_eq!(value.len(), gradient.len());
        let of = F::of;
        let scale = of(self.scale);
        match self.rule {
            Rule::Sgd { rate } => {
                let rate = of(rate);
                zip(value, gradient, |w, g| w - rate * (scale * g));
            }
            Rule::Momentum { rate, momentum, nesterov: false } => {
                let (rate, momentum) = (of(rate), of(momentum));
                zip1::<F>(value, first, gradient, |w, v, g| {
                    let v = momentum * v + scale * g;
                    (w - rate * v, v)
                });
            }
            Rule::Momentum { rate, momentum, nesterov: true } => {
                let (rate, momentum) = (of(rate), of(momentum));
                zip1::<F>(value, first, gradient, |w, v, g| {
                    let g = scale * g;
                    let v = momentum * v + g;
                    (w - rate * (g + momentum * v), v)
                });
            }
            Rule::Adagrad { rate, epsilon } => {
                let (rate, epsilon) = (of(rate), of(epsilon));
                zip1::<F>(value, first, gradient, |w, s, g| {
                    let g = scale * g;
                    let s = s + g * g;
                    (w - rate * g / (s.root() + epsilon), s)
                });
            }
            Rule::RmsProp { rate, decay, epsilon } => {
                let (rate, decay, rest, epsilon) = (of(rate), of(decay), of(1.0 - decay), of(epsilon));
                zip1::<F>(value, first, gradient, |w, s, g| {
                    let g = scale * g;
                    let s = decay * s + rest * g * g;
                    (w - rate * g / (s.root() + epsilon), s)
                });
            }
            Rule::Adam(AdamStep { rate, beta1, beta2, correction, epsilon, decay, left }) => {
                let (beta1, rest1, beta2, rest2) = (of(beta1), of(1.0 - beta1), of(beta2), of(1.0 - beta2));
                let (rate, correction, epsilon, decay, left) =
                    (of(rate), of(correction), of(epsilon), of(decay), of(left));
                zip2::<F>(value, first, second, gradient, |w, m, v, g| {
                    let g = scale * g + decay * w;
                    let m = beta1 * m + rest1 * g;
                    let v = beta2 * v + rest2 * g * g;
                    (left * w - rate * m / (v.root() / correction + epsilon), m, v)
                });
            }
        }
    }
}

/// Adds `gradient`, each element multiplied by `scale`, to `sum`. Both hold the same number of whole elements of `dtype`, `f32` or
/// `f64`.
pub(crate) fn accumulate(dtype: DType, sum: &mut [u8], gradient: &[u8], scale: f64) {
    match dtype {
        DType::F32 => zip(sum, gradient, |s: f32, g| s + scale as f32 * g),
        DType::F64 => zip(sum, gradient, |s: f64, g| s + scale * g),
        DType::S32 | DType::S64 | DType::U8 => debug_assert!(false, "gradients have floats, as checked before"),
    }
}

/// An element type that gradients have.
trait Float: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> {
    type Bytes: Copy;

    fn of(number: f64) -> Self;
    fn root(self) -> Self;
    fn read(bytes: Self::Bytes) -> Self;
    fn write(self) -> Self::Bytes;
    fn elements(bytes: &[u8]) -> &[Self::Bytes];
    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
}

macro_rules! float {
    ($element:ty, $size:literal) => {
        impl Float for $element {
            type Bytes = [u8; $size];

            fn of(number: f64) -> Self {
                number as $element
            }

            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }

            #[inline(always)]
            fn read(bytes: Self::Bytes) -> Self {
                <$element>::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn write(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            fn elements(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
                bytes.as_chunks_mut().0
            }
        }
    };
}
float!(f32, 4);
float!(f64, 8);

#[inline(always)]
fn zip<F: Float>(value: &mut [u8], gradient: &[u8], f: impl Fn(F, F) -> F) {
    for (w, g) in F::elements_mut(value).iter_mut().zip(F::elements(gradient)) {
        *w = f(F::read(*w), F::read(*g)).write();
    }
}

#[inline(always)]
fn zip1<F: Float>(value: &mut [u8], slot: &mut [u8], gradient: &[u8], f: impl Fn(F, F, F) -> (F, F)) {
    debug_assert_eq!(value.len(), slot.len());
    let elements = F::elements_mut(value).iter_mut().zip(F::elements_mut(slot)).zip(F::elements(gradient));
    for ((w, s), g) in elements {
        let (value, slot) = f(F::read(*w), F::read(*s), F::read(*g));
        (*w, *s) = (value.write(), slot.write());
    }
}

#[inline(always)]
fn zip2<F: Float>(
    value: &mut [u8],
    first: &mut [u8],
    second: &mut [u8],
    gradient: &[u8],
    f: impl Fn(F, F, F, F) -> (F, F, F),
) {
    debug_assert_eq!((value.len(), value.len()), (first.len(), second.len()));
    let slots = F::elements_mut(first).iter_mut().zip(F::elements_mut(second));
    for ((w, (m, v)), g) in F::elements_mut(value).iter_mut().zip(slots).zip(F::elements(gradient)) {
        let (value, first, second) = f(F::read(*w), F::read(*m), F::read(*v), F::read(*g));
        (*w, *m, *v) = (value.write(), first.write(), second.write());
    }
}
