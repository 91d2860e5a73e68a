//! A harness for scenarios with real processes: [`Run`] is one dchost, [`Cluster`] one for each task.
//!
//! The harness holds every port itself ([`Port`]) and hands listening sockets over, captures what each process prints as it prints it,
//! and ends what it started when it is dropped. A process that is
//! waited for must leave nothing behind: no panic text, no crash, no descendant, no listening socket. Nothing here sleeps: every wait is for a condition, with a deadline.

mod aftermath;
mod cluster;
mod health;
mod hosts;
mod paths;
mod port;
mod process;
mod run;
mod sockets;
mod wat;

pub use cluster::{Cluster, ClusterBuilder, Outcomes};
pub use health::{health, ping};
pub use hosts::Hosts;
pub use paths::{dchost, guest, guest_with_debug_info, python};
pub use port::{Filtered, Port};
pub use process::{Outcome, Process, Stream};
pub use run::Run;
pub use rustix::process::Signal;
pub use sockets::Socket;
pub use wat::Wat;

use anyhow::{Result, ensure};
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

/// Waits until `condition` holds, looking again every few milliseconds: for what gives no signal, as another process's end.
///
/// # Errors
/// It doesn't hold before the timeout passes.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition() {
        ensure!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
