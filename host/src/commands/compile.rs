//! `dchost compile FILE -o OUT`: compiles a component ahead of time.

use crate::cli;
use crate::exit::Exit;
use crate::runtime::{Engine, EngineOptions};
use anyhow::Context as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Compiles the component and writes the code, whole or not at all.
///
/// # Errors
/// The component is refused ([`LoadError`](crate::runtime::LoadError), which knows its exit code), or the output can't be written.
pub fn run(args: &cli::Compile) -> anyhow::Result<Exit> {
    let options = EngineOptions { fuel: args.fuel, ..EngineOptions::default() };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start a runtime")?;
    let code = runtime.block_on(async {
        let engine = Engine::new(options)?;
        Ok::<_, anyhow::Error>(engine.precompile(&args.file).await?)
    })?;
    write(&args.output, &code).with_context(|| format!("can't write `{}`", args.output.display()))?;
    Ok(Exit::Done)
}

/// Writes beside `path` and renames: a reader sees the old file or the new one.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut begun = path.as_os_str().to_owned();
    begun.push(format!(".{}", std::process::id()));
    let begun = PathBuf::from(begun);
    // Whoever may write to it may run anything as whoever loads it.
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&begun)?;
    let written = file.write_all(bytes).and_then(|()| {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = file.metadata()?.permissions().mode();
        file.set_permissions(std::fs::Permissions::from_mode(mode & 0o755))?;
        std::fs::rename(&begun, path)
    });
    if written.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&begun);
    }
    written
}
