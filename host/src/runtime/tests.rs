//! Components of few lines, run against fakes: what they may do, what ends them, and how it is told.

mod coredump;
mod ending;
mod grants;
mod hosting;
mod limits;
mod loading;
mod op_guest;
mod ops;
mod panics;
mod variables;

use super::test_support::{Fakes, Recorder};
use super::{Engine, EngineOptions, GuestOptions, Limits, LoadError, Module, RunEnd, RunReport, RunWatch};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Generous: only a hang takes this long.
const DEADLINE: Duration = Duration::from_secs(60);

/// One engine for all tests, as in a process.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(EngineOptions::default()).unwrap());

async fn load(bytes: Vec<u8>) -> Module {
    ENGINE.load_bytes("guest.wasm", bytes.into()).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Loads and runs a guest to its end.
async fn run(bytes: Vec<u8>, limits: Limits) -> (RunReport, Arc<Recorder>) {
    let fakes = Fakes::new();
    let options = GuestOptions { limits, ..GuestOptions::default() };
    let module = load(bytes).await;
    let report = tokio::time::timeout(DEADLINE, module.run(options, fakes.handles(), RunWatch::new())).await.unwrap();
    (report, fakes.recorder)
}

async fn end(bytes: Vec<u8>) -> RunEnd {
    run(bytes, Limits::default()).await.0.end
}
