//! Waits for a variable that nobody initializes, and prints how that ends. Argument: a timeout in milliseconds (default none).

use dchost_guest::{Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let timeout = ctx.args().first().map(|_| Duration::from_millis(arg(ctx, 0, 0)));
    let never = ctx.variable::<f32>("never").declare()?;
    println!("waiting");
    let ended = never.wait_initialized(timeout);
    if let Err(error) = &ended {
        println!("waiting ended: {}", error.code);
    }
    ended
}
