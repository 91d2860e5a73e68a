//! Optimizers: how a gradient becomes a change.

pub(super) mod kernel;

use crate::error::{Error, ErrorCode, Result};
use std::fmt;

/// A method by which a gradient `g` changes a value `w`, with its numbers.
///
/// # Source
/// The update rules are those of `torch.optim` (version 2): `SGD`, `Adagrad`, `RMSprop`, `Adam` and `AdamW`; a test compares them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `w -= lr * g`.
    Sgd {
        /// Learning rate.
        learning_rate: f64,
    },
    /// `v = momentum * v + g`, then `w -= lr * v`, or `w -= lr * (g + momentum * v)` with Nesterov's.
    Momentum {
        /// Learning rate.
        learning_rate: f64,
        /// How much of the last change goes on; from 0 to below 1.
        momentum: f64,
        /// Whether the gradient counts as taken after the step.
        nesterov: bool,
    },
    /// `s += g * g`, then `w -= lr / (1 + (step - 1) * decay) * g / (sqrt(s) + epsilon)`.
    Adagrad {
        /// Learning rate.
        learning_rate: f64,
        /// How the learning rate falls with the steps.
        decay: f64,
        /// Keeps the divisor from 0.
        epsilon: f64,
    },
    /// `s = decay * s + (1 - decay) * g * g`, then `w -= lr * g / (sqrt(s) + epsilon)`.
    RmsProp {
        /// Learning rate.
        learning_rate: f64,
        /// How much of the last squares stays; from 0 to below 1.
        decay: f64,
        /// Keeps the divisor from 0.
        epsilon: f64,
    },
    /// With weights that decay as a part of the gradient, `g += weight_decay * w`:
    /// `m = beta1 * m + (1 - beta1) * g`, `v = beta2 * v + (1 - beta2) * g * g`, then
    /// `w -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)`.
    Adam(Adam),
    /// As Adam, but weights decay apart from the gradient: `w *= 1 - lr * weight_decay` before the step.
    AdamW(Adam),
}

/// The numbers of Adam and AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub learning_rate: f64,
    /// How much of the last mean stays; from 0 to below 1.
    pub beta1: f64,
    /// How much of the last mean of squares stays; from 0 to below 1.
    pub beta2: f64,
    /// Keeps the divisor from 0.
    pub epsilon: f64,
    /// How much of a weight decays with each step.
    pub weight_decay: f64,
}

impl Optimizer {
    /// The name, as it is told and travels.
    pub const fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Momentum { .. } => "momentum",
            Optimizer::Adagrad { .. } => "adagrad",
            Optimizer::RmsProp { .. } => "rmsprop",
            Optimizer::Adam(_) => "adam",
            Optimizer::AdamW(_) => "adamw",
        }
    }

    /// Its numbers, by name.
    pub fn numbers(&self) -> Vec<(&'static str, f64)> {
        match *self {
            Optimizer::Sgd { learning_rate } => vec![("learning-rate", learning_rate)],
            Optimizer::Momentum { learning_rate, momentum, nesterov } => {
                vec![("learning-rate", learning_rate), ("momentum", momentum), ("nesterov", f64::from(nesterov))]
            }
            Optimizer::Adagrad { learning_rate, decay, epsilon }
            | Optimizer::RmsProp { learning_rate, decay, epsilon } => {
                vec![("learning-rate", learning_rate), ("decay", decay), ("epsilon", epsilon)]
            }
            Optimizer::Adam(adam) | Optimizer::AdamW(adam) => vec![
                ("learning-rate", adam.learning_rate),
                ("beta1", adam.beta1),
                ("beta2", adam.beta2),
                ("epsilon", adam.epsilon),
                ("weight-decay", adam.weight_decay),
            ],
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// `invalid-argument` (gRPC `INVALID_ARGUMENT`): one is no number, negative, or outside its range; the message names it.
    pub fn check(&self) -> Result<()> {
        let check = |what: &str, value: f64, below: f64| {
            if value >= 0.0 && value < below {
                return Ok(());
            }
            let range =
                if below.is_finite() { format!("from 0 to below {below}") } else { "finite and not negative".into() };
            let message = format!("{what} of {} is `{value}`, it is {range}", self.name());
            Err(Error::new(ErrorCode::InvalidArgument, message).with_names([what]))
        };
        let free = f64::INFINITY;
        match *self {
            Optimizer::Sgd { learning_rate } => check("learning-rate", learning_rate, free),
            Optimizer::Momentum { learning_rate, momentum, .. } => {
                check("learning-rate", learning_rate, free)?;
                check("momentum", momentum, 1.0)
            }
            Optimizer::Adagrad { learning_rate, decay, epsilon } => {
                check("learning-rate", learning_rate, free)?;
                check("decay", decay, free)?;
                check("epsilon", epsilon, free)
            }
            Optimizer::RmsProp { learning_rate, decay, epsilon } => {
                check("learning-rate", learning_rate, free)?;
                check("decay", decay, 1.0)?;
                check("epsilon", epsilon, free)
            }
            Optimizer::Adam(adam) | Optimizer::AdamW(adam) => {
                check("learning-rate", adam.learning_rate, free)?;
                check("beta1", adam.beta1, 1.0)?;
                check("beta2", adam.beta2, 1.0)?;
                check("epsilon", adam.epsilon, free)?;
                check("weight-decay", adam.weight_decay, free)
            }
        }
    }
}

/// As errors show it: `` `sgd` (learning-rate 0.1) ``.
impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.numbers().into_iter().map(|(name, number)| format!("{name} {number}")).collect();
        write!(f, "`{}` ({})", self.name(), numbers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAM: Adam = Adam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

    #[test]
    fn numbers_outside_their_range_are_named() {
        let good = [
            Optimizer::Sgd { learning_rate: 0.0 },
            Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: true },
            Optimizer::Adagrad { learning_rate: 0.1, decay: 2.0, epsilon: 0.0 },
            Optimizer::RmsProp { learning_rate: 0.1, decay: 0.99, epsilon: 1e-8 },
            Optimizer::Adam(ADAM),
            Optimizer::AdamW(Adam { weight_decay: 0.01, ..ADAM }),
        ];
        for optimizer in good {
            assert_eq!(optimizer.check(), Ok(()), "{optimizer:?}");
        }
        let bad = [
            (Optimizer::Sgd { learning_rate: -0.1 }, "learning-rate"),
            (Optimizer::Sgd { learning_rate: f64::NAN }, "learning-rate"),
            (Optimizer::Sgd { learning_rate: f64::INFINITY }, "learning-rate"),
            (Optimizer::Momentum { learning_rate: 0.1, momentum: 1.0, nesterov: false }, "momentum"),
            (Optimizer::Adagrad { learning_rate: 0.1, decay: -1.0, epsilon: 0.0 }, "decay"),
            (Optimizer::RmsProp { learning_rate: 0.1, decay: 1.0, epsilon: 0.0 }, "decay"),
            (Optimizer::Adam(Adam { beta1: 1.0, ..ADAM }), "beta1"),
            (Optimizer::Adam(Adam { beta2: -0.1, ..ADAM }), "beta2"),
            (Optimizer::AdamW(Adam { epsilon: f64::NAN, ..ADAM }), "epsilon"),
            (Optimizer::AdamW(Adam { weight_decay: -1.0, ..ADAM }), "weight-decay"),
        ];
        for (optimizer, name) in bad {
            let error = optimizer.check().expect_err("refused");
            assert_eq!((error.code, &*error.names[0]), (ErrorCode::InvalidArgument, name), "{error}");
        }
    }
}
