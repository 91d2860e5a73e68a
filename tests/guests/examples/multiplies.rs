//! Multiplies matrices by the host's kernel. `checks` compares what comes with plain loops, `endless` never ends by itself; then the
//! extent of square matrices (default 1024).

use dchost_guest::linalg::{Float, Matmul, matmul};
use dchost_guest::{Result, Tensor, WorkerContext, worker_fn};
use dchost_test_guests::arg;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let what: String = arg(ctx, 0, "checks".to_owned());
    if what == "checks" {
        check::<f32>(ctx)?;
        return check::<f64>(ctx);
    }
    let n: usize = arg(ctx, 1, 1024);
    let (a, mut c) = (vec![1.0_f32; n * n], vec![0.0; n * n]);
    loop {
        println!("multiplying");
        Matmul::new(n, n, n).run(&a, &a, &mut c)?;
    }
}

/// Small whole numbers, so that every order of summing gives the same.
fn numbers<T: Float>(count: usize, seed: usize) -> Vec<T> {
    let numbers: Vec<u8> = (0..count).map(|index| ((index * 7 + seed * 13 + index / 11) % 9) as u8).collect();
    Tensor::vector(&numbers).convert::<T>().to_vec().expect("they are of that type now")
}

/// Products of a size that goes to the host, and of one that doesn't, by plain loops.
fn check<T: Float + Into<f64>>(ctx: &WorkerContext) -> Result<()> {
    let mut checked = 0;
    for (batch, m, k, n) in [(1, 3, 4, 5), (1, 64, 64, 64), (1, 300, 200, 100), (7, 33, 40, 50), (1, 1, 300, 300)] {
        let [a, b, c] = [batch * m * k, batch * k * n, batch * m * n].map(|count| numbers::<T>(count, count % 7));
        let plain = Matmul::new(m, k, n).batch(batch);
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            for (alpha, beta) in [(1.0, 0.0), (2.0, 3.0)] {
                let mut product = plain.alpha(alpha).beta(beta);
                product = if transpose_a { product.transpose_a() } else { product };
                product = if transpose_b { product.transpose_b() } else { product };
                let mut into = c.clone();
                product.run(&a, &b, &mut into)?;
                for (index, &found) in into.iter().enumerate() {
                    let (matrix, row, column) = (index / n / m, index / n % m, index % n);
                    let of_a = |step| a[matrix * m * k + if transpose_a { step * m + row } else { row * k + step }];
                    let of_b =
                        |step| b[matrix * k * n + if transpose_b { column * k + step } else { step * n + column }];
                    let sum: f64 = (0..k).map(|step| of_a(step).into() * of_b(step).into()).sum();
                    let expected = alpha * sum + beta * c[index].into();
                    if found.into() != expected {
                        return Err(format!("element {index} of {product:?} is {found:?}, not {expected}").into());
                    }
                }
                checked += 1;
            }
        }
        let [a, b] = [Tensor::new([batch, m, k], &a)?, Tensor::new([batch, k, n], &b)?];
        if matmul(&a, &b)?.shape() != [batch, m, n] {
            return Err("the shape is wrong".into());
        }
    }
    ctx.log(dchost_guest::Level::Info, &format!("{checked} products of {} are right", T::DTYPE));
    Ok(())
}
