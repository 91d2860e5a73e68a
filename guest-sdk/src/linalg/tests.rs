//! Products against three plain loops; whole numbers, which every order of summing gives alike.

use super::*;

fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
    (0..count).map(|index| T::of(((index * 7 + seed * 13 + index / 11) % 9) as f64 - 4.0)).collect()
}

fn naive(product: &Matmul, a: &[f64], b: &[f64], c: &[f64]) -> Vec<f64> {
    let &Matmul { batch, m, k, n, transpose_a, transpose_b, alpha, beta } = product;
    let mut result = Vec::new();
    for matrix in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let a = |step| a[matrix * m * k + if transpose_a { step * m + row } else { row * k + step }];
                let b = |step| b[matrix * k * n + if transpose_b { column * k + step } else { step * n + column }];
                let sum: f64 = (0..k).map(|step| a(step) * b(step)).sum();
                let there = if beta == 0.0 { 0.0 } else { beta * c[(matrix * m + row) * n + column] };
                result.push(alpha * sum + there);
            }
        }
    }
    result
}

#[track_caller]
fn check<T: Float>(product: &Matmul) {
    let &Matmul { batch, m, k, n, .. } = product;
    let counts = [batch * m * k, batch * k * n, batch * m * n];
    let [wide_a, wide_b, wide_c] = [0, 1, 2].map(|of| numbers::<f64>(counts[of], of));
    let [a, b, mut c] = [0, 1, 2].map(|of| numbers::<T>(counts[of], of));
    if product.beta == 0.0 {
        c.fill(T::of(f64::NAN));
    }
    product.run(&a, &b, &mut c).unwrap();
    let expected: Vec<T> = naive(product, &wide_a, &wide_b, &wide_c).into_iter().map(T::of).collect();
    assert_eq!(c, expected, "{product:?}");
}

#[test]
fn every_size_agrees_with_plain_loops() {
    for (batch, m, k, n) in [
        (1, 1, 1, 1),
        (1, 4, 4, 8),
        (1, 5, 3, 9),
        (1, 3, 5, 7),
        (3, 2, 9, 1),
        (2, 9, 1, 17),
        (2, 33, 40, 41),
        (0, 2, 2, 2),
        (1, 0, 2, 2),
        (1, 2, 0, 2),
        (1, 2, 2, 0),
    ] {
        for (alpha, beta) in [(1.0, 0.0), (2.0, 3.0), (0.0, 2.0), (-1.0, 1.0)] {
            let plain = Matmul::new(m, k, n).batch(batch).alpha(alpha).beta(beta);
            for product in [plain, plain.transpose_a(), plain.transpose_b(), plain.transpose_a().transpose_b()] {
                check::<f32>(&product);
                check::<f64>(&product);
            }
        }
    }
}

#[test]
fn slices_of_other_lengths_are_refused_and_nothing_is_changed() {
    let mut c = [7.0_f32; 4];
    for (a, b, expected) in
        [(3, 4, "a has 3 elements, which aren't 1 of 2 x 2"), (4, 5, "b has 5 elements, which aren't 1 of 2 x 2")]
    {
        let error = Matmul::new(2, 2, 2).run(&vec![1.0; a], &vec![1.0; b], &mut c).unwrap_err();
        assert_eq!((error.code, &*error.message), (ErrorCode::InvalidArgument, expected));
    }
    let huge = Matmul::new(usize::MAX, usize::MAX, 2).run(&[1.0_f32], &[1.0], &mut c).unwrap_err();
    assert_eq!(huge.code, ErrorCode::InvalidArgument);
    assert_eq!(c, [7.0; 4]);
}

#[test]
fn what_is_broken_shows_unless_its_factor_is_zero() {
    let (broken, ones) = ([f32::NAN, 1.0, 1.0, 1.0], [1.0; 4]);
    let mut c = [f32::NAN; 4];
    Matmul::new(2, 2, 2).run(&broken, &ones, &mut c).unwrap();
    assert!(c[0].is_nan() && c[1].is_nan() && c[2..] == [2.0, 2.0], "{c:?}");
    Matmul::new(2, 2, 2).alpha(0.0).run(&broken, &ones, &mut c).unwrap();
    assert_eq!(c, [0.0; 4]);
}

#[test]
fn tensors_that_do_not_fit_are_refused_with_both_names() {
    let f32 = |shape: &[usize]| Tensor::zeros::<f32>(shape).unwrap();
    for (a, b, expected) in [
        (f32(&[2, 3]), f32(&[2, 3]), "matmul of f32[2, 3] and f32[2, 3]: a needs as many columns as b has rows"),
        (f32(&[3]), f32(&[3, 1]), "matmul of f32[3] and f32[3, 1]: each needs at least two dimensions"),
        (f32(&[2, 1, 1]), f32(&[3, 1, 1]), "the dimensions before the last two have to be the same"),
        (f32(&[1, 1]), Tensor::zeros::<f64>([1, 1]).unwrap(), "both have to be f32, or both f64"),
        (
            Tensor::zeros::<i32>([1, 1]).unwrap(),
            Tensor::zeros::<i32>([1, 1]).unwrap(),
            "both have to be f32, or both f64",
        ),
    ] {
        let error = matmul(&a, &b).unwrap_err();
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(expected), "{error}");
    }
    assert_eq!(matmul(&f32(&[2, 0, 3]), &f32(&[2, 3, 4])).unwrap().shape(), [2, 0, 4]);
}
