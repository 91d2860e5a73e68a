//! The one call of the crate `gemm`, whose interface is pointers and strides.

use bytemuck::Pod;

/// An element that matrices are multiplied in.
pub(super) trait Float: Pod + Send + Sync + PartialEq {
    const ZERO: Self;
    const ONE: Self;

    /// The nearest number.
    fn of(number: f64) -> Self;

    /// `self * factor`.
    fn times(self, factor: Self) -> Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    #[expect(clippy::cast_possible_truncation, reason = "rounded to the dtype, as the documentation says")]
    fn of(number: f64) -> f32 {
        number as f32
    }

    fn times(self, factor: f32) -> f32 {
        self * factor
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn of(number: f64) -> f64 {
        number
    }

    fn times(self, factor: f64) -> f64 {
        self * factor
    }
}

/// A matrix in elements that somebody else owns; element `(row, column)` is at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix of so many rows, one after the other.
    pub(super) fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
        Matrix { elements, rows, columns, row_stride: columns, column_stride: 1 }
    }

    pub(super) fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// A part of it.
    ///
    /// # Panics
    /// It begins beyond the elements.
    pub(super) fn block(self, row: usize, rows: usize, column: usize, columns: usize) -> Self {
        let elements = &self.elements[row * self.row_stride + column * self.column_stride..];
        Matrix { elements, rows, columns, ..self }
    }

    /// How many elements there have to be.
    fn span(&self) -> Option<usize> {
        span(self.rows, self.columns, self.row_stride, self.column_stride)
    }
}

/// Elements up to the last of a matrix, that one included; none: more than can be counted.
fn span(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> Option<usize> {
    if rows == 0 || columns == 0 {
        return Some(0);
    }
    let last_row = (rows - 1).checked_mul(row_stride)?;
    (columns - 1).checked_mul(column_stride)?.checked_add(last_row)?.checked_add(1)
}

/// `into = alpha * a b + beta * into`, on this thread; without `beta`, what was there has no effect. The rows of `into` are
/// `row_stride` elements apart.
///
/// # Panics
/// The matrices don't fit each other, or one reaches beyond its elements.
#[expect(unsafe_code, reason = "the interface of `gemm` is pointers")]
pub(super) fn multiply<T: Float>(
    into: &mut [T],
    row_stride: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    alpha: T,
    beta: Option<T>,
) {
    let fits = |span: Option<usize>, elements: usize| span.is_some_and(|span| span <= elements);
    assert_eq!(a.columns, b.rows, "as many columns as rows");
    assert!(fits(a.span(), a.elements.len()) && fits(b.span(), b.elements.len()), "every element is there");
    assert!(b.columns <= row_stride && fits(span(a.rows, b.columns, row_stride, 1), into.len()), "the result has room");
    let stride = |elements: usize| isize::try_from(elements).expect("a stride is within the elements, or never taken");
    // SAFETY: `gemm` reads `a` and `b` and reads and writes `into` at every row and column times their strides, which the
    // asserts above have found within the slices; the elements of `into` are different ones, since a row's are one after the
    // other and the next row begins behind them. The borrows hold for the call: `into` is this function's alone. Without
    // threads of its own (`Parallelism::None`, and the feature isn't built) nothing of it outlives the call. `T` is `f32` or
    // `f64`: those that implement `Float`, and that `gemm` knows.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            into.as_mut_ptr(),
            1,
            stride(row_stride),
            beta.is_some(),
            a.elements.as_ptr(),
            stride(a.column_stride),
            stride(a.row_stride),
            b.elements.as_ptr(),
            stride(b.column_stride),
            stride(b.row_stride),
            // What is called alpha there is the factor of the destination.
            beta.unwrap_or(T::ZERO),
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "every element is there")]
    fn a_matrix_that_is_too_short_is_refused() {
        multiply(&mut [0.0_f32; 4], 2, Matrix::new(&[1.0; 3], 2, 2), Matrix::new(&[1.0; 4], 2, 2), 1.0, None);
    }

    #[test]
    #[should_panic(expected = "the result has room")]
    fn a_result_that_is_too_short_is_refused() {
        multiply(&mut [0.0_f32; 3], 2, Matrix::new(&[1.0; 4], 2, 2), Matrix::new(&[1.0; 4], 2, 2), 1.0, None);
    }

    #[test]
    #[should_panic(expected = "the result has room")]
    fn rows_of_the_result_may_not_overlap() {
        multiply(&mut [0.0_f32; 9], 1, Matrix::new(&[1.0; 4], 2, 2), Matrix::new(&[1.0; 4], 2, 2), 1.0, None);
    }

    #[test]
    #[should_panic(expected = "as many columns as rows")]
    fn matrices_that_do_not_fit_are_refused() {
        multiply(&mut [0.0_f32; 4], 2, Matrix::new(&[1.0; 6], 2, 3), Matrix::new(&[1.0; 4], 2, 2), 1.0, None);
    }

    #[test]
    #[should_panic(expected = "every element is there")]
    fn extents_that_can_not_be_counted_are_refused() {
        let huge = Matrix::new(&[1.0_f32; 4], usize::MAX, usize::MAX).transposed();
        multiply(&mut [0.0_f32; 4], usize::MAX, huge, huge, 1.0, None);
    }

    #[test]
    fn a_part_is_multiplied_into_a_part() {
        let a: Vec<f64> = (0..12).map(f64::from).collect();
        let whole = Matrix::new(&a, 3, 4);
        // Rows 1 and 2, columns 1 and 2: [5, 6; 9, 10], times its transpose.
        let part = whole.block(1, 2, 1, 2);
        let mut into = [-1.0; 6];
        multiply(&mut into, 3, part, part.transposed(), 1.0, None);
        assert_eq!(into, [61.0, 105.0, -1.0, 105.0, 181.0, -1.0]);
        multiply(&mut into, 3, part, part.transposed(), 2.0, Some(10.0));
        assert_eq!(into, [732.0, 1260.0, -1.0, 1260.0, 2172.0, -1.0]);
    }
}
