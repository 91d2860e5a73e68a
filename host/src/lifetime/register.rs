//! Who may attend: what a registration is checked against, and what its task's row makes of it.

use super::row::{Challenger, Row};
use super::{ConnectionId, Effect, FIRST_PROBE, Lifetime, Phase, peer_failed};
use crate::attend::{AttendError, Cause, LeaderEvent, Mode, Registered, Registration, TaskState};
use crate::cluster::{Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::text::{self, shown};
use std::time::Instant;

impl Lifetime {
    pub(super) fn register(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        registration: Registration,
        effects: &mut Vec<Effect>,
    ) {
        let task = registration.task;
        if self.training_ended() && self.options.cluster.contains(task) {
            // Whatever the answer is, the task hears of it.
            self.told.insert(task);
        }
        if let Err(error) = self.check(&registration) {
            if let Some(row) = self.rows.get_mut(&task) {
                row.refusal = Some(error.message.clone());
            }
            effects.push(Effect::Answer { connection, result: Err(AttendError::Refused(error)) });
            if self.lacks_module(&registration) {
                let cause = Cause { task, exit_code: Exit::Refused.code(), message: lacks_module_message(task) };
                effects.push(Effect::Failed { task, error: peer_failed(&cause) });
                self.fail(now, cause, effects);
                self.told.insert(task);
            }
            return;
        }
        if self.phase == Phase::Left {
            effects.push(Effect::Answer { connection, result: Err(self.over()) });
            return;
        }
        let runner = self.options.is_runner(task);
        let ended = self.training_ended();
        let job_ended = matches!(self.phase, Phase::JobEnded { .. });
        let has_job = self.options.has_job();
        let row = self.rows.entry(task).or_insert_with(|| Row::never_seen(now, runner, None, now + FIRST_PROBE));
        let same = row.incarnation == Some(registration.incarnation);
        let evaluator = task.job == TaskType::Evaluator;
        match row.state {
            TaskState::NeverSeen => {
                // The leader's own run may come after the job's failure, by a moment; its process has still to tell the others.
                if task != self.options.leader && (job_ended || (runner && ended)) {
                    effects.push(Effect::Answer { connection, result: Err(self.over()) });
                } else {
                    self.accept(now, connection, &registration, effects);
                }
            }
            TaskState::Running | TaskState::Suspect | TaskState::Ended if same => {
                self.accept(now, connection, &registration, effects);
            }
            TaskState::Running | TaskState::Suspect if task == self.options.leader => {
                // Nobody dials the leader's own process: it is here.
                let error = Error::new(ErrorCode::AlreadyExists, format!("{task} leads this job in another process"));
                let result = Err(AttendError::Refused(error.with_tasks([task])));
                effects.push(Effect::Answer { connection, result });
            }
            TaskState::Running | TaskState::Suspect => {
                let result = if row.challenger.is_some() {
                    let why = format!("another registration of {task} is being checked");
                    Err(AttendError::Unreachable(why))
                } else {
                    row.challenger = Some(Challenger { connection, registration });
                    return;
                };
                effects.push(Effect::Answer { connection, result });
            }
            // Nothing depends on the life that is over: evaluators are no part of the attempt, and a leader without
            // module has none.
            TaskState::Ended | TaskState::Lost
                if !job_ended && (!has_job || (evaluator && row.end.as_ref().is_none_or(|end| !end.ok))) =>
            {
                self.accept(now, connection, &registration, effects);
            }
            TaskState::Ended if row.end.as_ref().is_some_and(|end| end.ok) => {
                let failed = self.cause.is_some();
                let result = Err(if failed { self.over() } else { AttendError::Complete });
                effects.push(Effect::Answer { connection, result });
            }
            TaskState::Ended | TaskState::Lost => {
                let result = if self.cause.is_some() {
                    Err(self.over())
                } else {
                    let message = format!("an earlier process of {task} left this attempt, which goes on without it");
                    Err(AttendError::Refused(Error::new(ErrorCode::Aborted, message).with_tasks([task])))
                };
                effects.push(Effect::Answer { connection, result });
            }
        }
    }

    /// Answers the second incarnation of a task, once the first was dialled; `answers`: a server did.
    pub(super) fn answer_challenger(&mut self, now: Instant, task: Task, answers: bool, effects: &mut Vec<Effect>) {
        let Some(row) = self.rows.get_mut(&task) else { return };
        let Some(Challenger { connection, registration }) = row.challenger.take() else { return };
        let result = match row.state {
            TaskState::Running if answers || !row.is_quiet(now) => {
                let message = format!(
                    "another process runs {task} already (incarnation {}): stop it, or give this one another index",
                    row.incarnation.map(|incarnation| incarnation.to_string()).unwrap_or_default()
                );
                Err(AttendError::Refused(Error::new(ErrorCode::AlreadyExists, message).with_tasks([task])))
            }
            TaskState::Running | TaskState::Suspect => {
                let why = row.probe_error.as_deref().unwrap_or("not dialled yet");
                Err(AttendError::Unreachable(format!("an earlier process of {task} may still live: {why}")))
            }
            TaskState::NeverSeen | TaskState::Ended | TaskState::Lost => {
                return self.register(now, connection, registration, effects);
            }
        };
        effects.push(Effect::Answer { connection, result });
    }

    fn accept(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        registration: &Registration,
        effects: &mut Vec<Effect>,
    ) {
        let task = registration.task;
        let Some(row) = self.rows.get_mut(&task) else { return };
        if let Some(old) = row.connection.replace(connection) {
            self.connections.remove(&old);
            effects.push(Effect::Close { connection: old });
        }
        let was = row.state;
        let known = row.incarnation == Some(registration.incarnation);
        if !(known && was == TaskState::Ended) {
            row.set(now, TaskState::Running, String::new());
            row.end = None;
        }
        let back = was == TaskState::Suspect && std::mem::take(&mut row.announced);
        row.incarnation = Some(registration.incarnation);
        row.last_seen = Some(now);
        row.probe_error = None;
        row.refusal = None;
        // A second incarnation that waits has its answer: the first lives.
        self.answer_challenger(now, task, true, effects);
        if back {
            let event = LeaderEvent::Task { task, state: TaskState::Running, message: "it is back".to_owned() };
            self.broadcast(event, effects);
        }
        self.connections.insert(connection, task);
        let registered = Registered {
            leader_incarnation: self.options.incarnation,
            attempt: self.attempt,
            mode: self.options.mode,
            replication: self.options.replication,
            training_ended: self.training_ended(),
        };
        effects.push(Effect::Answer { connection, result: Ok(registered) });
        let leader = self.options.leader;
        if let Some(row) = self.rows.get(&leader).filter(|row| task != leader && row.state == TaskState::Ended) {
            let event = LeaderEvent::Task { task: leader, state: TaskState::Ended, message: row.message.clone() };
            effects.push(Effect::Send { connection, event });
        }
        if self.training_ended() {
            effects.push(Effect::Send { connection, event: LeaderEvent::TrainingEnded { cause: self.cause.clone() } });
        }
        if matches!(self.phase, Phase::JobEnded { .. }) {
            effects.push(Effect::Send { connection, event: LeaderEvent::JobEnded { cause: self.cause.clone() } });
        }
    }

    /// What a task that comes too late is told.
    fn over(&self) -> AttendError {
        match &self.cause {
            None => AttendError::Complete,
            Some(cause) => {
                let mut error = peer_failed(cause);
                error.message = format!("the job has failed: {}", error.message);
                AttendError::Refused(error)
            }
        }
    }

    fn lacks_module(&self, registration: &Registration) -> bool {
        self.options.is_runner(registration.task)
            && registration.task != self.options.leader
            && registration.module_digest.is_none()
    }

    /// Compares a registration with what the leader knows.
    fn check(&self, registration: &Registration) -> Result<(), Error> {
        let own = &self.options;
        let (task, leader) = (registration.task, own.leader);
        let refuse = |message: String| Err(Error::new(ErrorCode::FailedPrecondition, message).with_tasks([task]));
        if task.job == TaskType::Client {
            return refuse("a client does not attend a leader: it is the leader of its own run".to_owned());
        }
        if task.job != TaskType::Evaluator && !own.cluster.contains(task) {
            let message = format!(
                "the cluster of the leader {leader} has no {task}: its job `{}` has {} tasks, and a running job takes \
                 no more",
                task.job,
                own.cluster.num_tasks(task.job)
            );
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]));
        }
        // There is one evaluator: the listed one, or evaluator:0 where none is. Rows of others would have no end.
        let unlisted = !own.cluster.has_job(TaskType::Evaluator) && task.index == 0;
        if task.job == TaskType::Evaluator && !own.cluster.contains(task) && !unlisted {
            let message = format!("a job has one evaluator, and {task} is not that of the leader {leader}");
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]));
        }
        for (shared, theirs) in registration.cluster.iter().filter(|(shared, _)| shared.job != TaskType::Evaluator) {
            match own.cluster.address(shared) {
                Some(ours) if ours != theirs => {
                    return refuse(format!(
                        "{task} and its leader {leader} disagree about the cluster: {shared} is at `{}` for \
                         {task}, at `{ours}` for {leader}",
                        shown(theirs)
                    ));
                }
                _ => {}
            }
        }
        if let Some(attempt) = registration.attempt
            && attempt.leader != own.incarnation
            && own.is_runner(task)
        {
            // Its run belongs to another life of the leader; only a new process may take part in this one.
            let message = format!("the leader {leader} was restarted: the run of {task} belongs to the one before");
            return Err(Error::new(ErrorCode::PeerRestarted, message).with_tasks([leader]));
        }
        if self.lacks_module(registration) {
            return refuse(format!(
                "{}, and the leader {leader} runs worker_fn: give every chief and worker the same --module",
                lacks_module_message(task)
            ));
        }
        if let Some(mode) = registration.mode
            && own.mode != Some(mode)
        {
            let ours = own.mode.map_or("a standard server without --module", Mode::as_str);
            return refuse(format!("{task} runs as {}, but its leader {leader} as {ours}", mode.as_str()));
        }
        // A ps does the same under either.
        if registration.mode.is_some() && task.job != TaskType::Ps && registration.replication != own.replication {
            return refuse(format!(
                "{task} runs {}, but its leader {leader} {}: give all tasks the same --replication",
                registration.replication.as_str(),
                own.replication.as_str()
            ));
        }
        if registration.mode.is_some()
            && matches!(task.job, TaskType::Chief | TaskType::Worker)
            && registration.barrier != own.barrier
        {
            let name = |barrier| if barrier { "with" } else { "without" };
            return refuse(format!(
                "{task} runs {} the cluster barrier, but its leader {leader} {} it: give --no-cluster-barrier to all \
                 tasks or to none",
                name(registration.barrier),
                name(own.barrier)
            ));
        }
        if let (Some(theirs), Some(ours)) = (registration.module_digest, own.module_digest)
            && theirs != ours
        {
            return refuse(format!(
                "{task} runs the module sha256:{}, but its leader {leader} sha256:{}: give all tasks the same file",
                digest_start(&theirs),
                digest_start(&ours)
            ));
        }
        Ok(())
    }
}

fn lacks_module_message(task: Task) -> String {
    format!("{task} runs without --module")
}

/// The first half of a digest: enough to tell two files apart, short enough to read.
fn digest_start(digest: &[u8; 32]) -> String {
    text::hex(&digest[..16])
}
