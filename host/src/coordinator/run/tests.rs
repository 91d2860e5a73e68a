//! Where a run may not be started.

use super::*;
use crate::cli::Cli;
use crate::config::{Environment, run_settings};
use crate::coordinator::console::{ConsoleOptions, LineFormat};
use crate::coordinator::resolve::{Purpose, resolve};
use crate::handles::Level;
use clap::Parser as _;

/// Runs a module that isn't there: who gets as far as to load it is refused with 2.
fn run_missing() -> Outcome {
    let cli = Cli::try_parse_from(["dchost", "--module", "no/such.wasm"]).expect("parses");
    let settings = run_settings(&cli.run, &Environment::default(), None);
    let resolved = resolve(&settings, Purpose::Run).expect("resolves");
    let console = ProcessConsole::new(ConsoleOptions {
        task: None,
        format: LineFormat::Text,
        launched: false,
        level: Level::Info,
        color: false,
    });
    run(resolved, None, console)
}

#[track_caller]
fn check_refused(outcome: &Outcome) {
    assert_eq!(outcome.exit, Exit::Bug);
    let message = outcome.message.as_deref().expect("a failure");
    assert!(message.contains("within a tokio runtime") && message.contains("std::thread::spawn"), "{message}");
}

#[tokio::test]
async fn a_run_within_a_current_thread_runtime_is_refused_before_anything_is_started() {
    check_refused(&run_missing());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_within_a_multi_thread_runtime_is_refused_before_anything_is_started() {
    check_refused(&run_missing());
    let spawned = tokio::spawn(async { run_missing() }).await.expect("no panic");
    check_refused(&spawned);
}

#[test]
fn a_run_on_a_thread_of_its_own_begins() {
    let outcome = std::thread::spawn(run_missing).join().expect("no panic");
    assert_eq!(outcome.exit, Exit::Refused, "{outcome:?}");
}
