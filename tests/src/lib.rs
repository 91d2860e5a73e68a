//! A harness for scenarios with real processes: [`Run`] is one dchost, [`Cluster`] one for each task.
//!
//! The harness binds every port itself and hands the sockets over, captures what each process prints as it prints it,
//! and ends what it started when it is dropped. Nothing here sleeps: every wait is for a condition, with a deadline.

mod cluster;
mod paths;
mod process;
mod run;

pub use cluster::{Cluster, ClusterBuilder, Outcomes};
pub use paths::{dchost, guest};
pub use process::{Outcome, Process, Stream};
pub use run::Run;
pub use rustix::process::Signal;

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A deadline for what shall happen soon: generous, because test machines are slow and shared, and a test that passes
/// never waits for it.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Whether something listens on a port of loopback.
pub fn is_listening(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok()
}
