//! Matrix products `c += a b` of square `f32` matrices, row-major: the same source for the component and natively.

use std::hint::black_box;
use std::time::Instant;

/// Lanes of the unrolled loop.
const UNROLLED: usize = 32;

/// Rows of the register tile.
const TILE_ROWS: usize = 4;

/// Columns of the register tile.
const TILE_COLUMNS: usize = 8;

/// Steps along the inner dimension that the register tile takes at a time.
const TILE_STEPS: usize = 4;

/// Times of `rounds` products of `n` by `n` matrices, in nanoseconds, after one that isn't counted.
///
/// # Errors
/// Which kernel is unknown, or whose result is wrong.
pub(crate) fn measure(kernel: &str, n: usize, rounds: usize) -> Result<Vec<u128>, String> {
    let kernel: fn(usize, &[f32], &[f32], &mut [f32]) = match kernel {
        "plain" => plain,
        "unrolled" => unrolled,
        "blocked" => blocked,
        other => return Err(format!("unknown kernel `{other}`")),
    };
    if !n.is_multiple_of(UNROLLED) {
        return Err(format!("{n} is no multiple of {UNROLLED}"));
    }
    // Small whole numbers: every order of summing gives the same.
    let a: Vec<f32> = (0..n * n).map(|index| (index % 7) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|index| (index % 5) as f32).collect();
    let mut c = vec![0.0; n * n];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        c.fill(0.0);
        let started = Instant::now();
        kernel(n, black_box(&a), black_box(&b), black_box(&mut c));
        if round > 0 {
            times.push(started.elapsed().as_nanos());
        }
    }
    for (row, column) in [(0, 0), (n / 2, n / 3), (n - 1, n - 1)] {
        let expected: f32 = (0..n).map(|step| a[row * n + step] * b[step * n + column]).sum();
        let found = c[row * n + column];
        if found != expected {
            return Err(format!("element {row}, {column} is {found}, not {expected}"));
        }
    }
    Ok(times)
}

/// What one writes first: three loops, the innermost along rows.
fn plain(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    for (a, c) in a.chunks_exact(n).zip(c.chunks_exact_mut(n)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (c, &b) in c.iter_mut().zip(b) {
                *c += a * b;
            }
        }
    }
}

/// The same loops, the innermost [`UNROLLED`] elements at a time: a loop's end is where limits are looked at.
fn unrolled(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    for (a, c) in a.chunks_exact(n).zip(c.chunks_exact_mut(n)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (c, b) in c.as_chunks_mut::<UNROLLED>().0.iter_mut().zip(b.as_chunks::<UNROLLED>().0) {
                for (c, &b) in c.iter_mut().zip(b) {
                    *c += a * b;
                }
            }
        }
    }
}

/// A tile of [`TILE_ROWS`] by [`TILE_COLUMNS`] sums stays in registers along the whole inner dimension.
fn blocked(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    // The columns of b that a tile needs, one after the other.
    let mut packed = vec![[0.0; TILE_COLUMNS]; n];
    for column in (0..n).step_by(TILE_COLUMNS) {
        for (packed, b) in packed.iter_mut().zip(b.chunks_exact(n)) {
            packed.copy_from_slice(&b[column..column + TILE_COLUMNS]);
        }
        for (a, c) in a.chunks_exact(n * TILE_ROWS).zip(c.chunks_exact_mut(n * TILE_ROWS)) {
            let mut sums = [[0.0; TILE_COLUMNS]; TILE_ROWS];
            let (a0, a) = a.split_at(n);
            let (a1, a) = a.split_at(n);
            let (a2, a3) = a.split_at(n);
            let steps = |row: &'_ [f32], at: usize| -> [f32; TILE_STEPS] { row.as_chunks::<TILE_STEPS>().0[at] };
            for (at, b) in packed.as_chunks::<TILE_STEPS>().0.iter().enumerate() {
                let rows = [steps(a0, at), steps(a1, at), steps(a2, at), steps(a3, at)];
                for (step, b) in b.iter().enumerate() {
                    for (sums, row) in sums.iter_mut().zip(&rows) {
                        for (sum, &b) in sums.iter_mut().zip(b) {
                            *sum += row[step] * b;
                        }
                    }
                }
            }
            for (sums, c) in sums.iter().zip(c.chunks_exact_mut(n)) {
                for (c, sum) in c[column..column + TILE_COLUMNS].iter_mut().zip(sums) {
                    *c += sum;
                }
            }
        }
    }
}
