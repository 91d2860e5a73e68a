//! One dchost process.

use crate::hosts::Hosts;
use crate::process::{Outcome, Process};
use crate::{PATIENCE, aftermath, paths};
use anyhow::{Context, Result};
use command_fds::{CommandFdExt, FdMapping};
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The command line of one dchost process, started in an environment without anything that configures it.
#[derive(Debug)]
#[must_use = "nothing runs before `start` or `output`"]
pub struct Run {
    name: String,
    args: Vec<OsString>,
    guest_args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    listener: Option<TcpListener>,
    seeing: Option<Command>,
    pipe_stdin: bool,
}

impl Run {
    /// Begins a command line without arguments; `name` stands in messages.
    pub fn new(name: impl Into<String>) -> Self {
        Run {
            name: name.into(),
            args: Vec::new(),
            guest_args: Vec::new(),
            env: Vec::new(),
            dir: None,
            listener: None,
            seeing: None,
            pipe_stdin: false,
        }
    }

    /// Begins the command line of a local run of a guest.
    ///
    /// # Errors
    /// The guest isn't built.
    pub fn guest(name: &str) -> Result<Self> {
        Ok(Run::new(name).args([OsStr::new("--module"), paths::guest(name)?.as_os_str()]))
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds arguments of the guest.
    pub fn guest_args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.guest_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Hands a listening socket over.
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Lets the process see the names of a hosts file of the test's, and no others.
    ///
    /// # Errors
    /// There is no dchost.
    pub fn hosts(mut self, hosts: &Hosts) -> Result<Self> {
        self.seeing = Some(hosts.command(paths::dchost()?));
        Ok(self)
    }

    /// Gives the process a standard input that the test holds open.
    pub fn pipe_stdin(mut self) -> Self {
        self.pipe_stdin = true;
        self
    }

    /// Starts the process.
    ///
    /// # Errors
    /// There is no dchost, or it cannot be started.
    pub fn start(self) -> Result<Process> {
        let name = self.name.clone();
        let sockets = self.listener.iter().map(aftermath::inode).collect::<Result<_>>()?;
        Process::start_holding(name, self.command()?, sockets)
    }

    /// Starts the process and waits until it has ended.
    ///
    /// # Errors
    /// It cannot be started, has not ended after [`PATIENCE`], or left something behind (see [`Process::wait`]).
    pub fn output(self) -> Result<Outcome> {
        self.start()?.wait(PATIENCE)
    }

    /// The command itself, for a test that wants its own pipes.
    ///
    /// # Errors
    /// There is no dchost.
    pub fn command(self) -> Result<Command> {
        let mut command = match self.seeing {
            Some(command) => command,
            None => Command::new(paths::dchost()?),
        };
        command.args(self.args);
        if !self.guest_args.is_empty() {
            command.arg("--").args(self.guest_args);
        }
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "TF_CONFIG" || text.starts_with("DCHOST_") || text.starts_with("LISTEN_") || text == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        command.envs(self.env).stdin(if self.pipe_stdin { Stdio::piped() } else { Stdio::null() });
        if let Some(dir) = self.dir {
            command.current_dir(dir);
        }
        if let Some(listener) = self.listener {
            let mapping = FdMapping { parent_fd: listener.into(), child_fd: 3 };
            command.env("LISTEN_FDS", "1").fd_mappings(vec![mapping]).context("hand a socket over")?;
        }
        Ok(command)
    }
}
