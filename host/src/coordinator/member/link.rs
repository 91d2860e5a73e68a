//! The member's stream to its leader: down, being dialled, or up.

use crate::attend::{AttendError, LeaderEvent, Registration};
use crate::cluster::Task;
use crate::handles::{Attend, AttendChannel, BoxFuture, Probe, ProbeOutcome};
use crate::ids::Incarnation;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// A try that takes longer is given up; longer than the leader needs to dial another incarnation of the task.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// The wait after the first failed try; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(100);

/// The longest wait between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

pub(super) enum Link {
    Down {
        retry_at: Instant,
    },
    Dialling(BoxFuture<'static, Dialled>),
    Up(AttendChannel),
    /// There will be no other.
    Closed,
}

/// A leader that the task has met.
pub(super) struct Watched {
    pub(super) known: Incarnation,
    pub(super) probe: Arc<dyn Probe>,
    pub(super) address: String,
}

/// What a try came to.
pub(super) enum Dialled {
    Open(AttendChannel),
    Failed(AttendError),
    /// Nobody listens at the leader's address, so its process is gone.
    Gone(String),
    /// Another incarnation answers at the leader's address.
    Restarted,
}

pub(super) enum News {
    RetryIsDue,
    Dialled(Dialled),
    Event(LeaderEvent),
    /// The stream takes a message.
    Room,
    Broken,
}

impl Link {
    /// Registers once. A run that has met its leader also dials the leader's address where registering fails, with
    /// `watched`, to learn at once that the leader is gone.
    pub(super) fn dial(
        attend: Arc<dyn Attend>,
        registration: Registration,
        watched: Option<Watched>,
        leader: Task,
    ) -> Link {
        Link::Dialling(Box::pin(async move {
            let error = match timeout(DIAL_TIMEOUT, attend.attend(registration)).await {
                Ok(Ok(channel)) => return Dialled::Open(channel),
                Ok(Err(error)) => error,
                Err(_) => {
                    let after = humantime::format_duration(DIAL_TIMEOUT);
                    AttendError::Unreachable(format!("no answer to the registration within {after}"))
                }
            };
            if let (AttendError::Unreachable(_), Some(Watched { known, probe, address })) = (&error, watched) {
                match timeout(DIAL_TIMEOUT, probe.probe(leader, &address)).await {
                    Ok(ProbeOutcome::Refused(why)) => return Dialled::Gone(why),
                    Ok(ProbeOutcome::Answered(incarnation)) if incarnation != known => return Dialled::Restarted,
                    _ => {}
                }
            }
            Dialled::Failed(error)
        }))
    }

    /// Waits for what happens next; `wants_room`: a message waits to be sent.
    ///
    /// # Cancel safety
    /// Nothing is lost: a dial goes on where it was, an event that was not returned is still in its channel.
    pub(super) async fn next(&mut self, wants_room: bool) -> News {
        match self {
            Link::Down { retry_at } => {
                sleep_until(*retry_at).await;
                News::RetryIsDue
            }
            Link::Dialling(dial) => News::Dialled(dial.await),
            Link::Up(channel) => tokio::select! {
                event = channel.events.recv() => event.map_or(News::Broken, News::Event),
                // A channel that can't be written any more still holds what the leader said last.
                Ok(_permit) = channel.messages.reserve(), if wants_room => News::Room,
            },
            Link::Closed => std::future::pending().await,
        }
    }
}

/// How long to wait after so many failed tries, spread by the incarnation so that tasks don't come all at once.
pub(super) fn backoff(failures: u32, registration: &Registration) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(BACKOFF_MAX);
    doubled + Duration::from_millis(registration.incarnation.0 % 100)
}
