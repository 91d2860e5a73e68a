//! The `dchost` binary: parse, start tracing, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::SUCCESS
}
