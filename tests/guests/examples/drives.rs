//! The in-graph worker function of TensorFlow's own tests, without its op: one driver keeps a variable on each worker, adds the
//! worker's index to it, and sums what it reads. Any other run of it, as one of an evaluator, says so and ends.

use dchost_guest::{Change, Result, Variable, WorkerContext, worker, worker_fn};

#[worker_fn]
fn drive(ctx: &WorkerContext) -> Result<()> {
    if let Some(task) = ctx.task() {
        println!("not the driver but {task}, on {}", ctx.master_target());
        return Ok(());
    }
    let declare = |index| ctx.variable::<f32>(format!("x_{index}")).on(worker(index)).declare();
    let variables = (0..ctx.num_workers()).map(declare).collect::<Result<Vec<Variable<f32>>>>()?;
    ctx.initialize(variables.iter().map(|variable| Change::assign(variable, 10.0)))?;
    ctx.update(variables.iter().enumerate().map(|(index, variable)| Change::add(variable, index as f32)))?;
    let mut sum = 0.0;
    for variable in &variables {
        sum += variable.read()?.scalar();
    }
    println!("sum {sum:.1} on {} of {} workers, barrier {}", ctx.master_target(), ctx.num_workers(), ctx.has_barrier());
    Ok(())
}
