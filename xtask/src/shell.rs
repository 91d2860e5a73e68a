//! Commands: where they run, what they inherit, how they fail.

use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the repository").to_path_buf()
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The host binary of the `dev` profile.
pub(crate) fn dchost_binary() -> PathBuf {
    target_dir().join("debug").join(format!("dchost{}", std::env::consts::EXE_SUFFIX))
}

/// A command in the repository's root.
///
/// What cargo sets for the package that it runs is taken away: a nested cargo would see it as a change and build anew.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO"
            || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// `cargo ARGS`.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = command("cargo");
    command.args(args);
    command
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Shows the command, runs it, and fails if it does.
///
/// # Errors
/// It cannot be started, or ends with anything but 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Like [`run`], and hands each line of the command's standard output to `line` after showing it.
///
/// # Errors
/// As [`run`], or its output cannot be read.
pub(crate) fn run_seeing(command: &mut Command, mut line: impl FnMut(&str)) -> Result<()> {
    println!("$ {}", shown(command));
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("start `{}`", shown(command)))?;
    let output = child.stdout.take().expect("stdout was asked for as a pipe");
    let mut reader = BufReader::new(output);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).context("read the command's output")? > 0 {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&bytes).context("show the command's output")?;
        stdout.flush().context("show the command's output")?;
        line(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    let status = child.wait().with_context(|| format!("wait for `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Whether the command can be started and succeeds; shows nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The command's standard output.
///
/// # Errors
/// It cannot be started, or ends with anything but 0.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", shown(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
