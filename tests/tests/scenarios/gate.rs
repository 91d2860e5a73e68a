//! The gate of the guest `gated`: runs that wait until the test lets them go on.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, Process};
use std::path::PathBuf;

/// A file that opens the gate of the guest `gated`, once it is there.
pub(crate) struct Gate {
    dir: tempfile::TempDir,
}

impl Gate {
    /// Makes a closed gate.
    pub(crate) fn new() -> Result<Self> {
        Ok(Gate { dir: tempfile::tempdir().context("make a directory")? })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("gate")
    }

    /// Lets everybody pass.
    pub(crate) fn open(&self) -> Result<()> {
        std::fs::write(self.path(), "").context("open the gate")
    }

    /// Starts a client that waits at the gate.
    pub(crate) fn client(&self, cluster: &Cluster, name: &str, flags: &[&str], then: &[&str]) -> Result<Process> {
        let grant = format!("{}::/gate:ro", self.dir.path().display());
        let run = cluster.client(name, "gated")?.args(["--dir", &grant]).args(flags);
        run.guest_args(["/gate/gate"]).guest_args(then).start()
    }
}
