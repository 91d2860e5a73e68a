//! A stock Python gRPC client against the standard server: reflection, health and one call, without generated code.

use crate::shell::{command, dchost_binary, run as run_command, succeeds, target_dir};
use anyhow::{Context as _, Result};
use std::net::TcpListener;
use std::path::PathBuf;

/// Starts a ps, and lets the client look at it.
///
/// # Errors
/// The client's packages cannot be installed, the server does not start, or the client finds something wrong.
pub(super) fn run() -> Result<String> {
    let python = python_with_grpc()?;
    // The port is free again when the server binds it; nothing else on this machine asks for it in between.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).context("find a port")?.port();
    let address = format!("127.0.0.1:{port}");
    let mut server = command(dchost_binary());
    server.args(["--task", "ps:0", "--cluster", &format!(r#"{{"ps":["{address}"]}}"#)]);
    let mut server = server.spawn().context("start the server")?;
    let outcome = run_command(command(python).arg("xtask/src/soak/client.py").arg(&address));
    server.kill().context("stop the server")?;
    server.wait().context("wait for the server's end")?;
    outcome.map(|()| "reflection, health and GetStatus answered".to_owned())
}

/// A Python that has grpcio, in a virtual environment under the target directory.
fn python_with_grpc() -> Result<PathBuf> {
    let venv = target_dir().join("soak-venv");
    let python = venv.join("bin/python");
    if !succeeds(command(&python).args(["-c", "import grpc, grpc_health, grpc_reflection"])) {
        run_command(command("python3").args(["-m", "venv"]).arg(&venv))?;
        let packages = ["grpcio", "grpcio-health-checking", "grpcio-reflection"];
        run_command(command(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    }
    Ok(python)
}
