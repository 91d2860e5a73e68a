//! The components that are measured, built when they are needed.

use bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package of the component and its native twin.
const PACKAGE: &str = "dchost-bench-guests";

/// The component as `cargo xtask guests` and users of `dchost new` build theirs.
pub(crate) fn component() -> Bytes {
    read(&component_path())
}

/// Where it lies.
pub(crate) fn component_path() -> PathBuf {
    wasm("component", None)
}

/// The component without the flag that makes loops take several vectors a turn.
pub(crate) fn short_turns() -> Bytes {
    read(&wasm("short-turns", Some("-C target-feature=+simd128")))
}

/// The component without SIMD.
pub(crate) fn scalar() -> Bytes {
    read(&wasm("scalar", Some("-C target-feature=-simd128")))
}

/// Builds the native twin for any x86-64, as a release build of cargo is.
pub(crate) fn native() -> PathBuf {
    build("native", Some(""), &["--profile", "release", "--bin", "native"]).join("release/native")
}

/// Builds the native twin for this very machine.
pub(crate) fn native_cpu() -> PathBuf {
    build("native-cpu", Some("-C target-cpu=native"), &["--profile", "release", "--bin", "native"])
        .join("release/native")
}

fn wasm(name: &str, flags: Option<&str>) -> PathBuf {
    let target = build(name, flags, &["--profile", "guest", "--lib", "--target", "wasm32-wasip2"]);
    target.join("wasm32-wasip2/guest/dchost_bench_guests.wasm")
}

fn read(path: &Path) -> Bytes {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// Runs cargo with its own target directory for each set of flags, so that none throws away another's work; without flags
/// those of the repository's .cargo/config.toml hold.
fn build(name: &str, flags: Option<&str>, args: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the host is a directory of the repository");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sandbox").join(name);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--locked", "--package", PACKAGE])
        .args(args)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(root)
        .env_remove("RUSTFLAGS");
    if let Some(flags) = flags {
        cargo.env("RUSTFLAGS", flags);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "building {PACKAGE} ({name}) failed");
    target
}

/// A component whose `run` calls one imported function without parameters `calls` times. `result` is the function's type
/// in WIT's text, such as `bool`, or empty.
pub(crate) fn calling(interface: &str, function: &str, result: &str, calls: usize) -> Bytes {
    let (lifted, core, drop) = match result {
        "" => (String::new(), "", ""),
        result => (format!("(result {result})"), "(result i32)", "drop"),
    };
    let text = format!(
        r#"(component
          (import "{interface}" (instance $host (export "{function}" (func {lifted}))))
          (core func $function (canon lower (func $host "{function}")))
          (core instance $host (export "function" (func $function)))
          (core module $main
            (import "host" "function" (func $function {core}))
            (memory (export "memory") 1)
            (func (export "run") (result i32)
              (local $left i32)
              (local.set $left (i32.const {calls}))
              (loop $again
                call $function {drop}
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
              (i32.const 0)))
          (core instance $main (instantiate $main (with "host" (instance $host))))
          (func $run (result (result (error string)))
            (canon lift (core func $main "run") (memory (core memory $main "memory"))))
          (instance $entry (export "run" (func $run)))
          (export "dchost:worker/entry@0.1.0" (instance $entry)))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).into()
}

/// The smallest component there is: its `run` returns at once.
pub(crate) fn nothing() -> Bytes {
    let text = r#"(component
        (core module $main (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))
        (core instance $main (instantiate $main))
        (func $run (result (result (error string)))
          (canon lift (core func $main "run") (memory (core memory $main "memory"))))
        (instance $entry (export "run" (func $run)))
        (export "dchost:worker/entry@0.1.0" (instance $entry)))"#;
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}")).into()
}
