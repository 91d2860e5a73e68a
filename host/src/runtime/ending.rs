//! How a guest ended that didn't return: which limit, which trap, or whose bug.

use super::calls::HostPanic;
use super::limits::{
    INSTANCES_MAX, LIST_BYTES_MAX, Limit, ListExceeded, MEMORIES_MAX, TABLES_MAX, TensorExceeded, mib,
};
use super::output::Output;
use super::state::State;
use super::store::CpuExceeded;
use super::watch::RunWatch;
use super::{trap, wasi};
use crate::text::{escape_block, with_lines};
use rustix::io::Errno;
use wasmtime::component::ResourceTableError;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

/// How a guest ended that didn't return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It called `exit`.
    Exit {
        /// Whether with success.
        ok: bool,
        /// Its number, where it passed one.
        code: Option<u8>,
    },
    /// It trapped.
    Trap {
        /// Why, in a few words.
        kind: String,
        /// The last that it said on stderr, on one line.
        words: Option<String>,
        /// Last words, kind, frames and hint, in several lines.
        report: String,
    },
    /// A limit was reached, or a trap followed the refusal of more.
    Limit {
        /// Which.
        limit: Limit,
        /// What, how much and the flag.
        what: String,
        /// As of a trap.
        report: String,
    },
    /// It did not begin: its grants, its declared sizes or its list of ops can't be had.
    Refused {
        /// What, why and how to mend it.
        message: String,
    },
    /// The system refused what the instance takes.
    NoRoom {
        /// What it said, and how to mend it.
        message: String,
    },
    /// A bug in dchost: a host function panicked.
    HostBug {
        /// What is known.
        message: String,
    },
}

impl Ending {
    /// Tells what a failed call ended in; an error's first match counts, the most specific first.
    pub(super) fn of(error: &wasmtime::Error, state: &State, watch: &RunWatch, output: &Output) -> Ending {
        if let Some(&I32Exit(code)) = error.downcast_ref::<I32Exit>() {
            // 1 is what WASI 0.2 makes of any failure, so it isn't the guest's own number.
            let code = u8::try_from(code).ok().filter(|&code| code != 1);
            return Ending::Exit { ok: code == Some(0), code };
        }
        if let Some(NoRoom(why)) = error.downcast_ref() {
            let message = format!(
                "no room on this machine to start the component: {}; free memory, or lift limits that count it (`ulimit -v`, \
                 `ulimit -f`)",
                escape_block(why)
            );
            return Ending::NoRoom { message };
        }
        let tail = output.tail();
        let report = trap::report(error, &tail);
        if let Some(message) = watch.host_bug() {
            let message = with_lines(&format!("{message}; a bug in dchost, please report it"), &report);
            return Ending::HostBug { message };
        }
        match reached(error, state) {
            Some(Reached::Declared(message)) => Ending::Refused { message },
            Some(Reached::Limit(limit, what)) => Ending::Limit { limit, what, report },
            None => Ending::Trap { kind: trap::kind_of(error), words: trap::last_words(&tail), report },
        }
    }
}

/// The system refused what an instance takes; its text is the whole chain's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoRoom(String);

/// Tells an instantiation that the system refused from a trap of a start function: wasmtime gives both as an error.
pub(super) fn no_room(error: wasmtime::Error) -> wasmtime::Error {
    let is_system = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>() || cause.is::<Errno>();
    let guest_ran = error.downcast_ref::<WasmBacktrace>().is_some();
    if !guest_ran && error.chain().any(is_system) { NoRoom(trap::cause(&error)).into() } else { error }
}

/// What an error says about limits.
enum Reached {
    /// Declared sizes alone are too large.
    Declared(String),
    /// A limit was reached.
    Limit(Limit, String),
}

fn reached(error: &wasmtime::Error, state: &State) -> Option<Reached> {
    let limits = &state.limits;
    let flag = |limit: Limit, what: String| Some(Reached::Limit(limit, format!("{what} ({limit})")));
    if error.downcast_ref::<CpuExceeded>().is_some() {
        let budget = limits.cpu_timeout.unwrap_or_default();
        return flag(Limit::Cpu, format!("cpu limit {budget:?} reached"));
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        return flag(Limit::Fuel, format!("fuel limit {} reached", limits.fuel.unwrap_or(u64::MAX)));
    }
    if let Some(TensorExceeded { bytes }) = error.downcast_ref() {
        let (bytes, most) = (mib(*bytes), mib(limits.tensor_bytes_max));
        return flag(Limit::Tensor, format!("one host call passed tensors of {bytes}, above {most}"));
    }
    if error.downcast_ref::<ListExceeded>().is_some() {
        let most = mib(LIST_BYTES_MAX as u64);
        return Some(Reached::Declared(format!("the component lists ops of more than {most}: give it fewer")));
    }
    // Without the frames: a function could be named as one of these texts.
    let text = trap::cause(error);
    // Fixed by the component, so it is refused rather than ended; wasmtime has no type for these either.
    for (what, most) in [("instance", INSTANCES_MAX), ("memory", MEMORIES_MAX), ("table", TABLES_MAX)] {
        if text.contains(&format!("resource limit exceeded: {what} count too high")) {
            let what = if what == "instance" {
                "core instances"
            } else if what == "table" {
                "tables"
            } else {
                "memories"
            };
            return Some(Reached::Declared(format!(
                "the component has more than {most} {what}, which is the most that one run may have: link it from fewer parts"
            )));
        }
    }
    if matches!(error.downcast_ref::<ResourceTableError>(), Some(ResourceTableError::Full))
        || text.contains("handle limit exceeded")
        || text.contains("resource table has no free keys")
    {
        return flag(Limit::Handles, format!("too many handles, limit {} reached", limits.handles_max));
    }
    if is_hostcall_fuel(&text) {
        let asked = mib(limits.tensor_bytes_max);
        return flag(Limit::Tensor, format!("one host call passed more than {asked} and what goes with it"));
    }
    // As wasmtime-wasi words it, which has no type for it.
    if text.contains("requested len ") && text.contains(" exceeds limit ") {
        let most = mib(wasi::RANDOM_BYTES_MAX);
        return flag(
            Limit::Random,
            format!("one call asked for more than {most} of random bytes, ask for fewer at once"),
        );
    }
    let refusal = state.limiter.refused()?;
    // A start function may grow a memory from nothing as well; what it then does is a trap, and declared sizes aren't.
    let initial = refusal.initial && error.downcast_ref::<Trap>().is_none();
    let limit = mib(limits.memory_bytes_max);
    let (used, asked) = (mib(refusal.used_bytes), mib(refusal.asked_bytes));
    if initial {
        return Some(Reached::Declared(format!(
            "the component declares {asked} of memory beside {used}, above the limit of {limit} ({})",
            Limit::Memory
        )));
    }
    let what = format!("memory limit {limit} reached: {used} in use, {asked} more refused");
    // The only limit whose refusal the guest may live with: what it then did is another thing.
    Some(Reached::Limit(
        Limit::Memory,
        format!("{what} ({})\nthe guest then trapped: {}", Limit::Memory, trap::kind_of(error)),
    ))
}

/// Whether a guest passed more to the host than it may. wasmtime has no type for this.
pub(super) fn is_hostcall_fuel(cause: &str) -> bool {
    cause.contains("fuel allocated for hostcalls has been exhausted")
}

/// Tells a panic of a host function.
pub(super) fn bug(panic: &HostPanic) -> String {
    format!("{panic}; a bug in dchost, please report it")
}
