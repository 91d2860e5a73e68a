//! A harness for scenarios with real processes: [`Run`] is one dchost, [`Cluster`] one for each task.
//!
//! The harness binds every port itself and hands the sockets over, captures what each process prints as it prints it,
//! and ends what it started when it is dropped. Nothing here sleeps: every wait is for a condition, with a deadline.

mod cluster;
mod paths;
mod process;
mod run;

pub use cluster::{Cluster, ClusterBuilder, Outcomes};
pub use paths::{dchost, guest, guest_with_debug_info};
pub use process::{Outcome, Process, Stream};
pub use run::Run;
pub use rustix::process::Signal;

use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A deadline for what shall happen soon: generous, because test machines are slow and shared, and a test that passes
/// never waits for it.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Whether something listens on a port of loopback.
pub fn is_listening(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok()
}

/// Sends an HTTP/2 ping to a server on loopback and returns how long its answer took: the least that a living gRPC server
/// does, whatever else its process is busy with.
///
/// # Errors
/// Nothing listens, or no answer comes within [`PATIENCE`].
pub fn ping(port: u16) -> Result<Duration> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; 9] = [0, 0, 8, 6, 0, 0, 0, 0, 0];
    const PING_TYPE: u8 = 6;
    const ACK: u8 = 1;
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
    let sent = Instant::now();
    stream.write_all(&[PREFACE, &EMPTY_SETTINGS, &PING, b"12345678"].concat()).context("send a ping")?;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).context("read a frame's header")?;
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        ensure!(len <= 1 << 20, "a frame of {len} bytes in answer to a ping");
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).context("read a frame")?;
        if header[3] == PING_TYPE && header[4] & ACK != 0 {
            ensure!(body == b"12345678", "the answer to another ping");
            return Ok(sent.elapsed());
        }
    }
}

/// Waits until `condition` holds, looking again every few milliseconds: for what gives no signal, as another process's end.
///
/// # Errors
/// It doesn't hold before the timeout passes.
pub fn wait_until(what: &str, timeout: Duration, condition: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition() {
        ensure!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
