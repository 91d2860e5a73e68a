//! The subcommands, one file each.

use crate::coordinator::console::Patient;
use anyhow::Context as _;
use std::io::{self, Write as _};

pub mod checkpoint;
pub mod compile;
pub mod inspect;
pub mod launch;
pub mod logging;
pub mod new;
pub mod plan;
pub mod run;
pub mod status;
mod table;

/// Writes a command's answer to standard output, all of it. A reader that has gone has seen enough.
///
/// # Errors
/// It can't be written (a full disk): exit 74.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = Patient(io::stdout().lock());
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    unless_reader_gone(written).context("write to standard output")
}

/// Writes a command's answer as one line of JSON, without raw control characters. Otherwise as [`print()`].
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print(&format!("{}\n", crate::text::escaped_json(&value.to_string())))
}

/// Shows what clap has to say: help and the version on standard output, usage errors on standard error.
///
/// # Errors
/// What was asked for can't be written, as for [`print()`]. Of a usage error that can't be told, the exit code tells.
pub fn print_clap(error: &clap::Error) -> anyhow::Result<()> {
    let written = error.print();
    if error.use_stderr() { Ok(()) } else { unless_reader_gone(written).context("write to standard output") }
}

fn unless_reader_gone(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
