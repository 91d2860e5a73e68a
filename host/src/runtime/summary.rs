//! `dchost:worker/summary`: scalars and progress.

use super::bindings::wit::summary;
use super::lift::shadowed;
use super::state::State;
use crate::handles::TAG_BYTES_MAX;
use crate::text::{escaped, truncated};
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmStr};

/// Longest note of a progress report, in bytes; it shares one line of a terminal.
const NOTE_BYTES_MAX: usize = 256;

/// Makes a text harmless, and cuts what it is then: escapes are longer than what they stand for.
fn shortened(text: &str, bytes_max: usize) -> String {
    let escaped = escaped(truncated(text, bytes_max));
    truncated(&escaped, bytes_max).to_owned()
}

impl summary::Host for State {
    async fn scalar(&mut self, _tag: String, _step: u64, _value: f64) -> wasmtime::Result<()> {
        Err(shadowed())
    }

    async fn progress(&mut self, _done: u64, _total: Option<u64>, _note: String) -> wasmtime::Result<()> {
        Err(shadowed())
    }
}

/// Defines both functions on guest memory: no more is copied than is kept.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut interface = linker.instance("dchost:worker/summary@0.1.0")?;
    interface.func_wrap("scalar", |cx: StoreContextMut<'_, State>, (tag, step, value): (WasmStr, u64, f64)| {
        let tag = shortened(&tag.to_str(&cx)?, TAG_BYTES_MAX);
        cx.data().handles.summary.scalar(&tag, step, value);
        Ok(())
    })?;
    interface.func_wrap(
        "progress",
        |cx: StoreContextMut<'_, State>, (done, total, note): (u64, Option<u64>, WasmStr)| {
            let note = shortened(&note.to_str(&cx)?, NOTE_BYTES_MAX);
            cx.data().handles.console.progress(done, total, &note);
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_cut_after_it_was_escaped() {
        assert_eq!(shortened("loss\n", 256), "loss\\n");
        assert_eq!(shortened(&"\u{1b}".repeat(300), 256).len(), 256);
        assert_eq!(shortened(&"\u{e4}".repeat(300), 255).len(), 254);
    }
}
