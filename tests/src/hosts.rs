//! Names that only the processes of a test know.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Puts two files of the test in place of the machine's, where only this process and its children see them, and becomes the
/// command that follows.
const SCRIPT: &str = r#"mount --bind "$1" /etc/hosts &&
{ [ ! -e /etc/nsswitch.conf ] || mount --bind "$2" /etc/nsswitch.conf; } &&
shift 2 && exec "$@""#;

/// A hosts file of a test, for the processes that [`Run::hosts`](crate::Run::hosts) gives it to. They look up names there and
/// nowhere else, and see every change.
///
/// They run in a user and a mount namespace of their own, made by `unshare` of util-linux; the test needs no privilege.
#[derive(Debug)]
pub struct Hosts {
    dir: TempDir,
}

impl Hosts {
    /// Makes one that knows no name.
    ///
    /// # Errors
    /// The machine doesn't let its users make namespaces.
    pub fn new() -> Result<Self> {
        let hosts = Hosts { dir: tempfile::tempdir().context("make a directory")? };
        fs::write(hosts.dir.path().join("nsswitch.conf"), "hosts: files\n")
            .context("write where names are looked up")?;
        hosts.set(&[])?;
        let tried = hosts.command("true").output().context("start `unshare`, of util-linux")?;
        ensure!(
            tried.status.success(),
            "this test gives processes a hosts file of their own, and this machine doesn't let it: `unshare --user \
             --map-root-user --mount` and a bind mount ended with {}: {}",
            tried.status,
            String::from_utf8_lossy(&tried.stderr).trim_end()
        );
        Ok(hosts)
    }

    /// Sets all names, each with its addresses.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn set(&self, names: &[(&str, &[&str])]) -> Result<()> {
        let lines = names.iter().flat_map(|(name, addresses)| addresses.iter().map(move |ip| format!("{ip} {name}\n")));
        // In place: what is mounted is this file, not its name.
        fs::write(self.file(), lines.collect::<String>()).context("write the hosts file")
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("hosts")
    }

    /// A command that sees these names.
    pub(crate) fn command(&self, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
        command.args([self.file(), self.dir.path().join("nsswitch.conf"), program.into()]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_seen_by_a_command_and_by_nobody_else() {
        let hosts = Hosts::new().expect("namespaces can be made");
        for address in ["127.0.0.7", "127.0.0.8"] {
            hosts.set(&[("only.test", &[address])]).expect("the file can be written");
            let seen = hosts.command("cat").arg("/etc/hosts").output().expect("it can be started");
            assert_eq!(String::from_utf8_lossy(&seen.stdout), format!("{address} only.test\n"));
        }
        assert!(!fs::read_to_string("/etc/hosts").unwrap_or_default().contains("only.test"));
    }
}
