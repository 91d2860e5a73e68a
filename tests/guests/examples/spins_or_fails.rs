//! Every run says `spinning` and computes for ever without a host call, but for one that passes over that: the worker of the index
//! given (default 1) sees that all others have begun, by a counter on the host's side, and returns an error.

use dchost_guest::{Result, WorkerContext, worker, worker_fn};
use dchost_test_guests::arg;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let failing = worker(arg(ctx, 0, 1));
    let begun = ctx.variable::<i64>("begun").on(worker(0)).declare()?;
    if ctx.task() == Some(failing) {
        begun.initialize(0)?;
        let others = i64::from(ctx.num_workers()) - 1;
        while begun.read()?.scalar() < others {
            thread::sleep(Duration::from_millis(5));
        }
        return Err("gone while the others compute".into());
    }
    if ctx.distributed_mode() {
        begun.wait_initialized(None)?;
        begun.add(1)?;
    }
    println!("spinning");
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}
