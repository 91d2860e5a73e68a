//! Why a file is not loaded, and how to mend it.

use crate::exit::Exit;
use crate::runtime::cost::{COMPILE_BYTES_MAX, Excess};
use crate::runtime::fit::Misfit;
use crate::runtime::limits::mib;
use crate::text::{did_you_mean, hex};
use std::time::Duration;

/// Why a file was refused. `path` is as the user typed it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file.
    #[error("no file `{path}`{}", did_you_mean(.suggestion.as_deref()))]
    Missing {
        /// The file.
        path: String,
        /// A file with a similar name in the same directory.
        suggestion: Option<String>,
    },
    /// It is there, but can't be read.
    #[error("can't read `{path}`")]
    Unreadable {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A directory, pipe, socket or device.
    #[error("`{path}` is {kind}, not a file: give the path of a component")]
    NotAFile {
        /// The file.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// Larger than the cap.
    #[error("`{path}` has {}, above {} (--max-module-size)", mib(*.size_bytes), mib(*.limit_bytes))]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// The cap.
        limit_bytes: u64,
    },
    /// It declares more memory than a run may use.
    #[error(
        "`{path}` declares a memory of {}, above {} (--max-memory)", mib(*.declared_bytes), mib(*.limit_bytes)
    )]
    DeclaredMemory {
        /// The file.
        path: String,
        /// The largest memory's initial size.
        declared_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Something other than wasm.
    #[error("`{path}` is not a WebAssembly component but {what}")]
    NotWasm {
        /// The file.
        path: String,
        /// What it looks like.
        what: &'static str,
    },
    /// A core module.
    #[error(
        "`{path}` is a core module, a component is needed: build with `--target wasm32-wasip2` \
         (rustup target add wasm32-wasip2), or wrap it with `wasm-tools component new`"
    )]
    CoreModule {
        /// The file.
        path: String,
    },
    /// It is not the component that was asked for.
    #[error(
        "`{path}` has the digest sha256:{}, not sha256:{} (--digest): get the right file, or give its digest",
        hex(found),
        hex(wanted)
    )]
    Digest {
        /// The file.
        path: String,
        /// The sha256 that it must have.
        wanted: [u8; 32],
        /// The sha256 that it has; of precompiled code, that of its source.
        found: [u8; 32],
    },
    /// Bytes other than those that were announced.
    #[error("`{path}` has the digest sha256:{}, but was announced as sha256:{}", hex(found), hex(announced))]
    Announced {
        /// The component.
        path: String,
        /// The sha256 by which it was asked for.
        announced: [u8; 32],
        /// The sha256 that it has.
        found: [u8; 32],
    },
    /// A file of `dchost compile`, where those are not allowed.
    #[error(
        "`{path}` is precompiled code, which no sandbox holds: give the component (.wasm) that it was made from, \
         or `--allow-precompiled` if you trust it as dchost itself"
    )]
    PrecompiledNotAllowed {
        /// The file.
        path: String,
    },
    /// A file of `dchost compile`, to be compiled.
    #[error(
        "`{path}` is compiled already: run it with `--allow-precompiled`, or give the component (.wasm) that it was made from"
    )]
    AlreadyCompiled {
        /// The file.
        path: String,
    },
    /// Precompiled code that somebody else may have written.
    #[error("`{path}` is precompiled code that may be forged: {why}")]
    PrecompiledDistrusted {
        /// The file.
        path: String,
        /// Why, and how to mend it.
        why: &'static str,
    },
    /// Precompiled code of another version, machine or setting.
    #[error("`{path}` was compiled by {theirs}; this is {ours}: compile it again with `dchost compile`")]
    PrecompiledByOther {
        /// The file.
        path: String,
        /// Who made it.
        theirs: String,
        /// Who was to run it.
        ours: String,
    },
    /// Precompiled code that is not as it was written.
    #[error("`{path}` is precompiled code and damaged (its checksum differs): copy it again, or use `dchost compile`")]
    PrecompiledDamaged {
        /// The file.
        path: String,
    },
    /// Compiled code instead of wasm.
    #[error(
        "`{path}` is precompiled code of wasmtime, which dchost doesn't load: give the component (.wasm) that it was \
         made from, or compile that with `dchost compile`"
    )]
    Precompiled {
        /// The file.
        path: String,
    },
    /// It uses a WebAssembly feature that dchost doesn't offer.
    #[error("`{path}` uses {feature}, which dchost doesn't offer: build it without ({reason})")]
    Feature {
        /// The file.
        path: String,
        /// The feature, in words.
        feature: &'static str,
        /// What the validator found, and where.
        reason: String,
    },
    /// Compiling it would take more of the host than any component needs.
    #[error("`{path}` {excess}")]
    Costly {
        /// The file.
        path: String,
        /// What there is too much of.
        excess: Excess,
    },
    /// Cut short or damaged.
    #[error("`{path}` ({size_bytes} bytes) is no valid component: {reason}{}", damage_hint(.reason))]
    Invalid {
        /// The file.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// What the parser found, and where.
        reason: String,
    },
    /// Compiling took too long.
    #[error("`{path}` did not compile within {timeout:?} (--compile-timeout)")]
    CompileTimeout {
        /// The file.
        path: String,
        /// The time that it had.
        timeout: Duration,
    },
    /// Compiling took too much memory, as far as the whole process grew meanwhile.
    #[error(
        "`{path}` takes more than {} of memory to compile: split its largest functions, or build with less inlining",
        mib(COMPILE_BYTES_MAX)
    )]
    CompileMemory {
        /// The file.
        path: String,
    },
    /// It asks for what dchost doesn't offer, or lacks what dchost calls.
    #[error("`{path}` does not fit world `{}` of dchost:worker@0.1.0\n{misfit}", .misfit.world.as_str())]
    Misfit {
        /// The file.
        path: String,
        /// Every problem.
        misfit: Misfit,
    },
    /// The system has no thread to load it on.
    #[error("can't start a thread to load `{path}`")]
    Thread {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A bug in dchost: the loader's thread panicked.
    #[error("loading `{path}` failed by a bug in dchost, please report it")]
    Bug {
        /// The file.
        path: String,
    },
}

impl LoadError {
    /// What a process exits with that meets it.
    pub fn exit(&self) -> Exit {
        match self {
            LoadError::Bug { .. } => Exit::Bug,
            LoadError::Thread { .. } => Exit::Files,
            // Whatever is wrong with the file, exhaustively, so that a new reason is given its code.
            LoadError::Missing { .. }
            | LoadError::Unreadable { .. }
            | LoadError::NotAFile { .. }
            | LoadError::TooLarge { .. }
            | LoadError::DeclaredMemory { .. }
            | LoadError::NotWasm { .. }
            | LoadError::CoreModule { .. }
            | LoadError::Digest { .. }
            | LoadError::PrecompiledNotAllowed { .. }
            | LoadError::PrecompiledDistrusted { .. }
            | LoadError::PrecompiledByOther { .. }
            | LoadError::PrecompiledDamaged { .. }
            | LoadError::AlreadyCompiled { .. }
            | LoadError::Announced { .. }
            | LoadError::Precompiled { .. }
            | LoadError::Feature { .. }
            | LoadError::Costly { .. }
            | LoadError::Invalid { .. }
            | LoadError::CompileTimeout { .. }
            | LoadError::CompileMemory { .. }
            | LoadError::Misfit { .. } => Exit::Refused,
        }
    }
}

fn damage_hint(reason: &str) -> &'static str {
    if reason.contains("unexpected end") || reason.contains("out of bounds") || reason.contains("extends past") {
        "; it seems truncated, copy or build it again"
    } else {
        "; it may be damaged, copy or build it again"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::EngineError;
    use std::io;

    /// Aim: the system's want of threads is no fault of the component, wherever it shows; a run that can't start its own
    /// threads exits with the same.
    #[test]
    fn a_thread_that_does_not_start_is_the_systems_fault() {
        let (path, none) = (|| "m.wasm".to_owned(), || io::Error::from(io::ErrorKind::WouldBlock));
        let thread = LoadError::Thread { path: path(), source: none() };
        assert_eq!(thread.exit(), Exit::Files);
        assert_eq!(thread.to_string(), "can't start a thread to load `m.wasm`");
        assert_eq!(EngineError::Ticker(none()).exit(), Exit::Files);
        assert_eq!(EngineError::StackSize { asked: 1 }.exit(), Exit::Refused);
        assert_eq!(LoadError::Unreadable { path: path(), source: none() }.exit(), Exit::Refused);
        assert_eq!(LoadError::Bug { path: path() }.exit(), Exit::Bug);
    }
}
