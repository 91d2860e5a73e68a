//! WASI as a guest sees it: wasmtime-wasi's functions behind this host's grants.
//!
//! Everything links, whatever is granted: interpreters import all of WASI and use little of it. What isn't granted is refused
//! when it is called, with an ordinary error, and one line in the host's log names the flag that would allow it.

mod denials;
mod files;
mod lookup;
mod network;
mod sockets;

pub(super) use denials::Denials;
pub(super) use files::FileUse;
pub(super) use network::Network;

use super::output::{Output, Stream};
use super::run::GuestOptions;
use super::state::State;
use crate::text;
use std::sync::Arc;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::p2::bindings::{cli, clocks, random, sockets as network_bindings};
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView as _};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiView as _};

/// Random bytes of one call, at most: nobody needs more at once, and the host makes them.
pub(super) const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// Deny by default: what isn't given here isn't there.
///
/// # Errors
/// A directory that can't be opened.
pub(super) fn context(
    name: &str,
    options: &GuestOptions,
    output: &Output,
    network: &Arc<Network>,
) -> Result<WasiCtx, String> {
    let mut wasi = WasiCtx::builder();
    let network = Arc::clone(network);
    wasi.allow_blocking_current_thread(false)
        .max_random_size(RANDOM_BYTES_MAX)
        // Sockets are made by anybody and connected by those who may, so that a denial knows the address that was asked for.
        .allow_tcp(true)
        .allow_udp(true)
        // `lookup` stands in its place.
        .allow_ip_name_lookup(false)
        .socket_addr_check(move |address, purpose| Box::pin(std::future::ready(network.allows(address, purpose))))
        .stdout(output.sink(Stream::Stdout))
        .stderr(output.sink(Stream::Stderr))
        .arg(name)
        .args(&options.args)
        .envs(&options.env);
    for grant in &options.dirs {
        let permissions = if grant.read_only { FsPerms::ReadOnly } else { FsPerms::ReadWrite };
        wasi.preopened_dir(&grant.host, &grant.guest, permissions)
            .map_err(|error| format!("can't open directory `{}` of `--dir`: {error:#}", text::path(&grant.host)))?;
    }
    Ok(wasi.build())
}

struct Io;

impl HasData for Io {
    type Data<'a> = &'a mut ResourceTable;
}

/// Links all of `wasi:cli/imports`, as wasmtime-wasi's function of this name does, but for what checks grants here.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    use wasmtime_wasi::p2::bindings::io;
    let l = linker;
    io::error::add_to_linker::<State, Io>(l, |state| &mut state.table)?;
    io::poll::add_to_linker::<State, Io>(l, |state| &mut state.table)?;
    io::streams::add_to_linker::<State, Io>(l, |state| &mut state.table)?;
    clocks::wall_clock::add_to_linker::<State, WasiClocks>(l, State::clocks)?;
    clocks::monotonic_clock::add_to_linker::<State, WasiClocks>(l, State::clocks)?;
    random::random::add_to_linker::<State, WasiRandom>(l, |state| state.ctx().ctx.random())?;
    random::insecure::add_to_linker::<State, WasiRandom>(l, |state| state.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<State, WasiRandom>(l, |state| state.ctx().ctx.random())?;
    cli::exit::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::environment::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    network_bindings::instance_network::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    network_bindings::network::add_to_linker::<State, WasiSockets>(l, &Default::default(), State::sockets)?;
    files::add_to_linker(l)?;
    sockets::add_to_linker(l)?;
    lookup::add_to_linker(l)
}
