//! One task's process: started with its socket, read line by line, reaped by a thread of its own.

use super::Event;
use super::lines::{LINE_BYTES_MAX, for_each_line};
use super::supervise::Ending;
use crate::cluster::Task;
use crate::coordinator::console::{EVENT_BYTE, Event as InBand, LineFormat, ProgressView, Screen, Stream, json_line};
use crate::handles::Level;
use crate::sync::lock;
use crate::text::{escaped, escaped_json};
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// The descriptor that a handed over socket has in the child.
///
/// # Source
/// `SD_LISTEN_FDS_START` of sd_listen_fds(3). LISTEN_PID is left out: the child's id is known only after the fork, where
/// the environment can't be changed any more, and the crate that reads the protocol takes its absence as a match.
const LISTEN_FDS_START: i32 = 3;

/// What to start.
pub(super) struct ChildCommand<'a> {
    pub(super) program: &'a Path,
    pub(super) args: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// None for a task without a server.
    pub(super) listener: Option<TcpListener>,
}

/// How a process ended, and what it used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(super) ending: Ending,
    pub(super) time: Duration,
    pub(super) peak_memory_bytes: u64,
}

/// A task's process.
pub(super) struct Child {
    pub(super) task: Task,
    process: Arc<Mutex<Process>>,
    ended: OnceLock<Ended>,
    waiter: Option<JoinHandle<()>>,
    /// Its end here keeps the child alive: when it closes, however the launcher ends, the child ends too.
    _stdin: Option<ChildStdin>,
}

/// The process as long as it may be signalled.
struct Process {
    child: std::process::Child,
    is_reaped: bool,
}

impl Process {
    fn signal(&self, signal: Signal) {
        // The lock is held while the child is reaped, so this id is the child's own and nobody else's.
        if !self.is_reaped {
            // It can only fail for a child that has ended, which is what was wanted.
            let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        }
    }
}

impl Child {
    /// Starts the process and the threads that read and reap it. `drained` is dropped when the output has ended.
    pub(super) fn start(
        task: Task,
        command: ChildCommand<'_>,
        display: Display,
        events: Sender<Event>,
        drained: Sender<()>,
    ) -> io::Result<Self> {
        let ChildCommand { program, args, environment, listener } = command;
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C reaches the launcher only, and the launcher tells every child once.
        command.process_group(0);
        if let Some(listener) = listener {
            command.env("LISTEN_FDS", "1");
            let mapping = FdMapping { parent_fd: listener.into(), child_fd: LISTEN_FDS_START };
            command.fd_mappings(vec![mapping]).map_err(|collision| io::Error::other(collision.to_string()))?;
        }
        let started = Instant::now();
        let mut process = command.spawn()?;
        // The command holds the socket; the child alone shall, so that its end closes the port.
        drop(command);

        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let process = Arc::new(Mutex::new(Process { child: process, is_reaped: false }));
        let mut child = Child { task, process, ended: OnceLock::new(), waiter: None, _stdin: stdin };
        child.waiter = Some(wait(task, child.process.clone(), started, events)?);
        let display = Arc::new(display);
        if let Some(stdout) = stdout {
            read(stdout, display.clone(), Stream::Stdout, drained.clone())?;
        }
        if let Some(stderr) = stderr {
            read(stderr, display, Stream::Stderr, drained)?;
        }
        Ok(child)
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&self, signal: Signal) {
        lock(&self.process).signal(signal);
    }

    /// Keeps how the process ended, for the table.
    pub(super) fn set_ended(&self, ended: Ended) {
        self.ended.get_or_init(|| ended);
    }

    /// How the process ended, once that was kept.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended.get().copied()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            // It only waits for the process, which has just been killed.
            let _ = waiter.join();
        } else {
            let _ = lock(&self.process).child.wait();
        }
    }
}

/// Waits for the process on a thread of its own, because `wait4` alone tells its peak memory.
fn wait(
    task: Task,
    process: Arc<Mutex<Process>>,
    started: Instant,
    events: Sender<Event>,
) -> io::Result<JoinHandle<()>> {
    let pid = Pid::from_child(&lock(&process).child);
    thread::Builder::new().name(format!("wait {task}")).spawn(move || {
        // First without reaping and without the lock; the id stays the child's until it is reaped below.
        while let Err(rustix::io::Errno::INTR) =
            rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        let time = started.elapsed();
        let mut process = lock(&process);
        let used = process.child.wait4();
        process.is_reaped = true;
        drop(process);
        let ended = match used {
            Ok(used) => Ended {
                ending: match (used.status.code(), used.status.signal()) {
                    (Some(code), _) => Ending::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
                    (None, signal) => Ending::Signalled(signal.unwrap_or_default()),
                },
                time,
                peak_memory_bytes: used.rusage.maxrss,
            },
            // Somebody else has reaped it: all that is known is that it has gone.
            Err(_) => Ended { ending: Ending::Signalled(0), time, peak_memory_bytes: 0 },
        };
        // Nobody listens any more when the launcher is on its way out.
        let _ = events.send(Event::Ended(task, ended));
    })
}

fn read(
    input: impl Read + Send + 'static,
    display: Arc<Display>,
    stream: Stream,
    drained: Sender<()>,
) -> io::Result<()> {
    let name = format!("read {}", display.name);
    thread::Builder::new().name(name).spawn(move || {
        // A pipe that cannot be read has nothing more to show.
        let _ = for_each_line(input, LINE_BYTES_MAX, |line| display.line(stream, line));
        drop(drained);
    })?;
    Ok(())
}

/// Shows one task's lines with its prefix.
pub(super) struct Display {
    screen: Screen,
    name: String,
    /// For standard output and standard error: only a terminal has colours.
    prefixes: [String; 2],
    format: LineFormat,
    progress: ProgressView,
    /// Of a split client's runs, which show theirs as lines under its prefix. As many as the cluster has tasks.
    runs: Mutex<BTreeMap<Task, ProgressView>>,
}

impl Display {
    /// Makes the display of `task`, the `number`th one, with prefixes `width` wide.
    pub(super) fn new(
        screen: Screen,
        task: Task,
        width: usize,
        number: usize,
        format: LineFormat,
        colors: [bool; 2],
    ) -> Self {
        /// Cyan, yellow, green, magenta, blue: readable on light and dark, and none that means failure.
        const COLORS: [u8; 5] = [36, 33, 32, 35, 34];
        let name = task.to_string();
        let prefixes = colors.map(|colored| match (format, colored) {
            (LineFormat::Json, _) => String::new(),
            (LineFormat::Text, false) => format!("{name:width$} | "),
            (LineFormat::Text, true) => format!("\u{1b}[{}m{name:width$} |\u{1b}[0m ", COLORS[number % COLORS.len()]),
        });
        let progress = ProgressView::new(screen.clone(), name.clone(), prefixes[1].clone(), format);
        Display { screen, name, prefixes, format, progress, runs: Mutex::default() }
    }

    fn line(&self, stream: Stream, line: &[u8]) {
        if stream == Stream::Stderr && line.first() == Some(&EVENT_BYTE) {
            // One that doesn't decode is of another version: nothing to show.
            match InBand::decode(line) {
                Some(InBand::Progress(None, progress)) => self.progress.show(&progress),
                Some(InBand::Progress(Some(task), progress)) => {
                    let prefix = || match self.format {
                        LineFormat::Json => String::new(),
                        LineFormat::Text => format!("{}{task} | ", self.prefixes[1]),
                    };
                    let view = || ProgressView::of_run(self.screen.clone(), task, prefix(), self.format);
                    lock(&self.runs).entry(task).or_insert_with(view).show(&progress);
                }
                None => {}
            }
            return;
        }
        let text = String::from_utf8_lossy(line);
        // The child has escaped what its guest printed; this is for whatever else writes to its standard streams.
        let line = match self.format {
            LineFormat::Json if text.starts_with('{') && text.ends_with('}') => escaped_json(&text).into_owned(),
            LineFormat::Json => json_line(&self.name, Level::Info, None, &text),
            LineFormat::Text => format!("{}{}", self.prefixes[usize::from(stream == Stream::Stderr)], escaped(&text)),
        };
        self.screen.line(stream, line.into_bytes());
    }
}
