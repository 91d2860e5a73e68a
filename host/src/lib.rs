//! dchost runs a cluster job whose logic, `worker_fn`, is a sandboxed WebAssembly component.
//!
//! Programs that embed it begin at [`Coordinator`]: all that the binary does for one process, as a value. The guide is
//! docs/embedding.md.
//!
//! The tree is the architecture; who may know whom stands in ARCHITECTURE.md and is checked by tests.
//!
//! ```text
//! main -> commands -> cli, config -> checkpoint -> coordinator -> server, client, runtime -> handles, wire, files -> domain
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`cli`], [`config`] | the command line; flags, environment and files read into one value |
//! | [`commands`] | one file for each subcommand |
//! | [`checkpoint`] | the variables of a cluster in files, and back |
//! | [`coordinator`] | resolve, plan and run: which task runs what, and the effects |
//! | [`server`] | the standard server: one file for each gRPC service |
//! | [`client`] | typed clients to other tasks |
//! | [`runtime`] | wasmtime: engine, bindings, limits, one file for each imported WIT interface |
//! | [`wire`] | protobuf, and conversions to and from domain values |
//! | [`handles`] | the traits by which the parts meet |
//! | [`files`] | files that dchost itself reads and writes |
//! | the rest | the domain: values, rules and state machines, without sockets, wasm or protobuf |

pub mod attend;
pub mod barrier;
pub mod checkpoint;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod context;
pub mod coordinator;
pub mod error;
pub mod exit;
pub mod files;
pub mod handles;
pub mod ids;
pub mod lifetime;
pub mod ops;
pub mod runtime;
pub mod server;
pub mod status;
mod sync;
pub mod tensor;
pub mod text;
pub mod variables;
pub mod wire;

pub use coordinator::embed::{Coordinator, CoordinatorBuilder, StopHandle};
