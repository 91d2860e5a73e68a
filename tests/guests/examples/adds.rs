//! Adds one vector to another as one writes it first, and prints the sum of all elements. Argument: their number (default 1000).

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::hint::black_box;

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let len: usize = arg(ctx, 0, 1000);
    let (mut x, y) = (vec![1.0_f32; len], vec![2.0_f32; len]);
    add(black_box(&mut x), black_box(&y));
    println!("sum {}", x.iter().sum::<f32>());
}

#[inline(never)]
fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
