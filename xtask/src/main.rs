//! Tasks of this repository: `cargo xtask guests|python|demo|test|soak`.
//!
//! Everything that takes more than one command to do right is here, so that a developer's machine and CI do the same.

mod demo;
mod guests;
mod python;
mod shell;
mod soak;
mod steps;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  guests              build the example and test components (wasm32-wasip2, profile `guest`)
  python              install the Python packages that tests read checkpoints with, under the target directory
  demo                build everything and train the digits example on a cluster of this machine
  test                all that CI runs: fmt, guests, python, clippy, doc, tests, doctests, deny
  soak [PART...]      long checks, all of them without PART: counter [RUNS], digits, client, ops, clusters [COUNT] (of five
                      tasks), flake [ROUNDS] (every test so often), fuzz [SECONDS] (each target so long; needs nightly and
                      cargo-fuzz)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["guests"] => guests::run(),
        ["python"] => python::run(),
        ["demo"] => demo::run(),
        ["test"] => test::run(),
        ["soak", parts @ ..] => soak::run(parts),
        ["-h" | "--help" | "help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("error: unknown task `{}`\n\n{USAGE}", other.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
