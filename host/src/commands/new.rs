//! `dchost new`: writes a crate with a first worker_fn, a native test and a README.

use crate::cli;
use crate::exit::Exit;

/// Writes the crate.
///
/// # Errors
/// The directory is not empty or can't be written.
pub fn run(args: &cli::New) -> anyhow::Result<Exit> {
    anyhow::bail!("`{}` can't be written: writing crates is not wired in yet", args.path.display())
}
