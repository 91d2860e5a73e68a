//! A batch of matrix products, cut into pieces of bounded work that several threads take turns at.

use super::gemm::{Float, Matrix, multiply};
use crate::runtime::store::thread_ns;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long threads take pieces before the guest's limits and interrupts are looked at. Starting a thread costs some 30 us.
pub(super) const TURN: Duration = Duration::from_millis(20);

/// Multiplications of one step of a piece: some 10 ms of a thread with AVX2, 100 ms of one without SIMD.
const STEP_WORK: u64 = 1 << 29;

/// Multiplications below which one thread does it all: a third of a millisecond.
const THREADS_WORK: u64 = 1 << 24;

/// Multiplications of a piece that is several small matrices.
const SMALL_WORK: u64 = 1 << 21;

/// What a matrix costs beside its multiplications, in such.
const MATRIX_WORK: u64 = 1 << 10;

/// Rows of a piece. Each piece reorders what it needs of b once more: with fewer rows that shows.
const ROWS_MIN: usize = 64;
const ROWS_MAX: usize = 512;

/// Columns and depth of a step at least and at most, for the same reason.
const COLUMNS_MIN: usize = 256;
const DEPTH_MAX: usize = 4096;

/// Pieces for each thread, so that one that is held up delays the others little.
const PIECES_PER_THREAD: usize = 2;

/// Rows are cut at multiples of this, which every CPU's registers hold whole.
const ROWS_MULTIPLE: usize = 16;

/// Extents of a batch: `[batch, m, k]` times `[batch, k, n]` is `[batch, m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
}

impl Extents {
    /// Multiplications of all, as far as they can be counted.
    pub(super) fn work(&self) -> u64 {
        [self.batch, self.m, self.k, self.n].into_iter().fold(1, |work, extent| work.saturating_mul(extent as u64))
    }
}

/// What is multiplied: `alpha * a b`, each of the matrices transposed where it says so, and `beta` times what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<'a, T> {
    pub(super) extents: Extents,
    pub(super) a: &'a [T],
    pub(super) b: &'a [T],
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    pub(super) alpha: T,
    /// None: what is there has no effect.
    pub(super) beta: Option<T>,
}

impl<'a, T: Float> Factors<'a, T> {
    fn a(&self, matrix: usize) -> Matrix<'a, T> {
        let Extents { m, k, .. } = self.extents;
        let elements = &self.a[matrix * m * k..][..m * k];
        if self.transpose_a { Matrix::new(elements, k, m).transposed() } else { Matrix::new(elements, m, k) }
    }

    fn b(&self, matrix: usize) -> Matrix<'a, T> {
        let Extents { k, n, .. } = self.extents;
        let elements = &self.b[matrix * k * n..][..k * n];
        if self.transpose_b { Matrix::new(elements, n, k).transposed() } else { Matrix::new(elements, k, n) }
    }
}

/// How a batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Matrices of a piece; where there are several, a step is all of them.
    matrices: usize,
    /// Rows of a piece of one matrix.
    rows: usize,
    /// Columns and depth of a step.
    columns: usize,
    depth: usize,
}

impl Cut {
    fn new(Extents { m, k, n, .. }: Extents, threads: usize) -> Cut {
        let work = Extents { batch: 1, m, k, n }.work();
        let matrices = SMALL_WORK / work.saturating_add(MATRIX_WORK);
        if matrices > 1 {
            let matrices = usize::try_from(matrices).unwrap_or(usize::MAX);
            return Cut { matrices, rows: m, columns: n, depth: k };
        }
        let whole = |rows: usize| rows.next_multiple_of(ROWS_MULTIPLE);
        let rows = if threads > 1 || m > ROWS_MAX {
            whole(m.div_ceil(threads * PIECES_PER_THREAD)).clamp(ROWS_MIN, ROWS_MAX).min(m)
        } else {
            m
        };
        let depth = k.min(DEPTH_MAX);
        let columns = usize::try_from(STEP_WORK / (rows as u64 * depth as u64)).unwrap_or(usize::MAX);
        Cut { matrices: 1, rows, columns: whole(columns.max(COLUMNS_MIN)).min(n), depth }
    }
}

/// A part of the result that one thread has at a time: some rows of a matrix, or several matrices.
struct Piece<'o, T> {
    into: &'o mut [T],
    matrix: usize,
    row: usize,
    /// Where its next step begins.
    column: usize,
    depth: usize,
}

/// A batch under way.
pub(super) struct Product<'a, 'o, T> {
    factors: Factors<'a, T>,
    cut: Cut,
    pieces: Mutex<VecDeque<Piece<'o, T>>>,
    threads: usize,
}

impl<'a, 'o, T: Float> Product<'a, 'o, T> {
    /// Begins nothing yet. `into` has all results one after the other; no extent is 0. At most so many threads compute.
    ///
    /// # Panics
    /// Elements are missing.
    pub(super) fn new(factors: Factors<'a, T>, into: &'o mut [T], threads: usize) -> Self {
        let threads = if factors.extents.work() < THREADS_WORK { 1 } else { threads };
        Product::cut(factors, into, threads, Cut::new(factors.extents, threads))
    }

    fn cut(factors: Factors<'a, T>, into: &'o mut [T], threads: usize, cut: Cut) -> Self {
        let Extents { batch, m, k, n } = factors.extents;
        assert!(
            into.len() == batch * m * n && factors.a.len() == batch * m * k && factors.b.len() == batch * k * n,
            "every element is there"
        );
        let piece = |matrix, row, into| Piece { into, matrix, row, column: 0, depth: 0 };
        let pieces = if cut.matrices > 1 {
            let pieces = into.chunks_mut(m * n * cut.matrices).enumerate();
            pieces.map(|(index, into)| piece(index * cut.matrices, 0, into)).collect()
        } else {
            let of_matrix = |(matrix, into): (usize, &'o mut [T])| {
                let rows = into.chunks_mut(cut.rows * n).enumerate();
                rows.map(move |(index, into)| piece(matrix, index * cut.rows, into))
            };
            into.chunks_mut(m * n).enumerate().flat_map(of_matrix).collect()
        };
        Product { factors, cut, pieces: Mutex::new(pieces), threads }
    }

    /// Computes for about [`TURN`]; answers whether anything is left, and the processor time of other threads.
    pub(super) fn turn(&mut self) -> (bool, Duration) {
        let began = Instant::now();
        let waiting = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        let helpers = self.threads.min(waiting).saturating_sub(1);
        let this: &Self = self;
        let helped = thread::scope(|scope| {
            let help = || {
                this.take_pieces(began);
                thread_ns()
            };
            // A system that has no thread left has this one still.
            let name = |index| thread::Builder::new().name(format!("dchost-kernel-{index}"));
            let helping: Vec<_> = (0..helpers).map_while(|index| name(index).spawn_scoped(scope, help).ok()).collect();
            this.take_pieces(began);
            let join = |helper: thread::ScopedJoinHandle<'_, u64>| match helper.join() {
                Ok(spent_ns) => spent_ns,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            helping.into_iter().map(join).sum()
        });
        let left = !self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty();
        (left, Duration::from_nanos(helped))
    }

    /// One step after the other until the turn is over.
    fn take_pieces(&self, began: Instant) {
        let next = || self.pieces.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(mut piece) = next() {
            while !self.step(&mut piece) {
                if began.elapsed() >= TURN {
                    self.pieces.lock().unwrap_or_else(PoisonError::into_inner).push_front(piece);
                    return;
                }
            }
            if began.elapsed() >= TURN {
                return;
            }
        }
    }

    /// Computes a step of a piece; answers whether it was the last.
    fn step(&self, piece: &mut Piece<'_, T>) -> bool {
        let Factors { extents: Extents { m, k, n, .. }, alpha, beta, .. } = self.factors;
        if self.cut.matrices > 1 {
            for (index, into) in piece.into.chunks_mut(m * n).enumerate() {
                let matrix = piece.matrix + index;
                multiply(into, n, self.factors.a(matrix), self.factors.b(matrix), alpha, beta);
            }
            return true;
        }
        let (column, from) = (piece.column, piece.depth);
        let (columns, depth) = (self.cut.columns.min(n - column), self.cut.depth.min(k - from));
        let rows = piece.into.len() / n;
        let a = self.factors.a(piece.matrix).block(piece.row, rows, from, depth);
        let b = self.factors.b(piece.matrix).block(from, depth, column, columns);
        // Sums go on where the step before left them.
        let beta = if from == 0 { beta } else { Some(T::ONE) };
        multiply(&mut piece.into[column..], n, a, b, alpha, beta);
        piece.depth += depth;
        if piece.depth == k {
            (piece.column, piece.depth) = (column + columns, 0);
        }
        piece.column == n
    }
}

#[cfg(test)]
mod tests;
