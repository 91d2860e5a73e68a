//! A task's half of the attend stream: registering, reconnecting, barriers, the job's end.
//!
//! [`Member`] is the service, which runs on the control runtime with every timer; [`MemberHandle`] is what runs and the
//! coordinator hold. The handle's futures only wait on channels, so that they may be polled on any runtime.
//!
//! | link | event | what follows |
//! | --- | --- | --- |
//! | never met the leader | it can't be reached | try again; a run gives up after the connect timeout (201), a server never |
//! | never met the leader | it refuses | the member departs |
//! | attends | the stream breaks, or is silent | register again with the same incarnation; unanswered arrivals are sent again |
//! | lost the leader | a run: nobody listens there, another incarnation answers, or the rejoin timeout | peer-failed or peer-restarted, depart (202) |
//! | lost the leader | a server: another incarnation answers | attend that one |
//! | lost the leader | a server: the connect timeout, unless the leader had no module | depart (202) |
//! | attends | job-ended | depart |

mod departure;
mod handle;
mod link;
mod service;
mod solo;

pub use departure::{Departure, refusal_exit_code};
pub use handle::MemberHandle;
pub use solo::SoloJob;

pub(in crate::coordinator) use solo::no_barrier;

use crate::attend::{AttendError, Cause, EndReport, Registered, Registration};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::handles::{Attend, Probe};
use crate::ids::Attempt;
use service::Service;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long the delivery of an end report is waited for.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls that wait for the service; a guest makes one at a time.
const COMMANDS_MAX: usize = 64;

/// What a member needs.
pub struct MemberOptions {
    /// The first words to the leader.
    pub registration: Registration,
    /// Who the leader is.
    pub leader: Task,
    /// How it is reached: `server::leader`'s handle in its own process, else `client::attend`.
    pub attend: Arc<dyn Attend>,
    /// How a run finds out at once that its leader is gone, with the leader's address; none in the leader's process.
    pub probe: Option<(Arc<dyn Probe>, String)>,
    /// The context of the run that this task executes; none for a ps or joined task.
    pub context: Option<Arc<WorkerContext>>,
    /// How long a run waits for a leader that it never met, and a server for one that it lost.
    pub connect_timeout: Duration,
    /// How long a run waits for a leader that it lost.
    pub rejoin_timeout: Duration,
    /// A server's own `--end never`: neither job-ended nor a lost leader makes it depart.
    pub stay: bool,
}

/// A task's half of the attend stream. Make it, hand its handle to the run, then run it on the control runtime.
pub struct Member {
    options: MemberOptions,
    commands: mpsc::Receiver<Command>,
    outlets: Outlets,
}

enum Command {
    Barrier { name: String, timeout: Option<Duration>, reply: oneshot::Sender<Result<()>> },
    End { report: EndReport, reply: oneshot::Sender<bool> },
}

/// What the leader has said about the training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Training {
    ended: bool,
    cause: Option<Cause>,
}

/// The service's ends of the handle's watches.
struct Outlets {
    registered: watch::Sender<Option<Result<Registered, AttendError>>>,
    attempt: watch::Sender<Option<Attempt>>,
    training: watch::Sender<Training>,
    interrupt: watch::Sender<Option<Error>>,
    overdue: watch::Sender<bool>,
    chief_ended: watch::Sender<Option<Error>>,
    departure: watch::Sender<Option<Departure>>,
}

impl Member {
    /// Makes the service and its handle.
    pub fn new(options: MemberOptions) -> (Self, MemberHandle) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let outlets = Outlets {
            registered: watch::Sender::new(None),
            attempt: watch::Sender::new(None),
            training: watch::Sender::new(Training::default()),
            interrupt: watch::Sender::new(None),
            overdue: watch::Sender::new(false),
            chief_ended: watch::Sender::new(None),
            departure: watch::Sender::new(None),
        };
        let handle = MemberHandle {
            context: options.context.clone(),
            commands: sender,
            registered: outlets.registered.subscribe(),
            attempt: outlets.attempt.subscribe(),
            training: outlets.training.subscribe(),
            interrupt: outlets.interrupt.subscribe(),
            overdue: outlets.overdue.subscribe(),
            chief_ended: outlets.chief_ended.subscribe(),
            departure: outlets.departure.subscribe(),
        };
        (Member { options, commands, outlets }, handle)
    }

    /// Attends until the member departs, or until `shutdown`, which leaves without a word: report the end before.
    ///
    /// # Cancel safety
    /// Dropping it breaks the stream; calls that wait end with `cancelled`.
    pub async fn run(self, shutdown: CancellationToken) -> Option<Departure> {
        Service::new(self).run(shutdown).await
    }
}

#[cfg(test)]
mod tests;
