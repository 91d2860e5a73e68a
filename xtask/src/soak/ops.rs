//! An op with half a gigabyte of results: what it costs in memory, and whom it delays.

use crate::shell::{cargo, shown};
use anyhow::{Context as _, Result, bail};
use std::io::Write as _;

/// Bytes of the results.
const RESULT_BYTES: u64 = 500_000_000;

/// The scenario of a large result.
const TEST: &str = "ops::a_result_of_200_megabytes_is_taken_whole_and_delays_nobody";

/// Runs the scenario of a large result with a larger one, and tells what it measured.
///
/// # Errors
/// It fails; its output is shown.
pub(super) fn run() -> Result<String> {
    let mut test =
        cargo(["test", "--locked", "-p", "dchost-tests", "--test", "scenarios", "--", "--nocapture", "--exact", TEST]);
    test.env("DCHOST_TESTS_RESULT_BYTES", RESULT_BYTES.to_string());
    println!("$ {}", shown(&test));
    let output = test.output().with_context(|| format!("start `{}`", shown(&test)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.lines().find(|line| line.starts_with(&RESULT_BYTES.to_string()));
    match told.filter(|_| output.status.success()) {
        Some(told) => Ok(told.to_owned()),
        None => {
            std::io::stderr().write_all(&output.stdout).context("show the test's output")?;
            std::io::stderr().write_all(&output.stderr).context("show the test's output")?;
            bail!("`{TEST}` ended with {}", output.status)
        }
    }
}
