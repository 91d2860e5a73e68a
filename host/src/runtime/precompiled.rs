//! Compiled code in a file: a header that says what it is of and who made it, and a checksum over all of it.
//!
//! wasmtime compares its major version and its settings, but believes the code itself. Code that was cut short or flipped
//! must not run, so that nothing here is handed to wasmtime before version, settings and checksum are as they should be.
//!
//! ```text
//! magic (7)  format (1)  checksum (32)  settings (32)  source's sha256 (32)  source's size (8)  length of maker (4)  maker  code
//! ```

use super::engine::EngineOptions;
use crate::text::hex;
use sha2::{Digest as _, Sha256};
use std::fs::Metadata;
use std::hash::{Hash as _, Hasher};
use std::os::unix::fs::MetadataExt as _;
use wasmtime::component::Component;

/// The first bytes.
const MAGIC: &[u8; 7] = b"dchostc";

/// What follows them: the version of all that comes then.
const FORMAT: u8 = 1;

/// Who compiles: the versions in full, the machine, and the one setting that changes code.
pub(super) struct Maker {
    words: String,
    settings: [u8; 32],
}

/// What a file holds that is whole and of the same maker.
pub(super) struct Sealed<'a> {
    /// The sha256 of the component that the code was made from.
    pub(super) source: [u8; 32],
    /// The size of that component, in bytes.
    pub(super) source_bytes: u64,
    code: &'a [u8],
}

/// Why a file's code isn't run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Cut short, or some bit isn't what was written.
    Damaged,
    /// Another version, machine or setting made it: which, in words.
    Other(String),
}

/// Feeds what wasmtime hashes to sha256.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Nobody asks for the short form.
    fn finish(&self) -> u64 {
        0
    }
}

impl Maker {
    pub(super) fn new(engine: &wasmtime::Engine, options: &EngineOptions) -> Maker {
        let words = format!(
            "dchost {} with wasmtime {} on {}-{}, fuel {}",
            env!("CARGO_PKG_VERSION"),
            env!("DCHOST_WASMTIME_VERSION"),
            std::env::consts::ARCH,
            std::env::consts::OS,
            if options.fuel { "counted (-W fuel)" } else { "not counted" },
        );
        let mut hasher = Sha256Hasher(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Maker { words, settings: hasher.0.finalize().into() }
    }

    /// The maker in words: versions, machine, setting.
    pub(super) fn words(&self) -> &str {
        &self.words
    }

    /// A name for the code of this source by this maker.
    pub(super) fn key(&self, source: &[u8; 32]) -> String {
        let key = Sha256::new().chain_update(self.settings).chain_update(source).chain_update(&self.words);
        hex(&key.finalize())
    }

    /// The bytes of a file for `component`.
    pub(super) fn seal(
        &self,
        component: &Component,
        source: &[u8; 32],
        source_bytes: u64,
    ) -> Result<Vec<u8>, wasmtime::Error> {
        Ok(self.seal_code(&component.serialize()?, source, source_bytes))
    }

    fn seal_code(&self, code: &[u8], source: &[u8; 32], source_bytes: u64) -> Vec<u8> {
        let mut rest = Vec::with_capacity(code.len() + 256);
        rest.extend_from_slice(&self.settings);
        rest.extend_from_slice(source);
        rest.extend_from_slice(&source_bytes.to_le_bytes());
        rest.extend_from_slice(&u32::try_from(self.words.len()).unwrap_or(u32::MAX).to_le_bytes());
        rest.extend_from_slice(self.words.as_bytes());
        rest.extend_from_slice(code);
        [&MAGIC[..], &[FORMAT], &Sha256::digest(&rest)[..], &rest].concat()
    }

    /// Checks a file's bytes: first that they are of this format, then that they are whole, then that they are of this maker.
    pub(super) fn open<'a>(&self, bytes: &'a [u8]) -> Result<Sealed<'a>, Flaw> {
        let mut rest = bytes.strip_prefix(&MAGIC[..]).ok_or(Flaw::Damaged)?;
        let [format] = take(&mut rest)?;
        // Where the checksum of another format stands nobody knows.
        if format != FORMAT {
            return Err(Flaw::Other(format!(
                "another version of dchost (its files have format {format}, not {FORMAT})"
            )));
        }
        let checksum: [u8; 32] = take(&mut rest)?;
        if checksum[..] != Sha256::digest(rest)[..] {
            return Err(Flaw::Damaged);
        }
        let settings: [u8; 32] = take(&mut rest)?;
        let source = take(&mut rest)?;
        let source_bytes = u64::from_le_bytes(take(&mut rest)?);
        let words_bytes = u32::from_le_bytes(take(&mut rest)?) as usize;
        let (words, code) = rest.split_at_checked(words_bytes).ok_or(Flaw::Damaged)?;
        if words != self.words.as_bytes() {
            return Err(Flaw::Other(String::from_utf8_lossy(words).into_owned()));
        }
        if settings != self.settings {
            return Err(Flaw::Other(format!("{} for another processor or with other settings", self.words)));
        }
        Ok(Sealed { source, source_bytes, code })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(Flaw::Damaged)?;
    *rest = left;
    Ok(*taken)
}

impl Sealed<'_> {
    /// Makes the code runnable.
    #[allow(unsafe_code, reason = "the one place where compiled code is loaded instead of compiled")]
    pub(super) fn component(&self, engine: &wasmtime::Engine) -> Result<Component, wasmtime::Error> {
        // SAFETY: wasmtime asks that the bytes are what `Component::serialize` gave. `Maker::open`, the only way to a
        // `Sealed`, has compared a checksum over them, the full versions and the settings. That nobody forged them is
        // said by the file: the callers read only files that none but this user and root may write to.
        unsafe { Component::deserialize(engine, self.code) }
    }
}

/// Whether these bytes begin as a file of `dchost compile` does.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Why a file isn't to be trusted with code: whoever may write to it may run anything as this user.
pub(super) fn distrust(metadata: &Metadata) -> Option<&'static str> {
    let ours = rustix::process::geteuid().as_raw();
    if metadata.uid() != ours && metadata.uid() != 0 {
        Some("it belongs to another user: copy it, or compile it again")
    } else if metadata.mode() & 0o022 != 0 {
        Some("its group or others may write to it: chmod go-w")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(words: &str, settings: u8) -> Maker {
        Maker { words: words.to_owned(), settings: [settings; 32] }
    }

    #[test]
    fn what_is_sealed_is_opened() {
        let bytes = maker("one", 1).seal_code(b"code", &[7; 32], 9);
        let one = maker("one", 1);
        let sealed = one.open(&bytes).unwrap_or_else(|flaw| panic!("{flaw:?}"));
        assert_eq!((sealed.source, sealed.source_bytes, sealed.code), ([7; 32], 9, &b"code"[..]));
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let one = maker("one", 1);
        let bytes = one.seal_code(b"code", &[7; 32], 9);
        for at in 0..bytes.len() {
            assert_eq!(one.open(&bytes[..at]).err(), Some(Flaw::Damaged), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let flaw = one.open(&flipped).err();
                match at {
                    7 => assert!(matches!(&flaw, Some(Flaw::Other(words)) if words.contains("format")), "{flaw:?}"),
                    _ => assert_eq!(flaw, Some(Flaw::Damaged), "bit {bit} of byte {at}"),
                }
            }
        }
    }

    #[test]
    fn another_version_or_setting_is_named() {
        let bytes = maker("one", 1).seal_code(b"code", &[7; 32], 9);
        assert_eq!(maker("two", 1).open(&bytes).err(), Some(Flaw::Other("one".to_owned())));
        assert!(matches!(maker("one", 2).open(&bytes).err(), Some(Flaw::Other(words)) if words.contains("settings")));
    }
}
