//! Bytes become calls of every import of `dchost:worker`, by the interpreter of `dchost_fuzz::guest`.
//!
//! Each run must end in one of the documented ways, and the host's memory must stay within what the limits allow.

#![no_main]

use bytes::Bytes;
use dchost::runtime::{Engine, EngineOptions, Module};
use dchost_fuzz::{guest::Guest, run, seeds};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;
use std::sync::LazyLock;

/// Counts what the host allocates; a guest's memory is mapped, and not among it.
#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// What a run may make the host allocate at its peak, in bytes: the copies of one call (the largest tensor and 8 MiB), as
/// the host's values and once more as the answer, all variables, and the pendings' four tensors.
const PEAK_BYTES_MAX: usize = 32 << 20;

/// What a run may leave behind, in bytes: thread-local buffers and the like, but not what grows with each run.
const REST_BYTES_MAX: usize = 4 << 20;

static GUEST: LazyLock<Guest> = LazyLock::new(Guest::new);

static MODULE: LazyLock<Module> = LazyLock::new(|| {
    let engine = Engine::new(EngineOptions::default()).expect("the engine starts");
    let bytes = Bytes::copy_from_slice(GUEST.component());
    let load = async { engine.load_bytes("interpreter.wasm", bytes).await };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(load).unwrap_or_else(|error| panic!("{error}"))
});

fuzz_target!(init: seeds::write(seeds::imports(&GUEST)), |script: &[u8]| {
    let Some((&place, script)) = script.split_first() else { return };
    let module = &*MODULE;
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let runtime = run::runtime();
    runtime.block_on(run::run(module, place, vec![Guest::argument(script)]));
    drop(runtime);
    let (peak, after) = (ALLOCATED.peak_usage(), ALLOCATED.current_usage());
    assert!(peak < before + PEAK_BYTES_MAX, "{} bytes at the peak of a run", peak - before);
    assert!(after < before + REST_BYTES_MAX, "{} bytes are left after a run", after - before);
});
