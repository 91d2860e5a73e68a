//! `cargo xtask soak`: long checks that CI does not run every time.

mod client;
mod counter;
mod digits;

use crate::demo::build_host;
use crate::guests;
use crate::steps::Steps;
use anyhow::{Context as _, Result, bail};

/// How often the counter runs where the command line does not say.
const COUNTER_RUNS: u32 = 100;

/// Runs the named parts, or all of them.
///
/// # Errors
/// An unknown part, a failing build, or a part that fails.
pub(crate) fn run(parts: &[&str]) -> Result<()> {
    let mut wanted = Wanted::default();
    let mut words = parts.iter().peekable();
    while let Some(word) = words.next() {
        match *word {
            "counter" => {
                let runs = words.next_if(|next| next.starts_with(|first: char| first.is_ascii_digit()));
                let runs = runs.map(|runs| runs.parse().with_context(|| format!("read the number of runs `{runs}`")));
                wanted.counter = Some(runs.transpose()?.unwrap_or(COUNTER_RUNS));
            }
            "digits" => wanted.digits = true,
            "client" => wanted.client = true,
            other => bail!("unknown part `{other}` of soak: it has counter, digits and client"),
        }
    }
    if parts.is_empty() {
        wanted = Wanted { counter: Some(COUNTER_RUNS), digits: true, client: true };
    }

    let mut steps = Steps::default();
    steps.step("guests", || guests::examples().map(|()| String::new()))?;
    steps.step("host", || build_host().map(|()| String::new()))?;
    if let Some(runs) = wanted.counter {
        steps.step("counter", || counter::run(runs))?;
    }
    if wanted.digits {
        steps.step("digits", digits::run)?;
    }
    if wanted.client {
        steps.step("client", client::run)?;
    }
    steps.summary();
    Ok(())
}

/// The parts to run.
#[derive(Default)]
struct Wanted {
    counter: Option<u32>,
    digits: bool,
    client: bool,
}
