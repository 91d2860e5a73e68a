//! The arguments after `--`.

use dchost_guest::Result;

/// What is counted, and in which pieces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// `--below`: where to stop counting.
    pub(crate) below: u64,
    /// `--chunk`: how many numbers one call of the op looks at.
    pub(crate) chunk: u64,
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let mut options = Options { below: 1_000_000_000, chunk: 10_000_000 };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` lacks its value", pair[0]).into()) };
            let (field, least) = match name.as_str() {
                "--below" => (&mut options.below, 0),
                "--chunk" => (&mut options.chunk, 1),
                _ => return Err(format!("`{name}` is unknown: there are --below and --chunk").into()),
            };
            // The op takes signed numbers.
            *field = value
                .parse()
                .ok()
                .filter(|number| (least..=i64::MAX as u64).contains(number))
                .ok_or_else(|| format!("`{name} {value}`: a number from {least} is needed"))?;
        }
        Ok(options)
    }

    /// The pieces: first number, and the one after the last.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (i64, i64)> + use<> {
        let Options { below, chunk } = *self;
        (0..below.div_ceil(chunk)).map(move |index| {
            let from = index * chunk;
            (from as i64, from.saturating_add(chunk).min(below) as i64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_read_or_refused_by_name() {
        assert_eq!(parse("--below 7 --chunk 3"), Ok(Options { below: 7, chunk: 3 }));
        assert_eq!(parse("--below"), Err("`--below` lacks its value".to_owned()));
        assert_eq!(parse("--above 7"), Err("`--above` is unknown: there are --below and --chunk".to_owned()));
        assert_eq!(parse("--below -1"), Err("`--below -1`: a number from 0 is needed".to_owned()));
    }

    #[test]
    fn chunks_cover_all_numbers_once() {
        let chunks: Vec<_> = Options { below: 7, chunk: 3 }.chunks().collect();
        assert_eq!(chunks, [(0, 3), (3, 6), (6, 7)]);
        assert_eq!(Options { below: 0, chunk: 3 }.chunks().count(), 0);
    }
}
