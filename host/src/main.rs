//! The `dchost` binary: parse, start tracing, run, exit code.

use dchost::cli::{Cli, Command, LogFormat};
use dchost::commands::{self, launch::LaunchError, status::NoStatus};
use dchost::config::{self, Environment, LogConfig};
use dchost::coordinator::console::LogOutput;
use dchost::coordinator::plan::NotServed;
use dchost::coordinator::resolve::Faults;
use dchost::exit::Exit;
use dchost::runtime::{EngineError, LoadError};
use dchost::text::escape_block;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            if !commands::plan::print_usage_error(&arguments, &error) {
                // Nobody is left to tell where that fails.
                let _ = error.print();
            }
            return code(if error.use_stderr() { Exit::Refused } else { Exit::Done });
        }
    };
    let environment = Environment::of_process();
    let (log, faults) = match config::log(&cli.log, &environment) {
        Ok(log) => (log, None),
        Err((log, faults)) => (log, Some(faults)),
    };
    let output = LogOutput::default();
    commands::logging::start(log, output.clone());
    let result = match (faults, &cli.command) {
        (Some(faults), _) => Err(faults.into()),
        (None, None) => commands::run::run(&cli.run, log, &output, &environment),
        (None, Some(Command::Launch(args))) => commands::launch::run(args, log, &environment),
        (None, Some(Command::Plan(args))) => commands::plan::run(args, &environment),
        (None, Some(Command::Inspect(args))) => commands::inspect::run(args, &environment),
        (None, Some(Command::Compile(args))) => commands::compile::run(args),
        (None, Some(Command::Status(args))) => commands::status::run(args, &environment),
        (None, Some(Command::New(args))) => commands::new::run(args),
    };
    code(result.unwrap_or_else(|error| {
        report(&error, log);
        let own = error.downcast_ref().map(LaunchError::exit);
        let own = own.or_else(|| error.downcast_ref().map(LoadError::exit));
        let own = own.or_else(|| error.downcast_ref().map(NoStatus::exit));
        match own {
            Some(exit) => exit,
            None if error.is::<Faults>() || error.is::<NotServed>() || error.is::<EngineError>() => Exit::Refused,
            // Standard output that can't be written, for instance.
            None if error.chain().any(|cause| cause.is::<std::io::Error>()) => Exit::Files,
            None => Exit::Bug,
        }
    }))
}

/// Tells an error and its causes, once.
fn report(error: &anyhow::Error, log: LogConfig) {
    match log.format {
        LogFormat::Text => {
            use std::io::Write as _;
            // Nobody is left to tell where that fails.
            let _ = writeln!(std::io::stderr(), "error: {}", escape_block(&format!("{error:#}")));
        }
        LogFormat::Json => tracing::error!("{error:#}"),
    }
}

fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit.code())
}
