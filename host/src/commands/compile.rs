//! `dchost compile FILE -o OUT`: compiles a component ahead of time.

use crate::cli;
use crate::config::{self, Environment};
use crate::exit::Exit;
use crate::files::{Existing, Output};
use crate::runtime::Engine;
use anyhow::Context as _;
use std::io::Write as _;

/// Compiles the component and writes the code, whole or not at all.
///
/// # Errors
/// The settings are refused ([`Faults`](crate::coordinator::resolve::Faults)), or the component
/// ([`LoadError`](crate::runtime::LoadError), which knows its exit code); the output can't be written.
pub fn run(args: &cli::Compile, environment: &Environment) -> anyhow::Result<Exit> {
    let config = config::compile(args, environment)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start a runtime")?;
    let code = runtime.block_on(async {
        let engine = Engine::new(config.engine)?;
        Ok::<_, anyhow::Error>(engine.precompile(&args.file).await?)
    })?;
    // Whoever may write to it may run anything as whoever loads it.
    let output = Output { path: &args.output, mode: 0o644, existing: Existing::FileReplaced, synced: true };
    let written = output.write(|out| out.write_all(&code));
    written.with_context(|| format!("can't write `{}`", args.output.display()))?;
    Ok(Exit::Done)
}
