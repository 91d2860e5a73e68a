//! What chief and workers do.

use crate::bridge::{self, Parameters};
use crate::data::Digits;
use crate::invalid;
use crate::network::Network;
use crate::options::Options;
use crate::random::Random;
use burn::module::Module;
use burn::tensor::Device;
use dchost_guest::{Optimizer, Result, Task, WorkerContext, info};
use std::time::{Duration, Instant};

/// Time between two looks at a counter.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Trains on this worker's part of the images. The chief returns the held-out accuracy.
pub(crate) fn run(ctx: &WorkerContext, options: &Options, digits: &Digits) -> Result<Option<f64>> {
    let (part, parts) = part(ctx)?;
    let images = digits.training.part(part, parts);
    if images.len() == 0 {
        return Err(invalid(format!("worker {part} of {parts} has no image to train on: run fewer workers")));
    }

    // Tensors live in the component's own memory, on the backend that Cargo.toml names.
    let plain = Device::default();
    let device = plain.clone().autodiff();
    device.seed(options.seed);
    let mut network = Network::new(options.hidden, &device);
    let parameters = Parameters::declare(ctx, &network)?;
    // Workers that are done, counted where there is no barrier to wait at.
    let finished = ctx.variable::<i64>("finished").declare()?;
    if ctx.is_chief() {
        finished.initialize(0)?;
        parameters.initialize(ctx, &network)?;
    } else {
        parameters.wait_initialized(ctx)?;
    }

    let mut random = Random::new(options.seed, part as u64);
    let mut order: Vec<usize> = (0..images.len()).collect();
    let batches = order.len().div_ceil(options.batch);
    let total = options.epochs * batches;
    let adam = Optimizer::adam(options.learning_rate);
    let mut values = parameters.read(ctx)?;
    let began = Instant::now();
    for epoch in 0..options.epochs {
        random.shuffle(&mut order);
        let mut loss_sum = 0.0;
        for (index, batch) in order.chunks(options.batch).enumerate() {
            network = bridge::load(network, &values)?;
            let loss = network.loss(&images.batch(batch), &device);
            let gradients = loss.backward();
            loss_sum += loss.into_scalar::<f64>();
            // Large steps first to get near, small ones in the end to settle.
            let left = (total - (epoch * batches + index)) as f64 / total as f64;
            let adam = adam.learning_rate(options.learning_rate * left);
            values = parameters.step(ctx, &adam, &network, &gradients)?;
        }
        let loss = loss_sum / batches as f64;
        let done = ((epoch + 1) * batches) as u64;
        let note = format!("epoch {} of {}: loss {loss:.4}", epoch + 1, options.epochs);
        ctx.scalar("loss", done, loss);
        ctx.progress(done, Some(total as u64), &note);
        if ctx.is_chief() {
            info!(ctx, "{note}");
        }
    }
    let seconds = began.elapsed().as_secs_f64();

    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    } else {
        finished.add(1)?;
        // Only the chief reports, so only it needs to know.
        while ctx.is_chief() && finished.read()?.scalar() < parts as i64 {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    if !ctx.is_chief() {
        return Ok(None);
    }
    info!(ctx, "{total} steps in {seconds:.2} s: {:.0} a second", total as f64 / seconds);
    let network = bridge::load(network, &parameters.read(ctx)?)?.valid();
    let accuracy = network.accuracy(&digits.held_out, &plain);
    ctx.scalar("accuracy", total as u64, accuracy);
    println!("held-out accuracy {:.1} %", accuracy * 100.0);
    Ok(Some(accuracy))
}

/// Which part of the images is this run's, of how many: one each for chief and workers; all for a run that is alone.
fn part(ctx: &WorkerContext) -> Result<(usize, usize)> {
    let Some(own) = ctx.task() else { return Ok((0, 1)) };
    let cluster = ctx.cluster_spec();
    let tasks: Vec<Task> = ["chief", "worker"].into_iter().flat_map(|job| cluster.tasks(job).to_vec()).collect();
    let part = tasks.iter().position(|task| *task == own);
    let part =
        part.ok_or_else(|| invalid(format!("`{own}` doesn't train: give burn-digits to chief and workers only")))?;
    Ok((part, tasks.len()))
}
