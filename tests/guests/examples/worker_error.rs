//! Returns the error `bad shard 7`.

use dchost_guest::{WorkerContext, worker_fn};

#[worker_fn]
fn train(_: &WorkerContext) -> Result<(), &'static str> {
    Err("bad shard 7")
}
