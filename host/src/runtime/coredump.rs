//! Core dumps: what a guest's memories held when it trapped, in a file for a debugger.
//!
//! The file is a module of the [core dump format](https://github.com/WebAssembly/tool-conventions/blob/main/Coredump.md):
//! the memories as memory and data sections, the globals, and the custom sections `core`, `coremodules`, `coreinstances`
//! and `corestack`.
//!
//! It is written here, not by wasmtime: that holds the whole file in memory, several times as much as the guest had, and
//! panics at components that are composed of others.

use super::calls::panic_text;
use super::limits::mib;
use super::state::State;
use super::watch::RunWatch;
use crate::files::{Existing, Output};
use crate::text::truncated;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use wasmtime::{Module, Mutability, Store, Val, WasmCoreDump};

/// Memory that one data segment is about, in bytes, without the zeros at its ends: one page, so that the largest memory
/// needs fewer segments than the 100,000 that readers take.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes of a module's name that are written.
const NAME_BYTES_MAX: usize = 200;

/// Writes a dump of `store` into `dir`, and logs where it is, or why there is none. `watch` may give it up meanwhile.
pub(super) fn leave(dir: &Path, store: &mut Store<State>, error: &wasmtime::Error, name: &str, watch: &RunWatch) {
    let Some(dump) = error.downcast_ref::<WasmCoreDump>() else {
        tracing::warn!("no core dump: the component's own code didn't run when it ended");
        return;
    };
    let path = dir.join(file_name(store.data()));
    // What wasmtime's functions meet in a store that trapped is the guest's making; it must not cost more than the dump.
    let output = Output { path: &path, mode: 0o600, existing: Existing::Stays, synced: false };
    let written =
        catch_unwind(AssertUnwindSafe(|| output.write(|out| encode(&mut Wanted { out, watch }, store, dump, name))))
            .unwrap_or_else(|panic| Err(io::Error::other(panic_text(&*panic))));
    match written {
        Ok(bytes) => {
            tracing::info!("core dump `{}` written, {}; it holds the component's data", path.display(), mib(bytes))
        }
        Err(error) => tracing::warn!("no core dump: `{}` can't be written: {error}", path.display()),
    }
}

/// Fails once nobody wants the dump any more.
struct Wanted<'a, W> {
    out: &'a mut W,
    watch: &'a RunWatch,
}

impl<W: Write> Write for Wanted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.watch.is_dump_given_up() {
            return Err(io::Error::other("the process has to end"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A name of what the host knows, new in each run: `worker-0-attempt1-1764556800123456789-4711-0.coredump`.
fn file_name(state: &State) -> String {
    static DUMPS: AtomicU64 = AtomicU64::new(0);
    let task = state.handles.context.task.map_or_else(|| "local".to_owned(), |task| task.to_string().replace(':', "-"));
    let attempt = state.handles.job.attempt();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (pid, count) = (std::process::id(), DUMPS.fetch_add(1, Ordering::Relaxed));
    format!("{task}-attempt{attempt}-{since}-{pid}-{count}.coredump")
}

/// Writes the module.
fn encode(out: &mut impl Write, store: &mut Store<State>, dump: &WasmCoreDump, name: &str) -> io::Result<()> {
    out.write_all(b"\0asm\x01\0\0\0")?;
    let mut core = vec![0];
    text(&mut core, name);
    custom(out, "core", &core)?;
    section(out, 5, &memories(store, dump))?;
    section(out, 6, &globals(store, dump))?;
    data(out, store, dump)?;
    custom(out, "coremodules", &modules(dump))?;
    let (instances, modules) = instances(store, dump);
    custom(out, "coreinstances", &instances)?;
    custom(out, "corestack", &stack(dump, &modules))
}

/// The memories, as large as they were.
fn memories(store: &Store<State>, dump: &WasmCoreDump) -> Vec<u8> {
    let mut body = Vec::new();
    count(&mut body, dump.memories().len());
    for memory in dump.memories() {
        let ty = memory.ty(store);
        let flags = u8::from(ty.maximum().is_some()) | u8::from(ty.is_64()) << 2;
        body.push(flags);
        unsigned(&mut body, memory.size(store));
        if let Some(most) = ty.maximum() {
            unsigned(&mut body, most);
        }
    }
    body
}

/// The globals with their values. References are null: what they refer to is not in the file.
fn globals(store: &mut Store<State>, dump: &WasmCoreDump) -> Vec<u8> {
    const END: u8 = 0x0b;
    let mut body = Vec::new();
    count(&mut body, dump.globals().len());
    for global in dump.globals() {
        let ty = global.ty(&mut *store);
        let (code, init) = match global.get(&mut *store) {
            Val::I32(value) => (0x7f, {
                let mut init = vec![0x41];
                signed(&mut init, value.into());
                init
            }),
            Val::I64(value) => (0x7e, {
                let mut init = vec![0x42];
                signed(&mut init, value);
                init
            }),
            Val::F32(bits) => (0x7d, [&[0x43][..], &bits.to_le_bytes()].concat()),
            Val::F64(bits) => (0x7c, [&[0x44][..], &bits.to_le_bytes()].concat()),
            Val::V128(value) => (0x7b, [&[0xfd, 0x0c][..], &value.as_u128().to_le_bytes()].concat()),
            // The only references that are offered are those to functions.
            _ => (0x70, vec![0xd0, 0x70]),
        };
        body.extend([code, u8::from(ty.mutability() == Mutability::Var)]);
        body.extend(init);
        body.push(END);
    }
    body
}

/// Writes what the memories held, twice gone through: the section's size comes first.
fn data(out: &mut impl Write, store: &Store<State>, dump: &WasmCoreDump) -> io::Result<()> {
    let segments = || {
        dump.memories().iter().enumerate().flat_map(|(index, memory)| {
            let chunks = memory.data(store).chunks(CHUNK_BYTES).enumerate();
            chunks.filter_map(move |(chunk, bytes)| {
                let first = bytes.iter().position(|&byte| byte != 0)?;
                let end = bytes.iter().rposition(|&byte| byte != 0)? + 1;
                Some((segment_head(index, chunk * CHUNK_BYTES + first, end - first), &bytes[first..end]))
            })
        })
    };
    let mut number = Vec::new();
    count(&mut number, segments().count());
    let size = segments().map(|(head, bytes)| head.len() + bytes.len()).sum::<usize>() + number.len();
    section_head(out, 11, size)?;
    out.write_all(&number)?;
    for (head, bytes) in segments() {
        out.write_all(&head)?;
        out.write_all(bytes)?;
    }
    Ok(())
}

/// An active segment of a memory, up to its bytes. Memories are 32-bit: others aren't offered.
fn segment_head(memory: usize, offset: usize, len: usize) -> Vec<u8> {
    let mut head = vec![0x02];
    count(&mut head, memory);
    head.push(0x41);
    // The bits of an unsigned address, as the constant wants them.
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    signed(&mut head, i64::from(offset as u32 as i32));
    head.push(0x0b);
    count(&mut head, len);
    head
}

fn modules(dump: &WasmCoreDump) -> Vec<u8> {
    let mut body = Vec::new();
    count(&mut body, dump.modules().len());
    for module in dump.modules() {
        body.push(0);
        text(&mut body, truncated(module.name().unwrap_or_default(), NAME_BYTES_MAX));
    }
    body
}

/// The instances with their modules and the memories that they export, and each one's module. wasmtime doesn't tell which
/// globals are whose.
fn instances(store: &mut Store<State>, dump: &WasmCoreDump) -> (Vec<u8>, Vec<Module>) {
    let places: Vec<_> = dump.memories().iter().map(|memory| memory.data_ptr(&*store)).collect();
    let mut body = Vec::new();
    let mut modules = Vec::new();
    count(&mut body, dump.instances().len());
    for instance in dump.instances() {
        let module = instance.module(&*store).clone();
        let exported: Vec<_> = instance.exports(&mut *store).filter_map(wasmtime::Export::into_memory).collect();
        let indexes: Vec<_> = exported
            .iter()
            .filter_map(|memory| places.iter().position(|&place| place == memory.data_ptr(&*store)))
            .collect();
        body.push(0);
        count(&mut body, dump.modules().iter().position(|other| Module::same(other, &module)).unwrap_or_default());
        count(&mut body, indexes.len());
        for index in indexes {
            count(&mut body, index);
        }
        count(&mut body, 0);
        modules.push(module);
    }
    (body, modules)
}

/// The frames, innermost first, without locals: compiled code keeps none. A frame tells its module only; where a module
/// has several instances, the last is taken.
fn stack(dump: &WasmCoreDump, instances: &[Module]) -> Vec<u8> {
    let mut body = vec![0];
    text(&mut body, "main");
    count(&mut body, dump.frames().len());
    for frame in dump.frames() {
        body.push(0);
        count(&mut body, instances.iter().rposition(|module| Module::same(module, frame.module())).unwrap_or_default());
        unsigned(&mut body, frame.func_index().into());
        count(&mut body, frame.func_offset().unwrap_or_default());
        count(&mut body, 0);
        count(&mut body, 0);
    }
    body
}

fn custom(out: &mut impl Write, name: &str, body: &[u8]) -> io::Result<()> {
    let mut head = Vec::new();
    text(&mut head, name);
    section_head(out, 0, head.len() + body.len())?;
    out.write_all(&head)?;
    out.write_all(body)
}

fn section(out: &mut impl Write, id: u8, body: &[u8]) -> io::Result<()> {
    section_head(out, id, body.len())?;
    out.write_all(body)
}

fn section_head(out: &mut impl Write, id: u8, len: usize) -> io::Result<()> {
    let mut head = vec![id];
    count(&mut head, len);
    out.write_all(&head)
}

fn text(out: &mut Vec<u8>, text: &str) {
    count(out, text.len());
    out.extend(text.as_bytes());
}

fn count(out: &mut Vec<u8>, value: usize) {
    unsigned(out, value as u64);
}

/// Unsigned LEB128.
fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Signed LEB128.
fn signed(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if (value == 0 && byte & 0x40 == 0) || (value == -1 && byte & 0x40 != 0) {
            out.push(byte);
            return;
        }
        out.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_leb128() {
        let encoded = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            out
        };
        assert_eq!(encoded(&|out| unsigned(out, 624_485)), [0xe5, 0x8e, 0x26]);
        assert_eq!(encoded(&|out| unsigned(out, 0)), [0]);
        assert_eq!(encoded(&|out| signed(out, -123_456)), [0xc0, 0xbb, 0x78]);
        assert_eq!(encoded(&|out| signed(out, 64)), [0xc0, 0]);
        assert_eq!(encoded(&|out| signed(out, i64::from(i32::MIN))), [0x80, 0x80, 0x80, 0x80, 0x78]);
    }
}
