//! The leader's service: drives rows and barriers for tasks that attend, over gRPC or in this process.
//!
//! One task owns [`Lifetime`] and [`Barriers`]. Everything reaches it through one bounded queue, so that events have one
//! order; what it has to wait for (a stream's next message, a probe) waits in small tasks that feed the queue.

mod report;

use crate::attend::REPORT_INTERVAL;
use crate::attend::{
    AttendError, BarrierArrival, Cause, LeaderEvent, MemberMessage, Mode, Registered, Registration, Replication,
};
use crate::barrier::{Answer, BarrierStatus, Barriers, display_name};
use crate::cluster::{Task, list_tasks};
use crate::error::{Error, ErrorCode};
use crate::exit::Exit;
use crate::handles::{Attend, AttendChannel, BoxFuture, Probe, ProbeOutcome};
use crate::ids::Attempt;
use crate::lifetime::{self, ConnectionId, Effect, HEARTBEAT_INTERVAL, LEAVE_GRACE, Lifetime, RowStatus, Silent};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Commands that wait for the service. A full queue makes streams wait, not memory grow.
const QUEUE_MAX: usize = 1024;

/// Commands taken at a time: the search for the next deadline, which grows with the cluster, is done once for all.
const BATCH_MAX: usize = 128;

/// Events that wait for one task. A task that reads nothing while so many gather is cut off; it may attend again.
const EVENTS_MAX: usize = 256;

/// Messages of one task that wait for the service.
const MESSAGES_MAX: usize = 64;

/// Probes at a time, so that a large cluster's start doesn't exhaust file descriptors.
const PROBES_MAX: usize = 32;

/// A probe that takes longer counts as no answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the service needs.
pub struct LeaderOptions {
    /// Rules and limits of rows, and who the leader is.
    pub lifetime: lifetime::Options,
    /// How silent tasks are dialled.
    pub probe: Arc<dyn Probe>,
}

/// The job's end, as the leader's process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// The first cause of a failure; none where all is well.
    pub cause: Option<Cause>,
}

impl JobEnd {
    /// The exit code of the leader's process, whose own run ended with `own`: its own, or if that was 0 the 201 or 202
    /// of a failure elsewhere.
    pub fn exit_code(&self, own: u8) -> u8 {
        match &self.cause {
            Some(_) if own != Exit::Done.code() => own,
            Some(cause) if cause.exit_code == Exit::Unreachable.code() => cause.exit_code,
            Some(_) => Exit::PeerFailed.code(),
            None => own,
        }
    }
}

/// What the leader knows now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderStatus {
    /// The attempt that runs now.
    pub attempt: Attempt,
    /// How runs are placed; none: the leader has no module, and leads nothing.
    pub mode: Option<Mode>,
    /// One run for each chief and worker, or one driver.
    pub replication: Replication,
    /// Every row, in order. Their points in time compare with `std::time::Instant::now`.
    pub rows: Vec<RowStatus>,
    /// Tasks that should attend and don't.
    pub silent: Vec<Silent>,
    /// Barriers that tasks wait at.
    pub barriers: Vec<BarrierStatus>,
    /// Whether the training has ended.
    pub training_ended: bool,
    /// The first cause of a failure.
    pub cause: Option<Cause>,
}

/// The leader's service. Make it, hand its handle to the server and to the leader's own member, then run it.
pub struct Leader {
    options: LeaderOptions,
    inbox: mpsc::Receiver<Command>,
    /// For the tasks that feed the inbox.
    sender: mpsc::Sender<Command>,
}

/// The running service.
struct Service {
    lifetime: Lifetime,
    barriers: Barriers,
    has_barrier: bool,
    probe: Arc<dyn Probe>,
    probes: Arc<Semaphore>,
    inbox: mpsc::Receiver<Command>,
    /// For the tasks that feed the inbox.
    sender: mpsc::Sender<Command>,
    connections: HashMap<ConnectionId, Connection>,
    next_connection: u64,
    feeders: JoinSet<()>,
    /// Streams that were cut off because nobody read them; their rows don't know yet.
    cut_off: Vec<ConnectionId>,
    left: Option<JobEnd>,
    /// Whether the log says whom the end waits for.
    awaited_told: bool,
}

/// Reaches the leader's service; cheap to clone.
#[derive(Clone, Debug)]
pub struct LeaderHandle {
    sender: mpsc::Sender<Command>,
}

enum Command {
    Attend { registration: Registration, reply: oneshot::Sender<Result<AttendChannel, AttendError>> },
    Message { connection: ConnectionId, message: MemberMessage },
    Broken { connection: ConnectionId },
    Probed { task: Task, outcome: ProbeOutcome },
    Status { row: Option<Task>, reply: oneshot::Sender<LeaderStatus> },
}

enum Connection {
    /// Its registration has no answer yet.
    Registering {
        task: Task,
        reply: oneshot::Sender<Result<AttendChannel, AttendError>>,
    },
    Open {
        task: Task,
        events: mpsc::Sender<LeaderEvent>,
        stop: CancellationToken,
    },
}

impl Leader {
    /// Makes the service and its handle. The attempt starts, and its timeouts run, from [`Leader::run`] on.
    pub fn new(options: LeaderOptions) -> (Self, LeaderHandle) {
        let (sender, inbox) = mpsc::channel(QUEUE_MAX);
        let handle = LeaderHandle { sender: sender.clone() };
        (Leader { options, inbox, sender }, handle)
    }

    /// Serves until the job has ended and the others have gone, or until `shutdown`, which ends the job at once.
    ///
    /// Streams that are still open break when it returns; events that were sent before can still be read.
    ///
    /// # Cancel safety
    /// Dropping it breaks every stream without a word.
    pub async fn run(self, shutdown: CancellationToken) -> JobEnd {
        let Leader { options: LeaderOptions { lifetime, probe }, inbox, sender } = self;
        let service = Service {
            has_barrier: lifetime.barrier,
            barriers: Barriers::new(lifetime.cluster.training_tasks()),
            lifetime: Lifetime::new(std_now(), lifetime),
            probe,
            probes: Arc::new(Semaphore::new(PROBES_MAX)),
            inbox,
            sender,
            connections: HashMap::new(),
            next_connection: 0,
            feeders: JoinSet::new(),
            cut_off: Vec::new(),
            left: None,
            awaited_told: false,
        };
        service.run(shutdown).await
    }
}

impl Service {
    async fn run(mut self, shutdown: CancellationToken) -> JobEnd {
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        let mut report = tokio::time::interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            while let Some(connection) = self.cut_off.pop() {
                let effects = self.lifetime.broken(std_now(), connection);
                self.perform(effects);
            }
            if let Some(end) = self.left.take() {
                return end;
            }
            self.tell_awaited();
            let due = [self.lifetime.next_deadline(), self.barriers.next_deadline()].into_iter().flatten().min();
            tokio::select! {
                () = shutdown.cancelled() => {
                    let effects = self.lifetime.stop(std_now());
                    self.perform(effects);
                }
                _ = self.inbox.recv_many(&mut batch, BATCH_MAX) => {
                    for command in batch.drain(..) {
                        self.command(command);
                    }
                }
                () = sleep_until(due.map_or_else(far_future, Instant::from_std)) => self.tick(),
                _ = heartbeat.tick() => self.send_heartbeats(),
                _ = report.tick() => report::log(&self.status()),
                Some(_) = self.feeders.join_next() => {}
            }
        }
    }

    /// Says once why the leader doesn't leave yet.
    fn tell_awaited(&mut self) {
        if self.awaited_told {
            return;
        }
        let awaited = self.lifetime.awaited();
        if !awaited.is_empty() {
            let seconds = LEAVE_GRACE.as_secs();
            info!("training has ended; waiting up to {seconds} s for {}, never seen", list_tasks(&awaited));
            self.awaited_told = true;
        }
    }

    fn tick(&mut self) {
        let now = std_now();
        let answers = self.barriers.expire(now);
        self.deliver(answers);
        let effects = self.lifetime.tick(now);
        self.perform(effects);
    }

    fn command(&mut self, command: Command) {
        let now = std_now();
        match command {
            Command::Attend { registration, reply } => {
                let connection = ConnectionId(self.next_connection);
                self.next_connection += 1;
                self.connections.insert(connection, Connection::Registering { task: registration.task, reply });
                let effects = self.lifetime.attend(now, connection, registration);
                self.perform(effects);
            }
            Command::Message { connection, message } => {
                self.lifetime.heard(now, connection);
                match message {
                    MemberMessage::Heartbeat => {}
                    MemberMessage::Arrival(arrival) => self.arrive(connection, &arrival),
                    MemberMessage::End(end) => {
                        if let Some(task) = self.lifetime.task_of(connection) {
                            if end.ok {
                                info!("the run of {task} has ended");
                            } else {
                                info!("the run of {task} has ended with {}: {}", end.exit_code, end.message);
                            }
                        }
                        let effects = self.lifetime.end(now, connection, end);
                        self.perform(effects);
                    }
                }
            }
            Command::Broken { connection } => {
                // A stream that was closed here is not news.
                if self.connections.remove(&connection).is_some() {
                    let effects = self.lifetime.broken(now, connection);
                    self.perform(effects);
                }
            }
            Command::Probed { task, outcome } => {
                let effects = self.lifetime.probed(now, task, outcome);
                self.perform(effects);
            }
            Command::Status { row, reply } => {
                let status = match row {
                    None => self.status(),
                    Some(task) => self.status_of(task),
                };
                // The one who asked may have gone.
                let _ = reply.send(status);
            }
        }
    }

    fn arrive(&mut self, connection: ConnectionId, arrival: &BarrierArrival) {
        let Some(task) = self.lifetime.task_of(connection) else { return };
        let answers = if self.has_barrier {
            self.barriers.arrive(std_now(), task, arrival)
        } else {
            let message = format!("{}: this job has no cluster barrier", display_name(&arrival.name));
            vec![Answer {
                task,
                name: arrival.name.clone(),
                generation: arrival.generation,
                result: Err(Error::new(ErrorCode::FailedPrecondition, message)),
            }]
        };
        self.deliver(answers);
    }

    /// Sends answers to tasks that have a stream; the others ask again when they have one.
    fn deliver(&mut self, answers: Vec<Answer>) {
        for Answer { task, name, generation, result } in answers {
            if let Some(connection) = self.lifetime.connection_of(task) {
                self.send(connection, LeaderEvent::Barrier { name, generation, result });
            }
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { connection, result } => self.answer(connection, result),
                Effect::Send { connection, event } => self.send(connection, event),
                Effect::Close { connection } => self.close(connection),
                Effect::Probe { task, address } => self.dial(task, address),
                Effect::Failed { task, error } => {
                    warn!(%task, "{}", error.message);
                    let answers = self.barriers.failed(task, error);
                    self.deliver(answers);
                }
                Effect::Left { task, message } => {
                    let answers = self.barriers.left(task, &message);
                    self.deliver(answers);
                }
                Effect::CancelBarriers { error } => {
                    let answers = self.barriers.cancel(error);
                    self.deliver(answers);
                }
                Effect::Leave { cause } => self.left = Some(JobEnd { cause }),
            }
        }
    }

    fn answer(&mut self, connection: ConnectionId, result: Result<Registered, AttendError>) {
        let Some(Connection::Registering { task, reply }) = self.connections.remove(&connection) else { return };
        let registered = match result {
            Ok(registered) => registered,
            Err(error) => {
                debug!(%task, ?error, "registration refused");
                // The one who asked may have gone.
                let _ = reply.send(Err(error));
                return;
            }
        };
        let (events, events_out) = mpsc::channel(EVENTS_MAX);
        let (messages, messages_in) = mpsc::channel(MESSAGES_MAX);
        let stop = CancellationToken::new();
        self.feeders.spawn(feed(connection, messages_in, self.sender.clone(), stop.clone()));
        self.connections.insert(connection, Connection::Open { task, events, stop });
        debug!(%task, "attends");
        // A caller that gave up drops the channel, and so breaks the stream.
        let _ = reply.send(Ok(AttendChannel { registered, messages, events: events_out }));
    }

    fn send(&mut self, connection: ConnectionId, event: LeaderEvent) {
        let Some(Connection::Open { task, events, .. }) = self.connections.get(&connection) else { return };
        if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(event) {
            warn!(%task, "reads nothing while {EVENTS_MAX} events wait: its stream is closed");
            self.close(connection);
            self.cut_off.push(connection);
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        if let Some(Connection::Open { stop, .. }) = self.connections.remove(&connection) {
            stop.cancel();
        }
    }

    fn send_heartbeats(&mut self) {
        for connection in self.connections.values() {
            if let Connection::Open { events, .. } = connection {
                // Events that wait are as good as a heartbeat.
                let _ = events.try_send(LeaderEvent::Heartbeat);
            }
        }
    }

    fn dial(&mut self, task: Task, address: String) {
        let (probe, probes, sender) = (self.probe.clone(), self.probes.clone(), self.sender.clone());
        self.feeders.spawn(async move {
            // The semaphore is never closed; without a permit a probe would merely be early.
            let _permit = probes.acquire().await;
            let outcome = timeout(PROBE_TIMEOUT, probe.probe(task, &address)).await.unwrap_or_else(|_| {
                let after = humantime::format_duration(PROBE_TIMEOUT);
                ProbeOutcome::NoAnswer(format!("no answer from `{address}` within {after}"))
            });
            // The service has ended: nobody asks any more.
            let _ = sender.send(Command::Probed { task, outcome }).await;
        });
    }

    fn status(&self) -> LeaderStatus {
        LeaderStatus {
            rows: self.lifetime.rows(),
            silent: self.lifetime.silent(std_now()),
            barriers: self.barriers.status(),
            ..self.status_of_job()
        }
    }

    /// The job, and one row: each of many tasks may ask for each of many others, which mustn't cost a copy of all.
    fn status_of(&self, task: Task) -> LeaderStatus {
        LeaderStatus { rows: self.lifetime.row(task).into_iter().collect(), ..self.status_of_job() }
    }

    fn status_of_job(&self) -> LeaderStatus {
        LeaderStatus {
            attempt: self.lifetime.attempt(),
            mode: self.lifetime.mode(),
            replication: self.lifetime.replication(),
            rows: Vec::new(),
            silent: Vec::new(),
            barriers: Vec::new(),
            training_ended: self.lifetime.training_ended(),
            cause: self.lifetime.cause().cloned(),
        }
    }
}

impl LeaderHandle {
    /// What the leader knows now, of one task the job and the task's row alone; none after its service has ended.
    ///
    /// # Cancel safety
    /// Asking has no effect.
    pub async fn status(&self, row: Option<Task>) -> Option<LeaderStatus> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Command::Status { row, reply }).await.ok()?;
        answer.await.ok()
    }
}

impl Attend for LeaderHandle {
    /// Registers; the answer waits for a probe where another incarnation of the task attends.
    ///
    /// # Errors
    /// `Refused` and `Complete` as the rows decide; `Unreachable` while an earlier process of the task may live, and
    /// after the service has ended.
    ///
    /// # Cancel safety
    /// A registration that was accepted but not taken is a stream that breaks at once.
    fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>> {
        Box::pin(async move {
            let gone = || AttendError::Unreachable("the leader's service has ended".to_owned());
            let (reply, answer) = oneshot::channel();
            self.sender.send(Command::Attend { registration, reply }).await.map_err(|_| gone())?;
            answer.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

/// Carries one stream's messages to the service, then says that it broke.
async fn feed(
    connection: ConnectionId,
    mut messages: mpsc::Receiver<MemberMessage>,
    sender: mpsc::Sender<Command>,
    stop: CancellationToken,
) {
    loop {
        let message = tokio::select! {
            () = stop.cancelled() => return,
            message = messages.recv() => message,
        };
        let (command, last) = match message {
            Some(message) => (Command::Message { connection, message }, false),
            None => (Command::Broken { connection }, true),
        };
        if sender.send(command).await.is_err() || last {
            return;
        }
    }
}

/// Now, on tokio's clock, which tests pause.
fn std_now() -> std::time::Instant {
    Instant::now().into_std()
}

/// A point in time that no process lives to see.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(30 * 365 * 24 * 3600)
}

#[cfg(test)]
mod tests;
