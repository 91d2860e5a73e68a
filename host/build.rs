//! Compiles the protobuf contract without protoc: protox parses it, tonic generates from its descriptors.
use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../proto");
    let files =
        ["header", "cluster", "tensor", "variables", "direct", "ops"].map(|name| format!("dchost/v1/{name}.proto"));
    let descriptors = protox::compile(files, [&root])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("dchost.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed={}", root.display());
    wasmtime_version()
}

/// Hands the version of wasmtime to `--version`: only `runtime` may name the crate, so it is read from Cargo.lock.
fn wasmtime_version() -> Result<(), Box<dyn std::error::Error>> {
    let lock = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../Cargo.lock");
    let text = std::fs::read_to_string(&lock)?;
    let (_, package) = text.split_once("name = \"wasmtime\"\nversion = \"").ok_or("Cargo.lock has no wasmtime")?;
    let (version, _) = package.split_once('"').ok_or("Cargo.lock has a version without end")?;
    println!("cargo:rustc-env=DCHOST_WASMTIME_VERSION={version}");
    println!("cargo:rerun-if-changed={}", lock.display());
    Ok(())
}
