//! Trains a table of 1024 rows of 256 f32, in parts on the ps tasks, towards known values by gradient descent, and prints how
//! far it is off. Arguments: the number of steps (default 20); `base` to make a change that depends on the version instead.

use dchost_guest::{Change, Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;

const ROWS: usize = 1024;
const COLUMNS: usize = 256;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let steps: u32 = arg(ctx, 0, 20);
    let table = ctx.variable::<f32>("table").shape([ROWS, COLUMNS]).sharded().declare()?;
    let bias = ctx.variable::<f32>("bias").declare()?;
    if ctx.is_chief() {
        ctx.initialize([Change::assign(&table, 0.0), Change::assign(&bias, 0.0)])?;
    }
    ctx.wait_initialized((&table, &bias), None)?;
    if ctx.args().get(1).is_some_and(|arg| arg == "base") {
        ctx.update([Change::add(&table, 1.0).if_version(1)])?;
    }

    let target: Vec<f32> = (0..ROWS * COLUMNS).map(|at| (at / COLUMNS) as f32 / 64.0).collect();
    let rate = 0.5 / ctx.num_workers().max(1) as f32;
    for _ in 0..steps {
        let (value, _) = ctx.read((&table, &bias))?;
        let step: Vec<f32> = value.iter().zip(&target).map(|(value, target)| rate * (value - target)).collect();
        ctx.update([Change::sub(&table, &step), Change::add(&bias, 1.0)])?;
    }
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    }
    let (value, counted) = ctx.read((&table, &bias))?;
    let off = value.iter().zip(&target).map(|(value, target)| (value - target).abs()).fold(0.0, f32::max);
    println!("off by {off:.4} after {} steps, version {}", counted.scalar(), value.version());
    if off < 0.01 { Ok(()) } else { Err(format!("the table is off by {off}").into()) }
}
