//! The arguments after `--`.

use dchost_guest::Result;

/// How large the tables are, and how long they are trained.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// `--users`: rows of the one table.
    pub(crate) users: usize,
    /// `--items`: rows of the other.
    pub(crate) items: usize,
    /// `--steps`: batches of each worker.
    pub(crate) steps: usize,
    /// `--batch`: ratings in a batch.
    pub(crate) batch: usize,
    /// `--learning-rate`: how far a rating moves its rows.
    pub(crate) learning_rate: f32,
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let mut options = Options { users: 10_000, items: 2000, steps: 300, batch: 1000, learning_rate: 0.2 };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` lacks its value", pair[0]).into()) };
            let field = match name.as_str() {
                "--users" => &mut options.users,
                "--items" => &mut options.items,
                "--steps" => &mut options.steps,
                "--batch" => &mut options.batch,
                "--learning-rate" => {
                    let rate = value.parse().ok().filter(|rate: &f32| *rate > 0.0 && rate.is_finite());
                    options.learning_rate =
                        rate.ok_or_else(|| format!("`{name} {value}`: a number above 0 is needed"))?;
                    continue;
                }
                _ => {
                    let known = "--users, --items, --steps, --batch and --learning-rate";
                    return Err(format!("`{name}` is unknown: there are {known}").into());
                }
            };
            *field = value
                .parse()
                .ok()
                .filter(|&number| number > 0)
                .ok_or_else(|| format!("`{name} {value}`: a number from 1 is needed"))?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused_by_name() {
        let parse = |args: &str| {
            let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
            Options::parse(&args).map_err(|error| error.to_string())
        };
        let read = Options { users: 5, items: 6, steps: 7, batch: 8, learning_rate: 0.5 };
        assert_eq!(parse("--users 5 --items 6 --steps 7 --batch 8 --learning-rate 0.5"), Ok(read));
        assert_eq!(parse("--steps"), Err("`--steps` lacks its value".to_owned()));
        assert_eq!(parse("--learning-rate -1"), Err("`--learning-rate -1`: a number above 0 is needed".to_owned()));
        assert!(parse("--epochs 7").is_err_and(|error| error.starts_with("`--epochs` is unknown: there are --users")));
    }
}
