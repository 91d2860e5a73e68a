//! Row operations, unrolled.
//!
//! A host that can interrupt a component adds a check to every turn of a loop. 32 elements a turn make that check cheap,
//! and as a fixed-size array they become SIMD instructions without bounds checks. The order of the sums is fixed, so that
//! results are the same bit for bit every time.

/// Elements in one turn of a loop.
const LANES: usize = 32;
/// Independent partial sums of a dot product: two SIMD registers of four.
const SUMS: usize = 8;

/// `y += scale * x`, for rows of the same length.
pub(super) fn add_scaled(y: &mut [f32], scale: f32, x: &[f32]) {
    debug_assert_eq!(y.len(), x.len(), "rows of the same matrix have the same length");
    let (y_blocks, y_rest) = y.as_chunks_mut::<LANES>();
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    for (y, x) in y_blocks.iter_mut().zip(x_blocks) {
        for lane in 0..LANES {
            y[lane] += scale * x[lane];
        }
    }
    for (y, x) in y_rest.iter_mut().zip(x_rest) {
        *y += scale * x;
    }
}

/// The sum of the products, for rows of the same length.
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    debug_assert_eq!(x.len(), y.len(), "rows of the same matrix have the same length");
    let mut sums = [0.0; SUMS];
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let (y_blocks, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for lane in 0..LANES {
            sums[lane % SUMS] += x[lane] * y[lane];
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::{add_scaled, dot};

    /// Whole numbers below 2^24 are exact in f32, so every length must agree with the plain formula to the bit.
    #[test]
    fn every_length_agrees_with_the_plain_formula() {
        for len in [0, 1, 7, 31, 32, 33, 64, 100] {
            let x: Vec<f32> = (0..len).map(|index| index as f32 - 20.0).collect();
            let y: Vec<f32> = (0..len).map(|index| (index * 7 % 13) as f32).collect();
            assert_eq!(dot(&x, &y), x.iter().zip(&y).map(|(x, y)| x * y).sum::<f32>(), "length {len}");
            let mut sum = y.clone();
            add_scaled(&mut sum, 3.0, &x);
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| y + 3.0 * x).collect();
            assert_eq!(sum, expected, "length {len}");
        }
    }
}
