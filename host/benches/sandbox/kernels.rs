//! Matrix products by the host's kernel and by the SDK's own code, against the kernel's crate natively.

use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, Setting, runtime};
use dchost::runtime::{Limits, native_product};
use std::hint::black_box;
use std::time::Instant;

/// Rows and columns of the matrices, and products in a pass: the SDK goes to the kernel where that begins to pay.
const SIZES: [(usize, usize); 8] =
    [(16, 2000), (24, 2000), (32, 1000), (48, 500), (64, 500), (256, 20), (512, 7), (1024, 3)];

/// How the SDK multiplies, and on how many threads; none: on all.
const WAYS: [(&str, Option<u32>); 3] = [("in-place", Some(1)), ("by-kernel", Some(1)), ("by-kernel", None)];

pub(crate) fn run() {
    let runtime = runtime();
    let component = guests::component();
    let rig = Rig::new(Setting::Epochs);
    let module = rig.load(&runtime, &component);
    head(&["size", "way", "threads", "us", "/ native", "native, us"]);
    for (size, rounds) in SIZES {
        let (n, count) = (size.to_string(), rounds.to_string());
        let mut of_native = Series::default();
        let mut of_ways = WAYS.map(|_| Series::default());
        for _ in 0..PASSES {
            of_native.pass(&native(size, rounds));
            for (&(way, kernel_threads), series) in WAYS.iter().zip(&mut of_ways) {
                let mut options = rig.options(&["matmul", way, &n, &count]);
                options.limits = Limits { kernel_threads, ..options.limits };
                series.pass(&rig.run_with(&runtime, &module, options)[0]);
            }
        }
        for (&(way, threads), series) in WAYS.iter().zip(&of_ways) {
            let threads = threads.map_or_else(|| "all".to_owned(), |threads| threads.to_string());
            row(&[&size, &way, &threads, &series.us(), &series.ratio(&of_native), &of_native.us()]);
        }
    }
}

/// Times of products on one thread, without a component.
fn native(n: usize, rounds: usize) -> Vec<u128> {
    let a: Vec<f32> = (0..n * n).map(|index| (index % 7) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|index| (index % 5) as f32).collect();
    let mut c = vec![0.0; n * n];
    let time = |_| {
        let started = Instant::now();
        native_product(n, black_box(&a), black_box(&b), black_box(&mut c));
        started.elapsed().as_nanos()
    };
    (0..=rounds).map(time).skip(1).collect()
}
