//! The gate of the guest `gated`: runs that wait until the test lets them go on.

use anyhow::{Context, Result};
use dchost_tests::{Cluster, Process, Run};
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
        self.grant(cluster.client(name, "gated")?).args(flags).guest_args(then).start()
    }

    /// Lets a run of the guest `gated` wait at the gate.
    pub(crate) fn grant(&self, run: Run) -> Run {
        let grant = format!("{}::/gate:ro", self.dir.path().display());
        run.args(["--dir", &grant]).guest_args(["/gate/gate"])
    }
}
