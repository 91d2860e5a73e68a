//! Compiles the protobuf contract without protoc: protox parses it, tonic generates from its descriptors.
use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../proto");
    let files = ["header", "cluster", "tensor", "variables", "ops"].map(|name| format!("dchost/v1/{name}.proto"));
    let descriptors = protox::compile(files, [&root])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("dchost.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed={}", root.display());
    Ok(())
}
