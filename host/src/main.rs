//! The `dchost` binary: parse, start tracing, run, exit code.

use anyhow::Context as _;
use dchost::checkpoint::CheckpointError;
use dchost::cli::{Cli, Command, LogFormat};
use dchost::commands::{self, launch::LaunchError, new::NewError, status::NoStatus};
use dchost::config::{self, Environment};
use dchost::coordinator::console::{LogOutput, Patient};
use dchost::coordinator::resolve::Faults;
use dchost::exit::Exit;
use dchost::files;
use dchost::runtime::{EngineError, LoadError};
use dchost::text::escape_block;
use std::process::ExitCode;

fn main() -> ExitCode {
    // First: help goes to files as well.
    let signals_taken = files::survive_size_limit();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let told = commands::plan::print_usage_error(&arguments, &error);
            return match if told { Ok(()) } else { commands::print_clap(&error) } {
                Ok(()) => code(if error.use_stderr() { Exit::Refused } else { Exit::Done }),
                Err(error) => {
                    report(&error, LogFormat::Text);
                    code(Exit::Files)
                }
            };
        }
    };
    let environment = Environment::of_process();
    let (log, faults) = match config::log(&cli.log, &environment) {
        Ok(log) => (log, None),
        Err((log, faults)) => (log, Some(faults)),
    };
    let output = LogOutput::default();
    commands::logging::start(log, output.clone());
    let ready = match faults {
        Some(faults) => Err(faults.into()),
        None => signals_taken.context("can't take signals"),
    };
    let result = ready.and_then(|()| match &cli.command {
        None => commands::run::run(&cli.run, log, &output, &environment),
        Some(Command::Launch(args)) => commands::launch::run(args, log, &environment),
        Some(Command::Plan(args)) => commands::plan::run(args, &environment),
        Some(Command::Inspect(args)) => commands::inspect::run(args, &environment),
        Some(Command::Compile(args)) => commands::compile::run(args, &environment),
        Some(Command::Status(args)) => commands::status::run(args, &environment),
        Some(Command::Save(args)) => commands::checkpoint::save(args, &environment),
        Some(Command::Restore(args)) => commands::checkpoint::restore(args, &environment),
        Some(Command::New(args)) => commands::new::run(args),
    });
    code(result.unwrap_or_else(|error| {
        report(&error, log.format);
        let known = (error.downcast_ref::<LaunchError>().map(LaunchError::exit))
            .or_else(|| error.downcast_ref::<LoadError>().map(LoadError::exit))
            .or_else(|| error.downcast_ref::<EngineError>().map(EngineError::exit))
            .or_else(|| error.downcast_ref::<NoStatus>().map(NoStatus::exit))
            .or_else(|| error.downcast_ref::<CheckpointError>().map(CheckpointError::exit))
            .or_else(|| error.downcast_ref::<NewError>().map(NewError::exit));
        match known {
            Some(exit) => exit,
            None if error.is::<Faults>() => Exit::Refused,
            // Standard output that can't be written, for instance.
            None if error.chain().any(|cause| cause.is::<std::io::Error>()) => Exit::Files,
            None => Exit::Bug,
        }
    }))
}

/// Tells an error and its causes, once.
fn report(error: &anyhow::Error, format: LogFormat) {
    match format {
        LogFormat::Text => {
            use std::io::Write as _;
            // Nobody is left to tell where that fails.
            let _ = writeln!(Patient(std::io::stderr()), "error: {}", escape_block(&format!("{error:#}")));
        }
        LogFormat::Json => tracing::error!("{error:#}"),
    }
}

fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit.code())
}
