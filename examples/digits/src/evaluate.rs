//! What the evaluator does, and the last line of a run.

use crate::data::Images;
use crate::options::Options;
use crate::shared::Shared;
use dchost_guest::{Result, WorkerContext, info};
use std::time::Duration;

/// Time between two evaluations: often enough to watch a short training, seldom enough to leave the processor to it.
const INTERVAL: Duration = Duration::from_millis(500);

/// Measures the accuracy on held-out images again and again while others train, and once more when they have ended.
pub(crate) fn run(ctx: &WorkerContext, options: &Options, held_out: &Images) -> Result<f64> {
    let shared = Shared::declare(ctx, options)?;
    shared.wait_initialized(ctx)?;
    let mut evaluated = None;
    while !ctx.training_ended() {
        let (parameters, step) = shared.pull(ctx)?;
        if evaluated != Some(step) {
            let accuracy = parameters.accuracy(held_out)?;
            let note = format!("step {step}: accuracy {:.1} %", accuracy * 100.0);
            ctx.scalar("accuracy", step, accuracy);
            ctx.progress(step, None, &note);
            info!(ctx, "{note}");
            evaluated = Some(step);
        }
        std::thread::sleep(INTERVAL);
    }
    report(ctx, &shared, held_out)
}

/// Measures, keeps and prints the accuracy of the parameters as they are at the end.
pub(crate) fn report(ctx: &WorkerContext, shared: &Shared, held_out: &Images) -> Result<f64> {
    let (parameters, step) = shared.pull(ctx)?;
    let accuracy = parameters.accuracy(held_out)?;
    ctx.scalar("accuracy", step, accuracy);
    println!("held-out accuracy {:.1} %", accuracy * 100.0);
    Ok(accuracy)
}
