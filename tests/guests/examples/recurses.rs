//! Calls itself until the stack is exhausted. Argument: `wasm` (default; the engine's stack) or `shadow` (large frames in
//! linear memory, where Rust keeps what it takes the address of).

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::hint::black_box;

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let kind: String = arg(ctx, 0, "wasm".to_owned());
    println!("recursing");
    let depth = if kind == "shadow" { deep_frames(0) } else { plain_frames(0) };
    println!("came back from {depth}");
}

#[inline(never)]
fn plain_frames(depth: u64) -> u64 {
    if black_box(depth) == u64::MAX {
        return depth;
    }
    // Uses the answer, so that the call can't become a loop.
    black_box(plain_frames(depth + 1)).rotate_left(1)
}

#[inline(never)]
fn deep_frames(depth: u64) -> u64 {
    let frame = black_box([depth; 1024]);
    if black_box(depth) == u64::MAX {
        return depth;
    }
    black_box(deep_frames(depth + 1)) ^ frame[7]
}
