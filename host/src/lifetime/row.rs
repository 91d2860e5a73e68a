//! One task's row.

use super::{ConnectionId, HEARTBEAT_INTERVAL, HEARTBEAT_SILENCE};
use crate::attend::{EndReport, Registration, TaskState};
use crate::ids::Incarnation;
use std::time::Instant;

/// A second incarnation, which waits until the first was dialled.
#[derive(Debug)]
pub(super) struct Challenger {
    pub(super) connection: ConnectionId,
    pub(super) registration: Registration,
}

#[derive(Debug)]
pub(super) struct Row {
    /// Whether the training waits for its end.
    pub(super) runner: bool,
    pub(super) state: TaskState,
    /// When the row came to its state.
    pub(super) since: Instant,
    /// Why it did, in words.
    pub(super) message: String,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) last_seen: Option<Instant>,
    /// When it is taken for dead unless it attends; for rows that are never seen or suspect.
    pub(super) lost_at: Option<Instant>,
    /// Whether a probe is under way.
    pub(super) probing: bool,
    /// When the next probe is due, if one is wanted.
    pub(super) probe_at: Instant,
    /// What the last probe showed.
    pub(super) probe_error: Option<String>,
    /// Why its last registration was refused; the task is there, but can't take part.
    pub(super) refusal: Option<String>,
    /// Whether the others know that it is suspect; a stream that reopens at once is no news.
    pub(super) announced: bool,
    pub(super) challenger: Option<Challenger>,
    pub(super) end: Option<EndReport>,
}

impl Row {
    pub(super) fn never_seen(now: Instant, runner: bool, lost_at: Option<Instant>, probe_at: Instant) -> Self {
        Row {
            runner,
            state: TaskState::NeverSeen,
            since: now,
            message: String::new(),
            incarnation: None,
            connection: None,
            last_seen: None,
            lost_at,
            probing: false,
            probe_at,
            probe_error: None,
            refusal: None,
            announced: false,
            challenger: None,
            end: None,
        }
    }

    pub(super) fn set(&mut self, now: Instant, state: TaskState, message: String) {
        self.state = state;
        self.since = now;
        self.message = message;
        self.lost_at = None;
    }

    /// Why it doesn't attend, as far as that is known: its last registration was refused, or what the last probe showed.
    pub(super) fn why_silent(&self) -> Option<String> {
        let refused = self.refusal.as_ref().map(|refusal| format!("it was refused: {refusal}"));
        refused.or_else(|| self.probe_error.clone())
    }

    /// Whether its run may be going on.
    pub(super) fn runs(&self) -> bool {
        matches!(self.state, TaskState::Running | TaskState::Suspect)
    }

    /// Whether its stream is open but nothing comes.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.connection.is_some() && self.last_seen.is_some_and(|seen| now >= seen + HEARTBEAT_SILENCE)
    }

    /// Whether its stream may be a dead one: open, but without a word for longer than a living task is silent.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        self.last_seen.is_none_or(|seen| now >= seen + HEARTBEAT_INTERVAL * 2)
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.waits() && self.lost_at.is_some_and(|at| now >= at)
    }

    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        !self.probing && (self.challenger.is_some() || (self.is_dialled() && now >= self.probe_at))
    }

    /// When something is due for it; `dialled`: it has an address to dial.
    pub(super) fn next_deadline(&self, dialled: bool) -> Option<Instant> {
        let silence = self.connection.and(self.last_seen).map(|seen| seen + HEARTBEAT_SILENCE);
        let lost = self.lost_at.filter(|_| self.waits());
        let probe = (dialled && self.is_dialled() && !self.probing).then_some(self.probe_at);
        [silence, lost, probe].into_iter().flatten().min()
    }

    fn waits(&self) -> bool {
        matches!(self.state, TaskState::NeverSeen | TaskState::Suspect)
    }

    fn is_dialled(&self) -> bool {
        self.state == TaskState::Suspect || (self.state == TaskState::NeverSeen && self.runner)
    }
}
