//! A matrix product in registers, in plain Rust that becomes SIMD.
//!
//! A host that can interrupt a component adds a check to every turn of a loop, so a turn makes as much as [`STEPS`] times a
//! tile. Both factors are copied into the order in which tiles read them, which is also where transposes and edges go away.

use super::{Float, Matmul};

/// Rows and columns of a tile, whose sums stay in registers: eight of four `f32` each.
const ROWS: usize = 4;
const COLUMNS: usize = 8;

/// Steps along the inner dimension in one turn of the loop.
const STEPS: usize = 4;

/// Multiplies slices whose lengths are known to fit.
pub(super) fn multiply<T: Float>(product: &Matmul, a: &[T], b: &[T], c: &mut [T]) {
    let &Matmul { m, k, n, transpose_a, transpose_b, .. } = product;
    let (alpha, beta) = (T::of(product.alpha), T::of(product.beta));
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 || alpha == T::ZERO {
        c.iter_mut().for_each(|c| *c = there(beta, *c));
        return;
    }
    // Rows of a, and columns of b, that a tile needs, step by step; steps and lanes beyond the edge are 0.
    let steps = k.next_multiple_of(STEPS);
    let mut rows = vec![[T::ZERO; ROWS]; m.div_ceil(ROWS) * steps];
    let mut columns = vec![[T::ZERO; COLUMNS]; steps];
    for ((a, b), c) in a.chunks_exact(m * k).zip(b.chunks_exact(k * n)).zip(c.chunks_exact_mut(m * n)) {
        for (tile, rows) in rows.chunks_exact_mut(steps).enumerate() {
            pack(rows, a, tile * ROWS, [m, k], !transpose_a);
        }
        for column in (0..n).step_by(COLUMNS) {
            pack(&mut columns, b, column, [n, k], transpose_b);
            for (tile, rows) in rows.chunks_exact(steps).enumerate() {
                let sums = sums(rows, &columns);
                for (sums, c) in sums.iter().zip(c.chunks_exact_mut(n).skip(tile * ROWS)) {
                    for (&sum, c) in sums.iter().zip(&mut c[column..]) {
                        *c = alpha.times(sum).plus(there(beta, *c));
                    }
                }
            }
        }
    }
}

/// What is left of what was there.
fn there<T: Float>(beta: T, c: T) -> T {
    if beta == T::ZERO { T::ZERO } else { beta.times(c) }
}

/// Copies the lanes from `first` on of a factor of `lanes` times `steps` elements, whose elements of a lane lie side by side
/// where `by_lane`, else those of a step.
fn pack<T: Float, const N: usize>(
    packed: &mut [[T; N]],
    factor: &[T],
    first: usize,
    [lanes, steps]: [usize; 2],
    by_lane: bool,
) {
    let count = N.min(lanes - first);
    if by_lane {
        for (lane, elements) in factor.chunks_exact(steps).skip(first).take(count).enumerate() {
            for (packed, &element) in packed.iter_mut().zip(elements) {
                packed[lane] = element;
            }
        }
    } else {
        for (packed, elements) in packed.iter_mut().zip(factor.chunks_exact(lanes)) {
            match <[T; N]>::try_from(&elements[first..first + count]) {
                Ok(whole) => *packed = whole,
                Err(_) => packed[..count].copy_from_slice(&elements[first..first + count]),
            }
        }
    }
    // Lanes beyond the edge may be those of the matrix before.
    if count < N {
        packed.iter_mut().for_each(|packed| packed[count..].fill(T::ZERO));
    }
}

/// The sums of a tile.
fn sums<T: Float>(rows: &[[T; ROWS]], columns: &[[T; COLUMNS]]) -> [[T; COLUMNS]; ROWS] {
    let mut sums = [[T::ZERO; COLUMNS]; ROWS];
    for (rows, columns) in rows.as_chunks::<STEPS>().0.iter().zip(columns.as_chunks::<STEPS>().0) {
        for (row, column) in rows.iter().zip(columns) {
            for (sums, &a) in sums.iter_mut().zip(row) {
                for (sum, &b) in sums.iter_mut().zip(column) {
                    *sum = sum.plus(a.times(b));
                }
            }
        }
    }
    sums
}
