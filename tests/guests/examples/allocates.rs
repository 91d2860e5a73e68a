//! Allocates until memory is refused. Arguments: `refused` (default; tells how far it got and returns an error) or `aborts`
//! (allocates as Rust programs usually do, which ends in a trap), then the size of each piece in MiB (default 1).

use dchost_guest::{WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::hint::black_box;

const MIB: usize = 1 << 20;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<(), String> {
    let ending: String = arg(ctx, 0, "refused".to_owned());
    let piece_mib = arg(ctx, 1, 1_usize).max(1);
    let piece_bytes = piece_mib * MIB;
    // Room for the pieces of a whole 32-bit memory, so that only the pieces themselves allocate.
    let mut pieces: Vec<Vec<u8>> = Vec::with_capacity(4096 / piece_mib);
    loop {
        let mut piece = Vec::new();
        if ending == "aborts" {
            piece.reserve_exact(piece_bytes);
        } else if piece.try_reserve_exact(piece_bytes).is_err() {
            return Err(format!("memory refused after {} MiB", pieces.len() * piece_mib));
        }
        // Touched, so that it is memory and not only a promise.
        piece.resize(piece_bytes, 1);
        pieces.push(black_box(piece));
    }
}
