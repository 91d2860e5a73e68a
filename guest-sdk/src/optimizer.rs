//! Optimizers: how gradients become changes, on the tasks of their variables.

use crate::batch::VariableSet;
use crate::change::Operand;
use crate::raw::{RawAdam, RawApply, RawGradient, RawOptimizer, RawSync};
use crate::variable::Core;
use crate::{Element, Error, Result, Variable, imp, raw::RawValue};
use std::borrow::Cow;

/// A method by which gradients change variables, for [`WorkerContext::apply_gradients`](crate::WorkerContext::apply_gradients).
///
/// The step is made by the task that a variable lives on, one after another where many workers send gradients. What the
/// method remembers of earlier ones (its slots: momentum, means of squares) stays there beside the variable: it counts as
/// variable bytes, begins with zeros at the first gradient, and is dropped where the variable is initialized anew or deleted.
/// It belongs to the method; another one is `failed-precondition` until the variable is initialized anew. Adam and AdamW
/// share theirs, and the numbers, the learning rate above all, may change with each call.
///
/// Rules and defaults are those of `torch.optim`; an element is computed in the variable's type, `f32` or `f64`. A number that is
/// outside its range, or that the method doesn't have, is told by the call that uses it.
///
/// ```
/// # use dchost_guest::{MockCluster, Optimizer, Result};
/// # MockCluster::local().run(|ctx| -> Result<()> {
/// let w = ctx.variable::<f32>("w").shape([2]).declare()?;
/// w.initialize(&[1.0, 2.0])?;
/// let adam = Optimizer::adam(0.1).weight_decay(1e-4).clip_norm(1.0);
/// for _ in 0..100 {
///     let gradient: Vec<f32> = w.read()?.iter().map(|w| 2.0 * w).collect(); // of w²
///     ctx.apply_gradients(&adam, [(&w, &gradient)])?;
/// }
/// assert!(w.read()?.iter().all(|w| w.abs() < 0.1));
/// # Ok(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    raw: RawOptimizer,
    clip_norm: Option<f64>,
    sync: Option<RawSync>,
    /// The first number that was set although the method has none of that name.
    fault: Option<&'static str>,
}

impl Optimizer {
    fn of(raw: RawOptimizer) -> Self {
        Optimizer { raw, clip_norm: None, sync: None, fault: None }
    }

    /// Sets a number, or remembers that the method has none of that name.
    fn set(mut self, name: &'static str, place: impl FnOnce(&mut RawOptimizer) -> Option<(&mut f64, f64)>) -> Self {
        match place(&mut self.raw) {
            Some((place, number)) => *place = number,
            None => self.fault = self.fault.or(Some(name)),
        }
        self
    }

    /// The method as the implementations take it.
    fn checked(&self) -> Result<&RawOptimizer> {
        match self.fault {
            None => Ok(&self.raw),
            Some(name) => Err(Error::invalid(format!("{} has no {name}, which was set", self.raw.name()))),
        }
    }

    /// Plain gradient descent: `w -= learning_rate * g`.
    pub fn sgd(learning_rate: f64) -> Self {
        Optimizer::of(RawOptimizer::Sgd { learning_rate })
    }

    /// Gradient descent with momentum: `v = momentum * v + g`, then `w -= learning_rate * v`.
    pub fn momentum(learning_rate: f64, momentum: f64) -> Self {
        Optimizer::of(RawOptimizer::Momentum { learning_rate, momentum, nesterov: false })
    }

    /// Nesterov's momentum: as [`momentum`](Optimizer::momentum), but `w -= learning_rate * (g + momentum * v)`.
    pub fn nesterov(learning_rate: f64, momentum: f64) -> Self {
        Optimizer::of(RawOptimizer::Momentum { learning_rate, momentum, nesterov: true })
    }

    /// Adagrad: `s += g²`, then `w -= learning_rate / (1 + (step - 1) * decay) * g / (√s + epsilon)`. Decay is 0 and epsilon 1e-10
    /// unless set.
    pub fn adagrad(learning_rate: f64) -> Self {
        Optimizer::of(RawOptimizer::Adagrad { learning_rate, decay: 0.0, epsilon: 1e-10 })
    }

    /// RMSProp: `s = decay * s + (1 - decay) * g²`, then `w -= learning_rate * g / (√s + epsilon)`. Decay is 0.99 and epsilon 1e-8
    /// unless set.
    pub fn rmsprop(learning_rate: f64) -> Self {
        Optimizer::of(RawOptimizer::RmsProp { learning_rate, decay: 0.99, epsilon: 1e-8 })
    }

    /// Adam. The betas are 0.9 and 0.999, epsilon is 1e-8, and weights don't decay unless set; the decay is then part of the
    /// gradient.
    pub fn adam(learning_rate: f64) -> Self {
        Optimizer::of(RawOptimizer::Adam(RawAdam::new(learning_rate, 0.0)))
    }

    /// AdamW: as [`adam`](Optimizer::adam), but weights decay apart from the gradient, `w *= 1 - learning_rate * weight_decay`, by
    /// 0.01 unless set.
    pub fn adamw(learning_rate: f64) -> Self {
        Optimizer::of(RawOptimizer::AdamW(RawAdam::new(learning_rate, 0.01)))
    }

    /// Sets the learning rate, which may be another one for each call: `adam.learning_rate(schedule(step))`.
    pub fn learning_rate(self, learning_rate: f64) -> Self {
        self.set("learning_rate", |raw| match raw {
            RawOptimizer::Sgd { learning_rate: number }
            | RawOptimizer::Momentum { learning_rate: number, .. }
            | RawOptimizer::Adagrad { learning_rate: number, .. }
            | RawOptimizer::RmsProp { learning_rate: number, .. }
            | RawOptimizer::Adam(RawAdam { learning_rate: number, .. })
            | RawOptimizer::AdamW(RawAdam { learning_rate: number, .. }) => Some((number, learning_rate)),
        })
    }

    /// Sets how the learning rate of Adagrad falls, or how much of the last squares RMSProp keeps.
    pub fn decay(self, decay: f64) -> Self {
        self.set("decay", |raw| match raw {
            RawOptimizer::Adagrad { decay: number, .. } | RawOptimizer::RmsProp { decay: number, .. } => {
                Some((number, decay))
            }
            _ => None,
        })
    }

    /// Sets what keeps the divisor of Adagrad, RMSProp, Adam and AdamW from 0.
    pub fn epsilon(self, epsilon: f64) -> Self {
        self.set("epsilon", |raw| match raw {
            RawOptimizer::Adagrad { epsilon: number, .. }
            | RawOptimizer::RmsProp { epsilon: number, .. }
            | RawOptimizer::Adam(RawAdam { epsilon: number, .. })
            | RawOptimizer::AdamW(RawAdam { epsilon: number, .. }) => Some((number, epsilon)),
            _ => None,
        })
    }

    /// Sets how much of the last mean, and of the last mean of squares, Adam and AdamW keep.
    pub fn betas(self, first: f64, second: f64) -> Self {
        self.set("betas", |raw| match raw {
            RawOptimizer::Adam(adam) | RawOptimizer::AdamW(adam) => {
                adam.beta1 = first;
                Some((&mut adam.beta2, second))
            }
            _ => None,
        })
    }

    /// Sets how much a weight decays with each step of Adam or AdamW.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.set("weight_decay", |raw| match raw {
            RawOptimizer::Adam(adam) | RawOptimizer::AdamW(adam) => Some((&mut adam.weight_decay, weight_decay)),
            _ => None,
        })
    }

    /// Scales all gradients of a call down to this common norm (the root of the sum of all their squares) where they exceed it.
    ///
    /// The call then fails with `invalid-argument` where an element isn't finite, and applies nothing. Without clipping it is
    /// applied as it is.
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.clip_norm = Some(norm);
        self
    }

    /// Trains synchronously: of each variable the gradients of `replicas` workers for `step` are collected, their mean is applied as
    /// one step, and only then all of these workers are answered. So a call takes the place of a barrier.
    ///
    /// Steps are counted by the workers; a good number is the version that a gradient was computed from, since each step raises it
    /// by one. All workers give the same `replicas`, method and numbers for a step. With fewer replicas than workers the others are
    /// backups: a gradient beyond them is dropped, and its worker is answered at once with what is there. A gradient of a step
    /// before the last one that was applied is *stale*: the call is `aborted`, and its worker reads anew and goes on from there.
    ///
    /// ```
    /// # use dchost_guest::{MockCluster, Optimizer, Result};
    /// # MockCluster::builder().workers(3).build().run(|ctx| -> Result<()> {
    /// let w = ctx.variable::<f32>("w").declare()?;
    /// if ctx.is_chief() {
    ///     w.initialize(8.0)?;
    /// }
    /// ctx.wait_initialized([&w], None)?;
    /// let sgd = Optimizer::sgd(0.1);
    /// let mut now = w.read()?;
    /// while now.version() <= 20 {
    ///     let gradient = 2.0 * now.scalar(); // of w², on this worker's part of the data
    ///     let sync = sgd.sync(now.version(), ctx.num_workers());
    ///     [now] = ctx.apply_gradients_and_read(&sync, [(&w, gradient)])?;
    /// }
    /// assert!(now.scalar() < 0.1);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn sync(mut self, step: u64, replicas: u32) -> Self {
        self.sync = Some(RawSync { step, replicas });
        self
    }

    fn apply(&self, want_values: bool) -> RawApply {
        RawApply { clip_norm: self.clip_norm, sync: self.sync, want_values }
    }
}

/// Variables with their gradients, for one call: pairs in an array, a vector, or, where element types differ, a tuple.
///
/// | given | read after the step |
/// | --- | --- |
/// | `[(&w, &gw), (&b, &gb)]` | `[Value<T>; 2]` |
/// | `Vec<(&Variable<T>, gradient)>` | `Vec<Value<T>>` |
/// | `((&w, &gw), (&b, &gb))`, up to 8 | `(Value<A>, Value<B>)` |
///
/// A gradient is whatever may stand for the variable's value, see [`Operand`].
pub trait GradientSet<'a> {
    /// The variables alone.
    type Variables: VariableSet;

    #[doc(hidden)]
    fn into_gradients(self) -> Vec<Gradient<'a>>;
}

/// One variable's gradient, without its element type.
#[doc(hidden)]
pub struct Gradient<'a> {
    core: &'a Core,
    data: Result<Cow<'a, [u8]>>,
}

impl<'a> Gradient<'a> {
    fn new<T: Element>((variable, value): (&'a Variable<T>, impl Operand<'a, T>)) -> Self {
        let core = &*variable.core;
        Gradient { core, data: value.operand(&core.name, &core.shape, core.len) }
    }

    /// The gradient as the implementations take it, or the error of its value.
    pub(crate) fn raw(&self) -> Result<RawGradient<'_>> {
        Ok(RawGradient { variable: &self.core.imp, data: self.data.as_deref().map_err(Clone::clone)? })
    }
}

impl<'a, T: Element, O: Operand<'a, T>, const N: usize> GradientSet<'a> for [(&'a Variable<T>, O); N] {
    type Variables = [&'a Variable<T>; N];

    fn into_gradients(self) -> Vec<Gradient<'a>> {
        self.into_iter().map(Gradient::new).collect()
    }
}

impl<'a, T: Element, O: Operand<'a, T>> GradientSet<'a> for Vec<(&'a Variable<T>, O)> {
    type Variables = &'a [&'a Variable<T>];

    fn into_gradients(self) -> Vec<Gradient<'a>> {
        self.into_iter().map(Gradient::new).collect()
    }
}

macro_rules! tuple_set {
    ($($element:ident $operand:ident $index:tt),*) => {
        impl<'a, $($element: Element, $operand: Operand<'a, $element>),*> GradientSet<'a>
            for ($((&'a Variable<$element>, $operand),)*)
        {
            type Variables = ($(&'a Variable<$element>,)*);

            fn into_gradients(self) -> Vec<Gradient<'a>> {
                vec![$(Gradient::new(self.$index)),*]
            }
        }
    };
}
tuple_set!(A OA 0);
tuple_set!(A OA 0, B OB 1);
tuple_set!(A OA 0, B OB 1, C OC 2);
tuple_set!(A OA 0, B OB 1, C OC 2, D OD 3);
tuple_set!(A OA 0, B OB 1, C OC 2, D OD 3, E OE 4);
tuple_set!(A OA 0, B OB 1, C OC 2, D OD 3, E OE 4, F OF 5);
tuple_set!(A OA 0, B OB 1, C OC 2, D OD 3, E OE 4, F OF 5, G OG 6);
tuple_set!(A OA 0, B OB 1, C OC 2, D OD 3, E OE 4, F OF 5, G OG 6, H OH 7);

impl imp::Context {
    pub(crate) fn apply_gradient_set<'a>(
        &self,
        optimizer: &Optimizer,
        gradients: impl GradientSet<'a>,
        want_values: bool,
    ) -> Result<Vec<RawValue>> {
        let gradients = gradients.into_gradients();
        let raw = gradients.iter().map(Gradient::raw).collect::<Result<Vec<_>>>()?;
        self.apply_gradients(optimizer.checked()?, &raw, optimizer.apply(want_values))
    }

    pub(crate) fn start_apply_gradient_set<'a>(
        &self,
        optimizer: &Optimizer,
        gradients: impl GradientSet<'a>,
        want_values: bool,
    ) -> Result<imp::Pending> {
        let gradients = gradients.into_gradients();
        let raw = gradients.iter().map(Gradient::raw).collect::<Result<Vec<_>>>()?;
        self.start_apply_gradients(optimizer.checked()?, &raw, optimizer.apply(want_values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_torch_and_can_be_set() {
        let adam = RawAdam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
        assert_eq!(Optimizer::adam(1e-3).raw, RawOptimizer::Adam(adam));
        let adamw = Optimizer::adamw(1e-3);
        assert_eq!(adamw.raw, RawOptimizer::AdamW(RawAdam { weight_decay: 0.01, ..adam }));
        let set = adamw.learning_rate(0.5).betas(0.1, 0.2).epsilon(0.3).weight_decay(0.4).clip_norm(0.6);
        let adam = RawAdam { learning_rate: 0.5, beta1: 0.1, beta2: 0.2, epsilon: 0.3, weight_decay: 0.4 };
        assert_eq!((set.checked(), set.clip_norm), (Ok(&RawOptimizer::AdamW(adam)), Some(0.6)));
        let raw = RawOptimizer::RmsProp { learning_rate: 0.1, decay: 0.9, epsilon: 1e-8 };
        assert_eq!(Optimizer::rmsprop(0.1).decay(0.9).raw, raw);
        let raw = RawOptimizer::Adagrad { learning_rate: 0.1, decay: 0.0, epsilon: 1e-3 };
        assert_eq!(Optimizer::adagrad(0.1).epsilon(1e-3).raw, raw);
        let raw = RawOptimizer::Momentum { learning_rate: 0.2, momentum: 0.9, nesterov: true };
        assert_eq!(Optimizer::nesterov(0.1, 0.9).learning_rate(0.2).raw, raw);
    }

    #[test]
    fn what_a_method_lacks_is_told_by_the_call() {
        for (optimizer, message) in [
            (Optimizer::sgd(0.1).weight_decay(0.1).betas(0.1, 0.2), "sgd has no weight_decay, which was set"),
            (Optimizer::momentum(0.1, 0.9).epsilon(0.1), "momentum has no epsilon, which was set"),
            (Optimizer::rmsprop(0.1).betas(0.1, 0.2), "rmsprop has no betas, which was set"),
            (Optimizer::adam(0.1).decay(0.1), "adam has no decay, which was set"),
        ] {
            assert_eq!(optimizer.checked(), Err(Error::invalid(message)));
        }
    }
}
