//! What a process of dchost must not leave behind, however it ended: a panic text, a crash, processes, a listening socket.
//!
//! [`Process::wait`](crate::Process::wait) checks it for every process that a scenario waits for.

use crate::{sockets, wait_until};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Marks a process and, as they inherit it, all its descendants.
const MARK: &str = "SCENARIO_PROCESS";

/// How long descendants may outlive their process: a launched task notices by its standard input that its launcher has gone.
const LEFT_BEHIND_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a guest's own panic says that it happened; any other panic is dchost's.
const GUEST_SOURCES: [&str; 3] = ["tests/guests/", "guest-sdk/", "examples/"];

/// The thread of a guest's panic, also of one in Rust's own library. Threads of dchost have names.
const GUEST_THREAD: &str = "'<unnamed>'";

/// Signals that only a crash sends to a process: no scenario does.
const CRASHES: [Signal; 6] = [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE, Signal::TRAP];

/// The exit code of a Rust program whose `main` panicked.
const PANIC_CODE: i32 = 101;

/// What is looked for after one process's end.
#[derive(Debug)]
pub(crate) struct Aftermath {
    mark: String,
    sockets: Vec<u64>,
}

impl Aftermath {
    /// Marks a command that is about to be started; `sockets` are the inodes of listening sockets handed over to it.
    pub(crate) fn of(command: &mut Command, sockets: Vec<u64>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        command.env(MARK, &mark);
        Aftermath { mark, sockets }
    }

    /// Checks what an ended process left behind.
    ///
    /// # Errors
    /// Something; says what.
    pub(crate) fn check(&self, code: i32, output: &str) -> Result<()> {
        let crash = CRASHES.iter().find(|signal| code == -signal.as_raw());
        ensure!(crash.is_none() && code != PANIC_CODE, "it crashed with {code}");
        if let Some(line) = output.lines().find(|line| is_own_panic(line)) {
            bail!("dchost panicked: {line}");
        }
        self.check_left_behind(LEFT_BEHIND_TIMEOUT)
    }

    /// Waits until its descendants have ended and its sockets are closed. A process that another test of this program starts at the
    /// moment may hold a copy of a socket, until it has become the program that it is to run.
    fn check_left_behind(&self, timeout: Duration) -> Result<()> {
        wait_until("the process's descendants end", timeout, || self.descendants().is_empty())
            .with_context(|| format!("it left {} behind", self.descendants().join(", ")))?;
        for socket in &self.sockets {
            sockets::is_listening(*socket)?;
            wait_until("its listening socket is closed", timeout, || {
                sockets::is_listening(*socket).is_ok_and(|is| !is)
            })
            .context("its listening socket is still open")?;
        }
        Ok(())
    }

    /// Processes that carry the mark, with their names.
    fn descendants(&self) -> Vec<String> {
        let wanted = format!("{MARK}={}", self.mark);
        let marked = |pid: &String| {
            // A process that has just ended, and one of somebody else, can't be read.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let name = |pid: String| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())).filter(marked).map(name).collect()
    }
}

/// Whether a line tells of a panic that is not the guest's.
fn is_own_panic(line: &str) -> bool {
    match line.split_once("panicked at ") {
        Some((thread, place)) => {
            let is_source = GUEST_SOURCES.iter().any(|source| place.starts_with(source));
            let is_library = place.starts_with("/rustc/") && thread.contains(GUEST_THREAD);
            !is_source && !is_library
        }
        None => line.contains("stack backtrace:") || line.contains("has overflowed its stack"),
    }
}

/// The inode by which the kernel lists a socket.
///
/// # Errors
/// The socket cannot be asked.
pub(crate) fn inode(listener: &TcpListener) -> Result<u64> {
    Ok(rustix::fs::fstat(listener).context("ask for a socket's inode")?.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PATIENCE, Process};
    use std::process::Stdio;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command
    }

    #[test]
    fn a_panic_of_the_guest_is_its_own() {
        assert!(!is_own_panic("thread '<unnamed>' (1) panicked at tests/guests/examples/panics.rs:14:9:"));
        assert!(!is_own_panic(
            "thread '<unnamed>' (2) panicked at /rustc/5980/library/std/src/thread/functions.rs:131:29:"
        ));
        assert!(is_own_panic("thread 'main' (7) panicked at /rustc/5980/library/core/src/option.rs:1:1:"));
        assert!(is_own_panic("worker:0 | thread 'guest' panicked at src/runtime/run.rs:1:1:"));
        assert!(is_own_panic("thread 'main' has overflowed its stack"));
        assert!(!is_own_panic("all is well"));
    }

    #[test]
    fn a_crash_and_a_panic_text_fail_the_wait() {
        let says = |script| Process::start("shell", shell(script)).and_then(|process| process.wait(PATIENCE));
        assert!(says("kill -s ABRT $$").is_err());
        assert!(says("exit 101").is_err());
        assert!(says("echo \"thread 'main' panicked at src/main.rs:1:1:\" >&2").is_err());
        assert_eq!(says("exit 7").expect("no crash").code, 7);
    }

    #[test]
    fn descendants_and_sockets_are_found() {
        let mut command = shell("read line");
        let aftermath = Aftermath::of(&mut command, Vec::new());
        let mut child = command.spawn().expect("a shell can be started");
        wait_until("the mark is seen", PATIENCE, || aftermath.descendants().len() == 1).expect("it is marked");
        drop(child.stdin.take());
        child.wait().expect("it ends");
        aftermath.check(0, "").expect("nothing is left");

        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let socket = inode(&listener).expect("it is open");
        assert!(sockets::is_listening(socket).expect("the table can be read"));
        let aftermath = Aftermath { mark: "none".to_owned(), sockets: vec![socket] };
        assert!(aftermath.check_left_behind(Duration::from_millis(50)).is_err(), "it still listens");
        drop(listener);
        aftermath.check(0, "").expect("it is closed");
    }
}
