//! Prints what a terminal shouldn't get as it is: control characters, broken UTF-8, a long line, last words without newline.
//!
//! Arguments: the length of the long line in bytes (default none), then the number of further lines `line N` (default none).

use dchost_guest::{WorkerContext, debug, error, info, trace, warn, worker_fn};
use dchost_test_guests::arg;
use std::io::{self, Write};

#[worker_fn]
fn train(ctx: &WorkerContext) -> io::Result<()> {
    println!("plain stdout");
    eprintln!("plain stderr");
    println!("tab\there");
    println!("escape \x1b[31mred\x1b[0m bell \x07 return \rover csi \u{9b}2J null \0 end");
    io::stdout().write_all(b"broken \xff\xfe utf-8\n")?;
    println!("world: \u{4e16}\u{754c} override \u{202e} end");
    println!("ends\nworker:1 | forged on stdout");
    trace!(ctx, "log trace");
    debug!(ctx, "log debug");
    info!(ctx, "log info \x1b[2J");
    warn!(ctx, "log warn\nworker:1 | forged in a log");
    error!(ctx, "log error");
    let length: usize = arg(ctx, 0, 0);
    if length > 0 {
        println!("{}", "x".repeat(length));
    }
    for line in 0..arg(ctx, 1, 0_u64) {
        println!("line {line}");
    }
    eprint!("last words on stderr");
    print!("last words on stdout");
    io::stdout().flush()
}
