//! One test for each sentence of the rules: events in, effects out, on made-up time.

mod end;
mod loss;
mod register;

use super::*;
use crate::ids::RunId;
use expect_test::{Expect, expect};

const SECOND: Duration = Duration::from_secs(1);

fn task(name: &str) -> Task {
    let (job, index) = name.split_once(':').expect("job:index");
    Task::new(job.parse().expect("a job"), index.parse().expect("an index"))
}

/// Chief-less cluster of three workers and a ps, led by worker:0.
fn options() -> Options {
    Options {
        leader: task("worker:0"),
        incarnation: Incarnation(1),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1", "c:1"]).with_job(TaskType::Ps, ["p:1"]),
        mode: Some(Mode::IndependentWorker),
        replication: Replication::BetweenGraph,
        barrier: true,
        module_digest: Some([7; 32]),
        end: EndRule::AllDone,
        connect_timeout: SECOND * 60,
        rejoin_timeout: SECOND * 30,
        evaluator_grace: SECOND * 20,
    }
}

/// A leader with made-up time; what happens is written down as lines.
struct Leader {
    lifetime: Lifetime,
    now: Instant,
    start: Instant,
    next: u64,
    lines: Vec<String>,
}

impl Leader {
    fn new(options: Options) -> Self {
        let now = Instant::now();
        Leader { lifetime: Lifetime::new(now, options), now, start: now, next: 0, lines: Vec::new() }
    }

    /// All of the default cluster attend, in this order as connections 0 to 3.
    fn attended(options: Options) -> Self {
        let mut leader = Leader::new(options);
        for name in ["worker:0", "worker:1", "worker:2", "ps:0"] {
            leader.attend(name, incarnation_of(name));
        }
        leader.lines.clear();
        leader
    }

    fn registration(&self, name: &str, incarnation: u64) -> Registration {
        let task = task(name);
        let server = task.job == TaskType::Ps;
        let own = self.lifetime.options();
        Registration {
            task,
            incarnation: Incarnation(incarnation),
            run_id: RunId(incarnation),
            attempt: None,
            mode: own.mode.filter(|_| !server),
            replication: own.replication,
            barrier: own.barrier,
            module_digest: own.module_digest.filter(|_| !server),
            cluster: own.cluster.clone(),
        }
    }

    fn attend(&mut self, name: &str, incarnation: u64) -> ConnectionId {
        let registration = self.registration(name, incarnation);
        self.attend_with(registration)
    }

    fn attend_with(&mut self, registration: Registration) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        let effects = self.lifetime.attend(self.now, connection, registration);
        self.note(effects);
        connection
    }

    fn connection(&self, name: &str) -> ConnectionId {
        self.lifetime.connection_of(task(name)).expect("it attends")
    }

    fn end(&mut self, name: &str, report: EndReport) {
        let effects = self.lifetime.end(self.now, self.connection(name), report);
        self.note(effects);
    }

    fn breaks(&mut self, name: &str) {
        let effects = self.lifetime.broken(self.now, self.connection(name));
        self.note(effects);
    }

    fn probed(&mut self, name: &str, outcome: ProbeOutcome) {
        let effects = self.lifetime.probed(self.now, task(name), outcome);
        self.note(effects);
    }

    /// Lets time pass up to `seconds` after the start, stopping wherever something is due; those in `alive` send
    /// heartbeats, every probe goes unanswered.
    fn until(&mut self, seconds: u64, alive: &[&str]) {
        let end = self.start + SECOND * u32::try_from(seconds).expect("few");
        while self.now < end {
            let due = self.lifetime.next_deadline().unwrap_or(end).clamp(self.now, end);
            self.now = due.min(self.now + HEARTBEAT_INTERVAL);
            for name in alive {
                if let Some(connection) = self.lifetime.connection_of(task(name)) {
                    self.lifetime.heard(self.now, connection);
                }
            }
            let effects = self.lifetime.tick(self.now);
            let probes: Vec<Task> = effects
                .iter()
                .filter_map(|effect| match effect {
                    Effect::Probe { task, .. } => Some(*task),
                    _ => None,
                })
                .collect();
            self.note(effects);
            for task in probes {
                self.probed(&task.to_string(), ProbeOutcome::NoAnswer("timed out".to_owned()));
            }
            // What is due is done: otherwise the service would spin.
            let next = self.lifetime.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "still due at {:?}", self.now - self.start);
        }
    }

    fn note(&mut self, effects: Vec<Effect>) {
        let at = (self.now - self.start).as_secs();
        for effect in effects {
            let who = |connection: ConnectionId| {
                self.lifetime.task_of(connection).map_or_else(|| format!("#{}", connection.0), |task| task.to_string())
            };
            let cause = |cause: &Option<Cause>| match cause {
                None => "well".to_owned(),
                Some(cause) => format!("{} {} ({})", cause.task, cause.exit_code, cause.message),
            };
            let line = match &effect {
                Effect::Answer { connection, result: Ok(registered) } => {
                    format!("{} registered, ended {}", who(*connection), registered.training_ended)
                }
                Effect::Answer { connection, result: Err(error) } => match error {
                    AttendError::Refused(error) => format!("#{} refused: {error}", connection.0),
                    error => format!("#{} {error:?}", connection.0),
                },
                Effect::Send { connection, event } => {
                    let event = match event {
                        LeaderEvent::TrainingEnded { cause: why } => format!("training ended: {}", cause(why)),
                        LeaderEvent::JobEnded { cause: why } => format!("job ended: {}", cause(why)),
                        LeaderEvent::Task { task, state, message } => format!("{task} {state:?} {message}"),
                        event => format!("{event:?}"),
                    };
                    format!("{} <- {event}", who(*connection))
                }
                Effect::Close { connection } => format!("close #{}", connection.0),
                Effect::Probe { task, address } => format!("probe {task} at {address}"),
                Effect::Failed { task, error } => format!("barriers: {task} {error}"),
                Effect::Left { task, message } => format!("barriers: {task} left: {message}"),
                Effect::CancelBarriers { error } => format!("barriers: {error}"),
                Effect::Leave { cause: why } => format!("leave: {}", cause(why)),
            };
            self.lines.push(format!("{at}s {line}\n"));
        }
    }

    fn state(&self, name: &str) -> TaskState {
        let task = task(name);
        self.lifetime.rows().iter().find(|row| row.task == task).expect("it has a row").state
    }

    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&std::mem::take(&mut self.lines).concat());
    }
}

fn incarnation_of(name: &str) -> u64 {
    match name {
        "worker:0" => 1,
        "worker:1" => 11,
        "worker:2" => 12,
        "ps:0" => 20,
        _ => 30,
    }
}

fn done() -> EndReport {
    EndReport { ok: true, exit_code: 0, message: String::new(), leaving: false }
}

fn failed(exit_code: u8, message: &str) -> EndReport {
    EndReport { ok: false, exit_code, message: message.to_owned(), leaving: false }
}

fn leaving() -> EndReport {
    EndReport { ok: false, exit_code: 143, message: "SIGTERM".to_owned(), leaving: true }
}

fn refused() -> ProbeOutcome {
    ProbeOutcome::Refused("connection refused".to_owned())
}

const ALL: [&str; 4] = ["worker:0", "worker:1", "worker:2", "ps:0"];
