//! Runs components: wasmtime's engine, loading, limits, and one file for each imported WIT interface.
//!
//! Nothing else in dchost names wasmtime. A component's life:
//!
//! ```text
//! Engine::load -> Module            size cap, header, sha256, compile (cached), fit to the world
//! Module::run  -> RunReport         one store; host functions answer through `handles`; dropping the future ends the guest
//! Module::open_ops -> OpGuest       one store for many calls of ops; it keeps its state between them
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | `engine`, `features`, `ticker` | wasmtime's configuration, the linker that every component is linked by, the clock that makes guests yield |
//! | `load`, `sniff`, `cost`, `fit` | from a path to a [`Module`], or to a refusal that says how to mend it |
//! | `inspect` | what a file is, told without running it |
//! | `precompiled`, `cache` | compiled code in files: what is checked before it runs, and where it is kept |
//! | `limits` | what one run may use, and what was refused to it |
//! | `grants` | what a guest is given |
//! | `wasi` | WASI behind these grants: sockets, name look-ups, files, and what is told when they are refused |
//! | `store`, `run`, `op_guest` | a store with its grants and limits; one call of `worker_fn`; many calls of ops |
//! | `watch`, `ending`, `trap`, `coredump` | what an onlooker sees of a run, how its end is told and kept |
//! | `bindings`, `lift`, `state`, `calls` | generated code, arguments in guest memory, what a store holds, the way every waiting host call goes |
//! | `output` | the guest's stdout and stderr, line by line |
//! | `worker_context`, `variables`, `pending`, `ops`, `kernels`, `summary`, `log` | the imported interfaces |
//!
//! A guest's mistake is answered with an error of the WIT; a broken invariant traps; a panic in a host function becomes
//! [`RunEnd::HostBug`] and spares the process.

mod bindings;
mod cache;
mod calls;
mod coredump;
mod cost;
mod ending;
mod engine;
mod features;
mod fit;
mod grants;
mod inspect;
mod kernels;
mod lift;
mod limits;
mod load;
mod log;
mod op_guest;
mod ops;
mod output;
mod pending;
mod precompiled;
mod run;
mod sniff;
mod state;
mod store;
mod summary;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
mod ticker;
mod trap;
mod variables;
mod wasi;
mod watch;
mod worker_context;

pub use cost::Excess;
pub use ending::Ending;
pub use engine::{Engine, EngineError, EngineOptions};
pub use fit::{Item, Misfit, Surface, Verdict, World};
pub use grants::{DirGrant, NetGrant, NetHost};
pub use inspect::{FileKind, Inspection, Producer};
#[doc(hidden)]
pub use kernels::native_product;
pub use limits::{Limit, Limits};
pub use load::{LoadError, Module};
pub use op_guest::{OpEnd, OpGuest};
pub use run::{GuestOptions, RunEnd, RunReport};
pub use watch::RunWatch;
