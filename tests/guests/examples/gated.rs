//! Every run adds 1 to the variable `kept` of `ps:0`, which the chief makes where it isn't there, and all read it. Then each
//! says `at the gate` and waits until a file is there (the first argument; none: it doesn't wait), and reads it once more.
//! A second argument is what the first attempt does behind the gate: `error`, or `panic`.

use dchost_guest::{Change, Result, WorkerContext, ps, worker_fn};
use dchost_test_guests::arg;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let kept = ctx.variable::<f32>("kept").on(ps(0)).declare()?;
    let found = if ctx.is_chief() && ctx.uninitialized([&kept])?.is_empty() { "something" } else { "nothing" };
    if ctx.is_chief() {
        ctx.initialize_if_absent([Change::assign(&kept, 0.0)])?;
    }
    meet(ctx)?;
    kept.add(1.0)?;
    meet(ctx)?;
    println!("attempt {} found {found}, kept {}", ctx.attempt(), kept.read()?.scalar());
    if let Some(gate) = ctx.args().first().map(PathBuf::from) {
        println!("at the gate");
        while !gate.exists() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    println!("kept {} in the end, one of {} workers", kept.read()?.scalar(), ctx.num_workers());
    match arg(ctx, 1, String::new()).as_str() {
        "error" if ctx.attempt() == 0 => Err("lost behind the gate".into()),
        "panic" if ctx.attempt() == 0 => panic!("lost behind the gate"),
        _ => Ok(()),
    }
}

fn meet(ctx: &WorkerContext) -> Result<()> {
    if ctx.has_barrier() { ctx.wait_for_other_workers() } else { Ok(()) }
}
