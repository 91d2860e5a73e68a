//! Clusters one after another, as a test suite starts them: no port may be lost between choosing and binding it.

use crate::shell::{cargo, run as run_command};
use anyhow::{Result, ensure};

/// How many where the command line does not say.
pub(super) const CLUSTERS: u32 = 100;

/// The scenario, and the variable that says how many clusters it starts.
const SCENARIO: (&str, &str) = ("networks::clusters_of_five_follow_each_other", "SCENARIO_CLUSTERS");

/// Starts `count` clusters of five tasks.
///
/// # Errors
/// One that doesn't end well, with the output of all its tasks.
pub(super) fn run(count: u32) -> Result<String> {
    ensure!(count > 0, "no cluster was asked for: give a number from 1");
    let (scenario, variable) = SCENARIO;
    let mut test = cargo(["test", "--locked", "-p", "dchost-tests", "--test", "scenarios", "--", "--exact", scenario]);
    run_command(test.env(variable, count.to_string()))?;
    Ok(format!("{count} clusters of five tasks, each ended well"))
}
