//! The component's own arguments, behind `--` on the command line.

use std::path::PathBuf;
use std::str::FromStr;

/// What the arguments ask for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// `--data FILE`: the data set. Default `/data/digits.csv`, where `--dir HOST::/data:ro` puts it.
    pub(crate) data: PathBuf,
    /// `--epochs N`: how often a worker goes through its images. Default 20.
    pub(crate) epochs: usize,
    /// `--batch N`: images of one step. Default 16.
    pub(crate) batch: usize,
    /// `--hidden N`: hidden units. Default 64.
    pub(crate) hidden: usize,
    /// `--learning-rate R`: Adam's, for the first step; it falls linearly to 0. Default 0.003.
    pub(crate) learning_rate: f64,
    /// `--seed N`: of initial weights and order. Default 1.
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        let data = PathBuf::from("/data/digits.csv");
        Options { data, epochs: 20, batch: 16, hidden: 64, learning_rate: 0.003, seed: 1 }
    }
}

impl Options {
    /// Reads `--name value`; the last of the same name holds.
    ///
    /// # Errors
    /// An unknown name, a missing value, or a value out of its range.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("`{name}` needs a value"));
            match name.as_str() {
                "--data" => options.data = PathBuf::from(value()?),
                "--epochs" => options.epochs = number(name, value()?, 1, 10_000)?,
                "--batch" => options.batch = number(name, value()?, 1, 10_000)?,
                "--hidden" => options.hidden = number(name, value()?, 1, 4_096)?,
                "--learning-rate" => options.learning_rate = number(name, value()?, 1e-9, 1.0)?,
                "--seed" => options.seed = number(name, value()?, 0, u64::MAX)?,
                _ => {
                    return Err(format!(
                        "unknown argument `{name}`; burn-digits takes `--data`, `--epochs`, `--batch`, `--hidden`, \
                         `--learning-rate`, `--seed`"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// A number within its bounds, both included.
fn number<T: FromStr + PartialOrd + std::fmt::Display>(name: &str, text: &str, min: T, max: T) -> Result<T, String> {
    let value = text.parse::<T>().ok().filter(|value| *value >= min && *value <= max);
    value.ok_or_else(|| format!("`{name} {text}` is not a number from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read_and_the_last_holds() {
        assert_eq!(parse(""), Ok(Options::default()));
        let line = "--epochs 2 --data x.csv --epochs 3 --batch 8 --hidden 32 --learning-rate 0.5 --seed 9";
        let expected = Options { data: "x.csv".into(), epochs: 3, batch: 8, hidden: 32, learning_rate: 0.5, seed: 9 };
        assert_eq!(parse(line), Ok(expected));
    }

    #[test]
    fn bad_arguments_are_refused_with_what_would_do() {
        let check = |line: &str, expected: &str| assert_eq!(parse(line).unwrap_err(), expected);
        check("--epochs", "`--epochs` needs a value");
        check("--epochs 0", "`--epochs 0` is not a number from 1 to 10000");
        check("--learning-rate NaN", "`--learning-rate NaN` is not a number from 0.000000001 to 1");
        check(
            "--epoch 3",
            "unknown argument `--epoch`; burn-digits takes `--data`, `--epochs`, `--batch`, `--hidden`, `--learning-rate`, \
             `--seed`",
        );
    }
}
