//! `dchost:worker/log`: the guest's own log lines.

use super::bindings::wit::log;
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
    /// Stands in for [`add_in_place`], which shadows it.
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        self.output.log(level.into(), &message);
        Ok(())
    }
}

/// Defines `write` on guest memory: a message of 1 GiB costs the host no more than the line that it keeps of it.
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
