//! What chief and workers do.

use crate::data::{Digits, Images};
use crate::exchange::Exchange;
use crate::network::Parameters;
use crate::options::Options;
use crate::random::Random;
use crate::shared::Shared;
use crate::{evaluate, invalid, synchronous};
use dchost_guest::{Result, WorkerContext, info};
use std::time::Instant;

/// The random stream of initial weights; worker `i` shuffles by stream `i + 1`.
const WEIGHTS: u64 = 0;

/// Trains on this worker's part of the images. The chief returns the held-out accuracy unless an evaluator reports it.
pub(crate) fn run(ctx: &WorkerContext, options: &Options, digits: &Digits) -> Result<Option<f64>> {
    let (part, parts) = part(ctx);
    let images = digits.training.part(part, parts);
    if images.len() == 0 {
        return Err(invalid(format!("worker {part} of {parts} has no image to train on: run fewer workers")));
    }
    let shared = Shared::declare(ctx, options)?;
    if ctx.is_chief() {
        shared.initialize(ctx, &Parameters::random(options.hidden, &mut Random::new(options.seed, WEIGHTS)))?;
    } else {
        shared.wait_initialized(ctx)?;
    }

    let random = Random::new(options.seed, WEIGHTS + 1 + part as u64);
    if options.sync {
        synchronous::train(ctx, options, (&shared, digits), (part, parts), random)?;
    } else {
        train(ctx, options, &shared, &images, random)?;
    }
    if ctx.cluster_spec().num_tasks("evaluator") > 0 {
        return Ok(None);
    }
    shared.wait_for_all(ctx, parts)?;
    if ctx.is_chief() { evaluate::report(ctx, &shared, &digits.held_out).map(Some) } else { Ok(None) }
}

/// Pulls and pushes without waiting for the others.
fn train(ctx: &WorkerContext, options: &Options, shared: &Shared, images: &Images, mut random: Random) -> Result<()> {
    let mut order: Vec<usize> = (0..images.len()).collect();
    let batches = order.len().div_ceil(options.batch);
    let total = options.epochs * batches;
    let mut exchange = Exchange::new(ctx, shared, options.overlap);
    let began = Instant::now();
    for epoch in 0..options.epochs {
        random.shuffle(&mut order);
        let mut loss_sum = 0.0;
        let mut steps = 0;
        for (index, batch) in order.chunks(options.batch).enumerate() {
            let (parameters, before) = exchange.pull()?;
            let (loss, mut change) = parameters.loss_and_gradient(&images.batch(batch))?;
            // Large steps first to get near, small ones in the end to settle.
            let left = (total - (epoch * batches + index)) as f32 / total as f32;
            change.scale(options.learning_rate * left);
            exchange.push(&change)?;
            loss_sum += f64::from(loss);
            steps = before + 1;
        }
        let loss = loss_sum / batches as f64;
        let note = format!("epoch {} of {}: loss {loss:.4}", epoch + 1, options.epochs);
        ctx.scalar("loss", steps, loss);
        ctx.progress(((epoch + 1) * batches) as u64, Some(total as u64), &note);
        if ctx.is_chief() {
            info!(ctx, "{note}");
        }
    }
    exchange.finish()?;
    if ctx.is_chief() {
        let seconds = began.elapsed().as_secs_f64();
        info!(ctx, "{total} steps in {seconds:.2} s: {:.0} a second", total as f64 / seconds);
    }
    Ok(())
}

/// Which part of the images is this run's, of how many: one each for chief and workers; all for a run that is alone.
fn part(ctx: &WorkerContext) -> (usize, usize) {
    let cluster = ctx.cluster_spec();
    let tasks: Vec<_> = ["chief", "worker"].into_iter().flat_map(|job| cluster.tasks(job)).collect();
    let own = ctx.task().and_then(|task| tasks.iter().position(|other| *other == task));
    own.map_or((0, 1), |part| (part, tasks.len()))
}
