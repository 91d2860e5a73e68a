//! `dchost --module FILE`: runs this process's task.

use crate::cli;
use crate::config::{self, Environment};
use crate::exit::Exit;

/// Runs this process's task to its end.
///
/// # Errors
/// The configuration is refused ([`Faults`](crate::coordinator::resolve::Faults)), or not served by this version
/// ([`NotServed`](crate::coordinator::plan::NotServed)); both before anything is bound or started.
pub fn run(args: &cli::Run, environment: &Environment) -> anyhow::Result<Exit> {
    let config::RunConfig { resolved, listener: _ } = config::run(args, environment)?;
    for line in resolved.describe().lines() {
        tracing::debug!("{line}");
    }
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
    resolved.plan.check_served()?;
    anyhow::bail!("running a task is not wired in yet")
}
