//! Panics with `loss is NaN`, some frames deep.

use dchost_guest::{WorkerContext, worker_fn};

#[worker_fn]
fn train(ctx: &WorkerContext) {
    check_loss(f32::NAN * ctx.num_workers() as f32);
}

/// Not inlined, so that a trap report has a frame of the user's to show.
#[inline(never)]
fn check_loss(loss: f32) {
    if loss.is_nan() {
        panic!("loss is NaN");
    }
}
