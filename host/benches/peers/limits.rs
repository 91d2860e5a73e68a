//! The limits: a C program, compiled when it is needed.

use crate::lane::{Lane, Program, State};
use crate::question::Bounds;
use std::path::Path;
use std::process::Command;

/// What tables call it.
pub(crate) const NAME: &str = "limit: plain TCP, C";

/// The compiled program, if there is a compiler.
pub(crate) fn lane(bounds: Bounds) -> Box<dyn Lane> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/programs/limits.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limits");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(compiler).args(["-O3", "-march=native", "-o"]).arg(&program).arg(source).status();
    let state = if compiled.is_ok_and(|status| status.success()) {
        State::Unasked
    } else {
        eprintln!("{NAME}: not installed (needs a C compiler)");
        State::NotInstalled
    };
    Box::new(Program {
        name: NAME,
        command: |args| Command::new(&args[0]),
        args: vec![program.display().to_string()],
        knows: |question| question.is_transfer() || question.is_barrier(),
        bounds,
        state,
    })
}
