//! Tensors across the boundary, against a copy of the same bytes.

use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::rig::{Rig, runtime};
use std::hint::black_box;
use std::time::Instant;

/// Sizes of tensors in bytes, samples of a pass, calls of a sample.
const SIZES: [(usize, usize, usize); 5] =
    [(4 << 10, 20, 200), (64 << 10, 20, 50), (1 << 20, 20, 4), (16 << 20, 8, 1), (64 << 20, 5, 1)];

/// What the component does.
const DIRECTIONS: [&str; 5] = ["in", "out", "store-in", "store-out", "copy"];

pub(crate) fn run() {
    let runtime = runtime();
    let component = guests::component();
    let rigs: Vec<_> = Rig::all().into_iter().map(|rig| (rig.load(&runtime, &component), rig)).collect();
    head(&[
        "setting",
        "bytes",
        "memcpy, GB/s",
        "in, us a call",
        "out, GB/s",
        "out/memcpy",
        "first out/memcpy",
        "copy in the guest/memcpy",
        "add to the store/memcpy",
        "read from the store/memcpy",
    ]);
    for (bytes, samples, calls) in SIZES {
        let mut memcpy = Series::default();
        let mut lanes: Vec<_> =
            rigs.iter().map(|_| [(); DIRECTIONS.len()].map(|()| [Series::default(), Series::default()])).collect();
        let numbers = [bytes, samples, calls].map(|number| number.to_string());
        for _ in 0..PASSES {
            memcpy.pass(&copy(bytes, samples, calls));
            for ((module, rig), lane) in rigs.iter().zip(&mut lanes) {
                for (direction, [first, later]) in DIRECTIONS.iter().zip(lane) {
                    let args = ["tensor", direction, &numbers[0], &numbers[1], &numbers[2]];
                    let printed = rig.run(&runtime, module, &args);
                    first.pass(&printed[0]);
                    later.pass(&printed[1]);
                }
            }
        }
        for ((_, rig), [into, out, store_in, store_out, copy]) in rigs.iter().zip(&lanes) {
            row(&[
                &rig.setting,
                &bytes,
                &memcpy.gb(bytes),
                &into[1].us(),
                &out[1].gb(bytes),
                &out[1].speed(&memcpy),
                &out[0].speed(&memcpy),
                &copy[1].speed(&memcpy),
                &store_in[1].speed(&memcpy),
                &store_out[1].speed(&memcpy),
            ]);
        }
    }
}

/// Times of copying natively between two warm buffers.
fn copy(bytes: usize, samples: usize, calls: usize) -> Vec<u128> {
    let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
    let sample = |_| {
        let started = Instant::now();
        for _ in 0..calls {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        started.elapsed().as_nanos() / calls as u128
    };
    (0..samples).map(sample).collect()
}
