//! The chief has an op on `worker:0` add 1 to the variable `kept` of `ps:0`, which the op makes where it isn't there, and
//! prints what it became. The run itself calls no ps.

use dchost_guest::{Change, Result, WorkerContext, op, ops, ps, worker, worker_fn};

#[op]
fn add(ctx: &WorkerContext) -> Result<f32> {
    let kept = ctx.variable::<f32>("kept").on(ps(0)).declare()?;
    ctx.initialize_if_absent([Change::assign(&kept, 0.0)])?;
    Ok(kept.add_and_read(1.0)?.scalar())
}

ops![add];

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    if ctx.is_chief() {
        println!("kept {}", add::start(ctx, worker(0))?.get()?);
    }
    Ok(())
}
