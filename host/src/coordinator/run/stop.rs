//! What ends a process's task from outside: signals, the wall clock, a launcher that has gone, the program around it.

use crate::coordinator::launched::launcher_gone;
use crate::exit::Exit;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Why a process has to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// SIGINT.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// The process that launched this one has gone.
    LauncherGone,
    /// The program that embeds dchost asked for it.
    Asked,
    /// `--timeout` has passed.
    Timeout(Duration),
    /// The server of this task has ended, although nobody ended it: what it says.
    ServerEnded(String),
}

impl Reason {
    /// The exit code that it gives the process.
    pub fn exit(&self) -> Exit {
        match self {
            Reason::Interrupted => Exit::Interrupted,
            Reason::Terminated | Reason::LauncherGone | Reason::Asked => Exit::Terminated,
            Reason::Timeout(_) => Exit::Timeout,
            Reason::ServerEnded(_) => Exit::Bug,
        }
    }

    /// Whether the task leaves, rather than fails.
    pub fn is_leaving(&self) -> bool {
        !matches!(self, Reason::Timeout(_) | Reason::ServerEnded(_))
    }

    /// What happened, in words.
    pub fn text(&self) -> String {
        match self {
            Reason::Interrupted => "ended by SIGINT".to_owned(),
            Reason::Terminated => "ended by SIGTERM".to_owned(),
            Reason::LauncherGone => "ended because `dchost launch` has gone".to_owned(),
            Reason::Asked => "ended because it was asked to stop".to_owned(),
            Reason::Timeout(timeout) => {
                format!("the wall clock `--timeout {}` has passed", humantime::format_duration(*timeout))
            }
            Reason::ServerEnded(why) => {
                format!("the server of this task ended by itself: {why}; a bug in dchost, please report it")
            }
        }
    }
}

/// Tells when, and why, the process has to end. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    reason: Arc<watch::Sender<Option<Reason>>>,
}

impl Stop {
    /// Starts to watch, on the present runtime: for a launcher's end, for signals where `signals` says so, and for the time.
    /// The clock of `timeout` starts now.
    ///
    /// # Errors
    /// The system can't deliver signals.
    pub fn watch(&self, launched: bool, timeout: Option<Duration>, signals: bool) -> io::Result<()> {
        let signalled = if signals { Some(signalled()?) } else { None };
        let told = self.clone();
        tokio::spawn(async move {
            let signalled = async {
                match signalled {
                    Some(signalled) => signalled.await,
                    None => std::future::pending().await,
                }
            };
            let clock = async {
                match timeout {
                    Some(timeout) => {
                        tokio::time::sleep(timeout).await;
                        timeout
                    }
                    None => std::future::pending().await,
                }
            };
            let launcher = async { if launched { launcher_gone().await } else { std::future::pending().await } };
            let reason = tokio::select! {
                reason = signalled => reason,
                () = launcher => Reason::LauncherGone,
                timeout = clock => Reason::Timeout(timeout),
            };
            told.stop(reason);
        });
        Ok(())
    }

    /// Makes one that nothing but [`stop`](Self::stop) ends.
    pub fn new() -> Self {
        Stop { reason: Arc::new(watch::Sender::new(None)) }
    }

    /// Ends the process for a reason found within it. The first reason counts.
    pub fn stop(&self, reason: Reason) {
        self.reason.send_if_modified(|told| {
            let first = told.is_none();
            if first {
                *told = Some(reason);
            }
            first
        });
    }

    /// Why the process has to end, where it already has to.
    pub fn now(&self) -> Option<Reason> {
        self.reason.borrow().clone()
    }

    /// Waits until the process has to end.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn wait(&self) -> Reason {
        let mut reason = self.reason.subscribe();
        let reason = reason.wait_for(Option::is_some).await.expect("`self` holds the sender");
        reason.clone().expect("waited until it was there")
    }
}

/// Takes the signals that end a process, on the present runtime; ends with the first.
///
/// # Errors
/// The system can't deliver signals.
fn signalled() -> io::Result<impl Future<Output = Reason>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => Reason::Interrupted,
            _ = terminate.recv() => Reason::Terminated,
        }
    })
}
