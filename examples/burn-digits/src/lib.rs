//! Workers learn to read handwritten digits together, with a network of the `burn` crate.
//!
//! The network is an ordinary burn module, its gradients are those of burn's autodiff. Its parameters are variables of the
//! cluster, which [`bridge`] makes of any module, and the tasks that hold them make the steps. README.md says what to run.

mod bridge;
#[path = "../../digits/src/data.rs"]
mod data;
mod network;
mod options;
#[path = "../../digits/src/random.rs"]
#[allow(dead_code, reason = "that of the example digits: weights are burn's business here, only the order is shuffled")]
mod random;
mod train;

use dchost_guest::{Error, ErrorCode, Result, WorkerContext, worker_fn};
use options::Options;
use std::fmt::Display;

/// Trains. The chief returns the held-out accuracy, from 0 to 1.
#[worker_fn]
fn burn_digits(ctx: &WorkerContext) -> Result<Option<f64>> {
    let options = Options::parse(&ctx.args()).map_err(invalid)?;
    let digits = data::read(&options.data).map_err(invalid)?;
    train::run(ctx, &options, &digits)
}

/// What the user can mend.
fn invalid(error: impl Display) -> Error {
    Error::new(ErrorCode::InvalidArgument, error.to_string())
}

#[cfg(test)]
mod tests;
