//! Workers learn to read handwritten digits together: asynchronous data-parallel training of a small network.
//!
//! The parameters are variables of the cluster. Each worker has its own part of the images and again and again reads the
//! parameters, computes a gradient on a few images, and subtracts it. An evaluator, where there is one, measures the
//! accuracy on held-out images while training goes on. With `--sync` all workers make each step together. README.md says what to run.

mod data;
mod evaluate;
mod exchange;
mod network;
mod options;
mod random;
mod shared;
mod synchronous;
mod train;

use dchost_guest::{Error, ErrorCode, Result, WorkerContext, worker_fn};
use options::Options;
use std::fmt::Display;

/// Trains, or evaluates where the task is an evaluator. Returns the held-out accuracy, from 0 to 1, on the task that
/// reports it: the evaluator, else the chief.
#[worker_fn]
fn digits(ctx: &WorkerContext) -> Result<Option<f64>> {
    let options = Options::parse(&ctx.args()).map_err(invalid)?;
    let digits = data::read(&options.data).map_err(invalid)?;
    if ctx.task().is_some_and(|task| task.job == "evaluator") {
        evaluate::run(ctx, &options, &digits.held_out).map(Some)
    } else {
        train::run(ctx, &options, &digits)
    }
}

/// What the user can mend.
fn invalid(error: impl Display) -> Error {
    Error::new(ErrorCode::InvalidArgument, error.to_string())
}

#[cfg(test)]
mod tests;
