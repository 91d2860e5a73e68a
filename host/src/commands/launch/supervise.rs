//! What the launcher does as tasks end and signals come: pure, with `now` as an argument.
//!
//! | when | then |
//! | --- | --- |
//! | SIGINT or SIGTERM | SIGTERM to all at once, SIGKILL to those left after [`KILL_AFTER`]; a second signal kills at once |
//! | a task other than the evaluator fails | the others may take [`FAILURE_GRACE`] to end by the job's own rules |
//! | the split client has ended | SIGTERM to all: they serve on until they are told; with `--end never` nothing |
//! | the leader and every runner have ended | the others may take [`LEADER_GONE_GRACE`]; with `--end never` as long as they like |
//! | a grace has passed | as for a signal, and the codes of those ended so don't count |

use crate::cluster::{Task, TaskType};
use crate::exit::Exit;
use std::time::{Duration, Instant};

/// How long the others may take after a failure: the guest's 10 s and the leader's 10 s, and room for a slow machine.
pub(super) const FAILURE_GRACE: Duration = Duration::from_secs(30);
/// How long ps and evaluator may take when nobody is left who could tell them more.
pub(super) const LEADER_GONE_GRACE: Duration = Duration::from_secs(5);
/// How long a task may take after SIGTERM; everything shall have gone within two seconds.
pub(super) const KILL_AFTER: Duration = Duration::from_millis(1500);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with a code.
    Exited(u8),
    /// A signal ended it.
    Signalled(i32),
}

impl Ending {
    /// The exit that stands for it. A code that dchost never gives, as that of a panic, is a bug in dchost.
    pub(super) fn exit(self) -> Exit {
        match self {
            Ending::Exited(code) => Exit::from_code(code).unwrap_or(Exit::Bug),
            Ending::Signalled(_) => Exit::PeerFailed,
        }
    }

    /// How likely it is a consequence of another task's failure; 0: it is none.
    fn rank(self) -> u8 {
        match self {
            // Seen by those that wait for a missing one; the missing one itself comes before.
            Ending::Exited(code) if code == Exit::Unreachable.code() => 1,
            Ending::Exited(code) if code == Exit::PeerFailed.code() => 2,
            Ending::Exited(_) | Ending::Signalled(_) => 0,
        }
    }
}

/// Which signal told the launcher to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM, or the terminal has gone.
    Terminate,
}

impl StopSignal {
    /// What the launcher exits with that it ends.
    pub(super) fn exit(self) -> Exit {
        match self {
            StopSignal::Interrupt => Exit::Interrupted,
            StopSignal::Terminate => Exit::Terminated,
        }
    }
}

/// What to send to every task that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) task: Task,
    pub(super) ending: Ending,
    /// The launcher had told it to end.
    pub(super) by_launcher: bool,
}

/// The launcher's decisions.
pub(super) struct Supervisor {
    running: Vec<Task>,
    /// In the order in which they ended.
    ends: Vec<End>,
    leader: Task,
    end_never: bool,
    stop_signal: Option<StopSignal>,
    stop_at: Option<Instant>,
    kill_at: Option<Instant>,
    is_stopping: bool,
}

impl Supervisor {
    /// Begins with every task running.
    pub(super) fn new(tasks: &[Task], leader: Task, end_never: bool) -> Self {
        Supervisor {
            running: tasks.to_vec(),
            ends: Vec::new(),
            leader,
            end_never,
            stop_signal: None,
            stop_at: None,
            kill_at: None,
            is_stopping: false,
        }
    }

    /// A task's process has ended.
    pub(super) fn ended(&mut self, task: Task, ending: Ending, now: Instant) {
        self.running.retain(|&running| running != task);
        self.ends.push(End { task, ending, by_launcher: self.is_stopping });
        if self.is_stopping {
            return;
        }
        // An evaluator's end never ends an attempt: training goes on without it.
        if ending != Ending::Exited(0) && task.job != TaskType::Evaluator {
            self.stop_not_later_than(now + FAILURE_GRACE);
        }
        // Servers of a split client know nothing of its end.
        let (serve_on, grace) = match self.leader.job {
            TaskType::Client => (true, Duration::ZERO),
            _ => (false, LEADER_GONE_GRACE),
        };
        let is_training = |task: &Task| !serve_on && matches!(task.job, TaskType::Chief | TaskType::Worker);
        let leader_gone = !self.running.contains(&self.leader) && !self.running.iter().any(is_training);
        if leader_gone && !(self.end_never && self.cause().is_none()) {
            self.stop_not_later_than(now + grace);
        }
    }

    /// The launcher was told to end.
    pub(super) fn signal(&mut self, signal: StopSignal, now: Instant) -> Option<Action> {
        if self.stop_signal.is_some() {
            self.kill_at = None;
            return Some(Action::Kill);
        }
        self.stop_signal = Some(signal);
        Some(self.stop(now))
    }

    /// The signal that told the launcher to end, if one has.
    pub(super) fn stop_signal(&self) -> Option<StopSignal> {
        self.stop_signal
    }

    /// When [`due`](Self::due) has to be asked; none: only an event changes anything.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_stopping { self.kill_at } else { self.stop_at }
    }

    /// What has to be done by now because a time has passed.
    pub(super) fn due(&mut self, now: Instant) -> Option<Action> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        if self.is_stopping {
            self.kill_at = None;
            return Some(Action::Kill);
        }
        Some(self.stop(now))
    }

    /// Whether no task runs any more.
    pub(super) fn is_done(&self) -> bool {
        self.running.is_empty()
    }

    /// How each task ended, in that order.
    pub(super) fn ends(&self) -> &[End] {
        &self.ends
    }

    /// The first failure that is no consequence of another one; none where all is well.
    ///
    /// Consequences are 201 and 202; where nothing else is there (a task that was never seen gives all others 201) the
    /// first of them stands for the cause, 201 before 202.
    pub(super) fn cause(&self) -> Option<&End> {
        let failures = self.ends.iter().filter(|end| !end.by_launcher && end.ending != Ending::Exited(0));
        failures.min_by_key(|end| end.ending.rank())
    }

    /// What the launcher exits with.
    pub(super) fn exit(&self) -> Exit {
        match self.stop_signal {
            Some(signal) => signal.exit(),
            None => self.cause().map_or(Exit::Done, |end| end.ending.exit()),
        }
    }

    fn stop(&mut self, now: Instant) -> Action {
        self.is_stopping = true;
        self.kill_at = Some(now + KILL_AFTER);
        Action::Terminate
    }

    fn stop_not_later_than(&mut self, at: Instant) {
        self.stop_at = Some(self.stop_at.map_or(at, |stop_at| stop_at.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER0: Task = Task::new(TaskType::Worker, 0);
    const WORKER1: Task = Task::new(TaskType::Worker, 1);
    const PS: Task = Task::new(TaskType::Ps, 0);
    const EVALUATOR: Task = Task::new(TaskType::Evaluator, 0);
    const DONE: Ending = Ending::Exited(0);

    fn cluster(end_never: bool) -> (Supervisor, Instant) {
        (Supervisor::new(&[WORKER0, WORKER1, PS, EVALUATOR], WORKER0, end_never), Instant::now())
    }

    #[test]
    fn the_exit_is_the_first_cause_and_not_its_consequences() {
        let check = |ends: &[(Task, Ending)], cause: Option<Task>, exit: Exit| {
            let (mut supervisor, now) = cluster(false);
            ends.iter().for_each(|&(task, ending)| supervisor.ended(task, ending, now));
            assert_eq!(supervisor.cause().map(|end| end.task), cause, "{ends:?}");
            assert_eq!(supervisor.exit(), exit, "{ends:?}");
        };
        check(&[(PS, DONE), (WORKER1, DONE), (EVALUATOR, DONE), (WORKER0, DONE)], None, Exit::Done);
        check(&[(WORKER0, Ending::Exited(202)), (WORKER1, Ending::Exited(1))], Some(WORKER1), Exit::WorkerError);
        check(&[(WORKER1, Ending::Exited(3)), (WORKER0, Ending::Exited(1))], Some(WORKER1), Exit::Trap);
        check(&[(WORKER0, Ending::Exited(202)), (WORKER1, Ending::Signalled(9))], Some(WORKER1), Exit::PeerFailed);
        check(&[(WORKER0, Ending::Exited(202)), (WORKER1, Ending::Exited(201))], Some(WORKER1), Exit::Unreachable);
        check(&[(WORKER0, Ending::Exited(202)), (PS, Ending::Exited(202))], Some(WORKER0), Exit::PeerFailed);
        check(&[(WORKER0, Ending::Exited(101))], Some(WORKER0), Exit::Bug);
        check(&[(EVALUATOR, Ending::Exited(1)), (WORKER0, DONE)], Some(EVALUATOR), Exit::WorkerError);
    }

    #[test]
    fn after_a_failure_the_others_have_a_grace_and_their_codes_do_not_count_then() {
        let (mut supervisor, start) = cluster(false);
        supervisor.ended(WORKER1, Ending::Exited(1), start);
        assert_eq!(supervisor.deadline(), Some(start + FAILURE_GRACE));
        assert_eq!(supervisor.due(start + FAILURE_GRACE - KILL_AFTER), None);
        let stopped = start + FAILURE_GRACE;
        assert_eq!(supervisor.due(stopped), Some(Action::Terminate));
        assert_eq!(supervisor.due(stopped), None, "once");
        supervisor.ended(WORKER0, Ending::Exited(143), stopped);
        assert_eq!(supervisor.due(stopped + KILL_AFTER), Some(Action::Kill));
        supervisor.ended(PS, Ending::Signalled(9), stopped);
        supervisor.ended(EVALUATOR, Ending::Signalled(9), stopped);
        assert!(supervisor.is_done());
        assert_eq!(supervisor.exit(), Exit::WorkerError);
    }

    #[test]
    fn a_failed_evaluator_does_not_end_training() {
        let (mut supervisor, start) = cluster(false);
        supervisor.ended(EVALUATOR, Ending::Exited(3), start);
        assert_eq!(supervisor.deadline(), None);
    }

    #[test]
    fn who_stays_after_the_leader_is_ended_unless_that_was_asked_for() {
        for (end_never, deadline) in [(false, Some(LEADER_GONE_GRACE)), (true, None)] {
            let (mut supervisor, start) = cluster(end_never);
            supervisor.ended(WORKER0, DONE, start);
            assert_eq!(supervisor.deadline(), None, "a worker still runs");
            supervisor.ended(WORKER1, DONE, start);
            assert_eq!(supervisor.deadline(), deadline.map(|grace| start + grace));
            assert_eq!(supervisor.exit(), Exit::Done);
        }
        let (mut supervisor, start) = cluster(true);
        supervisor.ended(WORKER0, Ending::Signalled(9), start);
        supervisor.ended(WORKER1, Ending::Exited(202), start);
        assert_eq!(supervisor.deadline(), Some(start + LEADER_GONE_GRACE), "a failed job is not kept");
    }

    #[test]
    fn the_servers_of_a_split_client_are_ended_when_it_has_ended() {
        const CLIENT: Task = Task::new(TaskType::Client, 0);
        for (ending, end_never, due) in [
            (DONE, false, Some(Action::Terminate)),
            (Ending::Exited(3), false, Some(Action::Terminate)),
            (DONE, true, None),
            (Ending::Exited(3), true, Some(Action::Terminate)),
        ] {
            let start = Instant::now();
            let mut supervisor = Supervisor::new(&[WORKER0, PS, CLIENT], CLIENT, end_never);
            supervisor.ended(CLIENT, ending, start);
            assert_eq!(supervisor.due(start), due, "{ending:?}, {end_never}");
            assert_eq!(supervisor.exit(), ending.exit());
        }
        let start = Instant::now();
        let mut supervisor = Supervisor::new(&[WORKER0, PS, CLIENT], CLIENT, false);
        supervisor.ended(PS, Ending::Signalled(9), start);
        assert_eq!(supervisor.deadline(), Some(start + FAILURE_GRACE), "the client finds out by itself");
        supervisor.ended(CLIENT, Ending::Exited(202), start);
        assert_eq!(supervisor.cause().map(|end| end.task), Some(PS));
    }

    #[test]
    fn a_signal_ends_all_within_two_seconds_and_a_second_one_at_once() {
        for (signal, exit) in [(StopSignal::Interrupt, Exit::Interrupted), (StopSignal::Terminate, Exit::Terminated)] {
            let (mut supervisor, start) = cluster(false);
            assert_eq!(supervisor.signal(signal, start), Some(Action::Terminate));
            supervisor.ended(WORKER0, Ending::Exited(143), start);
            assert_eq!(supervisor.due(start + KILL_AFTER), Some(Action::Kill));
            assert_eq!(supervisor.exit(), exit);
        }
        let (mut supervisor, start) = cluster(false);
        supervisor.signal(StopSignal::Interrupt, start);
        assert_eq!(supervisor.signal(StopSignal::Interrupt, start), Some(Action::Kill));
    }
}
