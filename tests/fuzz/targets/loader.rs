//! Bytes become a component file.
//!
//! ```text
//! "smith:" bytes   a component that wasm-smith makes of them
//! "fit:" bytes     a component that asks for what the host offers, or nearly
//! bytes            a file as it is
//! ```
//!
//! What is refused must say so in printable text; what is loaded is run, within small limits.

#![no_main]

use bytes::Bytes;
use dchost::runtime::{Engine, EngineOptions, LoadError};
use dchost_fuzz::text::{check_block, check_line, show};
use dchost_fuzz::{fit, guest::Guest, run, seeds};
use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::Duration;

/// Longest text of a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Largest file that is loaded, in bytes: so small that inputs reach it.
const MODULE_BYTES_MAX: u64 = 256 << 10;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let options = EngineOptions {
        module_bytes_max: MODULE_BYTES_MAX,
        // In real time, unlike what happens on the clock of a run: an input of this size compiles at once.
        compile_timeout: Duration::from_secs(8),
        ..EngineOptions::default()
    };
    Engine::new(options).expect("the engine starts")
});

fuzz_target!(init: seeds::write(seeds::loader(&Guest::new())), |data: &[u8]| {
    let Some(bytes) = component(data) else { return };
    let load = ENGINE.load_bytes("fuzz/input.wasm", Bytes::from(bytes));
    let compiling = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    match compiling.block_on(load) {
        Ok(module) => {
            if let Err(error) = module.check_limits(&run::limits()) {
                return refused(&error);
            }
            run::runtime().block_on(run::run(&module, 0, Vec::new()));
        }
        Err(error) => refused(&error),
    }
});

fn component(data: &[u8]) -> Option<Vec<u8>> {
    if let Some(data) = data.strip_prefix(b"smith:") {
        let mut unstructured = Unstructured::new(data);
        let config = wasm_smith::Config { max_memories: 4, ..wasm_smith::Config::default() };
        Some(wasm_smith::Component::new(config, &mut unstructured).ok()?.to_bytes())
    } else if let Some(data) = data.strip_prefix(b"fit:") {
        wat::parse_str(fit::component(&mut Unstructured::new(data)).ok()?).ok()
    } else {
        Some(data.to_vec())
    }
}

fn refused(error: &LoadError) {
    let text = error.to_string();
    show(|| text.clone());
    match error {
        LoadError::Bug { .. } => panic!("a bug in dchost: {text}"),
        LoadError::CompileTimeout { .. } => panic!("a small file takes long to compile: {text}"),
        // One line for each import or export.
        LoadError::Misfit { .. } => check_block(&text, REFUSAL_BYTES_MAX),
        _ => check_line(&text, REFUSAL_BYTES_MAX),
    }
}
