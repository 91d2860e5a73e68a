//! The library's face: a coordinator as a value, for programs that embed dchost.
//!
//! What the command line does for one process, without a command line: no environment is read, no signal handled, no log set
//! up, no process ended, unless the program asks for it. A program may have as many coordinators at once as it likes.

mod builder;
mod lines;

pub use super::console::{Consoles, Screen};
pub use super::run::{Report, RunOutcome};
pub use builder::CoordinatorBuilder;

use super::outcome::Outcome;
use super::plan::Plan;
use super::reentry;
use super::resolve::Resolved;
use super::run::{self, ModuleSource, Reason, RunOptions, Stop};
use crate::attend::Replication;
use crate::exit::Exit;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use tokio::sync::oneshot;

/// One task of a job, a split client, or a local run, ready to run; made by [`Coordinator::builder`].
///
/// It has threads of its own while it runs: one that waits, a few for its server and its connections, and some on which
/// components compute. None of the caller's threads is used or blocked.
///
/// ```
/// use dchost::Coordinator;
/// use dchost::attend::Replication;
/// use dchost::exit::Exit;
///
/// # let component = wat::parse_str(r#"(component
/// #   (core module $m (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))
/// #   (core instance $i (instantiate $m))
/// #   (func $run (result (result (error string)))
/// #     (canon lift (core func $i "run") (memory (core memory $i "memory"))))
/// #   (instance $entry (export "run" (func $run)))
/// #   (export "dchost:worker/entry@0.1.0" (instance $entry)))"#)?;
/// // Without a cluster: a local run.
/// let coordinator = Coordinator::builder(Replication::BetweenGraph).module_bytes("hello.wasm", component).build()?;
/// assert_eq!(coordinator.plan().runs[0].master_target, "local");
///
/// let report = coordinator.run_blocking();
/// assert_eq!(report.outcome.exit, Exit::Done);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Source
/// `run_distribute_coordinator` of TensorFlow's `distribute_coordinator.py`. It differs where that one reads TF_CONFIG
/// unasked, blocks its caller and can't be stopped.
#[must_use = "nothing starts before `run` or `run_blocking`"]
pub struct Coordinator {
    resolved: Resolved,
    module: ModuleSource,
    listener: Option<TcpListener>,
    consoles: Arc<dyn Consoles>,
    stop: Stop,
    signals: bool,
    output: Option<Screen>,
}

/// Ends a coordinator from outside. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Stop,
}

impl StopHandle {
    /// Ends the coordinator as SIGTERM ends a process: its guests have a moment to end by themselves and are dropped then,
    /// the leader hears that the task leaves, and the report has [`Exit::Terminated`]. A few seconds at most.
    ///
    /// Before the run it ends the run at its start; a second call, and one after the end, have no effect. Doesn't wait.
    pub fn stop(&self) {
        self.stop.stop(Reason::Asked);
    }
}

impl Coordinator {
    /// Begins a coordinator. Each method of the builder is a flag of the command line, of the same name and meaning.
    ///
    /// `replication` has no default: whether each worker has a run of its own, or one run drives all, is what a
    /// `worker_fn` is written for.
    pub fn builder(replication: Replication) -> CoordinatorBuilder {
        CoordinatorBuilder::new(replication)
    }

    /// Takes a configuration that was resolved already; with the socket that it was told of, if any.
    pub fn resolved(resolved: Resolved, listener: Option<TcpListener>) -> Self {
        Coordinator {
            resolved,
            module: ModuleSource::File,
            listener,
            consoles: Arc::new(lines::of_run),
            stop: Stop::new(),
            signals: false,
            output: None,
        }
    }

    /// Sends the lines of each run to a console of its own.
    pub fn with_consoles(self, consoles: impl Consoles + 'static) -> Self {
        Coordinator { consoles: Arc::new(consoles), ..self }
    }

    /// Lets SIGINT and SIGTERM end the run, as they end `dchost`. From then on the process no longer ends by them, even
    /// after the run.
    pub fn with_signals(self) -> Self {
        Coordinator { signals: true, ..self }
    }

    /// Ends only once all that `screen` has for standard output is written, however slowly it is read: for consoles that
    /// write there. A signal, the timeout and a stop end this wait too, and then a run that ended well has failed.
    pub fn with_output(self, screen: Screen) -> Self {
        Coordinator { output: Some(screen), ..self }
    }

    /// What will run.
    pub fn plan(&self) -> &Plan {
        &self.resolved.plan
    }

    /// What is allowed but odd in the configuration; each is worth a line in a log.
    pub fn warnings(&self) -> &[String] {
        &self.resolved.warnings
    }

    /// Something to stop the run with. All of a coordinator's handles are one.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { stop: self.stop.clone() }
    }

    /// Runs to the end, on threads of its own: it may be awaited on any executor, a single thread of tokio included.
    ///
    /// Everything that fails is in the report: [`Outcome::exit`] is the code that a process would have exited with, and the
    /// message what it would have printed. A coordinator that is started by what another one's run calls (a line for its
    /// console, for instance) is refused before any effect, with [`Exit::Refused`].
    ///
    /// # Cancel safety
    /// Dropping the future stops the run as [`StopHandle::stop`] does, and doesn't wait for its end: for a second or two
    /// its port may still be taken. Dropped before it was polled, nothing has happened.
    pub async fn run(self) -> Report {
        if reentry::is_own_thread() {
            return run::refuse_reentry().into();
        }
        let _stop = StopOnDrop(self.stop_handle());
        let (done, ended) = oneshot::channel();
        // Nobody listens any more where this future was dropped.
        match self.start(move |report| drop(done.send(report))) {
            Ok(()) => ended.await.unwrap_or_else(|_| panicked("its thread ended")),
            Err(report) => *report,
        }
    }

    /// Runs to the end, and blocks this thread so long: for threads without a runtime. Never call it where futures are
    /// polled; there, await [`run`](Self::run).
    ///
    /// Everything else is as with [`run`](Self::run).
    pub fn run_blocking(self) -> Report {
        if reentry::is_own_thread() {
            return run::refuse_reentry().into();
        }
        let (done, ended) = mpsc::channel();
        match self.start(move |report| drop(done.send(report))) {
            Ok(()) => ended.recv().unwrap_or_else(|_| panicked("its thread ended")),
            Err(report) => *report,
        }
    }

    /// Starts the thread that runs it, and that hands the report over.
    fn start(self, done: impl FnOnce(Report) + Send + 'static) -> Result<(), Box<Report>> {
        let Coordinator { resolved, module, listener, consoles, stop, signals, output } = self;
        let options = RunOptions { resolved, module, listener, consoles, stop, signals, output };
        let run = move || {
            let report = catch_unwind(AssertUnwindSafe(|| run::run(options)));
            done(report.unwrap_or_else(|panic| panicked(run::panic_text(&*panic))));
        };
        match thread::Builder::new().name("coordinator".to_owned()).spawn(run) {
            Ok(_) => Ok(()),
            Err(error) => {
                let outcome = Outcome::failed(Exit::Files, format!("can't start a thread: {error}"));
                Err(Box::new(outcome.into()))
            }
        }
    }
}

/// Stops a run whose future is dropped; one that has ended isn't affected.
struct StopOnDrop(StopHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A thread of the coordinator's ended early.
fn panicked(text: &str) -> Report {
    Outcome::failed(Exit::Bug, format!("the coordinator panicked: {text}; a bug in dchost, please report it")).into()
}
