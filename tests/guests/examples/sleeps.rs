//! Sleeps for the number of milliseconds given (default an hour); says `sleeping` before and `awake` after.

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) {
    println!("sleeping");
    std::thread::sleep(Duration::from_millis(arg(ctx, 0, 3_600_000)));
    println!("awake");
}
