//! Attends the leader over gRPC.

use super::channel::connect::{Failure, channel, failure};
use super::channel::resolver::Resolver;
use crate::attend::{AttendError, LeaderEvent, Registration};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode};
use crate::handles::{Attend, AttendChannel, BoxFuture};
use crate::wire::attend::{event_from_wire, message_to_wire, registered_from_wire, registration_to_wire};
use crate::wire::status::answer;
use crate::wire::v1;
use crate::wire::v1::attend_event::Kind;
use crate::wire::v1::cluster_client::ClusterClient;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// How long one try may take. A leader that has another incarnation of the task first dials that one, a few seconds.
const ATTEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Messages and events that wait for the other side: a handful are in flight at any time.
const QUEUED: usize = 64;

/// Reaches the leader at its address. Each try makes a connection of its own, which the stream keeps.
#[derive(Clone, Debug)]
pub struct LeaderClient {
    /// Who leads.
    leader: Task,
    address: String,
    container: String,
    runtime: Handle,
}

impl LeaderClient {
    /// Makes the client; dials nobody. `runtime` is the control runtime.
    pub fn new(leader: Task, address: impl Into<String>, container: impl Into<String>, runtime: Handle) -> Self {
        LeaderClient { leader, address: address.into(), container: container.into(), runtime }
    }

    async fn register(self, registration: Registration) -> Result<AttendChannel, AttendError> {
        let opened = timeout(ATTEND_TIMEOUT, self.open(registration)).await;
        let (channel, events, sender) =
            opened.unwrap_or_else(|_| Err(self.unreachable(&Failure::timed_out(ATTEND_TIMEOUT))))?;
        tokio::spawn(forward(self.leader, events, sender));
        Ok(channel)
    }

    async fn open(
        &self,
        registration: Registration,
    ) -> Result<(AttendChannel, Streaming<v1::AttendEvent>, mpsc::Sender<LeaderEvent>), AttendError> {
        let channel = channel(&self.address, &Resolver::default()).map_err(AttendError::Refused)?;
        let (messages, outgoing) = mpsc::channel(QUEUED);
        // When the connection breaks, it drops this stream, and with it the receiver: the sender is closed.
        let requests = tokio_stream::once(registration_to_wire(&self.container, &registration))
            .chain(ReceiverStream::new(outgoing).map(message_to_wire));
        let response = ClusterClient::new(channel).attend(requests).await.map_err(|status| self.refused(&status))?;
        let mut events = response.into_inner();
        let first = events.message().await.map_err(|status| self.refused(&status))?;
        let registered = match first.and_then(|event| event.kind) {
            Some(Kind::Registered(registered)) => registered_from_wire(registered).map_err(AttendError::Refused)?,
            Some(Kind::JobEnded(_)) => return Err(AttendError::Complete),
            Some(_) => {
                let error =
                    Error::new(ErrorCode::Internal, "the leader's first event is no answer to the registration");
                return Err(AttendError::Refused(error));
            }
            None => return Err(self.unreachable_because("the stream ended as it began")),
        };
        let (sender, events_in) = mpsc::channel(QUEUED);
        Ok((AttendChannel { registered, messages, events: events_in }, events, sender))
    }

    fn refused(&self, status: &Status) -> AttendError {
        match (answer(status), failure(status)) {
            // The leader is stopping, or not there yet.
            (Some(error), _) if matches!(error.code, ErrorCode::Unavailable | ErrorCode::DeadlineExceeded) => {
                self.unreachable_because(&error.message)
            }
            (Some(error), _) => AttendError::Refused(error),
            (None, Some(failure)) => self.unreachable(&failure),
            (None, None) => self.unreachable_because(status.message()),
        }
    }

    fn unreachable(&self, failure: &Failure) -> AttendError {
        self.unreachable_because(&failure.text)
    }

    fn unreachable_because(&self, cause: &str) -> AttendError {
        AttendError::Unreachable(format!("{} at `{}`: {cause}", self.leader, self.address))
    }
}

impl Attend for LeaderClient {
    /// Connects and registers, within 15 s. The stream lives on the control runtime; the future may be polled on any.
    fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>> {
        let registering = self.runtime.spawn(self.clone().register(registration));
        Box::pin(async move {
            registering.await.unwrap_or_else(|_| Err(self.unreachable_because("the control runtime is stopping")))
        })
    }
}

/// Carries the leader's events to the member until either ends.
async fn forward(leader: Task, mut events: Streaming<v1::AttendEvent>, sender: mpsc::Sender<LeaderEvent>) {
    loop {
        let message = tokio::select! {
            () = sender.closed() => return,
            message = events.message() => message,
        };
        match message {
            Ok(Some(event)) => match event_from_wire(event) {
                Ok(Some(event)) => {
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%leader, %error, "the leader's event makes no sense, leaving the stream");
                    return;
                }
            },
            Ok(None) => return,
            Err(status) => {
                let cause = failure(&status).map_or_else(|| status.message().to_owned(), |failure| failure.text);
                tracing::debug!(%leader, cause, "attend stream broken");
                return;
            }
        }
    }
}
