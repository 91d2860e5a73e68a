//! The engine: wasmtime's configuration, and the linker.

use super::bindings;
use super::cache::Cache;
use super::features::OFFERED;
use super::precompiled::Maker;
use super::state::State;
use super::ticker;
use crate::exit::Exit;
use bytes::Bytes;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::Linker;
use wasmtime::{Config, WasmBacktraceDetails, WasmFeatures};

/// Room for host functions on a guest's fiber, beside the guest's own stack, in bytes.
const HOST_STACK_BYTES: usize = 1536 << 10;

/// Largest wasm stack that may be asked for, in bytes: address space is reserved for each run.
const WASM_STACK_BYTES_MAX: usize = 1 << 30;

/// Smallest wasm stack that may be asked for, in bytes: below, start-up code of common languages doesn't fit.
const WASM_STACK_BYTES_MIN: usize = 16 << 10;

/// How components are compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Where compiled code is kept between processes; none: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Largest component that is loaded, in bytes (`--max-module-size`).
    pub module_bytes_max: u64,
    /// The sha256 that the component must have; none: any (`--digest`).
    pub digest: Option<[u8; 32]>,
    /// How long compiling may take (`--compile-timeout`).
    pub compile_timeout: Duration,
    /// Whether guests count fuel; needed for [`Limits::fuel`](super::Limits::fuel).
    pub fuel: bool,
    /// The wasm stack of a guest, in bytes (`-W max-wasm-stack`).
    pub wasm_stack_bytes_max: usize,
    /// Whether files of `dchost compile` are loaded, which are trusted as dchost itself is (`--allow-precompiled`).
    pub allow_precompiled: bool,
    /// Whether an import that dchost doesn't offer traps when it is called, instead of being refused
    /// (`-W unknown-imports-trap`).
    pub unknown_imports_trap: bool,
    /// Whether traps keep what a core dump needs; needed for [`GuestOptions::coredump_dir`](super::GuestOptions::coredump_dir).
    pub coredump: bool,
}

impl Default for EngineOptions {
    /// 64 MiB, 60 s, no fuel, 512 KiB of stack, no cache.
    fn default() -> Self {
        EngineOptions {
            cache_dir: None,
            module_bytes_max: 64 << 20,
            digest: None,
            compile_timeout: Duration::from_secs(60),
            fuel: false,
            wasm_stack_bytes_max: 512 << 10,
            allow_precompiled: false,
            unknown_imports_trap: false,
            coredump: false,
        }
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The stack is outside what can be had.
    #[error(
        "`-W max-wasm-stack` of {asked} bytes is out of range, give {WASM_STACK_BYTES_MIN} to {WASM_STACK_BYTES_MAX} bytes"
    )]
    StackSize {
        /// What was asked for, in bytes.
        asked: usize,
    },
    /// wasmtime refused its configuration.
    #[error("wasmtime doesn't start on this machine")]
    Wasmtime(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The ticker thread could not be started.
    #[error("the epoch ticker thread doesn't start")]
    Ticker(#[source] std::io::Error),
}

impl EngineError {
    /// What a process exits with that meets it.
    pub fn exit(&self) -> Exit {
        match self {
            EngineError::StackSize { .. } | EngineError::Wasmtime(_) => Exit::Refused,
            EngineError::Ticker(_) => Exit::Files,
        }
    }
}

/// Compiles and links components. Cheap to clone; one for each process is enough.
///
/// One thread of the process ticks for all engines, while one or a module of one lives.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<EngineInner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// What clones of an engine, and its modules, share.
pub(super) struct EngineInner {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) linker: Linker<State>,
    pub(super) options: EngineOptions,
    pub(super) maker: Maker,
    pub(super) cache: Option<Cache>,
}

impl Engine {
    /// Starts an engine, and the ticker thread where none runs.
    ///
    /// A cache that cannot be used is one warning, never an error.
    ///
    /// # Errors
    /// [`EngineError`]: a stack size out of range, a machine that wasmtime doesn't run on, or one without a thread for the
    /// ticker.
    pub fn new(options: EngineOptions) -> Result<Engine, EngineError> {
        Engine::tuned(options, |_| {})
    }

    /// Starts an engine with other settings than dchost's own: for benches that compare what settings cost. With them the
    /// limits of a run need not hold.
    ///
    /// # Errors
    /// As [`Engine::new`]; also where wasmtime was built without what is set.
    #[doc(hidden)]
    pub fn tuned(options: EngineOptions, tune: impl FnOnce(&mut Config)) -> Result<Engine, EngineError> {
        let mut config = configure(&options)?;
        tune(&mut config);
        let wasmtime = wasmtime::Engine::new(&config).map_err(|error| EngineError::Wasmtime(error.into()))?;
        let linker = bindings::linker(&wasmtime).map_err(|error| EngineError::Wasmtime(error.into()))?;
        ticker::tick(wasmtime.weak()).map_err(EngineError::Ticker)?;
        let maker = Maker::new(&wasmtime, &options);
        let cache = options.cache_dir.as_deref().and_then(Cache::open);
        Ok(Engine { inner: Arc::new(EngineInner { wasmtime, linker, options, maker, cache }) })
    }

    /// wasmtime's own engine: for benches that measure a call without anything of dchost around it.
    #[doc(hidden)]
    pub fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner.wasmtime
    }

    /// Loads the component at `path`.
    ///
    /// # Errors
    /// [`LoadError`](super::LoadError), which says what the file is instead and how to mend it.
    ///
    /// # Cancel safety
    /// Nothing is kept of a dropped load; a compilation that has begun runs to its end on its own thread.
    pub async fn load(&self, path: &Path) -> Result<super::Module, super::LoadError> {
        super::load::load(self, path).await
    }

    /// Compiles the component at `path` to the bytes of a file that [`Engine::load`] loads where
    /// [`EngineOptions::allow_precompiled`] is set.
    ///
    /// # Errors
    /// As [`Engine::load`].
    ///
    /// # Cancel safety
    /// As [`Engine::load`].
    pub async fn precompile(&self, path: &Path) -> Result<Vec<u8>, super::LoadError> {
        super::load::precompile(self, path).await
    }

    /// Loads a component from memory; `name` stands for its path in messages and for argv\[0\].
    ///
    /// # Errors
    /// As [`Engine::load`].
    ///
    /// # Cancel safety
    /// As [`Engine::load`].
    pub async fn load_bytes(&self, name: &str, bytes: Bytes) -> Result<super::Module, super::LoadError> {
        super::load::load_bytes(self, name, bytes).await
    }

    /// Loads a component for its ops: one that exports `op-entry`, with or without a worker_fn. `digest` is the sha256 that
    /// it was announced by; [`EngineOptions::digest`] holds as well. Compiled code is never taken.
    ///
    /// # Errors
    /// As [`Engine::load`]; [`LoadError::Announced`](super::LoadError::Announced) for other bytes.
    ///
    /// # Cancel safety
    /// As [`Engine::load`].
    pub async fn load_ops(
        &self,
        name: &str,
        component: Bytes,
        digest: [u8; 32],
    ) -> Result<super::Module, super::LoadError> {
        super::load::load_ops(self, name, component, digest).await
    }
}

/// The configuration: only what guests need, deny the rest.
fn configure(options: &EngineOptions) -> Result<Config, EngineError> {
    if !(WASM_STACK_BYTES_MIN..=WASM_STACK_BYTES_MAX).contains(&options.wasm_stack_bytes_max) {
        return Err(EngineError::StackSize { asked: options.wasm_stack_bytes_max });
    }
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .consume_fuel(options.fuel)
        .coredump_on_trap(options.coredump)
        // Halves the cost of an import; the worlds have no async functions.
        .concurrency_support(false)
        .wasm_backtrace_max_frames(NonZeroUsize::new(super::trap::FRAMES_MAX))
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        .max_wasm_stack(options.wasm_stack_bytes_max)
        .async_stack_size(options.wasm_stack_bytes_max + HOST_STACK_BYTES)
        // Not offered; were it ever, then with the same results on every machine of the cluster.
        .relaxed_simd_deterministic(true);
    // By name, so that what an update of wasmtime adds or turns on stays off until somebody has looked at it.
    config.wasm_features(WasmFeatures::all() & !OFFERED, false).wasm_features(OFFERED, true);
    Ok(config)
}
