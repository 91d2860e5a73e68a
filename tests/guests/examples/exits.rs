//! Exits the process with the number given (default 7), after a word on standard output.

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let code = arg(ctx, 0, 7);
    println!("exiting with {code}");
    std::process::exit(code);
}
