//! How well the digits example learns, over seeds and numbers of workers.

use crate::demo::accuracy_in;
use crate::guests;
use crate::shell::{command, dchost_binary, shown};
use crate::steps::seconds;
use anyhow::{Context as _, Result, ensure};
use std::io::Write as _;
use std::time::{Duration, Instant};

const SEEDS: [u32; 5] = [1, 2, 3, 4, 5];
const WORKERS: [u32; 3] = [1, 2, 4];

/// What the example promises, in percent: a network of this size reaches 97 to 98 on the held-out fifth.
const MEDIAN_MIN: f64 = 96.0;
const EACH_MIN: f64 = 95.0;
const TIME_MAX: Duration = Duration::from_secs(60);

/// Trains with every seed on 1, 2 and 4 workers, and prints accuracies with their median and minimum.
///
/// # Errors
/// A run fails, takes a minute or longer, or the accuracies miss what the example promises.
pub(super) fn run() -> Result<String> {
    let mut notes = Vec::new();
    for workers in WORKERS {
        let mut accuracies = Vec::new();
        let mut longest = Duration::ZERO;
        for seed in SEEDS {
            let (accuracy, took) = train(workers, seed)?;
            accuracies.push(accuracy);
            longest = longest.max(took);
        }
        let shown: Vec<String> = accuracies.iter().map(|accuracy| format!("{accuracy:.1}")).collect();
        accuracies.sort_by(f64::total_cmp);
        let (min, median) = (accuracies[0], accuracies[accuracies.len() / 2]);
        println!(
            "{workers} workers: {} (median {median:.1}, min {min:.1}), longest run {}",
            shown.join(" "),
            seconds(longest)
        );
        ensure!(median >= MEDIAN_MIN, "the median with {workers} workers is {median:.1} %, less than {MEDIAN_MIN} %");
        ensure!(min >= EACH_MIN, "the minimum with {workers} workers is {min:.1} %, less than {EACH_MIN} %");
        ensure!(longest < TIME_MAX, "a run with {workers} workers took {}", seconds(longest));
        notes.push(format!("{workers} workers: median {median:.1}, min {min:.1}"));
    }
    Ok(notes.join("; "))
}

/// One run: the held-out accuracy in percent, and the time.
fn train(workers: u32, seed: u32) -> Result<(f64, Duration)> {
    let (workers, seed) = (workers.to_string(), seed.to_string());
    let mut launch = command(dchost_binary());
    launch.args(["launch", "--workers", &workers, "--ps", "2", "--module"]).arg(guests::example("digits"));
    launch.args(["--dir", "examples/data::/data:ro", "--", "--epochs", "20", "--seed", &seed]);
    let start = Instant::now();
    let output = launch.output().with_context(|| format!("start `{}`", shown(&launch)))?;
    let took = start.elapsed();
    if !output.status.success() {
        std::io::stderr().write_all(&output.stderr).context("show the run's output")?;
    }
    ensure!(output.status.success(), "`{}` ended with {}", shown(&launch), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let accuracy = text.lines().rev().find_map(accuracy_in);
    Ok((accuracy.with_context(|| format!("`{}` printed no accuracy", shown(&launch)))?, took))
}
