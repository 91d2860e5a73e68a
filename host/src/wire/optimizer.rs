//! Optimizers: a name, and numbers by name.

use crate::error::{Error, ErrorCode, Result};
use crate::text::shown_within;
use crate::variables::{Adam, Optimizer};
use crate::wire::v1;
use std::collections::HashMap;

/// Most bytes of a foreign name that an error shows.
const NAME_SHOWN_BYTES: usize = 64;

impl From<&Optimizer> for v1::Optimizer {
    fn from(optimizer: &Optimizer) -> Self {
        v1::Optimizer {
            name: optimizer.name().to_owned(),
            hyperparameter: optimizer.numbers().into_iter().map(|(name, number)| (name.to_owned(), number)).collect(),
        }
    }
}

impl TryFrom<v1::Optimizer> for Optimizer {
    type Error = Error;

    /// Converts an optimizer, and checks its numbers.
    ///
    /// # Errors
    /// `invalid-argument`: an unknown optimizer; a number that it lacks, or that it doesn't have; and those of [`Optimizer::check`].
    fn try_from(wire: v1::Optimizer) -> Result<Self> {
        let mut numbers = Numbers { optimizer: wire.name, left: wire.hyperparameter };
        let optimizer = match &*numbers.optimizer {
            "sgd" => Optimizer::Sgd { learning_rate: numbers.take("learning-rate")? },
            "momentum" => Optimizer::Momentum {
                learning_rate: numbers.take("learning-rate")?,
                momentum: numbers.take("momentum")?,
                nesterov: numbers.take_bool("nesterov")?,
            },
            "adagrad" => Optimizer::Adagrad {
                learning_rate: numbers.take("learning-rate")?,
                decay: numbers.take("decay")?,
                epsilon: numbers.take("epsilon")?,
            },
            "rmsprop" => Optimizer::RmsProp {
                learning_rate: numbers.take("learning-rate")?,
                decay: numbers.take("decay")?,
                epsilon: numbers.take("epsilon")?,
            },
            "adam" => Optimizer::Adam(numbers.take_adam()?),
            "adamw" => Optimizer::AdamW(numbers.take_adam()?),
            unknown => {
                let shown = shown_within(unknown, NAME_SHOWN_BYTES);
                let message = format!(
                    "optimizer `{shown}` is unknown, known are sgd, momentum, adagrad, rmsprop, adam and adamw; the caller may be \
                     newer than this task"
                );
                return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([shown]));
            }
        };
        numbers.finish()?;
        optimizer.check()?;
        Ok(optimizer)
    }
}

/// The numbers that came, until each is taken.
struct Numbers {
    optimizer: String,
    left: HashMap<String, f64>,
}

impl Numbers {
    fn take(&mut self, name: &str) -> Result<f64> {
        self.left.remove(name).ok_or_else(|| {
            let message = format!("optimizer `{}` came without its number `{name}`", self.optimizer);
            Error::new(ErrorCode::InvalidArgument, message).with_names([name])
        })
    }

    fn take_bool(&mut self, name: &str) -> Result<bool> {
        let number = self.take(name)?;
        if number == 0.0 || number == 1.0 {
            return Ok(number == 1.0);
        }
        let message = format!("{name} of {} is `{number}`, it is 0 or 1", self.optimizer);
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
    }

    fn take_adam(&mut self) -> Result<Adam> {
        Ok(Adam {
            learning_rate: self.take("learning-rate")?,
            beta1: self.take("beta1")?,
            beta2: self.take("beta2")?,
            epsilon: self.take("epsilon")?,
            weight_decay: self.take("weight-decay")?,
        })
    }

    /// Refuses a number that nobody took: to pass over one that changes the method would train something else.
    fn finish(self) -> Result<()> {
        let Some(unknown) = self.left.keys().min() else { return Ok(()) };
        let shown = shown_within(unknown, NAME_SHOWN_BYTES);
        let message =
            format!("optimizer `{}` has no number `{shown}`; the caller may be newer than this task", self.optimizer);
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names([shown]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const ADAM: Adam = Adam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

    #[test]
    fn optimizers_survive_the_wire() {
        let all = [
            Optimizer::Sgd { learning_rate: 0.1 },
            Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: true },
            Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false },
            Optimizer::Adagrad { learning_rate: 0.1, decay: 2.0, epsilon: 1e-10 },
            Optimizer::RmsProp { learning_rate: 0.1, decay: 0.99, epsilon: 1e-8 },
            Optimizer::Adam(ADAM),
            Optimizer::AdamW(ADAM),
        ];
        for optimizer in all {
            assert_eq!(Optimizer::try_from(v1::Optimizer::from(&optimizer)), Ok(optimizer));
        }
    }

    fn check(name: &str, numbers: &[(&str, f64)], expected: Expect) {
        let hyperparameter = numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let error = Optimizer::try_from(v1::Optimizer { name: name.into(), hyperparameter }).expect_err("refused");
        expected.assert_eq(&format!("{}: {}", error.code, error.message));
    }

    #[test]
    fn what_is_unknown_missing_or_outside_its_range_is_named() {
        check(
            "",
            &[],
            expect![
                "invalid-argument: optimizer `` is unknown, known are sgd, momentum, adagrad, rmsprop, adam and adamw; the caller may be newer than this task"
            ],
        );
        check(
            "l\u{202e}amb\n",
            &[("learning-rate", 0.1)],
            expect![[
                r#"invalid-argument: optimizer `l\u{202e}amb\n` is unknown, known are sgd, momentum, adagrad, rmsprop, adam and adamw; the caller may be newer than this task"#
            ]],
        );
        check("sgd", &[], expect!["invalid-argument: optimizer `sgd` came without its number `learning-rate`"]);
        check(
            "sgd",
            &[("learning-rate", 0.1), ("momentum", 0.9)],
            expect![
                "invalid-argument: optimizer `sgd` has no number `momentum`; the caller may be newer than this task"
            ],
        );
        check(
            "sgd",
            &[("learning-rate", f64::NAN)],
            expect!["invalid-argument: learning-rate of sgd is `NaN`, it is finite and not negative"],
        );
        let momentum = [("learning-rate", 0.1), ("momentum", 0.9), ("nesterov", 0.5)];
        check("momentum", &momentum, expect!["invalid-argument: nesterov of momentum is `0.5`, it is 0 or 1"]);
        check(
            "adam",
            &[("learning-rate", 0.1), ("beta1", 0.9), ("beta2", 0.9)],
            expect!["invalid-argument: optimizer `adam` came without its number `epsilon`"],
        );
        check(
            "rmsprop",
            &[("learning-rate", 0.1), ("decay", 1.0), ("epsilon", 0.0)],
            expect!["invalid-argument: decay of rmsprop is `1`, it is from 0 to below 1"],
        );
    }
}
