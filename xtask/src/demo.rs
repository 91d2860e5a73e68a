//! `cargo xtask demo`: a cluster of this machine trains the digits example.

use crate::guests;
use crate::shell::{cargo, command, dchost_binary, run as run_command, run_seeing};
use crate::steps::Steps;
use anyhow::{Context as _, Result};

/// What the digits example prints last.
pub(crate) const ACCURACY: &str = "held-out accuracy ";

/// Builds the host and the examples, trains, and ends with the held-out accuracy.
///
/// The host is built in the `dev` profile: its dependencies, where the time goes, are optimised there too, and are the
/// ones that tests use, so that neither the demo nor a later `cargo xtask test` builds Cranelift and tonic a second time.
///
/// # Errors
/// A build or the training fails, or no accuracy was printed.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    let mut accuracy = None;
    steps.step("guests", || guests::examples().map(|()| String::new()))?;
    steps.step("host", || build_host().map(|()| String::new()))?;
    steps.step("train", || {
        let mut launch = command(dchost_binary());
        launch.args(["launch", "--workers", "2", "--ps", "2", "--evaluator"]);
        launch.arg("--module").arg(guests::example("digits"));
        launch.args(["--dir", "examples/data::/data:ro", "--", "--epochs", "20"]);
        run_seeing(&mut launch, |line| accuracy = accuracy_in(line).or(accuracy))?;
        Ok("2 workers, 2 ps, 1 evaluator".to_owned())
    })?;
    steps.summary();
    let accuracy = accuracy.with_context(|| format!("training ended without a line `{ACCURACY}...`"))?;
    println!("\n{ACCURACY}{accuracy:.1} %");
    Ok(())
}

/// Builds the host binary for use, with the features that tests build it with.
pub(crate) fn build_host() -> Result<()> {
    run_command(&mut cargo(["build", "--locked", "--package", "dchost", "--bin", "dchost"]))
}

/// The percentage in a line that carries one.
pub(crate) fn accuracy_in(line: &str) -> Option<f64> {
    let (_, rest) = line.rsplit_once(ACCURACY)?;
    rest.split_whitespace().next()?.trim_end_matches('%').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::accuracy_in;

    #[test]
    fn accuracy_is_read_behind_a_task_prefix() {
        assert_eq!(accuracy_in("evaluator:0 | held-out accuracy 97.2 %"), Some(97.2));
        assert_eq!(accuracy_in("held-out accuracy 98.05%"), Some(98.05));
        assert_eq!(accuracy_in("accuracy 98.05%"), None);
        assert_eq!(accuracy_in("held-out accuracy unknown"), None);
    }
}
