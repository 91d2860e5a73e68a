//! `cargo xtask test`: everything that CI runs.
//!
//! The order keeps dependencies from being built twice: guests and the guests' clippy share the profile `guest`; clippy
//! and doc share cargo's check artifacts; tests and doctests share the `dev` ones. Warnings are made errors behind `--`
//! and in `RUSTDOCFLAGS`, never in `RUSTFLAGS`, which would build every dependency anew.

use crate::guests::{self, BURN, EXAMPLES, TARGET, TEST_GUESTS, packages};
use crate::python;
use crate::shell::{cargo, run as run_command, run_seeing, succeeds};
use crate::steps::Steps;
use anyhow::{Result, ensure};
use std::process::Command;

/// Runs all steps and stops at the first that fails.
///
/// # Errors
/// The failing step's.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    let mut total = Count::default();
    steps.step("fmt", || quiet(&mut cargo(["fmt", "--all", "--check"])))?;
    steps.step("guests", || guests::run().map(|()| String::new()))?;
    steps.step("python", || python::run().map(|()| String::new()))?;
    steps.step("clippy", || {
        let fixed = ["clippy", "--locked", "--workspace", "--exclude", BURN, "--all-targets", "--", "-D", "warnings"];
        quiet(&mut cargo(fixed))
    })?;
    steps.step("clippy (wasm)", || {
        let fixed = ["clippy", "--locked", "--profile", "guest", "--target", TARGET, "--lib", "--examples"];
        let names = packages(EXAMPLES.into_iter().chain([BURN, TEST_GUESTS, "dchost-guest"]));
        quiet(&mut cargo(fixed.into_iter().chain(names).chain(["--", "-D", "warnings"])))
    })?;
    steps.step("doc", || {
        quiet(
            cargo(["doc", "--locked", "--workspace", "--exclude", BURN, "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })?;
    for (name, kinds) in [("tests", &["--lib", "--bins", "--tests"][..]), ("doctests", &["--doc"][..])] {
        steps.step(name, || {
            let fixed = ["test", "--locked", "--workspace", "--exclude", BURN, "--no-fail-fast"];
            let count = count_tests(&mut cargo(fixed.into_iter().chain(kinds.iter().copied())))?;
            total.add(count);
            Ok(format!("{} tests", count.passed))
        })?;
    }
    steps.step(BURN, || {
        let count = count_tests(&mut cargo(["test", "--locked", "--package", BURN]))?;
        total.add(count);
        Ok(format!("{} tests", count.passed))
    })?;
    steps.step("deny", deny)?;
    steps.summary();
    println!("{} tests passed", total.passed);
    Ok(())
}

fn quiet(command: &mut Command) -> Result<String> {
    run_command(command).map(|()| String::new())
}

/// Licences, sources and bans of dependencies, where the tool is installed.
///
/// Advisories are left out: they come from the network and change without a change here.
fn deny() -> Result<String> {
    if succeeds(&mut cargo(["deny", "--version"])) {
        quiet(&mut cargo(["deny", "--locked", "check", "bans", "licenses", "sources"]))
    } else {
        println!("SKIPPED: cargo-deny is not installed (`cargo install --locked cargo-deny`)");
        Ok("SKIPPED: cargo-deny is not installed".to_owned())
    }
}

/// How many tests ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    ignored: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.ignored += other.ignored;
    }
}

/// Runs `cargo test ...` and adds up what each test binary says.
fn count_tests(command: &mut Command) -> Result<Count> {
    let mut count = Count::default();
    run_seeing(command, |line| count.add(result_line(line)))?;
    ensure!(count.passed > 0, "no test ran: the output of `cargo test` was not understood or tests are gone");
    ensure!(count.ignored == 0, "{} tests are ignored: assert what happens today instead, with a note", count.ignored);
    Ok(count)
}

/// The numbers of a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; ...`; zeros for every other line.
fn result_line(line: &str) -> Count {
    let Some(rest) = line.strip_prefix("test result: ") else { return Count::default() };
    let number = |word: &str| {
        let part = rest.split(['.', ';']).map(str::trim).find(|part| part.ends_with(word));
        part.and_then(|part| part.split(' ').next()?.parse().ok()).unwrap_or(0)
    };
    Count { passed: number(" passed"), ignored: number(" ignored") }
}

#[cfg(test)]
mod tests {
    use super::{Count, result_line};

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        assert_eq!(result_line(line), Count { passed: 12, ignored: 1 });
        assert_eq!(result_line("test a::b ... ok"), Count::default());
        assert_eq!(result_line("5 passed"), Count::default());
    }
}
