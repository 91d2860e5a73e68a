//! `dchost save` and `dchost restore`: the variables of a running cluster in files, and back.

use super::print;
use crate::checkpoint::{self, CheckpointError, CheckpointOptions, RestoreReport, SaveReport};
use crate::cli;
use crate::cluster::list_tasks;
use crate::config::{self, Environment, StatusConfig};
use crate::exit::Exit;
use crate::text::{path, shown};
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long the end waits for files that are being written: a disk or a look-up of a name that hangs ends with the process.
const ENDING_MAX: Duration = Duration::from_secs(2);

/// Saves, and says what.
///
/// # Errors
/// The settings are refused; [`CheckpointError`]; standard output can't be written.
pub fn save(args: &cli::Checkpoint, environment: &Environment) -> anyhow::Result<Exit> {
    run(args, environment, async |options| {
        let report = checkpoint::save(&options).await?;
        for (task, why) in &report.left_out {
            tracing::warn!("{task} doesn't answer, and variables that lie on it are not saved: {why}");
        }
        for name in &report.mixed {
            tracing::warn!(
                "the parts of variable `{}` had different versions, somebody was changing it: save between steps",
                shown(name)
            );
        }
        Ok(saved_text(&report, &options.container, &args.dir))
    })
}

/// Restores, and says what.
///
/// # Errors
/// As [`save`].
pub fn restore(args: &cli::Checkpoint, environment: &Environment) -> anyhow::Result<Exit> {
    run(args, environment, async |options| {
        let report = checkpoint::restore(&options).await?;
        for (name, task) in &report.moved {
            tracing::warn!(
                "variable `{}` was placed on {task}, which this cluster lacks; it lies where it lies by itself",
                shown(name)
            );
        }
        Ok(restored_text(&report, &options.container, &args.dir))
    })
}

fn run(
    args: &cli::Checkpoint,
    environment: &Environment,
    work: impl AsyncFnOnce(CheckpointOptions) -> Result<String, CheckpointError>,
) -> anyhow::Result<Exit> {
    let StatusConfig { targets, container, connect_timeout, warnings } = config::checkpoint(args, environment)?;
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let address = targets.into_iter().next().map(|target| target.address).unwrap_or_default();
    let options = CheckpointOptions { container, connect_timeout, ..CheckpointOptions::new(address, &args.dir) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            text = work(options) => {
                print(&text?)?;
                Ok(Exit::Done)
            }
            _ = interrupt.recv() => Ok(Exit::Interrupted),
            _ = terminate.recv() => Ok(Exit::Terminated),
        }
    });
    // The thread that writes removes what was begun, once it hears that nothing more comes.
    runtime.shutdown_timeout(ENDING_MAX);
    result
}

fn variables(count: usize, with_slots: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    match with_slots {
        0 => format!("{count} variable{plural}"),
        slots => format!("{count} variable{plural}, {slots} with what an optimizer keeps"),
    }
}

fn saved_text(report: &SaveReport, container: &str, dir: &Path) -> String {
    let SaveReport { files, bytes, tasks, .. } = report;
    format!(
        "saved `{}` of {}: {}\n  {files} files, {bytes} bytes, in {}\n",
        shown(container),
        list_tasks(tasks),
        variables(report.variables, report.with_slots),
        path(dir),
    )
}

fn restored_text(report: &RestoreReport, container: &str, dir: &Path) -> String {
    let RestoreReport { bytes, tasks, sharded, .. } = report;
    let parts = if *sharded > 0 { format!(", {sharded} in parts") } else { String::new() };
    format!(
        "restored `{}` on {}: {}\n  {bytes} bytes{parts}, from {}\n",
        shown(container),
        list_tasks(tasks),
        variables(report.variables, report.with_slots),
        path(dir),
    )
}
