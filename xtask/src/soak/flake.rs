//! The tests again and again: one that fails now and then is wrong, or finds something that is.

use crate::guests::BURN;
use crate::shell::{cargo, shown, target_dir};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;

/// How often the tests run where the command line does not say.
pub(super) const ROUNDS: u32 = 10;

/// Threads of a test binary for each core in every second round: crowded threads are late, which shows what relies on time.
const CROWD: usize = 4;

/// Runs all tests `rounds` times and names those that failed in some.
///
/// # Errors
/// A build that fails; tests that failed, with how often and where the output lies.
pub(super) fn run(rounds: u32) -> Result<String> {
    ensure!(rounds > 0, "no round was asked for: give a number from 1");
    let logs = target_dir().join("flake");
    fs::create_dir_all(&logs).with_context(|| format!("make `{}`", logs.display()))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failures: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut passed = 0;
    for round in 1..=rounds {
        let threads = if round % 2 == 0 { CROWD * cores } else { cores };
        let threads = format!("--test-threads={threads}");
        let mut tests = cargo(["test", "--locked", "--workspace", "--exclude", BURN, "--no-fail-fast"]);
        tests.args(["--lib", "--bins", "--tests", "--"]).arg(threads);
        println!("$ {}", shown(&tests));
        let output = tests.output().with_context(|| format!("start `{}`", shown(&tests)))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let results = Results::of(&text);
        passed += results.passed;
        println!("round {round} of {rounds}: {} passed, {} failed", results.passed, results.failed.len());
        if output.status.success() {
            continue;
        }
        let log = logs.join(format!("round-{round}.log"));
        fs::write(&log, [&output.stdout[..], &output.stderr].concat()).context("keep the round's output")?;
        if results.failed.is_empty() {
            bail!("round {round} ended with {} and no test failed, see `{}`", output.status, log.display());
        }
        results.failed.into_iter().for_each(|test| failures.entry(test).or_default().push(round));
    }
    if !failures.is_empty() {
        let line = |(test, failed): (&String, &Vec<u32>)| {
            format!("  {test}: {} of {rounds} rounds ({failed:?})", failed.len())
        };
        let lines: Vec<_> = failures.iter().map(line).collect();
        bail!("{} tests failed now and then, see `{}`:\n{}", failures.len(), logs.display(), lines.join("\n"));
    }
    Ok(format!("{rounds} rounds, {passed} tests passed, none failed"))
}

/// What `cargo test` printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    passed: u64,
    failed: Vec<String>,
}

impl Results {
    fn of(text: &str) -> Results {
        let mut results = Results::default();
        for test in text.lines().filter_map(|line| line.strip_prefix("test ")) {
            if let Some(name) = test.strip_suffix(" ... FAILED") {
                results.failed.push(name.to_owned());
            } else if test.ends_with(" ... ok") {
                results.passed += 1;
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::Results;

    #[test]
    fn failed_tests_are_named_and_others_counted() {
        let text = "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest a::d - should panic ... ok\n\
                    test result: FAILED. 2 passed; 1 failed;\n";
        assert_eq!(Results::of(text), Results { passed: 2, failed: vec!["a::c".to_owned()] });
    }
}
