//! The member's service: one loop over calls, the stream to the leader, and time.

use super::link::{self, Dialled, Link, Watched};
use super::{Command, Departure, END_TIMEOUT, Member, MemberOptions, Outlets, Training};
use crate::attend::REPORT_INTERVAL;
use crate::attend::{AttendError, Cause, EndReport, LeaderEvent, MemberMessage, Mode, Registered, TaskState};
use crate::barrier::display_name;
use crate::cluster::TaskType;
use crate::coordinator::task_barriers::TaskBarriers;
use crate::error::{Error, ErrorCode};
use crate::handles::AttendChannel;
use crate::lifetime::{GUEST_GRACE, HEARTBEAT_INTERVAL, HEARTBEAT_SILENCE, peer_failed};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub(super) struct Service {
    options: MemberOptions,
    commands: mpsc::Receiver<Command>,
    outlets: Outlets,
    link: Link,
    barriers: TaskBarriers,
    /// What the open stream has not taken yet.
    outbox: VecDeque<MemberMessage>,
    registered: Option<Registered>,
    /// Since when there is no stream, and why.
    unattended: Option<(Instant, String)>,
    failures: u32,
    last_event: Instant,
    end: Option<EndReport>,
    end_delivered: bool,
    end_waiters: Vec<(Instant, oneshot::Sender<bool>)>,
    drop_guest_at: Option<Instant>,
    departure: Option<Departure>,
}

impl Service {
    pub(super) fn new(member: Member) -> Self {
        let Member { options, commands, outlets } = member;
        Service {
            barriers: TaskBarriers::default(),
            options,
            commands,
            outlets,
            link: Link::Down { retry_at: Instant::now() },
            outbox: VecDeque::new(),
            registered: None,
            unattended: Some((Instant::now(), "not tried yet".to_owned())),
            failures: 0,
            last_event: Instant::now(),
            end: None,
            end_delivered: false,
            end_waiters: Vec::new(),
            drop_guest_at: None,
            departure: None,
        }
    }

    /// Serves the member until it has departed, `shutdown` comes or its last handle has gone; answers with the departure,
    /// where there was one.
    ///
    /// # Cancel safety
    /// Dropping it ends the member without a word: the leader sees a broken stream, and who waits at a handle hears that it is
    /// gone.
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Option<Departure> {
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        let mut report = tokio::time::interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // A departed member has nothing to do but to drop its guest in time.
            if let Some(departure) = &self.departure
                && self.drop_guest_at.is_none()
            {
                return Some(departure.clone());
            }
            let due = self.next_deadline();
            tokio::select! {
                () = shutdown.cancelled() => return self.departure,
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    // Nobody holds the handle any more: nobody waits for anything.
                    None => return self.departure,
                },
                news = self.link.next(!self.outbox.is_empty()) => self.news(news),
                () = sleep_until(due) => self.tick(),
                _ = heartbeat.tick() => self.beat(),
                _ = report.tick() => self.report(),
            }
        }
    }

    fn is_run(&self) -> bool {
        self.options.context.is_some()
    }

    fn is_evaluator(&self) -> bool {
        self.options.registration.task.job == TaskType::Evaluator
    }

    fn cause(&self) -> Option<Cause> {
        self.outlets.training.borrow().cause.clone()
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Barrier { name, timeout, reply } => {
                if let Some(error) = self.outlets.interrupt.borrow().clone() {
                    // The caller may have gone.
                    let _ = reply.send(Err(error));
                    return;
                }
                if let Some(arrival) = self.barriers.arrive(Instant::now(), &name, timeout, reply) {
                    self.post(MemberMessage::Arrival(arrival));
                }
            }
            Command::End { report, reply } => {
                if self.end_delivered || self.departure.is_some() {
                    self.end.get_or_insert(report);
                    let delivered = self.end_delivered;
                    self.end_waiters.push((Instant::now(), reply));
                    self.answer_end(delivered);
                    return;
                }
                self.end_waiters.push((Instant::now() + END_TIMEOUT, reply));
                if self.end.is_none() {
                    self.end = Some(report.clone());
                    self.post(MemberMessage::End(report));
                }
            }
        }
    }

    /// Sends a message where there is a stream; what a later stream needs is sent again when it opens.
    fn post(&mut self, message: MemberMessage) {
        if matches!(self.link, Link::Up(_)) {
            self.outbox.push_back(message);
        }
    }

    fn news(&mut self, news: link::News) {
        match news {
            link::News::RetryIsDue => self.dial(),
            link::News::Dialled(dialled) => self.dialled(dialled),
            link::News::Event(event) => self.event(event),
            link::News::Room => {
                if let (Link::Up(channel), Some(message)) = (&self.link, self.outbox.pop_front())
                    && let Err(mpsc::error::TrySendError::Full(message)) = channel.messages.try_send(message)
                {
                    self.outbox.push_front(message);
                }
            }
            link::News::Broken => self.broken("the attend stream broke"),
        }
    }

    fn dial(&mut self) {
        let mut registration = self.options.registration.clone();
        registration.attempt = self.registered.as_ref().map(|registered| registered.attempt);
        let watched = match (&self.registered, &self.options.probe) {
            (Some(registered), Some((probe, address))) if self.is_run() => {
                Some(Watched { known: registered.leader_incarnation, probe: probe.clone(), address: address.clone() })
            }
            _ => None,
        };
        self.link = Link::dial(self.options.attend.clone(), registration, watched, self.options.leader);
    }

    fn dialled(&mut self, dialled: Dialled) {
        match dialled {
            Dialled::Open(channel) => self.opened(channel),
            Dialled::Failed(AttendError::Unreachable(why)) => self.retry(why),
            Dialled::Failed(AttendError::Complete) if self.registered.is_some() => {
                let cause = self.cause();
                self.job_ended(cause);
            }
            Dialled::Failed(error) => {
                if self.registered.is_some() {
                    if let AttendError::Refused(error) = &error {
                        self.interrupt(error.clone());
                    }
                } else {
                    self.outlets.registered.send_replace(Some(Err(error.clone())));
                }
                self.depart(Departure::Refused(error));
            }
            Dialled::Gone(why) => self.leader_lost(ErrorCode::PeerFailed, &format!("nobody listens there: {why}")),
            Dialled::Restarted => self.leader_lost(ErrorCode::PeerRestarted, "another incarnation answers"),
        }
    }

    fn retry(&mut self, why: String) {
        if let Some((_, reason)) = &mut self.unattended {
            *reason = why;
        }
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Down { retry_at: Instant::now() + link::backoff(self.failures, &self.options.registration) };
    }

    fn opened(&mut self, channel: AttendChannel) {
        let new = channel.registered.clone();
        let restarted = self.registered.as_ref().is_some_and(|old| old.leader_incarnation != new.leader_incarnation);
        if restarted && self.is_run() {
            self.leader_lost(ErrorCode::PeerRestarted, "another incarnation of it answers");
            return;
        }
        match &self.registered {
            None => info!("attends its leader {}, attempt {}", self.options.leader, new.attempt.number),
            Some(_) if restarted => {
                warn!(leader = %self.options.leader, "the leader was restarted: this server attends the new one");
                // Another life of the job begins.
                self.outlets.training.send_replace(Training::default());
            }
            Some(_) => info!(leader = %self.options.leader, "attends its leader again"),
        }
        self.unattended = None;
        self.failures = 0;
        self.last_event = Instant::now();
        self.outlets.attempt.send_if_modified(|attempt| attempt.replace(new.attempt) != Some(new.attempt));
        self.outlets
            .training
            .send_if_modified(|training| new.training_ended && !std::mem::replace(&mut training.ended, true));
        self.registered = Some(new.clone());
        self.link = Link::Up(channel);
        self.outbox.clear();
        self.outbox.extend(self.barriers.unanswered(Instant::now()).into_iter().map(MemberMessage::Arrival));
        self.outbox.extend(self.end.clone().filter(|_| !self.end_delivered).map(MemberMessage::End));
        self.outlets.registered.send_replace(Some(Ok(new)));
    }

    fn broken(&mut self, why: &str) {
        if self.departure.is_some() {
            self.link = Link::Closed;
            return;
        }
        debug!(leader = %self.options.leader, "{why}");
        if self.is_run() && self.end_delivered {
            // Its run has ended and the leader knows: there is nothing left to attend for.
            let cause = self.cause();
            self.job_ended(cause);
            return;
        }
        self.unattended = Some((Instant::now(), why.to_owned()));
        self.failures = 0;
        self.link = Link::Down { retry_at: Instant::now() };
    }

    fn event(&mut self, event: LeaderEvent) {
        self.last_event = Instant::now();
        match event {
            LeaderEvent::Heartbeat => {}
            LeaderEvent::Barrier { name, generation, result } => self.barriers.answer(&name, generation, result),
            LeaderEvent::Task { task, state: TaskState::Ended, .. } if task == self.options.registration.task => {
                self.end_delivered = true;
                self.answer_end(true);
            }
            LeaderEvent::Task { task, state, message } => {
                if task == self.options.leader && matches!(state, TaskState::Ended | TaskState::Lost) {
                    let text = format!("the run of {task}, which initializes variables, has ended");
                    let error = Error::new(ErrorCode::Uninitialized, text).with_tasks([task]);
                    self.outlets.chief_ended.send_replace(Some(error));
                }
                match state {
                    TaskState::Lost => warn!("{task} is lost: {message}"),
                    TaskState::Suspect => warn!("{task} does not answer: {message}"),
                    TaskState::Ended => debug!("the run of {task} has ended"),
                    TaskState::Running | TaskState::NeverSeen => info!("{task}: {message}"),
                }
            }
            LeaderEvent::TrainingEnded { cause } => self.training_ended(cause),
            LeaderEvent::JobEnded { cause } => self.job_ended(cause),
            LeaderEvent::AttemptBegins { attempt, cause } => {
                // One attempt is all that there is so far; a leader that begins another is newer than this task.
                let message = format!(
                    "attempt {} begins after {}: this process takes part in one attempt only",
                    attempt.number, cause.message
                );
                self.interrupt(Error::new(ErrorCode::PeerFailed, message).with_tasks([cause.task]));
            }
        }
    }

    fn training_ended(&mut self, cause: Option<Cause>) {
        self.outlets.training.send_replace(Training { ended: true, cause: cause.clone() });
        match cause {
            // An evaluator has no part in the failure, and no grace after it.
            Some(cause) if self.is_evaluator() => {
                let message = format!("the job has failed: {}", peer_failed(&cause).message);
                self.interrupt(Error::new(ErrorCode::Cancelled, message));
            }
            Some(cause) => self.interrupt(peer_failed(&cause)),
            None if self.is_evaluator() => {}
            // Every run has ended, or it was the chief's end that counted.
            None => self.interrupt(Error::new(ErrorCode::Cancelled, "the chief's run has ended, and with it the job")),
        }
    }

    fn job_ended(&mut self, cause: Option<Cause>) {
        if !self.outlets.training.borrow().ended {
            self.training_ended(cause.clone());
        }
        self.interrupt(Error::new(ErrorCode::Cancelled, "the job has ended"));
        if self.options.stay && !self.is_run() {
            info!("the job has ended; --end never keeps this server");
            self.link = Link::Closed;
            self.unattended = None;
        } else {
            self.depart(Departure::JobEnded { cause });
        }
    }

    fn leader_lost(&mut self, code: ErrorCode, why: &str) {
        let leader = self.options.leader;
        let error = Error::new(code, format!("the leader {leader} is lost: {why}")).with_tasks([leader]);
        if self.is_run() {
            self.interrupt(error.clone());
        }
        self.depart(Departure::LeaderLost { error });
    }

    /// Ends the run, if there is one that has not ended. The first reason stays.
    fn interrupt(&mut self, error: Error) {
        if !self.is_run() || self.end.is_some() {
            return;
        }
        let first = self.outlets.interrupt.send_if_modified(|interrupt| {
            let first = interrupt.is_none();
            interrupt.get_or_insert_with(|| error.clone());
            first
        });
        if first {
            self.drop_guest_at = Some(Instant::now() + GUEST_GRACE);
            self.barriers.cancel(&error);
        }
    }

    fn depart(&mut self, departure: Departure) {
        self.link = Link::Closed;
        self.unattended = None;
        self.outbox.clear();
        self.departure.get_or_insert_with(|| departure.clone());
        self.outlets.departure.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(departure);
            first
        });
        let delivered = self.end_delivered;
        self.answer_end(delivered);
    }

    fn answer_end(&mut self, delivered: bool) {
        for (_, waiter) in self.end_waiters.drain(..) {
            // The caller may have gone.
            let _ = waiter.send(delivered);
        }
        if self.end.is_some() {
            // The run has ended: there is no guest to drop.
            self.drop_guest_at = None;
        }
    }

    fn beat(&mut self) {
        if matches!(self.link, Link::Up(_)) && self.outbox.is_empty() {
            self.outbox.push_back(MemberMessage::Heartbeat);
        }
    }

    fn report(&self) {
        let leader = self.options.leader;
        if let Some((since, why)) = &self.unattended {
            let seconds = since.elapsed().as_secs();
            match self.registered {
                None => info!("waiting for the leader {leader} for {seconds} s: {why}"),
                Some(_) => warn!("lost the leader {leader} {seconds} s ago: {why}"),
            }
        }
        for (name, generation, since) in self.barriers.waiting() {
            let seconds = since.elapsed().as_secs();
            // The first few seconds of a wait are not worth a line.
            if since.elapsed() >= REPORT_INTERVAL {
                let barrier = display_name(name);
                info!("waiting at {barrier}, generation {generation}, for {seconds} s: {leader} logs who is missing");
            }
        }
    }

    /// How long the leader may be missing; none: without limit.
    fn patience(&self) -> Option<Duration> {
        match &self.registered {
            None => self.is_run().then_some(self.options.connect_timeout),
            Some(_) if self.is_run() => Some(self.options.rejoin_timeout),
            Some(registered) => {
                // A leader that runs no worker_fn has no job that could end.
                let has_job = registered.mode == Some(Mode::IndependentWorker);
                (has_job && !self.options.stay).then_some(self.options.connect_timeout)
            }
        }
    }

    fn gives_up_at(&self) -> Option<Instant> {
        let (since, _) = self.unattended.as_ref()?;
        since.checked_add(self.patience()?)
    }

    fn next_deadline(&self) -> Instant {
        let silence = matches!(self.link, Link::Up(_)).then_some(self.last_event + HEARTBEAT_SILENCE);
        let end = self.end_waiters.iter().map(|(at, _)| *at).min();
        [silence, end, self.gives_up_at(), self.drop_guest_at, self.barriers.next_deadline()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + Duration::from_secs(24 * 3600))
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.barriers.expire(now, self.options.leader);
        if matches!(self.link, Link::Up(_)) && now >= self.last_event + HEARTBEAT_SILENCE {
            self.broken("the leader sent no heartbeat");
        }
        if self.end_waiters.iter().any(|(at, _)| *at <= now) {
            self.answer_end(false);
        }
        if self.drop_guest_at.take_if(|at| *at <= now).is_some() {
            self.outlets.overdue.send_replace(true);
        }
        if self.gives_up_at().is_some_and(|at| at <= now) {
            let why = self.unattended.as_ref().map(|(_, why)| why.clone()).unwrap_or_default();
            let patience = self.patience().unwrap_or_default();
            let after = humantime::format_duration(patience);
            if self.registered.is_some() {
                self.leader_lost(ErrorCode::PeerFailed, &format!("it could not be reached for {after}: {why}"));
            } else {
                let leader = self.options.leader;
                let message =
                    format!("the leader {leader} could not be reached within {after} (--connect-timeout): {why}");
                self.interrupt(Error::new(ErrorCode::Unavailable, message.as_str()).with_tasks([leader]));
                let error = AttendError::Unreachable(message);
                self.outlets.registered.send_replace(Some(Err(error.clone())));
                self.depart(Departure::Refused(error));
            }
        }
    }
}
