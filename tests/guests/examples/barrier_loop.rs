//! Waits at a barrier many times. Arguments: how often (default 100), the barrier's name (default, or `-`, that of
//! `wait_for_other_workers`, which takes no timeout), and a timeout in milliseconds (default none).

use dchost_guest::{Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let rounds: u32 = arg(ctx, 0, 100);
    let name: String = arg(ctx, 1, "-".to_owned());
    let timeout = ctx.args().get(2).map(|_| Duration::from_millis(arg(ctx, 2, 0)));
    for _ in 0..rounds {
        if name == "-" {
            ctx.wait_for_other_workers()?;
        } else {
            ctx.barrier(&name, timeout)?;
        }
    }
    println!("passed {rounds} barriers");
    Ok(())
}
