//! A process under test: its output as it comes, its end, and signals to it.

use crate::aftermath::Aftermath;
use crate::sockets::{self, Socket};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// Which standard stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The exit code, or the negative number of the signal that ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// Both, in the order in which they were read.
    pub output: String,
    /// From its start to its end.
    pub time: Duration,
    /// The most memory that it had resident, in bytes; what it had in its last 10 ms may be missing.
    pub peak_memory_bytes: u64,
}

impl Outcome {
    /// Checks the exit code, and that the output contains each of `texts`.
    ///
    /// # Panics
    /// It differs, or one is missing; the message shows the output.
    #[track_caller]
    pub fn expect(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.output);
        for text in texts {
            assert!(self.output.contains(text), "no `{text}` in:\n{}", self.output);
        }
    }
}

/// A process that this test started; dropping it kills and reaps it.
pub struct Process {
    name: String,
    started: Instant,
    aftermath: Aftermath,
    shared: Arc<Shared>,
    waiter: Option<JoinHandle<()>>,
    stdin: Option<ChildStdin>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    child: Child,
    end: Option<End>,
    /// As sampled while the process runs.
    peak_memory_bytes: u64,
    lines: Vec<(Stream, String)>,
    open_streams: u32,
}

#[derive(Clone, Copy)]
struct End {
    code: i32,
    time: Duration,
    peak_memory_bytes: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` gives a value, at most until `deadline`.
    fn wait_until<T>(&self, deadline: Instant, mut ready: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&state) {
                return Some(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Process {
    /// Starts `command` with its output captured; `name` stands in messages.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(name: impl Into<String>, command: Command) -> Result<Self> {
        Process::start_holding(name, command, Vec::new())
    }

    /// As [`start`](Self::start), of a process that gets listening sockets of these inodes.
    pub(crate) fn start_holding(name: impl Into<String>, mut command: Command, sockets: Vec<u64>) -> Result<Self> {
        let name = name.into();
        let aftermath = Aftermath::of(&mut command, sockets);
        let started = Instant::now();
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("start {name}"))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = Pid::from_child(&child);
        let peak_memory_bytes = peak_memory_bytes(pid).unwrap_or(0);
        let state = State { child, end: None, peak_memory_bytes, lines: Vec::new(), open_streams: 2 };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        if let Some(stdout) = stdout {
            read(shared.clone(), Stream::Stdout, stdout);
        }
        if let Some(stderr) = stderr {
            read(shared.clone(), Stream::Stderr, stderr);
        }
        sample(shared.clone(), pid);
        let waiter = reap(shared.clone(), pid, started);
        Ok(Process { name, started, aftermath, shared, waiter: Some(waiter), stdin })
    }

    /// The name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id; it stays this process's own as long as [`is_running`](Self::is_running).
    pub fn pid(&self) -> u32 {
        self.shared.lock().child.id()
    }

    /// Whether the process has not ended.
    pub fn is_running(&self) -> bool {
        self.shared.lock().end.is_none()
    }

    /// The process's sockets that have an address, as `ss` would list them.
    ///
    /// # Errors
    /// It has ended, or the kernel's tables can't be read.
    pub fn sockets(&self) -> Result<Vec<Socket>> {
        sockets::of_process(self.pid())
    }

    /// Its largest resident memory so far.
    pub fn peak_memory_bytes(&self) -> u64 {
        let state = self.shared.lock();
        let end = state.end.map(|end| end.peak_memory_bytes);
        end.unwrap_or_else(|| {
            peak_memory_bytes(Pid::from_child(&state.child)).unwrap_or(0).max(state.peak_memory_bytes)
        })
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// What it has written so far to both streams.
    pub fn output(&self) -> String {
        text(&self.shared.lock(), None)
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        let state = self.shared.lock();
        // Reaped under this lock: the id is nobody else's yet.
        if state.end.is_none() {
            // It fails only for a process that has just ended.
            let _ = rustix::process::kill_process(Pid::from_child(&state.child), signal);
        }
    }

    /// Closes the process's standard input, if it was piped.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until a line (old or new, of either stream) contains `pattern`, and returns it.
    ///
    /// # Errors
    /// No such line before the timeout or the process's end; the error shows what it wrote instead.
    pub fn wait_for_line(&self, pattern: &str, timeout: Duration) -> Result<String> {
        self.wait_for_lines(pattern, 1, timeout).map(|mut lines| lines.remove(0))
    }

    /// Waits until `count` lines contain `pattern`, and returns them.
    ///
    /// # Errors
    /// As [`wait_for_line`](Self::wait_for_line).
    pub fn wait_for_lines(&self, pattern: &str, count: usize, timeout: Duration) -> Result<Vec<String>> {
        let found = self.shared.wait_until(Instant::now() + timeout, |state| {
            let lines = state.lines.iter().map(|(_, line)| line).filter(|line| line.contains(pattern));
            let lines: Vec<_> = lines.take(count).cloned().collect();
            if lines.len() == count {
                return Some(Some(lines));
            }
            (state.end.is_some() && state.open_streams == 0).then_some(None)
        });
        match found {
            Some(Some(lines)) => Ok(lines),
            Some(None) => bail!("{} ended without {count} lines with `{pattern}`:\n{}", self.name, self.report()),
            None => bail!("{} gave no {count} lines with `{pattern}` in {timeout:?}:\n{}", self.name, self.report()),
        }
    }

    /// Waits until the process has ended and its output is read, and checks that it left nothing behind.
    ///
    /// # Errors
    /// It still runs when the timeout passes, it crashed or panicked, or a descendant or a listening socket that was handed
    /// over is still there; the error shows what it wrote.
    pub fn wait(&self, timeout: Duration) -> Result<Outcome> {
        let outcome = self.shared.wait_until(Instant::now() + timeout, |state| {
            let end = state.end.filter(|_| state.open_streams == 0)?;
            Some(Outcome {
                code: end.code,
                stdout: text(state, Some(Stream::Stdout)),
                stderr: text(state, Some(Stream::Stderr)),
                output: text(state, None),
                time: end.time,
                peak_memory_bytes: end.peak_memory_bytes,
            })
        });
        let outcome =
            outcome.with_context(|| format!("{} still runs after {timeout:?}:\n{}", self.name, self.report()))?;
        let left = self.aftermath.check(outcome.code, &outcome.output);
        left.with_context(|| format!("what {} left behind:\n{}", self.name, self.report()))?;
        Ok(outcome)
    }

    /// The process's state and output, for a failure's message.
    pub fn report(&self) -> String {
        let state = self.shared.lock();
        let mut report = match state.end {
            None => format!("--- {} runs\n", self.name),
            Some(end) => format!("--- {} ended with {} after {:?}\n", self.name, end.code, end.time),
        };
        for (stream, line) in &state.lines {
            let mark = if *stream == Stream::Stdout { ' ' } else { '!' };
            writeln!(report, "{mark} {line}").expect("writing to a string cannot fail");
        }
        report
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            // It only waits for the process, which has just been killed.
            let _ = waiter.join();
        }
    }
}

fn text(state: &State, only: Option<Stream>) -> String {
    let lines = state.lines.iter().filter(|(stream, _)| only.is_none_or(|only| only == *stream));
    lines.flat_map(|(_, line)| [line.as_str(), "\n"]).collect()
}

fn read(shared: Arc<Shared>, stream: Stream, input: impl Read + Send + 'static) {
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            shared.lock().lines.push((stream, String::from_utf8_lossy(&line).into_owned()));
            shared.changed.notify_all();
            line.clear();
        }
        shared.lock().open_streams -= 1;
        shared.changed.notify_all();
    });
}

/// The most memory that a process had resident since it became its program; none once it has ended.
fn peak_memory_bytes(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Looks at the process's memory until it has ended.
fn sample(shared: Arc<Shared>, pid: Pid) {
    const INTERVAL: Duration = Duration::from_millis(10);
    thread::spawn(move || {
        let mut state = shared.lock();
        while state.end.is_none() {
            // Under the lock: the id is nobody else's before `end` is set.
            state.peak_memory_bytes = peak_memory_bytes(pid).unwrap_or(0).max(state.peak_memory_bytes);
            state = shared.changed.wait_timeout(state, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    });
}

fn reap(shared: Arc<Shared>, pid: Pid, started: Instant) -> JoinHandle<()> {
    thread::spawn(move || {
        // Without the lock and without reaping, so that signals still find the process.
        while let Err(rustix::io::Errno::INTR) =
            rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        let time = started.elapsed();
        let mut state = shared.lock();
        let (code, peak_memory_bytes) = match state.child.wait4() {
            Ok(used) => {
                let signal = used.status.signal().unwrap_or_default();
                // What the system counts begins with the memory of this test, from which the process was forked.
                let peak = if state.peak_memory_bytes > 0 { state.peak_memory_bytes } else { used.rusage.maxrss };
                (used.status.code().unwrap_or(-signal), peak)
            }
            Err(error) => {
                state.lines.push((Stream::Stderr, format!("the harness could not reap the process: {error}")));
                (i32::MIN, 0)
            }
        };
        state.end = Some(End { code, time, peak_memory_bytes });
        drop(state);
        shared.changed.notify_all();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PATIENCE;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        Process::start("shell", command).expect("a shell can be started")
    }

    #[test]
    fn an_outcome_tells_streams_code_and_memory() {
        let outcome = shell("echo out; printf err >&2; exit 7").wait(PATIENCE).expect("it ends");
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (7, "out\n", "err\n"));
        assert!(outcome.peak_memory_bytes > 0);
    }

    #[test]
    fn lines_are_seen_while_the_process_runs() {
        let mut process = shell("echo ready; read line; echo done");
        assert_eq!(process.wait_for_line("ready", PATIENCE).expect("it comes"), "ready");
        assert!(process.is_running());
        process.close_stdin();
        assert!(process.wait_for_line("never", PATIENCE).is_err(), "the process's end ends the wait");
        assert_eq!(process.wait(PATIENCE).expect("it ends").stdout, "ready\ndone\n");
    }

    #[test]
    fn a_signal_ends_a_process_and_a_drop_ends_one_too() {
        let process = shell("echo up; read line");
        process.wait_for_line("up", PATIENCE).expect("it comes");
        process.signal(Signal::TERM);
        assert_eq!(process.wait(PATIENCE).expect("it ends").code, -15);
        process.signal(Signal::KILL);

        let process = shell("trap '' TERM; echo up; while :; do :; done");
        process.wait_for_line("up", PATIENCE).expect("it comes");
        let pid = process.pid();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}/cmdline")).exists(), "killed and reaped");
    }
}
