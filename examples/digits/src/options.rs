//! The component's own arguments, behind `--` on the command line.

use std::fmt;
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
    /// `--learning-rate R`: of the first step; it falls linearly to 0. Default 0.1.
    pub(crate) learning_rate: f32,
    /// `--seed N`: of initial weights and order. Default 1.
    pub(crate) seed: u64,
    /// `--overlap N`: pushes that may be under way while the next gradient is computed; 0 does one thing after another. Default 0.
    pub(crate) overlap: usize,
    /// `--sync`: each step waits for the gradients of all workers. Default: each worker makes its own.
    pub(crate) sync: bool,
    /// `--backups N`: workers that a step of `--sync` doesn't wait for. Default 0.
    pub(crate) backups: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            data: PathBuf::from("/data/digits.csv"),
            epochs: 20,
            batch: 16,
            hidden: 64,
            learning_rate: 0.1,
            seed: 1,
            overlap: 0,
            sync: false,
            backups: 0,
        }
    }
}

/// An argument that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionsError(String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const NAMES: &str =
    "`--data`, `--epochs`, `--batch`, `--hidden`, `--learning-rate`, `--seed`, `--overlap`, `--sync`, `--backups`";

impl Options {
    /// Reads `--name value` and `--name=value`, and `--sync`; the last of the same name holds.
    ///
    /// # Errors
    /// An unknown name, a missing value, a value out of its range, or what makes no sense together.
    pub(crate) fn parse(args: &[String]) -> Result<Self, OptionsError> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (arg.as_str(), None),
            };
            if arg == "--sync" {
                options.sync = true;
                continue;
            }
            const WITH_VALUE: [&str; 8] =
                ["--data", "--epochs", "--batch", "--hidden", "--learning-rate", "--seed", "--overlap", "--backups"];
            if !WITH_VALUE.contains(&name) {
                return Err(OptionsError(format!("unknown argument `{arg}`; digits takes {NAMES}")));
            }
            let value = value.or_else(|| args.next().map(String::as_str));
            let value = value.ok_or_else(|| OptionsError(format!("`{name}` needs a value")))?;
            match name {
                "--data" => options.data = PathBuf::from(value),
                "--epochs" => options.epochs = number(name, value, 1, 10_000)?,
                "--batch" => options.batch = number(name, value, 1, 10_000)?,
                "--hidden" => options.hidden = number(name, value, 1, 4_096)?,
                "--learning-rate" => options.learning_rate = number(name, value, f32::MIN_POSITIVE, 10.0)?,
                "--overlap" => options.overlap = number(name, value, 0, 16)?,
                "--backups" => options.backups = number(name, value, 0, 10_000)?,
                _ => options.seed = number(name, value, 0, u64::MAX)?,
            }
        }
        if options.backups > 0 && !options.sync {
            return Err(OptionsError(
                "`--backups` are workers that a step of `--sync` doesn't wait for; add it".to_owned(),
            ));
        }
        if options.sync && options.overlap > 0 {
            return Err(OptionsError(
                "`--sync` waits for each step, `--overlap` for none: leave one of them out".to_owned(),
            ));
        }
        Ok(options)
    }
}

/// A number within its bounds, both included. NaN is in no range.
fn number<T: FromStr + PartialOrd + fmt::Display>(name: &str, text: &str, min: T, max: T) -> Result<T, OptionsError> {
    let value = text.parse::<T>().ok().filter(|value| *value >= min && *value <= max);
    value.ok_or_else(|| OptionsError(format!("`{name} {text}` is not a number from {min} to {max}")))
}

#[cfg(test)]
mod tests {
    use super::Options;
    use std::path::PathBuf;

    fn parse(line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings_are_read_and_the_last_holds() {
        assert_eq!(parse(""), Ok(Options::default()));
        let expected = Options {
            data: PathBuf::from("x.csv"),
            epochs: 3,
            batch: 8,
            hidden: 32,
            learning_rate: 0.5,
            seed: 9,
            overlap: 2,
            ..Options::default()
        };
        let line = "--epochs 2 --data=x.csv --epochs=3 --batch 8 --hidden 32 --learning-rate 0.5 --seed 9 --overlap 2";
        assert_eq!(parse(line), Ok(expected));
        let expected = Options { sync: true, backups: 2, ..Options::default() };
        assert_eq!(parse("--backups=2 --sync"), Ok(expected));
    }

    #[test]
    fn bad_arguments_are_refused_with_what_would_do() {
        let check = |line: &str, expected: &str| assert_eq!(parse(line).unwrap_err(), expected);
        check("--epochs", "`--epochs` needs a value");
        check("--epochs 0", "`--epochs 0` is not a number from 1 to 10000");
        check("--batch many", "`--batch many` is not a number from 1 to 10000");
        check("--hidden 5000", "`--hidden 5000` is not a number from 1 to 4096");
        check("--overlap 17", "`--overlap 17` is not a number from 0 to 16");
        check("--backups 1", "`--backups` are workers that a step of `--sync` doesn't wait for; add it");
        check("--sync --overlap 1", "`--sync` waits for each step, `--overlap` for none: leave one of them out");
        check("--seed -1", "`--seed -1` is not a number from 0 to 18446744073709551615");
        assert!(parse("--learning-rate NaN").is_err());
        assert!(parse("--learning-rate 0").is_err());
        check(
            "--epoch 3",
            "unknown argument `--epoch`; digits takes `--data`, `--epochs`, `--batch`, `--hidden`, `--learning-rate`, `--seed`, \
             `--overlap`, `--sync`, `--backups`",
        );
    }
}
