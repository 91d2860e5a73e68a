//! Tries to start a thread, in the two ways that Rust has, and tells how that fails.

use dchost_guest::{WorkerContext, worker_fn};
use std::thread;

#[worker_fn]
fn train(_: &WorkerContext) -> Result<(), String> {
    match thread::Builder::new().spawn(|| println!("another thread")) {
        Ok(_) => return Err("a thread was started".to_owned()),
        Err(error) => println!("no thread: {:?}", error.kind()),
    }
    println!("parallelism {:?}", thread::available_parallelism().map_err(|error| error.kind()));
    // The way that most code takes, which panics.
    thread::spawn(|| println!("another thread"));
    Err("a thread was started".to_owned())
}
