//! Variables and the barrier over loopback: dchost, what the machine can do at best, and others, asked in turn in one run.
//!
//! What is asked is a [`Question`](question::Question), who answers a [`Lane`](lane::Lane): mostly a process that stays, and in any
//! case one whose server is another process. A pass puts every question to every lane, three times in turn, and keeps the median;
//! so a busy moment of the machine hits all alike. Tables show the best pass and the median one, and which goals hold for both.
//! README.md beside this folder says how to run it and what came out.
//!
//! | file | what |
//! | --- | --- |
//! | `question` | what is asked |
//! | `lane` | who answers: a process, or one started for each question |
//! | `limits` | a C program: plain TCP |
//! | `others` | TensorFlow, PyTorch, JAX, Open MPI |
//! | `host` | dchost's own API: variables, with `roles` for the processes |
//! | `barrier` | dchost's own API: the barrier |
//! | `plain`, `plain_barrier` | tonic with the same settings, and nothing of dchost behind it |
//! | `guest` | the program `dchost`, as a `worker_fn` sees it |
//! | `memory` | what a push takes of the server's memory |
//! | `figures`, `goals` | what came out |

mod barrier;
mod figures;
mod goals;
mod guest;
mod host;
mod lane;
mod limits;
#[path = "../machine/mod.rs"]
mod machine;
mod memory;
mod others;
mod plain;
mod plain_barrier;
#[path = "../plain/mod.rs"]
mod plain_server;
mod question;
mod roles;

use clap::Parser;
use figures::Figures;
use lane::Lane;
use question::{Bounds, PARTS, Question};
use std::path::PathBuf;

/// Measures dchost, limits of this machine and others in turn.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often everything is measured.
    #[arg(long, value_name = "N", default_value_t = 5)]
    passes: usize,
    /// What is measured: push, pull, barrier, workers, many, memory.
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = PARTS)]
    parts: Vec<String>,
    /// Lanes that are asked, by the first words of their names. Default: all that are installed.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    lanes: Vec<String>,
    /// A directory with virtual environments `tf`, `torch`, `jax` and `mpi`; PYTHON_TF and so on name an interpreter each.
    #[arg(long, value_name = "DIR")]
    venv: Option<PathBuf>,
    /// How long a question about variables is measured, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    seconds: f64,
    /// Rounds of a question about a barrier.
    #[arg(long, value_name = "N", default_value_t = 600)]
    rounds: usize,
    /// Where the figures of all passes are written too, one line each.
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
    /// What cargo says.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How often a question is put in a pass; the median counts.
const TIMES: usize = 3;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` asks for a list of tests: there are none.
    if args.iter().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    if let [role, args @ ..] = args.as_slice()
        && role == roles::ROLE
    {
        return roles::play(args);
    }
    let arguments = Arguments::parse();
    println!("{}", machine::description());
    let questions: Vec<Question> = Question::all()
        .into_iter()
        .filter(|question| arguments.parts.is_empty() || arguments.parts.iter().any(|part| part == question.part()))
        .collect();
    let bounds = Bounds { seconds: arguments.seconds, rounds: arguments.rounds };
    let figures = measure(&arguments, &questions, &mut lanes(&arguments, bounds));
    println!("{}", machine::description());
    figures.print_tables();
    goals::print(&figures);
    if let Some(path) = &arguments.raw {
        std::fs::write(path, figures.raw()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn lanes(arguments: &Arguments, bounds: Bounds) -> Vec<Box<dyn Lane>> {
    let mut lanes = vec![limits::lane(bounds), host::lane(bounds), guest::lane(bounds), plain::lane(bounds)];
    lanes.extend([host::RELAXED, host::GRPC].map(|way| host::way(way, bounds)));
    lanes.extend(others::lanes(arguments.venv.as_deref(), bounds));
    let wanted = |name: &str| arguments.lanes.is_empty() || arguments.lanes.iter().any(|lane| name.starts_with(lane));
    lanes.retain(|lane| wanted(lane.name()));
    lanes
}

fn measure(arguments: &Arguments, questions: &[Question], lanes: &mut [Box<dyn Lane>]) -> Figures {
    let mut figures = Figures::default();
    for pass in 1..=arguments.passes {
        eprintln!("pass {pass} of {}, {}", arguments.passes, machine::description());
        for &question in questions {
            let mut answers: Vec<Vec<f64>> = vec![Vec::new(); lanes.len()];
            for _ in 0..TIMES {
                for (lane, answers) in lanes.iter_mut().zip(&mut answers).filter(|(lane, _)| lane.knows(question)) {
                    answers.extend(lane.ask(question));
                }
            }
            for (lane, answers) in lanes.iter().zip(answers).filter(|(lane, _)| lane.knows(question)) {
                figures.add(lane.name(), question, answers);
            }
        }
    }
    figures
}
