//! Prints ten lines with its task, shows progress of ten steps, and writes a scalar for each.

use dchost_guest::{Task, WorkerContext, warn, worker_fn};

#[worker_fn]
fn train(ctx: &WorkerContext) {
    let task = ctx.task().as_ref().map_or("driver".to_owned(), Task::to_string);
    for step in 1..=10 {
        println!("{task} line {step}");
        ctx.progress(step, Some(10), &format!("steps of {task}"));
        ctx.scalar("step", step, step as f64);
    }
    warn!(ctx, "{task} has ended");
}
