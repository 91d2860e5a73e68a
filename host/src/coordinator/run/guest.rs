//! One run of `worker_fn` in this process: its runtime, its interrupt, and how it is ended from outside.

use super::stop::{Reason, Stop};
use crate::coordinator::member::{MemberHandle, SoloJob};
use crate::coordinator::outcome::{self, Outcome};
use crate::coordinator::reentry::mark_thread;
use crate::coordinator::siblings::Sibling;
use crate::coordinator::summary::SummaryFile;
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::handles::{Handles, Job};
use crate::runtime::{GuestOptions, Module, RunReport, RunWatch};
use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a guest may take to end by itself once the process has to end.
const STOP_GRACE: Duration = Duration::from_millis(300);

/// How long a dropped guest may take to reach its next yield or host call, and its last words to be shown.
const DROP_GRACE: Duration = Duration::from_millis(500);

/// How long a disk may take for the last summaries of a run. They are a few lines, and were written all along.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(30);

/// The runtime that guests compute on; nothing else runs there, so that a guest that never yields delays nothing.
///
/// Its end doesn't wait for what still computes.
#[derive(Debug)]
pub(super) struct Guests {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
}

impl Guests {
    /// Starts the runtime for so many guests: a guest computes on one core, and more threads than cores would only take turns.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn start(guests: usize) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = guests.clamp(1, cores);
        // A timer and sockets of its own: WASI's are polled there, and the direct connections of variables.
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("guest")
            .on_thread_start(mark_thread)
            .enable_all()
            .build()?;
        Ok(Guests { runtime: Some(runtime) })
    }

    /// The runtime, for what else runs guests.
    pub(super) fn handle(&self) -> Handle {
        self.runtime().handle().clone()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What may end a run from outside of its process: its cluster, or the other runs of its client.
pub(super) trait Overseer: Job {
    /// Set once the run must end.
    fn interrupt(&self) -> watch::Receiver<Option<Error>>;

    /// Set once a run that was interrupted has had its time and is to be dropped.
    fn overdue(&self) -> watch::Receiver<bool>;

    /// What the end of a run that was interrupted is worth; none where it was not.
    fn interrupt_exit(&self) -> Option<Exit>;

    /// Set once the chief's run has ended: nobody will initialize variables any more.
    fn chief_ended(&self) -> watch::Receiver<Option<Error>>;
}

impl Overseer for MemberHandle {
    fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        MemberHandle::interrupt(self)
    }

    fn overdue(&self) -> watch::Receiver<bool> {
        MemberHandle::overdue(self)
    }

    fn interrupt_exit(&self) -> Option<Exit> {
        self.interrupt_exit_code().map(|code| Exit::from_code(code).unwrap_or(Exit::Bug))
    }

    fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        MemberHandle::chief_ended(self)
    }
}

impl Overseer for Sibling {
    fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        Sibling::interrupt(self)
    }

    fn overdue(&self) -> watch::Receiver<bool> {
        Sibling::overdue(self)
    }

    fn interrupt_exit(&self) -> Option<Exit> {
        Sibling::interrupt_exit(self)
    }

    fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        Sibling::chief_ended(self)
    }
}

/// A run without a cluster has none: nothing but its process ends it.
impl Overseer for SoloJob {
    fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        watch::channel(None).1
    }

    fn overdue(&self) -> watch::Receiver<bool> {
        watch::channel(false).1
    }

    fn interrupt_exit(&self) -> Option<Exit> {
        None
    }

    fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        watch::channel(None).1
    }
}

/// How a run's process goes on.
pub(super) enum Ended {
    /// The run has ended, by itself or as the cluster's failure demands.
    Run(Outcome),
    /// The process has to end.
    Stopped(Reason, Outcome),
}

/// A core dump that is still being written after its run has ended.
pub(super) struct Dump {
    guest: JoinHandle<RunReport>,
    seen: RunWatch,
}

impl Dump {
    /// Waits until it is written. Once the process has to end it may take [`STOP_GRACE`], and is then given up.
    ///
    /// # Cancel safety
    /// Dropping it leaves the dump to its thread, which nobody waits for any more.
    pub(super) async fn finish(self, stop: &Stop) {
        let Dump { mut guest, seen } = self;
        tokio::select! {
            // First: what is written already needs no waiting. How the run ended is known.
            biased;
            _ = &mut guest => return,
            _ = stop.wait() => {}
        }
        if timeout(STOP_GRACE, &mut guest).await.is_err() {
            seen.give_up_dump();
            // For the file to be removed; a disk that doesn't answer keeps nobody.
            let _ = timeout(DROP_GRACE, guest).await;
        }
    }
}

/// Runs `worker_fn` to its end; answers as well what is still being written of it.
///
/// `interrupt` feeds `handles.interrupt`. A run that its overseer interrupts has the overseer's grace to end by itself; one
/// whose process has to end has [`STOP_GRACE`].
///
/// # Cancel safety
/// Dropping it leaves the guest running on its own runtime until that is shut down; nobody hears how it ends.
pub(super) async fn run(
    guests: &Guests,
    module: &Module,
    options: GuestOptions,
    handles: Handles,
    interrupt: watch::Sender<Option<Error>>,
    overseer: &dyn Overseer,
    stop: &Stop,
) -> (Ended, Option<Dump>) {
    let seen = RunWatch::new();
    let mut guest = guests.runtime().spawn({
        let (module, seen) = (module.clone(), seen.clone());
        async move { module.run(options, handles, seen).await }
    });
    let interrupted = interrupted(overseer, &interrupt);
    let overdue = async {
        if overseer.overdue().wait_for(|overdue| *overdue).await.is_err() {
            // Who would say so has gone, before the time was over.
            std::future::pending::<()>().await;
        }
    };
    let over = tokio::select! {
        // The run's own end comes first: a signal that comes with it changes nothing of it.
        biased;
        report = &mut guest => Over::Returned(report),
        report = seen.ended() => Over::Dumping(report),
        () = overdue => Over::Overdue,
        reason = stop.wait() => Over::Stopped(reason),
        never = interrupted => match never {},
    };
    let place = || match seen.pending_host_call() {
        Some(call) => format!("the guest was in the host call {call}"),
        None => "the guest was computing, or in a call of WASI".to_owned(),
    };
    let ended = match over {
        Over::Returned(Ok(report)) => Ended::Run(outcome::of_run(&report, cluster_end(overseer))),
        Over::Returned(Err(error)) => Ended::Run(Outcome::failed(
            Exit::Bug,
            format!("the run's task failed: {error}; a bug in dchost, please report it"),
        )),
        Over::Dumping(report) => {
            let ended = Ended::Run(outcome::of_run(&report, cluster_end(overseer)));
            return (ended, Some(Dump { guest, seen }));
        }
        Over::Overdue => {
            let place = place();
            guest.abort();
            // Its last words; a guest that can't be dropped even now is left behind with its thread.
            let _ = timeout(DROP_GRACE, guest).await;
            Ended::Run(match cluster_end(overseer) {
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
            let outcome = Outcome::failed(reason.exit(), format!("{}; {place}", reason.text()));
            Ended::Stopped(reason, outcome)
        }
    };
    (ended, None)
}

/// Waits until the summaries of a run that has ended are written, as long as the process may stay and a disk may take.
///
/// The run's own failure comes first; the summary's was logged when it happened.
///
/// # Cancel safety
/// As [`SummaryFile::finish`]; how the run ended is lost with it.
pub(super) async fn with_summary(ended: Ended, summary: &SummaryFile, stop: &Stop) -> Ended {
    let own = match ended {
        Ended::Stopped(..) => {
            let _ = timeout(STOP_GRACE, summary.finish()).await;
            return ended;
        }
        Ended::Run(outcome) => outcome,
    };
    let failure = tokio::select! {
        // First: what is written already needs no waiting.
        biased;
        written = timeout(SUMMARY_TIMEOUT, summary.finish()) => match written {
            Ok(Ok(())) => return Ended::Run(own),
            Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
            Err(_) => {
                let text = format!(
                    "the run has ended, but its summaries were not written within {} s: the disk of --summary-dir does not answer",
                    SUMMARY_TIMEOUT.as_secs()
                );
                tracing::error!("{text}");
                text
            }
        },
        reason = stop.wait() => {
            let outcome = if own.exit == Exit::Done { Outcome::failed(reason.exit(), reason.text()) } else { own };
            return Ended::Stopped(reason, outcome);
        }
    };
    Ended::Run(if own.exit == Exit::Done { Outcome::failed(Exit::Files, failure) } else { own })
}

enum Over<R> {
    Returned(R),
    Dumping(RunReport),
    Overdue,
    Stopped(Reason),
}

/// Passes the overseer's interrupt on to the run; never ends.
async fn interrupted(overseer: &dyn Overseer, interrupt: &watch::Sender<Option<Error>>) -> std::convert::Infallible {
    if let Ok(error) = overseer.interrupt().wait_for(Option::is_some).await {
        interrupt.send_replace(error.clone());
    }
    std::future::pending().await
}

/// What the cluster makes of a run that it has interrupted.
fn cluster_end(overseer: &dyn Overseer) -> Option<(Exit, Error)> {
    let exit = overseer.interrupt_exit()?;
    let error = overseer.interrupt().borrow().clone()?;
    Some((exit, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::summary::testing::{HungDisk, hung};
    use crate::handles::Summary as _;

    /// Aim: a disk that hangs keeps no process from ending. Method: a writer that waits until the test lets it go on; on
    /// the paused clock, which only runs on when nothing else can.
    #[tokio::test(start_paused = true)]
    async fn a_hung_disk_holds_nobody_up() {
        let HungDisk { summary, release } = hung();
        summary.scalar("loss", 1, 0.5);
        let began = tokio::time::Instant::now();
        let ended = with_summary(Ended::Run(Outcome::done()), &summary, &Stop::new()).await;
        let Ended::Run(outcome) = ended else { panic!("nobody has stopped it") };
        assert_eq!((outcome.exit, began.elapsed()), (Exit::Files, SUMMARY_TIMEOUT));
        assert!(outcome.message.is_some_and(|text| text.contains("--summary-dir")));
        drop(release);

        let HungDisk { summary, release } = hung();
        summary.scalar("loss", 1, 0.5);
        let stop = Stop::new();
        stop.stop(Reason::Terminated);
        let ended = with_summary(Ended::Run(Outcome::done()), &summary, &stop).await;
        let Ended::Stopped(Reason::Terminated, outcome) = ended else { panic!("it was stopped") };
        assert_eq!(outcome.exit, Exit::Terminated);
        drop(release);
    }

    /// Aim: a dump that a disk doesn't take keeps no process from ending. Method: one that never ends, on the paused clock.
    #[tokio::test(start_paused = true)]
    async fn a_dump_may_take_long_but_not_once_the_process_has_to_end() {
        let dump = || Dump { guest: tokio::spawn(std::future::pending()), seen: RunWatch::new() };
        let stop = Stop::new();
        let hour = Duration::from_secs(3600);
        assert!(timeout(hour, dump().finish(&stop)).await.is_err(), "it has all the time of the world");
        stop.stop(Reason::Terminated);
        let began = tokio::time::Instant::now();
        dump().finish(&stop).await;
        assert_eq!(began.elapsed(), STOP_GRACE + DROP_GRACE);
    }

    #[tokio::test]
    async fn a_runs_own_failure_comes_before_its_summarys() {
        let HungDisk { summary, release } = hung();
        summary.scalar("loss", 1, 0.5);
        drop(release);
        let own = Outcome::failed(Exit::Trap, "trapped");
        let Ended::Run(outcome) = with_summary(Ended::Run(own.clone()), &summary, &Stop::new()).await else {
            panic!("nobody has stopped it")
        };
        assert_eq!(outcome, own);
    }
}
