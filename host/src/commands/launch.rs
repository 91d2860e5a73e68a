//! `dchost launch`: a whole cluster on this machine, one process for each task.
//!
//! Binds every port itself and hands the listening sockets over, so that none can be lost in between; shows every line
//! with its task; ends the stragglers; exits with the first cause. No task outlives it: each holds the read end of a pipe
//! whose write end is here (see `coordinator::launched`).

mod child;
mod layout;
mod lines;
mod supervise;
mod table;

use crate::cli::{self, LogFormat};
use crate::cluster::{Task, TaskType};
use crate::config::{self, Environment, LaunchConfig, LogConfig, is_inherited};
use crate::coordinator::console::{LineFormat, ProgressMode, Screen, Stream, json_line};
use crate::coordinator::resolve::values::EndRule;
use crate::coordinator::siblings::CLIENT;
use crate::exit::Exit;
use crate::files::{self, ReadError};
use crate::handles::Level;
use anyhow::Context as _;
use child::{Child, ChildCommand, Display};
use layout::Layout;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use supervise::{Action, Ending, StopSignal, Supervisor};

/// How long the last lines may take to be written when nothing runs any more.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(400);

/// What to launch.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// Number of worker tasks.
    pub workers: u32,
    /// Whether there is a chief task.
    pub chief: bool,
    /// Number of ps tasks.
    pub ps: u32,
    /// Whether there is an evaluator task.
    pub evaluator: bool,
    /// Whether there is a split client, which runs every worker_fn, so that all else only serves.
    pub client: bool,
    /// The component.
    pub module: PathBuf,
    /// The program to start for each task: this dchost itself.
    pub program: PathBuf,
    /// What stands before the task's own flags; empty for dchost itself (a wrapper such as numactl takes some).
    pub program_args: Vec<OsString>,
    /// How often a client is tried (`--max-attempts`).
    pub attempts_max: u32,
    /// Flags that every task gets, as a command line has them: settings of the job and of the guest.
    pub flags: Vec<OsString>,
    /// Arguments of every guest.
    pub guest_args: Vec<OsString>,
    /// The environment of this process; the tasks get it without what could configure them.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether ps tasks stay when the job has ended (`--end never`), so that their staying is no reason to end them.
    pub end_never: bool,
    /// How long a reader may keep the launcher (`--timeout`), from its start on; none: without limit. Tasks have their own clocks.
    pub timeout: Option<Duration>,
    /// How lines look.
    pub format: LineFormat,
    /// Whether prefixes may be coloured where the stream is a terminal.
    pub color: bool,
}

/// Why nothing was launched, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nobody would run worker_fn.
    #[error("a cluster without a chief and workers runs nothing, give --workers N with N of at least 1, or --chief")]
    NoRunner,
    /// The module isn't there.
    #[error("cannot read the module `{}` (--module)", .path.display())]
    Module {
        /// The path as given.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ReadError,
    },
    /// No port to be had on loopback.
    #[error("cannot bind a port of 127.0.0.1 for {task}")]
    Bind {
        /// The task that it was for.
        task: Task,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A task's process, or a thread that looks after it, could not be started.
    #[error("cannot start the process of {task} from `{}`", .program.display())]
    Start {
        /// The task.
        task: Task,
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Signals could not be caught.
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
}

impl LaunchError {
    /// The exit code that the failure gives the process.
    pub fn exit(&self) -> Exit {
        match self {
            LaunchError::NoRunner | LaunchError::Module { .. } => Exit::Refused,
            LaunchError::Bind { .. } => Exit::Bind,
            LaunchError::Start { .. } | LaunchError::Signals(_) => Exit::Files,
        }
    }
}

/// What happens while tasks run.
pub(crate) enum Event {
    /// A task's process has ended and is reaped.
    Ended(Task, child::Ended),
    /// The launcher itself was told to end.
    Signal(StopSignal),
}

/// Reads the configuration, and runs a whole cluster to its end.
///
/// # Errors
/// The configuration is refused ([`Faults`](crate::coordinator::resolve::Faults)), before anything is bound or started;
/// [`LaunchError`], which knows its exit code.
pub fn run(args: &cli::Launch, log: LogConfig, environment: &Environment) -> anyhow::Result<Exit> {
    let config = config::launch(args, environment)?;
    for warning in &config.settings.warnings {
        tracing::warn!("{warning}");
    }
    // Each child takes three pipes and a socket here, and inherits the limit.
    crate::coordinator::descriptors::raise();
    let program = config::program().context("find this program's own file")?;
    Ok(launch(&options(args, config, log, environment, program))?)
}

/// Makes the options of a launch from what was read.
fn options(
    args: &cli::Launch,
    config: LaunchConfig,
    log: LogConfig,
    environment: &Environment,
    program: PathBuf,
) -> LaunchOptions {
    let flags = config.child_arguments.into_iter().chain(log.child_arguments());
    LaunchOptions {
        workers: args.workers,
        chief: args.chief,
        ps: args.ps,
        evaluator: args.evaluator,
        client: config.client,
        attempts_max: config.settings.max_attempts.value,
        module: config.module,
        program,
        program_args: Vec::new(),
        flags: flags.collect(),
        guest_args: config.guest_args.into_iter().map(OsString::from).collect(),
        environment: environment.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        end_never: config.settings.end.value == EndRule::Never,
        timeout: config.settings.timeout.value.0,
        format: match log.format {
            LogFormat::Text => LineFormat::Text,
            LogFormat::Json => LineFormat::Json,
        },
        color: !environment.is_set("NO_COLOR"),
    }
}

/// Runs the cluster until every task has ended, and returns the first cause's exit.
///
/// Blocks the thread; starts threads of its own and needs no runtime. A thread that waits for signals stays until the
/// process exits, which is expected to follow.
///
/// # Errors
/// Nothing runs any more when it fails: see [`LaunchError`].
pub fn launch(options: &LaunchOptions) -> Result<Exit, LaunchError> {
    let mode = if options.format == LineFormat::Json { ProgressMode::Lines } else { ProgressMode::of_stderr() };
    let (events, received) = mpsc::channel();
    // Before the first child, so that a signal during the start finds somebody who ends the children.
    watch_signals(events.clone()).map_err(LaunchError::Signals)?;
    run_on(&Screen::of_process(mode), options, events, &received)
}

/// Runs the cluster on any screen; what `events` brings besides the children's ends comes from the caller.
fn run_on(
    screen: &Screen,
    options: &LaunchOptions,
    events: Sender<Event>,
    received: &Receiver<Event>,
) -> Result<Exit, LaunchError> {
    if options.workers == 0 && !options.chief {
        return Err(LaunchError::NoRunner);
    }
    // One too far away for the clock is none.
    let deadline = options.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    check_module(options)?;
    let Layout { cluster, listeners } = Layout::bind(options)?;
    // Servers first: the client finds them all.
    let listeners = listeners.into_iter().map(|(task, listener)| (task, Some(listener)));
    let processes: Vec<_> = listeners.chain(options.client.then_some((CLIENT, None))).collect();
    let tasks: Vec<Task> = processes.iter().map(|(task, _)| *task).collect();
    let width = tasks.iter().map(|task| task.to_string().len()).max().unwrap_or_default();
    let (drained, all_drained) = mpsc::channel();
    let mut children: Vec<Child> = Vec::new();
    for (number, (task, listener)) in processes.into_iter().enumerate() {
        let command = ChildCommand {
            program: &options.program,
            args: arguments(options, task, &cluster),
            environment: options.environment.iter().filter(|(name, _)| is_inherited(name)).cloned().collect(),
            listener,
        };
        let display = Display::new(screen.clone(), task, width, number, options.format, colors(options));
        // Dropping `children` on the way out ends those that run already.
        let child = Child::start(task, command, display, events.clone(), drained.clone())
            .map_err(|source| LaunchError::Start { task, program: options.program.clone(), source })?;
        children.push(child);
    }
    drop((events, drained));

    let mut supervisor = Supervisor::new(&tasks, leader(options), options.end_never);
    let say = |text: &str| screen.log_line(Stream::Stderr, own_line(width, options.format, text).into_bytes());
    supervise(say, &mut supervisor, &children, received);
    let interrupted = wait_for_output(screen, &all_drained, received, supervisor.stop_signal(), deadline);
    screen.end_bars();
    let rows = table::rows(&supervisor, &children);
    for line in table::render(&rows, options.format) {
        screen.log_line(Stream::Stderr, line.into_bytes());
    }
    screen.flush(FLUSH_TIMEOUT);
    // What ended a task comes first.
    Ok(match (supervisor.exit(), interrupted, screen.lost()) {
        (Exit::Done, Some(exit), _) => exit,
        (Exit::Done, None, Some(lost)) => {
            say(&lost.to_string());
            screen.flush(FLUSH_TIMEOUT);
            Exit::Files
        }
        (exit, ..) => exit,
    })
}

/// Lets `supervisor` decide until every child has ended.
fn supervise(say: impl Fn(&str), supervisor: &mut Supervisor, children: &[Child], received: &Receiver<Event>) {
    while !supervisor.is_done() {
        let event = match supervisor.deadline() {
            Some(deadline) => received.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = Instant::now();
        let action = match event {
            Ok(Event::Ended(task, ended)) => {
                let first = supervisor.cause().is_none();
                supervisor.ended(task, ended.ending, now);
                if first && let Some(cause) = supervisor.cause().filter(|_| !supervisor.is_done()) {
                    let words = table::in_words(cause.ending);
                    // A client's servers serve on until they are told, which follows.
                    let then =
                        if cause.task == CLIENT { "ending its servers" } else { "waiting for the others to end" };
                    say(&format!("{} {words}; {then}", cause.task));
                }
                children.iter().filter(|child| child.task == task).for_each(|child| child.set_ended(ended));
                supervisor.due(now)
            }
            Ok(Event::Signal(signal)) => supervisor.signal(signal, now),
            Err(RecvTimeoutError::Timeout) => supervisor.due(now),
            // Every child's waiter has spoken and gone: nothing is left to wait for.
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let signal = match action {
            None => continue,
            Some(Action::Terminate) => rustix::process::Signal::TERM,
            Some(Action::Kill) => rustix::process::Signal::KILL,
        };
        children.iter().for_each(|child| child.signal(signal));
    }
}

/// A line of the launcher's own.
fn own_line(width: usize, format: LineFormat, text: &str) -> String {
    match format {
        LineFormat::Text => format!("{:width$} | {text}", "launch"),
        LineFormat::Json => json_line("", Level::Warn, None, text),
    }
}

/// Waits until the children's last lines are written, as long as their reader takes; a signal, also one that has `told` the
/// launcher to end before, and the deadline end the wait, and what the launcher then exits with is returned. A pipe that
/// somebody else holds open and writes nothing to ends no wait.
fn wait_for_output(
    screen: &Screen,
    all_drained: &Receiver<()>,
    received: &Receiver<Event>,
    told: Option<StopSignal>,
    deadline: Option<Instant>,
) -> Option<Exit> {
    loop {
        let lines = screen.output_lines();
        let quiet_at = Instant::now() + FLUSH_TIMEOUT;
        let handed_over = loop {
            match all_drained.recv_timeout(quiet_at.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(error) => break error == RecvTimeoutError::Disconnected,
            }
        };
        // Lines that came meanwhile had waited for room on the screen, and more may come.
        if screen.flush_output(FLUSH_TIMEOUT) && (handed_over || screen.output_lines() == lines) {
            return None;
        }
        let signal = told.or_else(|| match received.try_recv() {
            Ok(Event::Signal(signal)) => Some(signal),
            _ => None,
        });
        if let Some(signal) = signal {
            return Some(signal.exit());
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(Exit::Timeout);
        }
    }
}

fn check_module(options: &LaunchOptions) -> Result<(), LaunchError> {
    let path = &options.module;
    files::open(path).map_err(|source| LaunchError::Module { path: path.clone(), source })?;
    Ok(())
}

/// The task whose process leads the job.
fn leader(options: &LaunchOptions) -> Task {
    if options.client {
        return CLIENT;
    }
    Task::new(if options.chief { TaskType::Chief } else { TaskType::Worker }, 0)
}

fn arguments(options: &LaunchOptions, task: Task, cluster: &str) -> Vec<OsString> {
    let mut args = options.program_args.clone();
    args.extend(["--launched", "--task", &task.to_string(), "--cluster", cluster].map(OsString::from));
    // Who runs nothing need not read the component.
    let runs = if options.client { task == CLIENT } else { task.job != TaskType::Ps };
    if runs {
        args.extend(["--module".into(), options.module.clone().into_os_string()]);
    }
    if task == CLIENT {
        args.push(format!("--max-attempts={}", options.attempts_max).into());
    }
    args.extend(options.flags.iter().cloned());
    if !options.guest_args.is_empty() {
        args.push("--".into());
        args.extend(options.guest_args.iter().cloned());
    }
    args
}

fn colors(options: &LaunchOptions) -> [bool; 2] {
    [io::stdout().is_terminal(), io::stderr().is_terminal()].map(|terminal| terminal && options.color)
}

/// Catches SIGINT, SIGTERM and SIGHUP from now on. The last is what a closing terminal sends.
fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let signal = tokio::select! {
                    _ = interrupt.recv() => StopSignal::Interrupt,
                    _ = terminate.recv() => StopSignal::Terminate,
                    _ = hangup.recv() => StopSignal::Terminate,
                };
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
    })?;
    Ok(())
}

/// How one task ended, for the closing table.
#[derive(Clone, Debug)]
pub(crate) struct TaskEnd {
    task: Task,
    ending: Option<Ending>,
    by_launcher: bool,
    is_cause: bool,
    time: Duration,
    peak_memory_bytes: u64,
}

#[cfg(test)]
mod tests;
