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

mod barriers;
mod departure;
mod link;
mod solo;

pub use departure::{Departure, refusal_exit_code};
pub use solo::SoloJob;

use crate::attend::{AttendError, Cause, EndReport, LeaderEvent, MemberMessage, Registered, Registration, TaskState};
use crate::cluster::{Task, TaskType};
use crate::context::WorkerContext;
use crate::error::{Error, ErrorCode, Result};
use crate::exit::Exit;
use crate::handles::{Attend, AttendChannel, BoxFuture, Job, Probe};
use crate::ids::Attempt;
use crate::lifetime::{GUEST_GRACE, HEARTBEAT_INTERVAL, HEARTBEAT_SILENCE, peer_failed};
use barriers::MemberBarriers;
use link::{Dialled, Link};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How often a task that can't reach its leader says so.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);

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

/// Reaches the member; cheap to clone, pollable on any runtime.
#[derive(Clone)]
pub struct MemberHandle {
    context: Option<Arc<WorkerContext>>,
    commands: mpsc::Sender<Command>,
    registered: watch::Receiver<Option<Result<Registered, AttendError>>>,
    attempt: watch::Receiver<Option<Attempt>>,
    training: watch::Receiver<Training>,
    interrupt: watch::Receiver<Option<Error>>,
    overdue: watch::Receiver<bool>,
    chief_ended: watch::Receiver<Option<Error>>,
    departure: watch::Receiver<Option<Departure>>,
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

impl MemberHandle {
    /// Waits until the leader has accepted the task, or never will.
    ///
    /// # Errors
    /// What the leader said, or why it could not be reached before the connect timeout; `Unreachable` too where the
    /// member was shut down. [`refusal_exit_code`] says what the process exits with.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn registered(&self) -> Result<Registered, AttendError> {
        let mut registered = self.registered.clone();
        match registered.wait_for(Option::is_some).await {
            Ok(result) => result.clone().expect("waited until it was there"),
            Err(_) => Err(AttendError::Unreachable("this process is shutting down".to_owned())),
        }
    }

    /// Set once the run must end: `peer-failed` or `peer-restarted` naming the cause, `cancelled` where the job ended
    /// without a failure or the run is an evaluator's.
    pub fn interrupt(&self) -> watch::Receiver<Option<Error>> {
        self.interrupt.clone()
    }

    /// Waits until a run that was interrupted has had its 10 s and is to be dropped. Never ends without an interrupt.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn overdue(&self) {
        let mut overdue = self.overdue.clone();
        if overdue.wait_for(|overdue| *overdue).await.is_err() {
            // The member departed before the time was over, and with it its clock.
            std::future::pending::<()>().await;
        }
    }

    /// Set once the chief's run has ended, well or not: nobody will initialize variables any more.
    pub fn chief_ended(&self) -> watch::Receiver<Option<Error>> {
        self.chief_ended.clone()
    }

    /// What a run that ended after the interrupt, with no failure of its own, exits with: 201 if the cause was never
    /// seen, 202 for any other failure, 0 where the job ended well or the run is an evaluator's. None: not interrupted.
    pub fn interrupt_exit_code(&self) -> Option<u8> {
        let code = self.interrupt.borrow().as_ref()?.code;
        let never_seen =
            self.training.borrow().cause.as_ref().is_some_and(|cause| cause.exit_code == Exit::Unreachable.code());
        Some(match code {
            ErrorCode::Cancelled => Exit::Done.code(),
            ErrorCode::PeerFailed if never_seen => Exit::Unreachable.code(),
            ErrorCode::Unavailable => Exit::Unreachable.code(),
            _ => Exit::PeerFailed.code(),
        })
    }

    /// The job's attempt, and each change of it; none before the first registration. Another leader incarnation means
    /// that what was stored for the one before is void.
    pub fn attempts(&self) -> watch::Receiver<Option<Attempt>> {
        self.attempt.clone()
    }

    /// Whether the training has ended.
    pub fn training_ended(&self) -> bool {
        self.training.borrow().ended
    }

    /// The first cause of a failure, once the leader has named one.
    pub fn cause(&self) -> Option<Cause> {
        self.training.borrow().cause.clone()
    }

    /// Reports the end of the task's run and waits, at most [`END_TIMEOUT`], until the leader has it.
    ///
    /// Returns whether it has. A task that leaves without a report is taken for lost.
    ///
    /// # Cancel safety
    /// The report is sent even if nobody waits any more.
    pub async fn end(&self, report: EndReport) -> bool {
        let (reply, delivered) = oneshot::channel();
        self.commands.send(Command::End { report, reply }).await.is_ok() && delivered.await.unwrap_or(false)
    }

    /// Waits until this task is to leave, and says why.
    ///
    /// # Cancel safety
    /// Waiting has no effect.
    pub async fn job_ended(&self) -> Departure {
        let mut departure = self.departure.clone();
        match departure.wait_for(Option::is_some).await {
            Ok(departure) => departure.clone().expect("waited until it was there"),
            Err(_) => Departure::ShutDown,
        }
    }
}

impl Job for MemberHandle {
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match &self.context {
                Some(context) if context.has_barrier => {}
                Some(context) => return Err(solo::no_barrier(context)),
                None => return Err(Error::new(ErrorCode::FailedPrecondition, "this task runs no worker_fn")),
            }
            if let Some(error) = self.interrupt.borrow().clone() {
                return Err(error);
            }
            let closed = || {
                let interrupt = self.interrupt.borrow().clone();
                interrupt.unwrap_or_else(|| Error::new(ErrorCode::Cancelled, "this process is shutting down"))
            };
            let (reply, answer) = oneshot::channel();
            let command = Command::Barrier { name: name.to_owned(), timeout, reply };
            self.commands.send(command).await.map_err(|_| closed())?;
            answer.await.unwrap_or_else(|_| Err(closed()))
        })
    }

    fn training_ended(&self) -> bool {
        MemberHandle::training_ended(self)
    }

    fn attempt(&self) -> u32 {
        self.attempt.borrow().map_or(0, |attempt| attempt.number)
    }
}

struct Service {
    options: MemberOptions,
    commands: mpsc::Receiver<Command>,
    outlets: Outlets,
    link: Link,
    barriers: MemberBarriers,
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
    fn new(member: Member) -> Self {
        let Member { options, commands, outlets } = member;
        Service {
            barriers: MemberBarriers::new(options.leader),
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

    async fn run(mut self, shutdown: CancellationToken) -> Option<Departure> {
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
                    let _ = reply.send(self.end_delivered);
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
        let watched = self.options.probe.clone().filter(|_| self.is_run());
        let known = self.registered.as_ref().map(|registered| registered.leader_incarnation);
        self.link = Link::dial(self.options.attend.clone(), registration, known.zip(watched), self.options.leader);
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
            None => info!(leader = %self.options.leader, attempt = new.attempt.number, "attends its leader"),
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
                    let error = Error::new(ErrorCode::PeerFailed, text).with_tasks([task]);
                    self.outlets.chief_ended.send_replace(Some(error));
                }
                match state {
                    TaskState::Lost | TaskState::Suspect => warn!("{task} is {state:?}: {message}"),
                    _ => info!("{task} is {state:?}{}{message}", if message.is_empty() { "" } else { ": " }),
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
        if let Some((since, why)) = &self.unattended {
            let (leader, seconds) = (self.options.leader, since.elapsed().as_secs());
            match self.registered {
                None => info!("waiting for the leader {leader} for {seconds} s: {why}"),
                Some(_) => warn!("lost the leader {leader} {seconds} s ago: {why}"),
            }
        }
    }

    /// How long the leader may be missing; none: without limit.
    fn patience(&self) -> Option<Duration> {
        match &self.registered {
            None => self.is_run().then_some(self.options.connect_timeout),
            Some(_) if self.is_run() => Some(self.options.rejoin_timeout),
            Some(registered) => {
                (registered.mode.is_some() && !self.options.stay).then_some(self.options.connect_timeout)
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
        self.barriers.expire(now);
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
                let error = AttendError::Unreachable(message);
                self.interrupt(unreachable(leader, &error));
                self.outlets.registered.send_replace(Some(Err(error.clone())));
                self.depart(Departure::Refused(error));
            }
        }
    }
}

fn unreachable(leader: Task, error: &AttendError) -> Error {
    let message = match error {
        AttendError::Unreachable(why) => why.as_str(),
        AttendError::Refused(error) => error.message.as_str(),
        AttendError::Complete => "the job is complete",
    };
    Error::new(ErrorCode::Unavailable, message).with_tasks([leader])
}

#[cfg(test)]
mod tests;
