//! Components of few lines, run against fakes: what they may do, what ends them, and how it is told.

mod coredump;
mod ending;
mod grants;
mod hosting;
mod kernels;
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
    run_on(&ENGINE, bytes, GuestOptions { limits, ..GuestOptions::default() }).await
}

/// As [`run`], on an engine of the test's own and with whatever is granted.
async fn run_on(engine: &Engine, bytes: Vec<u8>, options: GuestOptions) -> (RunReport, Arc<Recorder>) {
    let fakes = Fakes::new();
    let module = engine.load_bytes("guest.wasm", bytes.into()).await.unwrap_or_else(|error| panic!("{error}"));
    let report = tokio::time::timeout(DEADLINE, module.run(options, fakes.handles(), RunWatch::new())).await.unwrap();
    (report, fakes.recorder)
}

async fn end(bytes: Vec<u8>) -> RunEnd {
    run(bytes, Limits::default()).await.0.end
}

/// A component of two parts: `run` of the whole calls `$first`, which the other defines, with a string. The parts share no
/// memory; at 100 of the whole's stands `x`, at 8 of the other's `inner`.
fn composed(first: &str, run: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
        (component $part
          (core module $m
            (memory (export "memory") 1) (data (i32.const 8) "inner")
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 64))
            (func (export "first") (param i32 i32) (result i32) {first}))
          (core instance $i (instantiate $m))
          (func (export "first") (param "text" string) (result u32)
            (canon lift (core func $i "first") (memory (core memory $i "memory")) (realloc (core func $i "realloc")))))
        (component $whole
          (import "first" (func $first (param "text" string) (result u32)))
          (core module $libc (memory (export "memory") 2) (data (i32.const 100) "x"))
          (core instance $libc (instantiate $libc))
          (core func $lowered (canon lower (func $first) (memory (core memory $libc "memory"))))
          (core module $main
            (import "part" "first" (func $first (param i32 i32) (result i32)))
            (func (export "run") (result i32) {run} (i32.const 0)))
          (core instance $host (export "first" (func $lowered)))
          (core instance $main (instantiate $main (with "part" (instance $host))))
          (func (export "run") (result (result (error string)))
            (canon lift (core func $main "run") (memory (core memory $libc "memory")))))
        (instance $part (instantiate $part))
        (alias export $part "first" (func $first))
        (instance $whole (instantiate $whole (with "first" (func $first))))
        (alias export $whole "run" (func $run))
        (instance $entry (export "run" (func $run)))
        (export "dchost:worker/entry@0.1.0" (instance $entry)))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
