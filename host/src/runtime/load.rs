//! From a path or bytes to a [`Module`], or to a refusal that says what to do.

mod refusal;

pub use refusal::LoadError;

use super::cost::{self, COMPILE_BYTES_MAX, resident_bytes};
use super::engine::{Engine, EngineInner, EngineOptions};
use super::features;
use super::fit;
use super::limits::Limits;
use super::precompiled::{Flaw, distrust, is_sealed};
use super::sniff::{HEADER_BYTES, Sniffed, sniff};
use super::state::State;
use crate::files::{self, ReadError};
use crate::text::{escaped, nearest, truncated};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wasmtime::component::Component;

/// How much larger than its component a file of compiled code may be: 3 to 6 times is usual.
const CODE_GROWTH_MAX: u64 = 16;

/// What it may be larger by in any case, in bytes: code has pages, and the smallest component a few of them.
const CODE_SLACK_BYTES: u64 = 1 << 20;

/// Bytes of a page of wasm memory.
const WASM_PAGE_BYTES: u64 = 64 << 10;

/// How alike a file's name must be to be suggested, from 0 to 1: a directory may hold many.
const SUGGESTION_LIKENESS_MIN: f64 = 0.75;

/// Longest reason of a refusal that is shown, in bytes: it names a place in the file, and may repeat a name of any length.
const REASON_BYTES_MAX: usize = 4096;

/// Entries of a directory that are looked through for a suggestion.
const SUGGESTION_ENTRIES_MAX: usize = 10_000;

/// A component that is compiled and fits the world. Cheap to clone.
#[derive(Clone)]
pub struct Module {
    pub(super) inner: Arc<ModuleInner>,
}

pub(super) struct ModuleInner {
    pub(super) engine: Arc<EngineInner>,
    pub(super) pre: super::bindings::WorkerPre<State>,
    path: String,
    name: String,
    digest: [u8; 32],
    size_bytes: u64,
}

impl Module {
    /// The sha256 of the component's bytes.
    pub fn digest(&self) -> [u8; 32] {
        self.inner.digest
    }

    /// The options of the engine that loaded it.
    pub fn engine_options(&self) -> &EngineOptions {
        &self.inner.engine.options
    }

    /// The size of the component, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.inner.size_bytes
    }

    /// Refuses a component whose declared memory alone is above the limit, before anything else is done for a run.
    ///
    /// Looks at the largest memory; the sum of several is seen by [`Module::run`], which then ends in
    /// [`RunEnd::Refused`](super::RunEnd::Refused).
    ///
    /// # Errors
    /// [`LoadError::DeclaredMemory`].
    pub fn check_limits(&self, limits: &Limits) -> Result<(), LoadError> {
        let required = self.inner.pre.instance_pre().component().resources_required();
        let pages = required.and_then(|required| required.max_initial_memory_size).unwrap_or(0);
        let (declared_bytes, limit_bytes) = (pages.saturating_mul(WASM_PAGE_BYTES), limits.memory_bytes_max);
        if declared_bytes > limit_bytes {
            return Err(LoadError::DeclaredMemory { path: self.inner.path.clone(), declared_bytes, limit_bytes });
        }
        Ok(())
    }

    /// The base name of the file; the guest's argv\[0\].
    pub fn name(&self) -> &str {
        &self.inner.name
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.inner.name)
            .field("size_bytes", &self.inner.size_bytes)
            .finish_non_exhaustive()
    }
}

/// Loads a file.
///
/// # Cancel safety
/// Nothing is kept of a dropped load; what a thread has begun, it ends unheard.
pub(super) async fn load(engine: &Engine, path: &Path) -> Result<Module, LoadError> {
    let (bytes, metadata) = read_on_thread(engine, path).await?;
    load_read(engine, path, bytes, metadata).await
}

/// Reads a file, at most what [`EngineOptions::module_bytes_max`] allows.
///
/// # Cancel safety
/// As [`load`].
pub(super) async fn read_on_thread(engine: &Engine, path: &Path) -> Result<(Bytes, Metadata), LoadError> {
    let (limit_bytes, file) = (file_bytes_max(engine), path.to_owned());
    on_thread("dchost-read", &path.display().to_string(), move || read(&file, limit_bytes)).await?
}

/// The largest file that is read, in bytes: before it is read nobody knows whether it is code, which is larger than the
/// component it was made from.
fn file_bytes_max(engine: &Engine) -> u64 {
    let options = &engine.inner.options;
    let growth = if options.allow_precompiled { CODE_GROWTH_MAX } else { 1 };
    options.module_bytes_max.saturating_mul(growth)
}

/// Loads what was read of a file.
///
/// # Cancel safety
/// As [`load`].
pub(super) async fn load_read(
    engine: &Engine,
    path: &Path,
    bytes: Bytes,
    metadata: Metadata,
) -> Result<Module, LoadError> {
    let shown = path.display().to_string();
    let name = path.file_name().map_or_else(|| shown.clone(), |name| name.to_string_lossy().into_owned());
    compile(engine, shown, name, bytes, Some(metadata)).await
}

/// Loads bytes that came from elsewhere.
///
/// # Cancel safety
/// As [`load`].
pub(super) async fn load_bytes(engine: &Engine, name: &str, bytes: Bytes) -> Result<Module, LoadError> {
    let base = name.rsplit('/').next().unwrap_or(name).to_owned();
    compile(engine, name.to_owned(), base, bytes, None).await
}

/// Compiles a file to the bytes of another.
///
/// # Cancel safety
/// As [`load`].
pub(super) async fn precompile(engine: &Engine, path: &Path) -> Result<Vec<u8>, LoadError> {
    let (bytes, metadata) = read_on_thread(engine, path).await?;
    if is_sealed(&bytes) {
        return Err(LoadError::AlreadyCompiled { path: path.display().to_string() });
    }
    let inner = load_read(engine, path, bytes, metadata).await?.inner;
    let component = inner.pre.instance_pre().component();
    engine.inner.maker.seal(component, &inner.digest, inner.size_bytes).map_err(|error| LoadError::Invalid {
        path: inner.path.clone(),
        size_bytes: inner.size_bytes,
        reason: one_line(&error),
    })
}

/// Reads a regular file of at most `limit_bytes`.
fn read(path: &Path, limit_bytes: u64) -> Result<(Bytes, Metadata), LoadError> {
    let read = || {
        let (file, metadata) = files::open(path)?;
        Ok((files::read(&file, &metadata, limit_bytes)?.into(), metadata))
    };
    let shown = path.display().to_string();
    read().map_err(|error| match error {
        ReadError::NotAFile { kind } => LoadError::NotAFile { path: shown, kind },
        ReadError::TooLarge { size_bytes, .. } => LoadError::TooLarge { path: shown, size_bytes, limit_bytes },
        ReadError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            LoadError::Missing { path: shown, suggestion: suggest(path) }
        }
        ReadError::Io(source) => LoadError::Unreadable { path: shown, source },
    })
}

/// The file beside `path` whose name is most like its own.
fn suggest(path: &Path) -> Option<String> {
    let wanted = path.file_name()?.to_str()?;
    let dir =
        path.parent().filter(|dir| !dir.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned);
    let entries = std::fs::read_dir(dir).ok()?.take(SUGGESTION_ENTRIES_MAX);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let near = nearest(wanted, names, SUGGESTION_LIKENESS_MIN)?;
    Some(path.with_file_name(near).display().to_string())
}

/// Checks, compiles and links on a thread of its own: a hostile component must not hold an executor, and its thread must
/// not hold up the end of the process.
async fn compile(
    engine: &Engine,
    path: String,
    name: String,
    bytes: Bytes,
    metadata: Option<Metadata>,
) -> Result<Module, LoadError> {
    if is_sealed(&bytes) {
        return open_sealed(engine, path, name, bytes, metadata).await;
    }
    let limit_bytes = engine.inner.options.module_bytes_max;
    let size_bytes = bytes.len() as u64;
    if size_bytes > limit_bytes {
        return Err(LoadError::TooLarge { path, size_bytes, limit_bytes });
    }
    match sniff(&bytes) {
        Sniffed::Component => {}
        Sniffed::CoreModule => return Err(LoadError::CoreModule { path }),
        Sniffed::Precompiled => return Err(LoadError::Precompiled { path }),
        Sniffed::NotWasm(what) => return Err(LoadError::NotWasm { path, what }),
        Sniffed::TruncatedHeader => {
            let reason = format!("unexpected end within the header of {HEADER_BYTES} bytes");
            return Err(LoadError::Invalid { path, size_bytes, reason });
        }
        Sniffed::UnknownVersion => {
            let reason = "unknown version in the header (at offset 0x4)".to_owned();
            return Err(LoadError::Invalid { path, size_bytes, reason });
        }
    }
    let timeout = engine.inner.options.compile_timeout;
    let inner = Arc::clone(&engine.inner);
    let shown = path.clone();
    let compiled = on_thread("dchost-compile", &path, move || {
        let digest = Sha256::digest(&bytes).into();
        check_digest(&inner.options, &shown, digest)?;
        let component = match kept(&inner, &digest, size_bytes) {
            Some(component) => component,
            None => {
                cost::check(&bytes).map_err(|excess| LoadError::Costly { path: shown.clone(), excess })?;
                compile_and_keep(&inner, &bytes, &digest).map_err(|error| {
                    let (path, reason) = (shown.clone(), one_line(&error));
                    match features::missing(&reason) {
                        Some(feature) => LoadError::Feature { path, feature, reason },
                        None => LoadError::Invalid { path, size_bytes, reason },
                    }
                })?
            }
        };
        linked(inner, &component, shown, name, digest, size_bytes)
    });
    // A thread can't be ended from outside. It is left behind, and ends with the process that this refusal ends.
    let within_memory = async {
        tokio::select! {
            compiled = compiled => Some(compiled),
            () = grown(COMPILE_BYTES_MAX) => None,
        }
    };
    match tokio::time::timeout(timeout, within_memory).await {
        Ok(Some(compiled)) => compiled?,
        Ok(None) => Err(LoadError::CompileMemory { path }),
        Err(_) => Err(LoadError::CompileTimeout { path, timeout }),
    }
}

/// Makes the module of a component, if it fits.
fn linked(
    engine: Arc<EngineInner>,
    component: &Component,
    path: String,
    name: String,
    digest: [u8; 32],
    size_bytes: u64,
) -> Result<Module, LoadError> {
    match fit::link(&engine, component) {
        Ok(pre) => Ok(Module { inner: Arc::new(ModuleInner { engine, pre, path, name, digest, size_bytes }) }),
        Err(misfit) => Err(LoadError::Misfit { path, misfit }),
    }
}

/// Refuses a component that isn't the one asked for.
fn check_digest(options: &EngineOptions, path: &str, found: [u8; 32]) -> Result<(), LoadError> {
    match options.digest {
        Some(wanted) if wanted != found => Err(LoadError::Digest { path: path.to_owned(), wanted, found }),
        _ => Ok(()),
    }
}

/// Takes the code of this source from the cache; none where it isn't there, is damaged, or is of something else.
fn kept(inner: &EngineInner, digest: &[u8; 32], source_bytes: u64) -> Option<Component> {
    let bytes_max = source_bytes.saturating_mul(CODE_GROWTH_MAX).saturating_add(CODE_SLACK_BYTES);
    let kept = inner.cache.as_ref()?.get(&inner.maker.key(digest), bytes_max)?;
    let sealed = inner.maker.open(&kept).ok().filter(|sealed| sealed.source == *digest)?;
    sealed.component(&inner.wasmtime).ok()
}

/// Compiles, and keeps the code instead of what was there.
fn compile_and_keep(inner: &EngineInner, bytes: &[u8], digest: &[u8; 32]) -> Result<Component, wasmtime::Error> {
    let component = Component::from_binary(&inner.wasmtime, bytes)?;
    if let Some(cache) = &inner.cache {
        match inner.maker.seal(&component, digest, bytes.len() as u64) {
            Ok(sealed) => cache.put(&inner.maker.key(digest), &sealed),
            Err(error) => tracing::warn!("compiled code can't be kept: {}", one_line(&error)),
        }
    }
    Ok(component)
}

/// Loads a file of `dchost compile`.
async fn open_sealed(
    engine: &Engine,
    path: String,
    name: String,
    bytes: Bytes,
    metadata: Option<Metadata>,
) -> Result<Module, LoadError> {
    if !engine.inner.options.allow_precompiled {
        return Err(LoadError::PrecompiledNotAllowed { path });
    }
    let why = metadata.as_ref().map_or(Some("it comes from memory, not from a file"), distrust);
    if let Some(why) = why {
        return Err(LoadError::PrecompiledDistrusted { path, why });
    }
    let (inner, shown) = (Arc::clone(&engine.inner), path.clone());
    on_thread("dchost-compile", &path, move || {
        let sealed = inner.maker.open(&bytes).map_err(|flaw| match flaw {
            Flaw::Damaged => LoadError::PrecompiledDamaged { path: shown.clone() },
            Flaw::Other(theirs) => {
                LoadError::PrecompiledByOther { path: shown.clone(), theirs, ours: inner.maker.words().to_owned() }
            }
        })?;
        let (digest, size_bytes) = (sealed.source, sealed.source_bytes);
        check_digest(&inner.options, &shown, digest)?;
        let component = sealed.component(&inner.wasmtime).map_err(|error| LoadError::Invalid {
            path: shown.clone(),
            size_bytes: bytes.len() as u64,
            reason: one_line(&error),
        })?;
        linked(inner, &component, shown, name, digest, size_bytes)
    })
    .await?
}

/// Waits until this process has so many bytes more than now.
async fn grown(bytes: u64) {
    const LOOK_INTERVAL: Duration = Duration::from_millis(20);
    let most = resident_bytes().map(|now| now.saturating_add(bytes));
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // Where the system doesn't tell, the timeout alone holds.
        if let (Some(now), Some(most)) = (resident_bytes(), most)
            && now > most
        {
            return;
        }
    }
}

/// Runs blocking work on a thread of its own.
///
/// # Errors
/// [`LoadError::Thread`]: there is no thread; [`LoadError::Bug`]: the work panicked.
///
/// # Cancel safety
/// The thread goes on to the end of its work; the answer is dropped.
pub(super) async fn on_thread<T: Send + 'static>(
    thread: &str,
    path: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LoadError> {
    let bug = || LoadError::Bug { path: path.to_owned() };
    let (send, receive) = oneshot::channel();
    std::thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || {
            // Nobody listens any more where the load was dropped or timed out.
            let _ = send.send(work());
        })
        .map_err(|source| LoadError::Thread { path: path.to_owned(), source })?;
    receive.await.map_err(|_| bug())
}

/// An error of wasmtime with its causes, on one line: it repeats names of the file, which are whatever its author likes.
fn one_line(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    escaped(truncated(&text, REASON_BYTES_MAX)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_grows_is_noticed() {
        const BYTES: u64 = 64 << 20;
        let mut kept = Vec::new();
        let grow = async {
            loop {
                // Written to, so that it is memory and not only a promise.
                kept.push(vec![1_u8; 8 << 20]);
                tokio::task::yield_now().await;
            }
        };
        let noticed = tokio::time::timeout(Duration::from_secs(60), grown(BYTES));
        tokio::select! {
            noticed = noticed => assert_eq!(noticed, Ok(())),
            () = grow => {}
        }
        // Other tests grow the process as well.
        assert!(kept.len() < 100, "noticed only after {} pieces", kept.len());
    }
}
