//! What a file is, told without running anything of it.

use super::engine::Engine;
use super::fit::{self, Surface};
use super::limits::Limits;
use super::load::{self, LoadError, Module};
use super::precompiled::is_sealed;
use super::sniff::{Sniffed, sniff};
use crate::text::{self, shown};
use sha2::{Digest, Sha256};
use std::path::Path;
use wasmparser::{BinaryReader, Parser, Payload, ProducersSectionReader};

/// Producers that are listed: each compiler step adds one, and a composed component has those of its parts.
const PRODUCERS_MAX: usize = 32;

/// Producers that are looked at: parts repeat one another's, and some may be made to.
const PRODUCERS_SEEN_MAX: u32 = 10_000;

/// Bytes of a page of wasm memory, unless it says otherwise.
const PAGE_BYTES_LOG2: u32 = 16;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A component.
    Component,
    /// A core module.
    CoreModule,
    /// Compiled code instead of wasm.
    Precompiled,
    /// Wasm that is cut short or damaged.
    Damaged {
        /// What is wrong, and where.
        reason: String,
    },
    /// Something else.
    Other {
        /// What it looks like.
        what: &'static str,
    },
}

impl FileKind {
    /// The word for people and programs: `component`, `core-module`, `precompiled`, `damaged`, `other`.
    pub fn as_str(&self) -> &'static str {
        match self {
            FileKind::Component => "component",
            FileKind::CoreModule => "core-module",
            FileKind::Precompiled => "precompiled",
            FileKind::Damaged { .. } => "damaged",
            FileKind::Other { .. } => "other",
        }
    }
}

/// Who made a part of a component, as the part itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    /// `language`, `sdk` or `processed-by`.
    pub field: String,
    /// Name of the language or tool.
    pub name: String,
    /// Its version; may be empty.
    pub version: String,
}

/// What is known about a file. Every text of it is escaped and bounded.
#[derive(Debug)]
pub struct Inspection {
    /// What it is.
    pub kind: FileKind,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// The sha256 of its bytes.
    pub digest: [u8; 32],
    /// What the producers sections of its parts say; not more than some thirty.
    pub producers: Vec<Producer>,
    /// Producers that were looked at, repeated ones too.
    producers_seen: u32,
    /// Whether a part has names of functions, which traps are told by.
    pub names: bool,
    /// Whether a part has debug information, which gives traps files and lines.
    pub debug_info: bool,
    /// Core modules in it.
    pub core_modules: u64,
    /// Initial sizes of all memories that its modules declare, in bytes.
    pub memory_bytes: u64,
    /// What it imports and exports; none where it isn't a component that compiles.
    pub surface: Option<Surface>,
    /// Why a run refuses it; none: it doesn't.
    pub refusal: Option<LoadError>,
}

impl Engine {
    /// Tells what the file at `path` is, and whether a run under `limits` would refuse it: it is compiled and linked as for
    /// a run, and nothing of it is run.
    ///
    /// A run may refuse more at its start: memories that only together are above the limit, and what goes beyond the most
    /// core instances, memories and tables.
    ///
    /// # Errors
    /// [`LoadError::Missing`], [`LoadError::Unreadable`], [`LoadError::NotAFile`], [`LoadError::TooLarge`]: the file can't be
    /// read, so that there is nothing to tell. [`LoadError::CompileTimeout`]: looking through it took too long.
    ///
    /// # Cancel safety
    /// As [`Engine::load`].
    pub async fn inspect(&self, path: &Path, limits: &Limits) -> Result<Inspection, LoadError> {
        let (bytes, metadata) = load::read_on_thread(self, path).await?;
        let (shown, timeout) = (text::path(path), self.inner.options.compile_timeout);
        let told = bytes.clone();
        let parts = load::on_thread("dchost-inspect", &shown, move || parts(&told));
        let parts = tokio::time::timeout(timeout, parts).await;
        let mut inspection = parts.map_err(|_| LoadError::CompileTimeout { path: shown.clone(), timeout })??;
        // The very bytes that were told: the file may be another one by now.
        let loaded = load::load_read(self, path, bytes, metadata).await;
        inspection.surface = match &loaded {
            Ok(module) => Some(module.surface()),
            Err(LoadError::Misfit { misfit, .. }) => Some(misfit.surface.clone()),
            Err(_) => None,
        };
        if let (FileKind::Component, Err(LoadError::Invalid { reason, .. })) = (&inspection.kind, &loaded) {
            inspection.kind = FileKind::Damaged { reason: reason.clone() };
        }
        inspection.refusal = loaded.and_then(|module| module.check_limits(limits)).err();
        Ok(inspection)
    }
}

impl Module {
    /// What it imports and exports, each with what it is to this host.
    pub fn surface(&self) -> Surface {
        fit::surface(&self.inner.engine, self.inner.pre.component())
    }
}

/// Looks at the sections, those of nested modules and components included.
fn parts(bytes: &[u8]) -> Inspection {
    let damaged = |reason: &str| FileKind::Damaged { reason: reason.to_owned() };
    let mut inspection = Inspection {
        kind: match sniff(bytes) {
            Sniffed::Component => FileKind::Component,
            Sniffed::CoreModule => FileKind::CoreModule,
            Sniffed::Precompiled => FileKind::Precompiled,
            Sniffed::NotWasm(_) if is_sealed(bytes) => FileKind::Precompiled,
            Sniffed::NotWasm(what) => FileKind::Other { what },
            Sniffed::TruncatedHeader => damaged("it ends within its header"),
            Sniffed::UnknownVersion => damaged("its header has an unknown version"),
        },
        size_bytes: bytes.len() as u64,
        digest: Sha256::digest(bytes).into(),
        producers: Vec::new(),
        producers_seen: 0,
        names: false,
        debug_info: false,
        core_modules: 0,
        memory_bytes: 0,
        surface: None,
        refusal: None,
    };
    if !matches!(inspection.kind, FileKind::Component | FileKind::CoreModule) {
        return inspection;
    }
    for payload in Parser::new(0).parse_all(bytes) {
        match payload {
            Ok(payload) => inspection.add(&payload),
            Err(error) => {
                inspection.kind = FileKind::Damaged { reason: shown(&error.to_string()) };
                break;
            }
        }
    }
    inspection
}

impl Inspection {
    fn add(&mut self, payload: &Payload<'_>) {
        match payload {
            Payload::Version { encoding: wasmparser::Encoding::Module, .. } => self.core_modules += 1,
            Payload::MemorySection(memories) => {
                for memory in memories.clone().into_iter().flatten() {
                    let page_bytes = 1_u64.checked_shl(memory.page_size_log2.unwrap_or(PAGE_BYTES_LOG2)).unwrap_or(0);
                    self.memory_bytes = self.memory_bytes.saturating_add(memory.initial.saturating_mul(page_bytes));
                }
            }
            Payload::CustomSection(section) => match section.name() {
                "producers" => self.add_producers(section.data()),
                "name" => self.names = true,
                name if name.starts_with(".debug_") => self.debug_info = true,
                _ => {}
            },
            _ => {}
        }
    }

    /// Whatever can be read of a producers section: it is a claim, and no reason to refuse anything.
    fn add_producers(&mut self, data: &[u8]) {
        let Ok(fields) = ProducersSectionReader::new(BinaryReader::new(data, 0)) else { return };
        for field in fields.into_iter().map_while(Result::ok) {
            for value in field.values.into_iter().map_while(Result::ok) {
                if self.producers.len() == PRODUCERS_MAX || self.producers_seen == PRODUCERS_SEEN_MAX {
                    return;
                }
                self.producers_seen += 1;
                let producer =
                    Producer { field: shown(field.name), name: shown(value.name), version: shown(value.version) };
                if !self.producers.contains(&producer) {
                    self.producers.push(producer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn producers(field: &str, name: &str) -> Vec<u8> {
        let text = |text: &str| {
            assert!(text.len() < 128, "one byte of length");
            [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
        };
        let data = [vec![1], text(field), vec![1], text(name), text("1.0")].concat();
        let section = [text("producers"), data].concat();
        [b"\0asm\x01\0\0\0".to_vec(), vec![0, u8::try_from(section.len()).unwrap()], section].concat()
    }

    #[test]
    fn producers_that_repeat_one_another_are_not_looked_at_without_end() {
        let one = producers("language", "Rust");
        let (header, section) = one.split_at(8);
        let found = parts(&[header, &section.repeat(20_000)].concat());
        assert_eq!((found.producers.len(), found.producers_seen), (1, PRODUCERS_SEEN_MAX));
    }

    #[test]
    fn producers_are_escaped_and_those_that_are_none_are_left_out() {
        let found = parts(&producers("language", "Rust\u{1b}[31m"));
        assert_eq!(found.kind, FileKind::CoreModule);
        let [producer] = found.producers.as_slice() else { panic!("{found:?}") };
        assert_eq!((producer.field.as_str(), producer.name.as_str()), ("language", "Rust\\u{1b}[31m"));
        assert_eq!(parts(&producers("colour", "red")).producers, []);
    }

    #[test]
    fn memories_of_all_modules_are_added_up() {
        let text = "(component (core module (memory 2)) (core module (memory 3) (memory 1)) (component (core module)))";
        let found = parts(&wat::parse_str(text).unwrap());
        assert_eq!((found.core_modules, found.memory_bytes), (3, 6 << 16));
        assert!(!found.debug_info);
    }

    #[test]
    fn what_is_cut_is_damaged_and_what_is_no_wasm_is_named() {
        let whole = wat::parse_str("(component (core module (memory 2)))").unwrap();
        // Where a section ends the parser takes it for whole, as an empty component is; loading it tells.
        for length in (1..8).chain([9, whole.len() - 1]) {
            let kind = parts(&whole[..length]).kind;
            assert!(matches!(kind, FileKind::Damaged { .. }), "{length}: {kind:?}");
        }
        assert_eq!(parts(b"").kind, FileKind::Other { what: "an empty file" });
        assert!(matches!(parts(b"<html>").kind, FileKind::Other { .. }));
    }
}
