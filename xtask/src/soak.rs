//! `cargo xtask soak`: long checks that CI does not run every time.

mod client;
mod clusters;
mod counter;
mod digits;
mod flake;
mod fuzz;
mod ops;

use crate::demo::build_host;
use crate::guests;
use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};
use std::iter::Peekable;

/// How often the counter runs where the command line does not say.
const COUNTER_RUNS: u32 = 100;

/// Runs the named parts, or all of them.
///
/// # Errors
/// An unknown part, a failing build, or a part that fails.
pub(crate) fn run(parts: &[&str]) -> Result<()> {
    let wanted = Wanted::read(parts)?;
    let mut steps = Steps::default();
    if wanted.needs_scenarios() {
        steps.step("guests", || guests::run().map(|()| String::new()))?;
    } else if wanted.needs_examples() {
        steps.step("guests", || guests::examples().map(|()| String::new()))?;
    }
    if wanted.needs_scenarios() || wanted.needs_examples() {
        steps.step("host", || build_host().map(|()| String::new()))?;
    }
    if let Some(runs) = wanted.counter {
        steps.step("counter", || counter::run(runs))?;
    }
    if wanted.digits {
        steps.step("digits", digits::run)?;
    }
    if wanted.client {
        steps.step("client", client::run)?;
    }
    if wanted.ops {
        steps.step("ops", ops::run)?;
    }
    if let Some(count) = wanted.clusters {
        steps.step("clusters", || clusters::run(count))?;
    }
    if let Some(rounds) = wanted.flake {
        steps.step("flake", || flake::run(rounds))?;
    }
    if let Some(seconds) = wanted.fuzz {
        steps.step("fuzz", || fuzz::run(seconds))?;
    }
    steps.summary();
    Ok(())
}

/// The parts to run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    counter: Option<u32>,
    digits: bool,
    client: bool,
    ops: bool,
    clusters: Option<u32>,
    flake: Option<u32>,
    fuzz: Option<u32>,
}

impl Wanted {
    fn read(parts: &[&str]) -> Result<Wanted> {
        if parts.is_empty() {
            let (counter, flake, fuzz) = (Some(COUNTER_RUNS), Some(flake::ROUNDS), Some(fuzz::SECONDS));
            let clusters = Some(clusters::CLUSTERS);
            return Ok(Wanted { counter, digits: true, client: true, ops: true, clusters, flake, fuzz });
        }
        let mut wanted = Wanted::default();
        let mut words = parts.iter().copied().peekable();
        while let Some(word) = words.next() {
            match word {
                "counter" => wanted.counter = Some(number(&mut words)?.unwrap_or(COUNTER_RUNS)),
                "digits" => wanted.digits = true,
                "client" => wanted.client = true,
                "ops" => wanted.ops = true,
                "clusters" => wanted.clusters = Some(number(&mut words)?.unwrap_or(clusters::CLUSTERS)),
                "flake" => wanted.flake = Some(number(&mut words)?.unwrap_or(flake::ROUNDS)),
                "fuzz" => wanted.fuzz = Some(number(&mut words)?.unwrap_or(fuzz::SECONDS)),
                other => {
                    bail!(
                        "unknown part `{other}` of soak: it has counter, digits, client, ops, clusters, flake and fuzz"
                    )
                }
            }
        }
        Ok(wanted)
    }

    fn needs_scenarios(&self) -> bool {
        self.ops || self.clusters.is_some() || self.flake.is_some()
    }

    fn needs_examples(&self) -> bool {
        self.counter.is_some() || self.digits || self.client
    }
}

/// The number that follows a part, where one does.
fn number<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Result<Option<u32>> {
    let word = words.next_if(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    word.map(|word| word.parse().with_context(|| format!("read the number `{word}`"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::Wanted;

    #[test]
    fn parts_may_have_a_number() {
        let wanted = Wanted::read(&["fuzz", "30", "flake", "digits"]).expect("reads");
        assert_eq!(wanted, Wanted { digits: true, flake: Some(10), fuzz: Some(30), ..Wanted::default() });
        assert!(Wanted::read(&["fuzz", "3x"]).is_err() && Wanted::read(&["7"]).is_err());
        assert!(Wanted::read(&[]).expect("reads").fuzz.is_some());
    }
}
