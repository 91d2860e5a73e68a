//! Products of every cut against three plain loops in f64.

use super::*;
use proptest::prelude::*;

/// Small whole numbers, so that every order of summing gives the same.
fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
    (0..count).map(|index| T::of(((index * 7 + seed * 13 + index / 11) % 9) as f64 - 4.0)).collect()
}

/// What [`Factors`] describes, plainly.
fn naive(extents: Extents, [a, b, c]: [&[f64]; 3], [ta, tb]: [bool; 2], alpha: f64, beta: Option<f64>) -> Vec<f64> {
    let Extents { batch, m, k, n } = extents;
    let mut result = Vec::new();
    for matrix in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let a = |step| a[matrix * m * k + if ta { step * m + row } else { row * k + step }];
                let b = |step| b[matrix * k * n + if tb { column * k + step } else { step * n + column }];
                let sum: f64 = (0..k).map(|step| a(step) * b(step)).sum();
                let there = beta.map_or(0.0, |beta| beta * c[matrix * m * n + row * n + column]);
                result.push(alpha * sum + there);
            }
        }
    }
    result
}

struct Case {
    extents: Extents,
    transposed: [bool; 2],
    alpha: f64,
    beta: Option<f64>,
    threads: usize,
    cut: Option<Cut>,
}

/// Multiplies whole numbers, which must agree to the bit.
#[track_caller]
fn check<T: Float + std::fmt::Debug>(case: &Case) {
    let &Case { extents, transposed: [transpose_a, transpose_b], alpha, beta, threads, cut } = case;
    let Extents { batch, m, k, n } = extents;
    let counts = [batch * m * k, batch * k * n, batch * m * n];
    let [wide_a, wide_b, wide_c] = [0, 1, 2].map(|of| numbers::<f64>(counts[of], of));
    let expected = naive(extents, [&wide_a, &wide_b, &wide_c], [transpose_a, transpose_b], alpha, beta);
    let [a, b, mut into] = [0, 1, 2].map(|of| numbers::<T>(counts[of], of));
    if beta.is_none() {
        into.fill(T::of(f64::NAN));
    }
    let (alpha, beta) = (T::of(alpha), beta.map(T::of));
    let factors = Factors { extents, a: &a, b: &b, transpose_a, transpose_b, alpha, beta };
    let mut product = match cut {
        Some(cut) => Product::cut(factors, &mut into, threads, cut),
        None => Product::new(factors, &mut into, threads),
    };
    while product.turn().0 {}
    let expected: Vec<T> = expected.into_iter().map(T::of).collect();
    assert!(into == expected, "{extents:?} {transpose_a} {transpose_b} {threads} {cut:?}");
}

fn cuts(extents: Extents) -> impl Strategy<Value = Option<Cut>> {
    let Extents { batch, m, k, n } = extents;
    let steps = (1..=m, 1..=n, 1..=k).prop_map(|(rows, columns, depth)| Cut { matrices: 1, rows, columns, depth });
    let whole = (2..=batch.max(2)).prop_map(move |matrices| Cut { matrices, rows: m, columns: n, depth: k });
    prop_oneof![Just(None), steps.prop_map(Some), whole.prop_map(Some)]
}

fn cases() -> impl Strategy<Value = Case> {
    let extents = (1_usize..4, 1_usize..40, 1_usize..40, 1_usize..40);
    let extents = extents.prop_map(|(batch, m, k, n)| Extents { batch, m, k, n });
    let factors = (any::<[bool; 2]>(), -2_i8..3, prop::option::of(-2_i8..3), 1_usize..4);
    let case = |(extents, (transposed, alpha, beta, threads)): (Extents, ([bool; 2], i8, Option<i8>, usize))| {
        let (alpha, beta) = (f64::from(alpha), beta.map(f64::from));
        cuts(extents).prop_map(move |cut| Case { extents, transposed, alpha, beta, threads, cut })
    };
    (extents, factors).prop_flat_map(case)
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {:?} {} {:?} {} {:?}",
            self.extents, self.transposed, self.alpha, self.beta, self.threads, self.cut
        )
    }
}

proptest! {
    #[test]
    fn every_cut_gives_what_plain_loops_give(case in cases()) {
        check::<f32>(&case);
        check::<f64>(&case);
    }
}

#[test]
fn products_of_telling_sizes_agree_with_plain_loops() {
    // Vectors, sizes around those of registers and of pieces, and those that several threads take.
    for (batch, m, k, n) in [
        (1, 1, 1, 1),
        (1, 1, 300, 1),
        (1, 300, 1, 1),
        (1, 1, 1, 300),
        (5, 1, 7, 1),
        (1, 17, 33, 65),
        (300, 3, 3, 3),
        (2, 130, 257, 260),
        (1, 700, 20, 5),
        (1, 260, 260, 260),
    ] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            let extents = Extents { batch, m, k, n };
            for threads in [1, 3] {
                let case = Case { extents, transposed, alpha: 2.0, beta: Some(3.0), threads, cut: None };
                check::<f32>(&case);
                check::<f64>(&Case { beta: None, ..case });
            }
        }
    }
}

/// Pieces may be many but not long: what a turn takes is bounded by a step.
#[test]
fn steps_are_of_bounded_work_and_pieces_enough_for_all_threads() {
    for (m, k, n) in [
        (1, 1, 1),
        (512, 512, 512),
        (4096, 4096, 4096),
        (1, 8000, 8000),
        (8000, 1, 8000),
        (8000, 8000, 1),
        (33, 100_000, 100),
        (100_000, 64, 64),
        (64, 64, 100_000),
        (20, 1_000_000, 20),
    ] {
        for threads in [1, 2, 64] {
            let extents = Extents { batch: 1, m, k, n };
            let cut = Cut::new(extents, threads);
            let step = Extents { batch: 1, m: cut.rows.min(m), k: cut.depth, n: cut.columns }.work();
            assert!(step <= 2 * STEP_WORK, "{extents:?} {cut:?}: {step}");
            assert!(cut.rows >= ROWS_MIN.min(m) && cut.rows <= ROWS_MAX.max(m.min(ROWS_MAX)), "{extents:?} {cut:?}");
            if m >= ROWS_MIN * threads && cut.matrices == 1 {
                assert!(m.div_ceil(cut.rows) >= threads, "{extents:?} {cut:?}");
            }
        }
    }
}

#[test]
fn a_turn_ends_in_time_and_the_next_goes_on() {
    let extents = Extents { batch: 64, m: 256, k: 256, n: 256 };
    let (a, b) = (numbers::<f32>(64 << 16, 0), numbers::<f32>(64 << 16, 1));
    let factors = Factors { extents, a: &a, b: &b, transpose_a: false, transpose_b: false, alpha: 1.0, beta: None };
    let mut into = vec![f32::NAN; 64 << 16];
    let mut product = Product::new(factors, &mut into, 2);
    let mut helped = Duration::ZERO;
    loop {
        let (left, by_others) = product.turn();
        helped += by_others;
        if !left {
            break;
        }
    }
    assert!(helped > Duration::ZERO, "another thread has helped, and told its time");
    assert!(into.iter().all(|element| !element.is_nan()), "all of it was computed");
}
