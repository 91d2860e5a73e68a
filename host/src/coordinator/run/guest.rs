//! One run of `worker_fn` in this process: its runtime, its interrupt, and how it is ended from outside.

use super::stop::{Reason, Stop};
use crate::coordinator::member::MemberHandle;
use crate::coordinator::outcome::{self, Outcome};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::handles::Handles;
use crate::runtime::{GuestOptions, Module, RunWatch};
use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a guest may take to end by itself once the process has to end.
const STOP_GRACE: Duration = Duration::from_millis(300);

/// How long a dropped guest may take to reach its next yield or host call, and its last words to be shown.
const DROP_GRACE: Duration = Duration::from_millis(500);

/// The runtime that guests compute on; nothing else runs there, so that a guest that never yields delays nothing.
#[derive(Debug)]
pub(super) struct Guests {
    runtime: Runtime,
}

impl Guests {
    /// Starts the runtime: one thread, as one guest computes on one core.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn start() -> io::Result<Self> {
        // A timer and sockets of its own: WASI's are polled there.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("guest").enable_all().build()?;
        Ok(Guests { runtime })
    }

    /// Ends the runtime without waiting for what still computes.
    pub(super) fn shut_down(self) {
        self.runtime.shutdown_background();
    }
}

/// How a run's process goes on.
pub(super) enum Ended {
    /// The run has ended, by itself or as the cluster's failure demands.
    Run(Outcome),
    /// The process has to end.
    Stopped(Reason, Outcome),
}

/// Runs `worker_fn` to its end.
///
/// `interrupt` feeds `handles.interrupt`. A run that the cluster interrupts has the member's grace to end by itself; one
/// whose process has to end has [`STOP_GRACE`].
pub(super) async fn run(
    guests: &Guests,
    module: &Module,
    options: GuestOptions,
    handles: Handles,
    interrupt: watch::Sender<Option<Error>>,
    member: Option<&MemberHandle>,
    stop: &Stop,
) -> Ended {
    let seen = RunWatch::new();
    let mut guest = guests.runtime.spawn({
        let (module, seen) = (module.clone(), seen.clone());
        async move { module.run(options, handles, seen).await }
    });
    let interrupted = interrupted(member, &interrupt);
    let overdue = async {
        match member {
            Some(member) => member.overdue().await,
            None => std::future::pending().await,
        }
    };
    let over = tokio::select! {
        report = &mut guest => Over::Returned(report),
        () = overdue => Over::Overdue,
        reason = stop.wait() => Over::Stopped(reason),
        never = interrupted => match never {},
    };
    let place = || match seen.pending_host_call() {
        Some(call) => format!("the guest was in the host call {call}"),
        None => "the guest was computing, or in a call of WASI".to_owned(),
    };
    match over {
        Over::Returned(Ok(report)) => Ended::Run(outcome::of_run(&report, cluster_end(member))),
        Over::Returned(Err(error)) => Ended::Run(Outcome::failed(
            Exit::Bug,
            format!("the run's task failed: {error}; a bug in dchost, please report it"),
        )),
        Over::Overdue => {
            let place = place();
            guest.abort();
            // Its last words; a guest that can't be dropped even now is left behind with its thread.
            let _ = timeout(DROP_GRACE, guest).await;
            Ended::Run(match cluster_end(member) {
                Some((Exit::Done, _)) => Outcome::done(),
                Some((exit, error)) => {
                    Outcome::failed(exit, format!("{error}\nthe run did not end in time and was dropped; {place}"))
                }
                None => Outcome::failed(Exit::PeerFailed, format!("the run was dropped; {place}")),
            })
        }
        Over::Stopped(reason) => {
            let place = place();
            interrupt.send_replace(Some(Error::new(ErrorCode::Cancelled, reason.text())));
            if timeout(STOP_GRACE, &mut guest).await.is_err() {
                guest.abort();
                let _ = timeout(DROP_GRACE, guest).await;
            }
            Ended::Stopped(reason, Outcome::failed(reason.exit(), format!("{}; {place}", reason.text())))
        }
    }
}

enum Over<R> {
    Returned(R),
    Overdue,
    Stopped(Reason),
}

/// Passes the cluster's interrupt on to the run; never ends.
async fn interrupted(
    member: Option<&MemberHandle>,
    interrupt: &watch::Sender<Option<Error>>,
) -> std::convert::Infallible {
    if let Some(member) = member {
        let mut cluster = member.interrupt();
        if let Ok(error) = cluster.wait_for(Option::is_some).await {
            interrupt.send_replace(error.clone());
        }
    }
    std::future::pending().await
}

/// What the cluster makes of a run that it has interrupted.
fn cluster_end(member: Option<&MemberHandle>) -> Option<(Exit, Error)> {
    let member = member?;
    let exit = Exit::from_code(member.interrupt_exit_code()?).unwrap_or(Exit::Bug);
    let error = member.interrupt().borrow().clone()?;
    Some((exit, error))
}
