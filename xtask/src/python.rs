//! `cargo xtask python`: a Python with the packages that tests read files with.

use crate::shell::{command, root, run as run_command, target_dir};
use anyhow::{Context as _, Result};
use std::fs;

/// What is installed, relative to the root.
const REQUIREMENTS: &str = "tests/python/requirements.txt";

/// Makes a virtual environment under the target directory, unless the one that is there has these packages.
///
/// # Errors
/// There is no `python3` with `venv`, or the packages can't be installed.
pub(crate) fn run() -> Result<()> {
    let venv = target_dir().join("test-venv");
    let wanted = fs::read(root().join(REQUIREMENTS)).context("read the list of packages")?;
    // Written last, so that it tells of what is whole.
    let installed = venv.join("requirements.txt");
    if fs::read(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    run_command(command("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
        "-r",
        REQUIREMENTS,
    ];
    run_command(command(venv.join("bin/python")).args(pip))?;
    fs::write(installed, wanted).context("note what is installed")
}
