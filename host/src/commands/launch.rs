//! `dchost launch`: a whole cluster on this machine, one process for each task.

use crate::cli;
use crate::config::{self, Environment, LogConfig};
use crate::exit::Exit;

/// Runs a whole cluster to its end.
///
/// # Errors
/// The configuration is refused ([`Faults`](crate::coordinator::resolve::Faults)), before anything is bound or started.
pub fn run(args: &cli::Launch, log: LogConfig, environment: &Environment) -> anyhow::Result<Exit> {
    let _ = (config::launch(args, environment)?, log);
    anyhow::bail!("launching is not wired in yet")
}
