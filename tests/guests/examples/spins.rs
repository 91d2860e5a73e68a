//! Computes for ever without a host call; says `spinning` first.

use dchost_guest::{WorkerContext, worker_fn};
use std::hint::black_box;

#[worker_fn]
fn train(_: &WorkerContext) {
    println!("spinning");
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}
