//! A stock Python gRPC client against the standard server: reflection, health and one call, without generated code.

use crate::shell::{command, dchost_binary, run as run_command, succeeds, target_dir};
use anyhow::{Context as _, Result};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;

/// Starts a ps, and lets the client look at it.
///
/// # Errors
/// The client's packages cannot be installed, the server does not start, or the client finds something wrong.
pub(super) fn run() -> Result<String> {
    let python = python_with_grpc()?;
    let mut server = command(dchost_binary());
    // A cluster of one may leave its port to the system; the log says which it is.
    server.args(["--task", "ps:0", "--cluster", r#"{"ps":["127.0.0.1:0"]}"#]).stderr(Stdio::piped());
    let mut server = server.spawn().context("start the server")?;
    let mut lines =
        BufReader::new(server.stderr.take().expect("stderr was asked for as a pipe")).lines().map_while(Result::ok);
    let address = lines.find_map(|line| {
        eprintln!("{line}");
        let (_, address) = line.split_once("serves on ")?;
        Some(address.split_whitespace().next()?.trim_end_matches(',').to_owned())
    });
    // What is written to a pipe that nobody reads holds the writer up.
    let rest = thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
    let outcome = address
        .context("the server doesn't serve")
        .and_then(|address| run_command(command(python).arg("xtask/src/soak/client.py").arg(&address)));
    server.kill().context("stop the server")?;
    server.wait().context("wait for the server's end")?;
    rest.join().expect("showing lines does not panic");
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
