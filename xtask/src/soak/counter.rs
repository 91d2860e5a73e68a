//! The counter example again and again: barrier, variables and shutdown must work every time, not most times.

use crate::guests;
use crate::shell::{command, dchost_binary, shown};
use crate::steps::seconds;
use anyhow::{Context as _, Result, bail};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Runs the counter on three workers and two ps, `runs` times in a row with the cluster barrier and as often without.
///
/// # Errors
/// The first run that ends with anything but 0, with its output.
pub(super) fn run(runs: u32) -> Result<String> {
    let with = repeat(runs, &[])?;
    let without = repeat(runs, &["--no-cluster-barrier"])?;
    Ok(format!("with the barrier {with}; without {without}"))
}

fn repeat(runs: u32, flags: &[&str]) -> Result<String> {
    let mut times: Vec<Duration> = Vec::new();
    for number in 1..=runs {
        let mut launch = command(dchost_binary());
        launch.args(["launch", "--workers", "3", "--ps", "2", "--module"]).arg(guests::example("counter")).args(flags);
        let start = Instant::now();
        let output = launch.output().with_context(|| format!("start `{}`", shown(&launch)))?;
        times.push(start.elapsed());
        if !output.status.success() {
            std::io::stderr().write_all(&output.stdout).context("show the run's output")?;
            std::io::stderr().write_all(&output.stderr).context("show the run's output")?;
            bail!("run {number} of {runs} ended with {}: `{}`", output.status, shown(&launch));
        }
        if number % 10 == 0 {
            println!("{number} of {runs} runs");
        }
    }
    times.sort_unstable();
    let (Some(longest), Some(median)) = (times.last(), times.get(times.len() / 2)) else {
        bail!("no run was asked for: give a number from 1");
    };
    Ok(format!("{runs} runs, median {}, longest {}", seconds(*median), seconds(*longest)))
}
