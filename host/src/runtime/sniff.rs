//! What a file is, by its first bytes: so that a refusal names it instead of quoting a parser.

/// Length of a wasm header: magic, version and layer.
pub(super) const HEADER_BYTES: usize = 8;

const MAGIC: &[u8] = b"\0asm";

/// What the first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sniffed {
    /// A component; whether it is whole is for the compiler to say.
    Component,
    /// A core module.
    CoreModule,
    /// Code that wasmtime compiled before.
    Precompiled,
    /// Wasm that ends within its header.
    TruncatedHeader,
    /// Wasm of a version or layer that doesn't exist, or not any more.
    UnknownVersion,
    /// Not wasm: what it is instead.
    NotWasm(&'static str),
}

/// Looks at the first bytes, and no further than a text search in them needs.
pub(super) fn sniff(bytes: &[u8]) -> Sniffed {
    if bytes.starts_with(MAGIC) || (!bytes.is_empty() && MAGIC.starts_with(bytes)) {
        return match bytes.get(MAGIC.len()..HEADER_BYTES) {
            Some([0x0d, 0, 1, 0]) => Sniffed::Component,
            Some([1, 0, 0, 0]) => Sniffed::CoreModule,
            Some(_) => Sniffed::UnknownVersion,
            None => Sniffed::TruncatedHeader,
        };
    }
    if wasmtime::Engine::detect_precompiled(bytes).is_some() {
        return Sniffed::Precompiled;
    }
    Sniffed::NotWasm(describe(bytes))
}

fn describe(bytes: &[u8]) -> &'static str {
    const BINARIES: [(&[u8], &str); 8] = [
        (b"\x7fELF", "an ELF binary, made for this machine instead of wasm"),
        (b"MZ", "a Windows program"),
        (b"\xcf\xfa\xed\xfe", "a macOS program"),
        (b"\x1f\x8b", "a gzip archive: unpack it first"),
        (b"PK\x03\x04", "a zip archive: unpack it first"),
        (b"BC\xc0\xde", "LLVM bitcode: link it first"),
        (b"!<arch>", "an archive of object files: link it first"),
        (b"#!", "a script"),
    ];
    const TEXTS: [(&str, &str); 7] = [
        ("<!doctype html", "an HTML page, perhaps the answer of a failed download"),
        ("<html", "an HTML page, perhaps the answer of a failed download"),
        ("<?xml", "an XML document, perhaps the answer of a failed download"),
        ("(component", "wasm text: assemble it first, for instance with `wasm-tools parse`"),
        ("(module", "wasm text of a core module: build a component instead, for wasm32-wasip2"),
        ("version https://git-lfs", "a Git LFS pointer: fetch the file with `git lfs pull`"),
        ("package ", "WIT or source text: build it first"),
    ];
    if bytes.is_empty() {
        return "an empty file";
    }
    if let Some((_, what)) = BINARIES.iter().find(|(start, _)| bytes.starts_with(start)) {
        return what;
    }
    // A text is known by its beginning; a character cut at the end of the piece doesn't make it binary.
    let piece = &bytes[..bytes.len().min(1024)];
    let text = match std::str::from_utf8(piece) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&piece[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return "binary data of a kind that dchost doesn't know",
    };
    if text.contains('\0') {
        return "binary data of a kind that dchost doesn't know";
    }
    let start = text.trim_start_matches('\u{feff}').trim_start().to_ascii_lowercase();
    TEXTS.iter().find(|(known, _)| start.starts_with(known)).map_or("text", |(_, what)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_apart() {
        assert_eq!(sniff(b"\0asm\x0d\0\x01\0rest"), Sniffed::Component);
        assert_eq!(sniff(b"\0asm\x01\0\0\0"), Sniffed::CoreModule);
        assert_eq!(sniff(b"\0asm\x0a\0\x01\0"), Sniffed::UnknownVersion);
        for length in 1..HEADER_BYTES {
            assert_eq!(sniff(&b"\0asm\x0d\0\x01\0"[..length]), Sniffed::TruncatedHeader, "{length}");
        }
    }

    #[test]
    fn other_files_are_named() {
        let what = |bytes: &[u8]| match sniff(bytes) {
            Sniffed::NotWasm(what) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(b""), "an empty file");
        assert!(what(b"\n<!DOCTYPE html><html>").contains("HTML"));
        assert!(what(b"\x7fELF\x02\x01\x01").contains("ELF"));
        assert!(what(b"(module)").contains("core module"));
        assert!(what(b"\xef\xbb\xbf (component)").contains("wasm text"));
        assert_eq!(what("hällo".as_bytes()), "text");
        assert!(what(b"\xff\xfe\x00").contains("binary"));
        let mut cut = vec![b'a'; 1023];
        cut.extend("ä".as_bytes());
        assert_eq!(what(&cut), "text");
    }
}
