//! `cargo xtask guests`: components of the examples and of the tests.

use crate::shell::{cargo, command, output, run as run_command, succeeds, target_dir};
use anyhow::{Result, bail};
use std::path::PathBuf;

/// The target that makes components.
pub(crate) const TARGET: &str = "wasm32-wasip2";

/// The examples that are components.
pub(crate) const EXAMPLES: [&str; 6] = ["hello", "counter", "digits", "embeddings", "in-graph", "map-reduce"];

/// The example with the dependencies of `burn`. They take minutes to build, and more features of crates that wasmtime uses
/// too: built natively along with the host it would have Cranelift built a second time.
pub(crate) const BURN: &str = "burn-digits";

/// The package whose cargo examples are small components for tests.
pub(crate) const TEST_GUESTS: &str = "dchost-test-guests";

/// Builds every component.
///
/// # Errors
/// The target cannot be installed, or the build fails.
pub(crate) fn run() -> Result<()> {
    ensure_target()?;
    build(EXAMPLES.into_iter().chain([BURN, TEST_GUESTS]))?;
    // One with debug information, for what a trap report shows of it.
    let fixed = ["build", "--locked", "--profile", "guest-debug", "--target", TARGET, "--package", TEST_GUESTS];
    run_command(&mut cargo(fixed.into_iter().chain(["--example", "panics"])))
}

/// Builds the examples only, but for [`BURN`].
///
/// # Errors
/// As [`run`].
pub(crate) fn examples() -> Result<()> {
    ensure_target()?;
    build(EXAMPLES)
}

/// The component of an example.
pub(crate) fn example(name: &str) -> PathBuf {
    target_dir().join(TARGET).join("guest").join(format!("{name}.wasm"))
}

/// The arguments that select packages by name.
pub(crate) fn packages<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    names.into_iter().flat_map(|name| ["--package", name])
}

/// One cargo call, so that dependencies are built once.
fn build<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let fixed = ["build", "--locked", "--profile", "guest", "--target", TARGET, "--lib", "--examples"];
    run_command(&mut cargo(fixed.into_iter().chain(packages(names))))
}

/// Installs the target where the toolchain lacks it.
///
/// # Errors
/// It is missing and there is no rustup, or rustup fails.
pub(crate) fn ensure_target() -> Result<()> {
    let libdir = output(command("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    if PathBuf::from(libdir.trim()).is_dir() {
        return Ok(());
    }
    if !succeeds(command("rustup").arg("--version")) {
        bail!(
            "the Rust target `{TARGET}` is missing and there is no rustup to add it: install it as your toolchain does"
        );
    }
    run_command(command("rustup").args(["target", "add", TARGET]))
}
