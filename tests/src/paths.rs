//! Where the programs under test are.

use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// The dchost binary: `DCHOST_BIN`, else the one that was built beside this test.
///
/// # Errors
/// There is none; says how to build it.
pub fn dchost() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("DCHOST_BIN").map(PathBuf::from) {
        ensure!(path.is_file(), "DCHOST_BIN is `{}`, which is no file", path.display());
        return Ok(path);
    }
    // Tests run from target/PROFILE/deps/NAME-HASH.
    let test = std::env::current_exe().context("find this test's own path")?;
    let profile = test.ancestors().nth(2).context("find the folder above target/PROFILE/deps")?;
    let path = profile.join("dchost");
    ensure!(path.is_file(), "no dchost at `{}`, run `cargo build -p dchost` or set DCHOST_BIN", path.display());
    Ok(path)
}

/// The component of an example (`counter`) or a test guest (`worker_error`).
///
/// # Errors
/// It isn't built; says how to build it.
pub fn guest(name: &str) -> Result<PathBuf> {
    built(name, "guest")
}

/// The test guest `panics`, built with debug information.
///
/// # Errors
/// It isn't built; says how to build it.
pub fn guest_with_debug_info() -> Result<PathBuf> {
    built("panics", "guest-debug")
}

/// A Python with the packages of `tests/python/requirements.txt`.
///
/// # Errors
/// It isn't installed; says how to install it.
pub fn python() -> Result<PathBuf> {
    let path = target()?.join("test-venv/bin/python");
    ensure!(path.is_file(), "no Python at `{}`, run `cargo xtask python`", path.display());
    Ok(path)
}

fn built(name: &str, profile: &str) -> Result<PathBuf> {
    let folder = target()?.join("wasm32-wasip2").join(profile);
    let file = format!("{}.wasm", name.replace('-', "_"));
    let places = [folder.join(&file), folder.join("examples").join(&file)];
    let found = places.iter().find(|path| path.is_file());
    found.cloned().with_context(|| format!("no guest `{name}` in `{}`, run `cargo xtask guests`", folder.display()))
}

/// The folder that cargo builds into.
///
/// # Errors
/// This is no test that cargo built.
pub(crate) fn target() -> Result<PathBuf> {
    // Tests run from target/PROFILE/deps/NAME-HASH.
    let test = std::env::current_exe().context("find this test's own path")?;
    Ok(test.ancestors().nth(3).context("find the target folder")?.to_path_buf())
}
