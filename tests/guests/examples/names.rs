//! Gives barriers and variables names that forge lines, turn the direction of text, or are very long, and prints how each is
//! answered: `barrier 0: invalid-argument`. Then fails with the last message, which quotes such a name.

use dchost_guest::{Result, WorkerContext, worker_fn};
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let long = "x".repeat(1 << 20);
    let names = [
        "",
        "nul\0byte",
        "line\nworker:1 | forged",
        "return\rover",
        "escape\x1b[2J",
        "csi\u{9b}2J",
        "turned\u{202e}txt.exe",
        "isolated\u{2066}x",
        "separated\u{2028}line",
        long.as_str(),
    ];
    let mut last = Ok(());
    for (index, name) in names.into_iter().enumerate() {
        let barrier = ctx.barrier(name, Some(Duration::from_millis(1)));
        println!(
            "barrier {index}: {}",
            barrier.as_ref().map_or_else(|error| error.code.to_string(), |()| "passed".to_owned())
        );
        let declared = ctx.variable::<f32>(name).shape([1]).declare().map(|_| ());
        println!(
            "variable {index}: {}",
            declared.as_ref().map_or_else(|error| error.code.to_string(), |()| "declared".to_owned())
        );
        if let Err(error) = &declared {
            println!("{}", error.message);
        }
        if index == 4 {
            last = declared;
        }
    }
    // The first who fails ends the others: everyone says all before.
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    }
    last
}
