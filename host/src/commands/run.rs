//! `dchost --module FILE`: runs this process's task.

use crate::cli::{self, LogFormat};
use crate::config::{self, Environment, LogConfig};
use crate::coordinator::console::{ConsoleOptions, LineFormat, LogOutput, ProcessConsole};
use crate::coordinator::descriptors;
use crate::coordinator::embed::Coordinator;
use crate::coordinator::siblings::CLIENT;
use crate::exit::Exit;
use crate::handles::Level;
use std::time::Duration;

/// How long the last lines may take to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(400);

/// Runs this process's task to its end, and tells how it ended.
///
/// From when the task is known on, the log goes through the process's console.
///
/// # Errors
/// The configuration is refused ([`Faults`](crate::coordinator::resolve::Faults)), before anything is bound or started.
pub fn run(args: &cli::Run, log: LogConfig, output: &LogOutput, environment: &Environment) -> anyhow::Result<Exit> {
    let config::RunConfig { resolved, listener } = config::run(args, environment)?;
    let console = ProcessConsole::new(ConsoleOptions {
        task: resolved.task.or_else(|| resolved.plan.is_client().then_some(CLIENT)),
        format: match log.format {
            LogFormat::Text => LineFormat::Text,
            LogFormat::Json => LineFormat::Json,
        },
        launched: resolved.launched,
        level: match log.verbose {
            0 => Level::Info,
            1 => Level::Debug,
            _ => Level::Trace,
        },
    });
    output.attach(&console);
    // What worked out differently than meant shows here; the defaults are for who asks.
    // Under `dchost launch` its command line says the same, once.
    if resolved.launched {
        tracing::debug!("configuration: {}", resolved.describe_given());
    } else {
        tracing::info!("configuration: {}", resolved.describe_given());
    }
    for line in resolved.describe().lines() {
        tracing::debug!("{line}");
    }
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
    let launched = resolved.launched;
    descriptors::raise();
    let coordinator = Coordinator::resolved(resolved, listener)
        .with_consoles(console.clone())
        .with_output(console.screen().clone())
        .with_signals();
    let outcome = coordinator.run_blocking().outcome;
    match &outcome.message {
        // `dchost launch` says itself whom it ended, and why.
        Some(message) if launched && outcome.exit == Exit::Terminated => {
            message.lines().for_each(|line| tracing::info!("{line}"));
        }
        Some(message) => console.error(message),
        None => {}
    }
    console.flush(FLUSH_TIMEOUT);
    match console.screen().lost() {
        // What the guest printed may be all that the run was for. A failure of the run's own comes first, and its loss was
        // logged when it happened.
        Some(lost) if outcome.exit == Exit::Done => {
            console.error(&lost.to_string());
            console.flush(FLUSH_TIMEOUT);
            Ok(Exit::Files)
        }
        _ => Ok(outcome.exit),
    }
}
