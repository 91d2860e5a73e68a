//! Training in step: every worker's gradient of a step is in it, or all but those of the backups.

use crate::data::{Digits, Images};
use crate::invalid;
use crate::network::Parameters;
use crate::options::Options;
use crate::random::Random;
use crate::shared::{Shared, parameters, steps};
use dchost_guest::{ErrorCode, Optimizer, Result, WorkerContext, info};
use std::time::Instant;

/// Pushes the gradient of one batch a step, and gets the parameters of the next step as the answer, until all steps are made.
///
/// The version of the parameters counts the steps: initial values are version 1, and each step makes one more. A worker that was
/// overtaken, since it is slow and the others had backups, reads where they are and goes on from there.
pub(crate) fn train(
    ctx: &WorkerContext,
    options: &Options,
    (shared, digits): (&Shared, &Digits),
    (part, parts): (usize, usize),
    mut random: Random,
) -> Result<()> {
    let images = digits.training.part(part, parts);
    let replicas =
        parts.checked_sub(options.backups).and_then(|left| u32::try_from(left).ok()).filter(|&left| left > 0);
    let Some(replicas) = replicas else {
        return Err(invalid(format!(
            "`--backups {}` leaves none of {parts} workers whose gradients a step waits for; run more workers",
            options.backups
        )));
    };
    // Parts differ by an image: all workers count the steps of the largest one.
    let batches = digits.training.len().div_ceil(parts).div_ceil(options.batch) as u64;
    let total = options.epochs as u64 * batches;
    let mut order = Order::new(&images);
    let (mut loss_sum, mut losses, mut stale) = (0.0, 0_u32, 0_u32);
    let began = Instant::now();
    let (mut now, mut steps) = shared.pull(ctx)?;
    while steps < total {
        let (loss, gradient) = now.loss_and_gradient(&order.next(options.batch, &mut random))?;
        loss_sum += f64::from(loss);
        losses += 1;
        let before = steps;
        (now, steps) = match step(ctx, shared, &gradient, rate(options, steps, total), (steps + 1, replicas)) {
            Err(error) if error.code == ErrorCode::Aborted => {
                stale += 1;
                shared.pull(ctx)?
            }
            answer => answer?,
        };
        if steps / batches > before / batches {
            let (epoch, loss) = (steps / batches, loss_sum / f64::from(losses));
            (loss_sum, losses) = (0.0, 0);
            let note = format!("epoch {epoch} of {}: loss {loss:.4}", options.epochs);
            ctx.scalar("loss", steps, loss);
            ctx.progress(steps, Some(total), &note);
            if ctx.is_chief() {
                info!(ctx, "{note}");
            }
        }
    }
    if stale > 0 {
        info!(ctx, "{stale} gradients were stale");
    }
    if ctx.is_chief() {
        let seconds = began.elapsed().as_secs_f64();
        info!(ctx, "{total} steps in {seconds:.2} s: {:.0} a second", total as f64 / seconds);
    }
    Ok(())
}

/// Falls to 0 with the steps. A function of the step alone: all workers of a step must give the same.
fn rate(options: &Options, steps: u64, total: u64) -> f64 {
    f64::from(options.learning_rate) * (total - steps) as f64 / total as f64
}

/// Gives a gradient to step `step`; what the parameters became, once it is made.
fn step(
    ctx: &WorkerContext,
    shared: &Shared,
    gradient: &Parameters,
    rate: f64,
    (step, replicas): (u64, u32),
) -> Result<(Parameters, u64)> {
    let sgd = Optimizer::sgd(rate).sync(step, replicas);
    let (a, b, c, d, _) = shared.variables();
    let [ga, gb, gc, gd] = gradient.tensors();
    let values = <[_; 4]>::from(ctx.apply_gradients_and_read(&sgd, ((a, ga), (b, gb), (c, gc), (d, gd)))?);
    let steps = steps(&values);
    Ok((parameters(values), steps))
}

/// A worker's images again and again, each time in another order.
struct Order<'i> {
    images: &'i Images,
    order: Vec<usize>,
    next: usize,
}

impl<'i> Order<'i> {
    fn new(images: &'i Images) -> Self {
        Order { images, order: (0..images.len()).collect(), next: images.len() }
    }

    fn next(&mut self, len: usize, random: &mut Random) -> Images {
        if self.next >= self.order.len() {
            random.shuffle(&mut self.order);
            self.next = 0;
        }
        let end = (self.next + len).min(self.order.len());
        let batch = self.images.batch(&self.order[self.next..end]);
        self.next = end;
        batch
    }
}
