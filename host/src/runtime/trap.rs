//! How a trap is told: the guest's last words, the kind of trap in words, and frames that a person can read.

use crate::text::{escape_block, escaped, truncated};
use std::fmt::{self, Display, Write as _};
use wasmtime::{FrameInfo, Trap, WasmBacktrace};

/// Frames that are looked at; wasmtime counts from the innermost.
pub(super) const FRAMES_MAX: usize = 128;

/// How often a function must stand on the stack before an out-of-bounds access is taken for the end of the stack.
const RECURSION_FRAMES_MIN: usize = 8;

/// Longest cycle of functions calling each other that is folded.
const CYCLE_FRAMES_MAX: usize = 4;

/// What Rust's panics end with; a sandboxed guest has no backtrace of its own, and the frames follow anyway.
const BACKTRACE_NOTE: &str = "note: run with `RUST_BACKTRACE";

/// Lines of the last words where they are told on one: a panic has two.
const LAST_WORDS_LINES_MAX: usize = 3;

/// Bytes of them.
const LAST_WORDS_BYTES_MAX: usize = 1024;

/// Bytes of a function's name, or of a file's, that are shown.
const NAME_BYTES_MAX: usize = 200;

/// Functions that are looked at, inlined ones included: debug information may claim any number for one frame.
const FUNCTIONS_MAX: usize = 4 * FRAMES_MAX;

/// Bytes of what an error says that are kept.
const CAUSE_BYTES_MAX: usize = 4 << 10;

/// One line of a backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    name: Option<String>,
    place: Option<String>,
}

/// Why a guest trapped, in a few words.
pub(super) fn kind_of(error: &wasmtime::Error) -> String {
    kind(error, &frames(error))
}

/// Tells what else is known of a trap as one block: last words, frames, hint; empty where nothing is.
pub(super) fn report(error: &wasmtime::Error, tail: &[String]) -> String {
    let frames = frames(error);
    let mut text = String::new();
    let mut said = said(tail).peekable();
    if said.peek().is_some() {
        text.push_str("the guest's last words on stderr:\n");
        for line in said {
            // Writing to a string can't fail, here and below.
            let _ = writeln!(text, "  | {line}");
        }
    }
    let shown = fold(&frames);
    if !shown.is_empty() {
        text.push_str("frames, innermost first:\n");
        for line in &shown {
            let _ = writeln!(text, "  {line}");
        }
    }
    if let Some(hint) = hint(&frames) {
        let _ = writeln!(text, "hint: {hint}");
    }
    text.truncate(text.trim_end_matches('\n').len());
    text
}

/// The last lines of all that was said, as one: what a panic or an exception says of itself.
pub(super) fn last_words(tail: &[String]) -> Option<String> {
    let said: Vec<_> = said(tail).filter(|line| !line.trim().is_empty()).map(String::as_str).collect();
    let last = said.len().saturating_sub(LAST_WORDS_LINES_MAX);
    let words = said[last..].join(" ");
    (!words.is_empty()).then(|| truncated(&words, LAST_WORDS_BYTES_MAX).to_owned())
}

/// What of the last lines of stderr is the guest's own.
fn said(tail: &[String]) -> impl Iterator<Item = &String> {
    tail.iter().skip_while(|line| line.is_empty()).filter(|line| !line.starts_with(BACKTRACE_NOTE))
}

/// The kind of trap, in words.
fn kind(error: &wasmtime::Error, frames: &[Frame]) -> String {
    let Some(trap) = error.downcast_ref::<Trap>() else {
        return escape_block(&cause(error));
    };
    match trap {
        Trap::StackOverflow => "guest stack exhausted (endless recursion, or raise `-W max-wasm-stack`)".to_owned(),
        // A Rust or C guest keeps a stack of its own in memory, which ends first.
        Trap::MemoryOutOfBounds if is_recursive(frames) => {
            "guest stack exhausted (endless recursion, or link with a larger stack: `-C link-arg=-zstack-size=BYTES`)"
                .to_owned()
        }
        Trap::UnreachableCodeReached => "unreachable code reached (a panic or an abort)".to_owned(),
        trap => trap.to_string(),
    }
}

/// What an error says, without what wasmtime adds to it: frames and core dump, which are full of the guest's own names.
pub(super) fn cause(error: &wasmtime::Error) -> String {
    error.chain().filter_map(|error| text_of(error)).collect::<Vec<_>>().join(": ")
}

/// The text of one link of an error's chain; none where wasmtime added it.
fn text_of(error: &dyn Display) -> Option<String> {
    let mut text = CauseText::default();
    // It fails where enough is known.
    let _ = write!(text, "{error}");
    (!text.is_context()).then_some(text.0)
}

/// Takes text until it is known to be wasmtime's context, or long enough: the context repeats names that are as long as a
/// component likes, in each frame, so that it must not even be made. wasmtime's demangler, by which 230 bytes of C++ can
/// become 136 MiB, is left out of the build as well.
#[derive(Default)]
struct CauseText(String);

impl CauseText {
    fn is_context(&self) -> bool {
        const CONTEXTS: [&str; 2] =
            ["error while executing at wasm backtrace", "wasm coredump generated while executing"];
        CONTEXTS.iter().any(|context| self.0.starts_with(context))
    }
}

impl fmt::Write for CauseText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(crate::text::truncated(text, CAUSE_BYTES_MAX.saturating_sub(self.0.len())));
        if self.is_context() || self.0.len() + 3 >= CAUSE_BYTES_MAX { Err(fmt::Error) } else { Ok(()) }
    }
}

fn is_recursive(frames: &[Frame]) -> bool {
    frames
        .iter()
        .filter_map(|frame| frame.name.as_deref())
        .any(|name| frames.iter().filter(|other| other.name.as_deref() == Some(name)).count() >= RECURSION_FRAMES_MIN)
}

fn frames(error: &wasmtime::Error) -> Vec<Frame> {
    error
        .downcast_ref::<WasmBacktrace>()
        .map_or_else(Vec::new, |backtrace| backtrace.frames().iter().flat_map(symbols).take(FUNCTIONS_MAX).collect())
}

/// The functions of one frame, inlined ones included, innermost first.
fn symbols(frame: &FrameInfo) -> Vec<Frame> {
    let shown = |text: &str| escaped(truncated(text, NAME_BYTES_MAX)).into_owned();
    let name = |name: &str| shown(&format!("{:#}", rustc_demangle::demangle(name)));
    if frame.symbols().is_empty() {
        return vec![Frame { name: frame.func_name().map(name), place: None }];
    }
    frame
        .symbols()
        .iter()
        .take(FUNCTIONS_MAX)
        .map(|symbol| Frame {
            name: symbol.name().or(frame.func_name()).map(name),
            place: symbol.file().map(|file| match symbol.line() {
                Some(line) => format!("{}:{line}", shown(file)),
                None => shown(file),
            }),
        })
        .collect()
}

/// Whether a function is the language's own machinery, which says nothing about the guest's code.
fn is_noise(frame: &Frame) -> bool {
    const NOISE: [&str; 22] = [
        "std::",
        "<std::",
        "core::",
        "<core::",
        "alloc::",
        "<alloc::",
        "__rust",
        "__rustc",
        "rust_begin_unwind",
        "rust_panic",
        "wit_bindgen::",
        "dlmalloc::",
        "<dlmalloc::",
        "__wasi",
        "__wasm_call",
        "wasi_snapshot",
        "abort",
        "_start",
        "dchost_guest::",
        "<dchost_guest::",
        "dchost:worker/",
        "wit-component:",
    ];
    // With DWARF a name has no path, but its file tells.
    const NOISE_FILES: [&str; 3] = ["/rustc/", "/dchost-guest-", "/guest-sdk/src/"];
    frame.name.as_deref().is_some_and(|name| NOISE.iter().any(|noise| name.starts_with(noise)))
        || frame.place.as_deref().is_some_and(|place| NOISE_FILES.iter().any(|file| place.contains(file)))
}

/// The lines of a backtrace: runs of machinery and repeated calls are one line each.
fn fold(frames: &[Frame]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = frames;
    while let Some(first) = rest.first() {
        let noise = rest.iter().take_while(|frame| is_noise(frame)).count();
        if noise > 0 {
            lines.push(format!("... {noise} of the runtime"));
            rest = &rest[noise..];
            continue;
        }
        let cycle =
            (1..=CYCLE_FRAMES_MAX).map(|length| (length, repeats(rest, length))).find(|&(_, repeats)| repeats > 1);
        match cycle {
            Some((length, repeats)) => {
                lines.extend(rest[..length].iter().map(line));
                let what = if length == 1 { "this".to_owned() } else { format!("these {length}") };
                lines.push(format!("... {what} {} times more", repeats - 1));
                rest = &rest[length * repeats..];
            }
            None => {
                lines.push(line(first));
                rest = &rest[1..];
            }
        }
    }
    lines
}

/// How often the first `length` frames stand there one after the other, by name.
fn repeats(frames: &[Frame], length: usize) -> usize {
    if frames.len() < length || frames[..length].iter().any(|frame| frame.name.is_none()) {
        return 1;
    }
    frames
        .chunks_exact(length)
        .take_while(|chunk| chunk.iter().zip(&frames[..length]).all(|(one, other)| one.name == other.name))
        .count()
}

fn line(frame: &Frame) -> String {
    let name = frame.name.as_deref().unwrap_or("<no name>");
    match &frame.place {
        Some(place) => format!("{name} at {place}"),
        None => name.to_owned(),
    }
}

/// How to see more, if there is more to see.
fn hint(frames: &[Frame]) -> Option<&'static str> {
    if frames.is_empty() || frames.iter().any(|frame| frame.place.is_some()) {
        None
    } else if frames.iter().all(|frame| frame.name.is_none()) {
        Some(
            "the component is stripped: build it with `strip = false` and `debug = \"line-tables-only\"` for names, files and lines",
        )
    } else {
        Some("build the component with `strip = false` and `debug = \"line-tables-only\"` for files and lines")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn named(names: &[&str]) -> Vec<Frame> {
        names.iter().map(|name| Frame { name: Some((*name).to_owned()), place: None }).collect()
    }

    #[test]
    fn machinery_and_repeats_fold_to_one_line_each() {
        let mut names = vec!["std::panicking::begin", "core::panicking::panic_fmt", "train::loss"];
        names.extend(["train::even", "train::odd"].repeat(20));
        names.extend(["train::f"; 5]);
        names.push("train::run");
        expect![[r#"
            ... 2 of the runtime
            train::loss
            train::even
            train::odd
            ... these 2 19 times more
            train::f
            ... this 4 times more
            train::run"#]]
        .assert_eq(&fold(&named(&names)).join("\n"));
    }

    #[test]
    fn nameless_frames_are_shown_one_by_one_with_a_hint() {
        let frames = vec![Frame { name: None, place: None }; 2];
        assert_eq!(fold(&frames), ["<no name>", "<no name>"]);
        assert!(hint(&frames).unwrap().contains("stripped"));
    }

    #[test]
    fn a_place_needs_no_hint() {
        let frames = vec![Frame { name: Some("f".to_owned()), place: Some("src/lib.rs:3".to_owned()) }];
        assert_eq!(fold(&frames), ["f at src/lib.rs:3"]);
        assert_eq!(hint(&frames), None);
        let of_rust = Frame {
            name: Some("panic_fmt".to_owned()),
            place: Some("/rustc/5980/library/core/src/panicking.rs:80".to_owned()),
        };
        assert_eq!(fold(&[of_rust]), ["... 1 of the runtime"]);
    }

    /// A name may be huge, so that the rest of wasmtime's context must not be asked for.
    #[test]
    fn frames_are_no_cause_and_are_not_even_printed() {
        struct Context(std::cell::Cell<u32>);
        impl Display for Context {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "error while executing at wasm backtrace:")?;
                self.0.set(self.0.get() + 1);
                write!(f, "handle limit exceeded")
            }
        }
        let context = Context(std::cell::Cell::new(0));
        assert_eq!((text_of(&context), context.0.get()), (None, 0));
        assert_eq!(text_of(&"x".repeat(1 << 20)).map(|text| text.len()), Some(CAUSE_BYTES_MAX));
    }

    #[test]
    fn deep_recursion_out_of_bounds_is_the_stack() {
        let trap = wasmtime::Error::from(Trap::MemoryOutOfBounds);
        assert!(kind(&trap, &named(&["f"; 20])).contains("stack exhausted"));
        assert_eq!(kind(&trap, &named(&["f", "g"])), Trap::MemoryOutOfBounds.to_string());
    }

    #[test]
    fn last_words_come_first_without_the_note_on_backtraces() {
        let tail = ["", "thread panicked at src/lib.rs:3:5:", "loss is NaN", "note: run with `RUST_BACKTRACE=1` ..."];
        let text = report(&Trap::UnreachableCodeReached.into(), &tail.map(str::to_owned));
        expect![[r#"
            the guest's last words on stderr:
              | thread panicked at src/lib.rs:3:5:
              | loss is NaN"#]]
        .assert_eq(&text);
        assert_eq!(report(&Trap::UnreachableCodeReached.into(), &[]), "", "nothing else is known");
    }
}
