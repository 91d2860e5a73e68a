//! `dchost:worker/log`: the guest's own log lines.

use super::bindings::wit::log;
use super::lift::shadowed;
use super::state::State;
use crate::handles::Level;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmStr};

impl From<log::Level> for Level {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Trace => Level::Trace,
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        }
    }
}

impl log::Host for State {
    async fn write(&mut self, _level: log::Level, _message: String) -> wasmtime::Result<()> {
        Err(shadowed())
    }
}

/// Defines `write` on guest memory: of a long message the host copies no more than the line that it keeps.
///
/// One above the hostcall fuel traps, as any argument does, and is told as `--max-tensor`.
pub(super) fn add_in_place(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance("dchost:worker/log@0.1.0")?.func_wrap(
        "write",
        |cx: StoreContextMut<'_, State>, (level, message): (log::Level, WasmStr)| {
            let message = message.to_str(&cx)?;
            cx.data().output.log(level.into(), &message);
            Ok(())
        },
    )
}
