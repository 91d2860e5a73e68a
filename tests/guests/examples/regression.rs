//! Fits a line by gradients that the variables' tasks apply. Argument: the optimizer (default `adam`).
//!
//! Each worker has its own points of y = 3x - 2 and sends gradients of their mean squared error.

use dchost_guest::{Change, Optimizer, Result, WorkerContext, ps, worker_fn};
use dchost_test_guests::arg;

const STEPS: usize = 400;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let (optimizer, rate) = match arg(ctx, 0, "adam".to_owned()).as_str() {
        "sgd" => (Optimizer::sgd(0.1), 0.1),
        "momentum" => (Optimizer::momentum(0.02, 0.9), 0.02),
        "nesterov" => (Optimizer::nesterov(0.02, 0.9), 0.02),
        "adagrad" => (Optimizer::adagrad(0.5), 0.5),
        "rmsprop" => (Optimizer::rmsprop(0.05), 0.05),
        "adam" => (Optimizer::adam(0.05), 0.05),
        "adamw" => (Optimizer::adamw(0.05).weight_decay(0.0), 0.05),
        other => return Err(format!("optimizer `{other}` is unknown").into()),
    };
    // On two tasks and of two types, clipped together.
    let slope = ctx.variable::<f32>("slope").shape([1]).on(ps(0)).declare()?;
    let offset = ctx.variable::<f64>("offset").on(ps(1)).declare()?;
    if ctx.is_chief() {
        ctx.initialize([Change::assign(&slope, 0.0), Change::assign(&offset, 0.0)])?;
    }
    ctx.wait_for_other_workers()?;

    let mine = ctx.task().map_or(0, |task| task.index);
    let points: Vec<(f64, f64)> = (0..16)
        .map(|point| f64::from(point * ctx.num_workers() + mine) / f64::from(8 * ctx.num_workers()) - 1.0)
        .map(|x| (x, 3.0 * x - 2.0))
        .collect();
    let gradients = |a: f64, b: f64| {
        let mean = |of: &dyn Fn(f64) -> f64| {
            points.iter().map(|&(x, y)| 2.0 * (a * x + b - y) * of(x)).sum::<f64>() / points.len() as f64
        };
        (mean(&|x| x), mean(&|_| 1.0))
    };
    let optimizer = optimizer.clip_norm(10.0);
    let (mut a, mut b) = ctx.read((&slope, &offset))?;
    for step in 0..STEPS {
        // Less and less, so that the end is near the line and not around it.
        let optimizer = optimizer.learning_rate(rate * (1.0 - step as f64 / STEPS as f64));
        let (da, db) = gradients(f64::from(a[0]), b.scalar());
        (a, b) = ctx.apply_gradients_and_read(&optimizer, ((&slope, da as f32), (&offset, db)))?;
    }
    ctx.barrier("trained", None)?;
    let (a, b) = ctx.read((&slope, &offset))?;
    let versions = 1 + STEPS as u64 * u64::from(ctx.num_workers());
    if (a.version(), b.version()) != (versions, versions) {
        return Err(format!("versions {} and {}, not {versions}: a step is lost", a.version(), b.version()).into());
    }
    println!("y = {:.1}x {:+.1}", a[0], b.scalar());
    // Nobody writes before everyone has read.
    ctx.barrier("read", None)?;

    // Another method would go on with what this one has kept.
    if ctx.is_chief() {
        let error = ctx.apply_gradients(&Optimizer::adagrad(0.1), [(&slope, 0.0)]).err();
        println!("then adagrad: {}", error.map_or("done".to_owned(), |error| error.code.to_string()));
    }
    ctx.wait_for_other_workers()
}
