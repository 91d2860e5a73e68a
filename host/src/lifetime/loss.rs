//! How a task is lost: its stream breaks, nobody answers at its address, its time is over.

use super::{Effect, Lifetime, PROBE_INTERVAL, Phase};
use crate::attend::{Cause, LeaderEvent, ProbeOutcome, TaskState};
use crate::cluster::{Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use std::time::Instant;

impl Lifetime {
    /// A task's stream is gone: dial it, unless it has ended.
    pub(super) fn suspect(&mut self, now: Instant, task: Task, why: &str, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get_mut(&task) else { return };
        if let Some(connection) = row.connection.take() {
            self.connections.remove(&connection);
            effects.push(Effect::Close { connection });
        }
        if row.state == TaskState::Running && !matches!(self.phase, Phase::JobEnded { .. } | Phase::Left) {
            row.set(now, TaskState::Suspect, why.to_owned());
            row.lost_at = now.checked_add(self.options.rejoin_timeout);
            row.probe_at = now;
            row.announced = false;
        }
    }

    pub(super) fn take_probe(&mut self, now: Instant, task: Task, outcome: ProbeOutcome, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get_mut(&task) else { return };
        row.probing = false;
        row.probe_at = now + PROBE_INTERVAL;
        row.probe_error = Some(match &outcome {
            ProbeOutcome::Answered(incarnation) if row.incarnation.is_none_or(|own| own == *incarnation) => {
                "it answers, but does not attend".to_owned()
            }
            ProbeOutcome::Answered(_) => "another incarnation answers".to_owned(),
            ProbeOutcome::Refused(why) | ProbeOutcome::NoAnswer(why) => why.clone(),
        });
        let restarted = matches!(outcome, ProbeOutcome::Answered(incarnation) if row.incarnation != Some(incarnation));
        match row.state {
            TaskState::Suspect => {
                let lost = restarted || matches!(outcome, ProbeOutcome::Refused(_));
                if lost {
                    let message = match &outcome {
                        ProbeOutcome::Refused(why) => {
                            format!("{task} is gone: {}, and dialling it: {why}", row.message)
                        }
                        _ => format!("{task} was restarted: another incarnation answers"),
                    };
                    self.lose(now, task, restarted, message, effects);
                } else if !std::mem::replace(&mut row.announced, true) {
                    let message = format!("{}; {}", row.message, row.probe_error.as_deref().unwrap_or_default());
                    self.broadcast(LeaderEvent::Task { task, state: TaskState::Suspect, message }, effects);
                }
            }
            TaskState::Running
                if row.challenger.is_some()
                    && (restarted || (row.is_quiet(now) && matches!(outcome, ProbeOutcome::Refused(_)))) =>
            {
                let message = format!("{task} was restarted: another incarnation registered");
                self.lose(now, task, true, message, effects);
            }
            _ => {}
        }
        let answers = matches!(outcome, ProbeOutcome::Answered(_));
        self.answer_challenger(now, task, answers, effects);
    }

    pub(super) fn lose_overdue(&mut self, now: Instant, task: Task, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get(&task) else { return };
        let why = match (&row.refusal, &row.probe_error) {
            (Some(refusal), _) => format!("it was refused: {refusal}"),
            (None, Some(error)) => error.clone(),
            (None, None) => "nothing was heard of it, is it started?".to_owned(),
        };
        let message = if row.state == TaskState::NeverSeen {
            let after = humantime::format_duration(self.options.connect_timeout);
            format!("{task} did not attend within {after} (--connect-timeout): {why}")
        } else {
            let after = humantime::format_duration(self.options.rejoin_timeout);
            format!("{task} did not come back within {after} (--rejoin-timeout): {}; {why}", row.message)
        };
        self.lose(now, task, false, message, effects);
        self.answer_challenger(now, task, false, effects);
    }

    /// Takes a task for dead.
    pub(super) fn lose(
        &mut self,
        now: Instant,
        task: Task,
        restarted: bool,
        message: String,
        effects: &mut Vec<Effect>,
    ) {
        let Some(row) = self.rows.get_mut(&task) else { return };
        let exit = if row.state == TaskState::NeverSeen { Exit::Unreachable } else { Exit::PeerFailed };
        row.set(now, TaskState::Lost, message.clone());
        if let Some(connection) = row.connection.take() {
            self.connections.remove(&connection);
            effects.push(Effect::Close { connection });
        }
        let code = if restarted { ErrorCode::PeerRestarted } else { ErrorCode::PeerFailed };
        let error = Error::new(code, message.clone()).with_tasks([task]);
        self.broadcast(LeaderEvent::Task { task, state: TaskState::Lost, message: message.clone() }, effects);
        if exit == Exit::PeerFailed {
            // Who waits for it learns that it was restarted, which the training's cause doesn't tell.
            effects.push(Effect::Failed { task, error: error.clone() });
        }
        if task.job != TaskType::Evaluator {
            self.fail(now, Cause { task, exit_code: exit.code(), message }, effects);
        }
        if exit == Exit::Unreachable {
            // After the cause: who waits must know that it is 201 before the wait's end lets the run go on.
            effects.push(Effect::Failed { task, error });
        }
    }
}
