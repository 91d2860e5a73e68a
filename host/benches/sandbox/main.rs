//! What the sandbox costs, and what each of the engine's settings has in it.
//!
//! Every figure is a ratio of things measured in turn in the same run: passes alternate between all of them, so that the
//! machine's mood hits all alike. Tables show the median of all passes, and the best pass. README.md beside this folder says how
//! to run it and what came out. `cargo bench -p dchost --bench sandbox -- calls` runs one part.

mod barrier;
mod calls;
mod fakes;
mod guests;
mod kernels;
#[path = "../machine/mod.rs"]
mod machine;
mod matmul;
mod measure;
mod memory;
mod ops;
#[path = "../plain/mod.rs"]
mod plain;
mod process;
mod rig;
mod start;
mod tensors;

/// The parts, in the order in which they run.
const PARTS: [(&str, fn()); 9] = [
    ("calls", calls::run),
    ("tensors", tensors::run),
    ("matmul", matmul::run),
    ("kernels", kernels::run),
    ("start", start::run),
    ("memory", memory::run),
    ("process", process::run),
    ("barrier", barrier::run),
    ("ops", ops::run),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` asks for a list of tests: there are none.
    if args.iter().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    if args.first().is_some_and(|first| first == memory::CHILD) {
        return memory::child(&args[1..]);
    }
    let wanted: Vec<&str> = args.iter().map(String::as_str).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|wanted| !PARTS.iter().any(|(part, _)| part == *wanted)) {
        let parts: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
        eprintln!("unknown part `{unknown}`: there are {}", parts.join(", "));
        std::process::exit(2);
    }
    println!("{}", machine::description());
    for (part, run) in PARTS {
        if wanted.is_empty() || wanted.contains(&part) {
            println!("\n## {part}\n");
            run();
        }
    }
    println!("\n{}", machine::description());
}
