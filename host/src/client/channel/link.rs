//! One run's link to one task: opens the session, keeps it, reopens it when it breaks.
//!
//! | state | event | next |
//! | --- | --- | --- |
//! | connecting, down | the session is open, first contact or the same incarnation | open |
//! | connecting, down | another incarnation answers | failed: peer-restarted, for good |
//! | connecting, down | the server refuses the session | failed: its error |
//! | connecting | the connect deadline passes, or the task has left the job | failed: unavailable |
//! | open | the stream breaks | down; the same outage goes on if it stood less than 1 s |
//! | down | the rejoin timeout passes, or the task has left the job | failed: peer-failed |
//!
//! A failed link is followed by a new one at the next call, except after a restart.

use super::connect::{Failure, FailureKind, failure};
use super::left::how_left;
use super::{Lane, Peer, Shared};
use crate::attend::REPORT_INTERVAL;
use crate::error::{Error, ErrorCode};
use crate::handles::BoxFuture;
use crate::ids::Incarnation;
use crate::wire::header::{Header, answered_by, client_use_to_wire};
use crate::wire::status::{answer, from_status};
use crate::wire::v1;
use crate::wire::v1::cluster_client::ClusterClient;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// How long one try to open a session may take, connecting included.
const OPEN_TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// When the leader is asked again whether a task has left that was not reached: its end may be on its way. Then at every report.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often an open session says that it lives, besides HTTP/2's pings.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How long the clean end of a session may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A pause between tries: short at first, since most outages are start-up races; then long enough to cost nothing.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(20);
    const LAST: Duration = Duration::from_millis(500);

    pub(super) const fn new() -> Self {
        Backoff(Self::FIRST)
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LAST);
        pause
    }
}

/// The state of a link, for calls that wait for it.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// No session yet, or not any more.
    Down,
    /// The session is open.
    Open(Opened),
    /// It will not open; the next call may begin another link.
    Failed(Error),
}

/// What the server says as a session opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) incarnation: Incarnation,
    /// Whether it takes direct connections.
    pub(super) direct: bool,
}

struct Session {
    opened: Opened,
    requests: mpsc::Sender<v1::SessionRequest>,
    events: Streaming<v1::SessionEvent>,
}

/// How long a session has to stand so that its end begins an outage of its own. A server that opens sessions and ends them
/// at once is no better than one that doesn't open them.
const STEADY_MIN: Duration = Duration::from_secs(1);

/// An outage, or the time before the first contact: when it is given up, and when the next try is due.
#[derive(Debug)]
struct Outage {
    since: Instant,
    deadline: Instant,
    report_at: Instant,
    /// When the leader is asked whether the task has left.
    ask_at: Instant,
    backoff: Backoff,
    /// Whether there was contact ever.
    met: bool,
}

impl Outage {
    /// Begins to wait, at most `timeout`.
    fn new(now: Instant, timeout: Duration, met: bool) -> Self {
        let (deadline, report_at) = (now + timeout, now + REPORT_INTERVAL);
        Outage { since: now, deadline, report_at, ask_at: now, backoff: Backoff::new(), met }
    }

    /// Notes that a session which stood since `opened` has broken.
    fn broken(&mut self, now: Instant, opened: Instant, rejoin_timeout: Duration) {
        if now - opened >= STEADY_MIN {
            *self = Outage::new(now, rejoin_timeout, true);
        } else if !self.met {
            // Contact was made: from now on the other timeout counts, but tries don't come faster for it.
            let backoff = std::mem::replace(&mut self.backoff, Backoff::new());
            *self = Outage { backoff, ..Outage::new(now, rejoin_timeout, true) };
        }
    }

    /// The pause before the next try; none where the deadline comes first.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        Some(self.backoff.next()).filter(|&pause| now + pause < self.deadline)
    }

    /// Whether it is time to ask whether the task has left.
    fn is_question_due(&mut self, now: Instant) -> bool {
        let due = now >= self.ask_at;
        if due {
            let first = now < self.since + ASK_AGAIN;
            self.ask_at = now + if first { ASK_AGAIN } else { REPORT_INTERVAL };
        }
        due
    }

    /// Whether it is time to say that the wait goes on.
    fn is_report_due(&mut self, now: Instant) -> bool {
        let due = now >= self.report_at;
        if due {
            self.report_at = now + REPORT_INTERVAL;
        }
        due
    }
}

enum OpenError {
    /// The server says no.
    Refused(Error),
    /// Trying again may help.
    Failed(Failure),
}

/// Keeps the link until the run closes or the link fails.
///
/// # Cancel safety
/// Dropping it ends the session, if one is open, and closes `link`.
pub(super) async fn keep(shared: std::sync::Arc<Shared>, peer: std::sync::Arc<Peer>, link: watch::Sender<Link>) {
    let met = peer.incarnation().is_some();
    let patience = if met { shared.rejoin_timeout } else { shared.connect_timeout };
    let mut outage = Outage::new(Instant::now(), patience, met);
    let mut question = None;
    let left = |how: String| link.send_replace(Link::Failed(peer.left(&how)));
    loop {
        let try_timeout = OPEN_TRY_TIMEOUT.min(outage.deadline.saturating_duration_since(Instant::now()));
        let opened = tokio::select! {
            biased;
            () = shared.closing.cancelled() => return,
            opened = timeout(try_timeout, open(&shared, &peer)) => {
                opened.unwrap_or_else(|_| Err(OpenError::Failed(Failure::timed_out(try_timeout))))
            }
            how = told(&mut question) => return drop(left(how)),
        };
        let cause = match opened {
            Ok(session) => {
                if let Err(error) = peer.meet(session.opened.incarnation) {
                    link.send_replace(Link::Failed(error));
                    return;
                }
                tracing::debug!(task = %peer.task, incarnation = %session.opened.incarnation, "session open");
                link.send_replace(Link::Open(session.opened));
                question = None;
                let opened = Instant::now();
                let Some(cause) = hold(session, &shared).await else { return };
                link.send_replace(Link::Down);
                tracing::warn!(task = %peer.task, address = peer.address, cause = cause.text, "session broken, reopening");
                outage.broken(Instant::now(), opened, shared.rejoin_timeout);
                cause
            }
            Err(OpenError::Refused(error)) => {
                if error.code == ErrorCode::PeerRestarted {
                    peer.restarted(&error);
                }
                link.send_replace(Link::Failed(error));
                return;
            }
            Err(OpenError::Failed(cause)) => cause,
        };
        let now = Instant::now();
        if question.is_none() && outage.is_question_due(now) {
            question = Some(Box::pin(how_left(&shared, peer.task)) as BoxFuture<'_, _>);
        }
        let Some(pause) = outage.pause(now) else {
            link.send_replace(Link::Failed(peer.gone(now - outage.since, &cause)));
            return;
        };
        if outage.is_report_due(now) {
            tracing::warn!(
                task = %peer.task, address = peer.address, since_s = (now - outage.since).as_secs(), cause = cause.text,
                "waiting for a task"
            );
        }
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            how = told(&mut question) => return drop(left(how)),
        }
    }
}

/// Waits until the leader says that the task has left, and how; for ever where nobody was asked, or it says nothing of the kind.
/// The tries go on meanwhile: a leader that is silent holds up no task that comes back.
///
/// # Cancel safety
/// The question stays.
async fn told(question: &mut Option<BoxFuture<'_, Option<String>>>) -> String {
    if let Some(asked) = question {
        let answer = asked.await;
        *question = None;
        if let Some(how) = answer {
            return how;
        }
    }
    std::future::pending().await
}

async fn open(shared: &Shared, peer: &Peer) -> Result<Session, OpenError> {
    let refused = |status: tonic::Status| match (answer(&status), failure(&status)) {
        // A server that is stopping may be followed by another one, which then says that it is.
        (Some(error), _) if error.code == ErrorCode::Unavailable => {
            OpenError::Failed(Failure { kind: FailureKind::Broken, text: error.message })
        }
        (Some(error), _) => OpenError::Refused(error),
        (None, Some(failure)) => OpenError::Failed(failure),
        (None, None) => OpenError::Refused(from_status(&status)),
    };
    let header = Header { caller: shared.caller(), sequence: 0, expected: *peer.incarnation() };
    let (requests, stream) = mpsc::channel(4);
    let client_use = client_use_to_wire(shared.client_use).into();
    let first = v1::SessionRequest { header: Some((&header).into()), client_use };
    requests.try_send(first).expect("the channel is new and has room");
    let channel = shared.channel(peer, Lane::Control).map_err(OpenError::Refused)?;
    let response = ClusterClient::new(channel).session(ReceiverStream::new(stream)).await.map_err(refused)?;
    let mut events = response.into_inner();
    let first = events.message().await.map_err(refused)?.ok_or_else(|| {
        OpenError::Failed(Failure { kind: FailureKind::Broken, text: "the session ended as it began".into() })
    })?;
    let incarnation = answered_by(first.header.as_ref()).map_err(OpenError::Refused)?;
    Ok(Session { opened: Opened { incarnation, direct: first.direct }, requests, events })
}

/// Keeps an open session until it breaks (why), or closes it when the run does (none).
async fn hold(mut session: Session, shared: &Shared) -> Option<Failure> {
    let mut renew = interval(RENEW_INTERVAL);
    renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => break,
            _ = renew.tick() => {
                // A full queue means that the connection doesn't move; its own pings will tell.
                let _ = session.requests.try_send(v1::SessionRequest::default());
            }
            event = session.events.message() => match event {
                Ok(Some(_)) => {}
                Ok(None) => return Some(Failure { kind: FailureKind::Broken, text: "the server ended the session".into() }),
                Err(status) => {
                    let text = from_status(&status).message;
                    return Some(failure(&status).unwrap_or(Failure { kind: FailureKind::Broken, text }));
                }
            }
        }
    }
    // The end of the request stream is the clean end; the server answers with the end of its own.
    drop(session.requests);
    let events = &mut session.events;
    let _ = timeout(CLOSE_TIMEOUT, async { while let Ok(Some(_)) = events.message().await {} }).await;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT: Duration = Duration::from_secs(600);
    const REJOIN: Duration = Duration::from_secs(30);

    /// Aim: a server that opens every session and ends it at once isn't dialled at full speed for ever.
    #[test]
    fn sessions_that_never_stand_are_one_outage() {
        let start = Instant::now();
        let mut outage = Outage::new(start, CONNECT, false);
        let (mut now, mut tries) = (start, 0);
        loop {
            let opened = now;
            now += Duration::from_millis(1);
            outage.broken(now, opened, REJOIN);
            tries += 1;
            let Some(pause) = outage.pause(now) else { break };
            now += pause;
        }
        assert!((50..80).contains(&tries), "{tries} tries");
        let took = now - start;
        assert!(took <= REJOIN && took > REJOIN - Backoff::LAST * 2, "{took:?}");
    }

    /// Aim: whoever waits long for a task asks the leader seldom.
    #[test]
    fn the_leader_is_asked_at_once_a_second_later_and_then_now_and_then() {
        let start = Instant::now();
        let mut outage = Outage::new(start, CONNECT, false);
        let seconds = (0..60).filter(|&second| outage.is_question_due(start + Duration::from_secs(second)));
        assert_eq!(seconds.take(4).collect::<Vec<_>>(), [0, 1, 6, 11]);
    }

    #[test]
    fn a_session_that_stood_begins_anew() {
        let start = Instant::now();
        let mut outage = Outage::new(start, CONNECT, false);
        while outage.pause(start) != Some(Backoff::LAST) {}
        let broken = start + STEADY_MIN;
        outage.broken(broken, start, REJOIN);
        assert_eq!((outage.since, outage.deadline), (broken, broken + REJOIN));
        assert_eq!(outage.pause(broken), Some(Backoff::FIRST));
        assert_eq!(outage.pause(broken + REJOIN), None);
        assert!(!outage.is_report_due(broken) && outage.is_report_due(broken + REPORT_INTERVAL));
        assert!(!outage.is_report_due(broken + REPORT_INTERVAL), "each interval once");
    }
}
