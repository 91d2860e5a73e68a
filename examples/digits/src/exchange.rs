//! Pulls and pushes of a training loop: one after another, or while it computes.

use crate::network::Parameters;
use crate::shared::{Shared, Variables, with_steps};
use dchost_guest::{Overlap, Result, WorkerContext};

/// How a worker gets parameters and gives steps.
pub(crate) struct Exchange<'s> {
    ctx: &'s WorkerContext,
    shared: &'s Shared,
    /// Lets them travel while a gradient is computed. Without it each call waits for its answer.
    overlap: Option<Overlap<Variables<'s>>>,
}

impl<'s> Exchange<'s> {
    /// With `overlap` steps under way at most; 0 does one thing after another.
    pub(crate) fn new(ctx: &'s WorkerContext, shared: &'s Shared, overlap: usize) -> Self {
        let overlap = (overlap > 0).then(|| ctx.overlap(shared.variables()).depth(overlap));
        Exchange { ctx, shared, overlap }
    }

    /// The parameters for the next gradient, and the steps that led to them.
    pub(crate) fn pull(&mut self) -> Result<(Parameters, u64)> {
        match &mut self.overlap {
            None => self.shared.pull(self.ctx),
            Some(overlap) => Ok(with_steps(overlap.read()?)),
        }
    }

    /// Subtracts a step from the parameters.
    pub(crate) fn push(&mut self, step: &Parameters) -> Result<()> {
        match &mut self.overlap {
            None => self.shared.push(self.ctx, step),
            Some(overlap) => overlap.update(self.shared.changes(step)),
        }
    }

    /// Waits until all steps are there.
    pub(crate) fn finish(self) -> Result<()> {
        self.overlap.map_or(Ok(()), Overlap::finish)
    }
}
