//! A split client: every run of `worker_fn` in this process, beside each other, on standard servers that know nothing of it.

use super::attempts::Tried;
use super::guest::{Dump, Ended};
use super::stop::Reason;
use super::{CLOSE_TIMEOUT, Process, Reach};
use crate::client::channel::{Connections, Peers};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::siblings::{CLIENT, Sibling, Siblings, SiblingsOptions};
use crate::exit::Exit;
use crate::ids::{Attempt, Caller, ClientUse, Incarnation, RunId};
use crate::runtime::Module;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use tokio::task::{Id, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Runs that share their connections to each task: a connection carries 1024 calls at once, of which each run's session is
/// one and the rest are for data.
const RUNS_PER_CONNECTION: usize = 128;

/// Runs whose place is told when the process has to end: more would bury why it had to.
const RUNS_SHOWN_MAX: usize = 8;

impl Process {
    /// Runs `worker_fn` once for each context, all at the same time. The process owns the attempts, as a leader does.
    ///
    /// # Cancel safety
    /// The runs' tasks are dropped with it, and their guests go on unheard; no attempt follows.
    pub(super) async fn run_client(self: &Arc<Self>, module: &Module, contexts: &[Arc<WorkerContext>]) -> Outcome {
        let leader = Incarnation::draw(&mut rand::rng());
        let runs = match contexts.len() {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        };
        info!("split client with {runs} of worker_fn, in container `{}`", self.container);
        self.attempts(async |number| self.run_siblings(module, contexts, Attempt { leader, number }).await).await
    }

    /// One attempt: all runs, until the last has ended.
    async fn run_siblings(
        self: &Arc<Self>,
        module: &Module,
        contexts: &[Arc<WorkerContext>],
        attempt: Attempt,
    ) -> Tried {
        let (clock, siblings) = Siblings::new(SiblingsOptions {
            contexts: contexts.to_vec(),
            attempt: attempt.number,
            end: self.resolved.end,
            evaluator_grace: self.resolved.evaluator_grace,
        });
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        tokio::spawn(clock.run(over));
        // A client that shares its container has no say in when its content ends.
        let (client_use, told) = if self.resolved.share_container {
            (ClientUse::Shared, None)
        } else {
            (ClientUse::Exclusive, Some(attempt))
        };
        let mut connections = Connections::default();
        let mut peers = Vec::with_capacity(siblings.len());
        let mut runs = Runs::default();
        for (seat, (sibling, context)) in siblings.iter().zip(contexts).enumerate() {
            if seat % RUNS_PER_CONNECTION == 0 {
                connections = Connections::default();
            }
            let caller = Caller {
                container: self.container.clone(),
                task: context.task,
                run_id: RunId::draw(&mut rand::rng()),
                attempt: told,
            };
            let run_peers = self.peers(caller, Some(client_use), &connections);
            peers.push(run_peers.clone());
            let task = context.task.unwrap_or(CLIENT);
            let reach = Reach {
                overseer: Arc::new(sibling.clone()),
                peers: Some(run_peers),
                // Nothing is stored in a client.
                local: self.local_variables(&self.store(), None),
                name: task.to_string(),
                attempt: attempt.number,
            };
            let (process, module, context) = (self.clone(), module.clone(), context.clone());
            let run = runs.set.spawn(async move { process.run_guest(&module, context, reach).await });
            runs.seats.insert(run.id(), seat);
        }
        let (ends, dumps) = ends(runs, &siblings).await;
        for dump in dumps {
            // Its memory has to go before the next attempt has its own.
            dump.finish(&self.stop).await;
        }
        // Only now: with its last session a server deletes the client's container.
        close(peers).await;
        ends.verdict()
    }
}

/// The tasks of an attempt's runs.
#[derive(Default)]
struct Runs {
    set: JoinSet<(Ended, Option<Dump>)>,
    /// Which run each of them is.
    seats: HashMap<Id, usize>,
}

/// How the runs of an attempt ended.
#[derive(Default)]
struct Ends {
    /// The first failure of a chief, worker or driver.
    first: Option<Outcome>,
    /// The failure of the evaluator, which fails nobody else.
    evaluator: Option<Outcome>,
    /// What ended the process, and where each run was then, as its outcome tells.
    stopped: Option<(Reason, Vec<(Task, Outcome)>)>,
}

/// Waits for every run, and tells the others of each end.
async fn ends(mut runs: Runs, siblings: &[Sibling]) -> (Ends, Vec<Dump>) {
    let (mut ends, mut dumps) = (Ends::default(), Vec::new());
    while let Some(joined) = runs.set.join_next_with_id().await {
        let (run, ended, dump) = match joined {
            Ok((run, (ended, dump))) => (run, ended, dump),
            Err(error) => {
                let text = format!("the run's task failed: {error}; a bug in dchost, please report it");
                // The others hear of it as of any other end: they may wait for this run.
                (error.id(), Ended::Run(Outcome::failed(Exit::Bug, text)), None)
            }
        };
        dumps.extend(dump);
        let sibling = &siblings[runs.seats[&run]];
        match ended {
            Ended::Run(outcome) => {
                // Those who end after a stop, and by it, are to blame for nothing either.
                let failed_before = sibling.cause().is_some() || ends.stopped.is_some();
                sibling.ended(outcome.report(false));
                ends.run(sibling, outcome, failed_before, runs.set.is_empty());
            }
            Ended::Stopped(reason, outcome) => {
                sibling.ended(outcome.report(reason.is_leaving()));
                ends.stopped.get_or_insert((reason, Vec::new())).1.push((sibling.task(), outcome));
            }
        }
    }
    (ends, dumps)
}

impl Ends {
    /// Notes how a run ended by itself. What is a cause is told when the process ends, and at once where that takes longer.
    fn run(&mut self, sibling: &Sibling, outcome: Outcome, failed_before: bool, is_last: bool) {
        let task = sibling.task();
        let Some(message) = outcome.message.as_deref() else {
            debug!("the run of {task} has ended");
            return;
        };
        let line = if failed_before { message.lines().last() } else { message.lines().next() }.unwrap_or_default();
        if sibling.is_evaluator() {
            if !is_last {
                warn!("the run of {task} has failed, the others go on: {line}");
            }
            self.evaluator = Some(of_task(task, outcome));
        } else if failed_before {
            warn!("{task}: {line}");
        } else {
            if !is_last {
                warn!("the run of {task} has failed, the others are told to end: {line}");
            }
            self.first = Some(of_task(task, outcome));
        }
    }

    /// What the attempt comes to.
    fn verdict(self) -> Tried {
        match self {
            // A failure stands, whatever ends the wait for the others; who makes attempts looks whether the process has to end.
            Ends { first: Some(outcome), .. } => Tried::Ended(outcome),
            Ends { stopped: Some((reason, runs)), .. } => Tried::Over(stopped(&reason, runs)),
            // An evaluator's end never ends an attempt: the training has ended well, and once is enough.
            Ends { evaluator: Some(outcome), .. } => Tried::Over(outcome),
            Ends { .. } => Tried::Ended(Outcome::done()),
        }
    }
}

/// What to tell of a process that had to end: why, and where its runs were, which no run is to blame for.
fn stopped(reason: &Reason, mut runs: Vec<(Task, Outcome)>) -> Outcome {
    if let [(_, _)] = runs.as_slice() {
        return runs.remove(0).1;
    }
    runs.sort_unstable_by_key(|(task, _)| *task);
    let why = reason.text();
    let mut text = why.clone();
    for (task, outcome) in runs.iter().take(RUNS_SHOWN_MAX) {
        let message = outcome.message.as_deref().unwrap_or_default();
        let place = message.strip_prefix(&why).unwrap_or(message).trim_start_matches("; ");
        let _ = write!(text, "\n{task}: {place}");
    }
    if let more @ 1.. = runs.len().saturating_sub(RUNS_SHOWN_MAX) {
        let _ = write!(text, "\nand {more} more");
    }
    Outcome::failed(reason.exit(), text)
}

/// Says whose end it is, where that isn't the process itself.
fn of_task(task: Task, outcome: Outcome) -> Outcome {
    match outcome.message {
        Some(message) if task != CLIENT => Outcome { message: Some(format!("{task}: {message}")), ..outcome },
        _ => outcome,
    }
}

/// Ends the sessions of all runs.
async fn close(peers: Vec<Peers>) {
    let mut closing = JoinSet::new();
    for peers in peers {
        closing.spawn(async move { peers.close().await });
    }
    let _ = timeout(CLOSE_TIMEOUT, closing.join_all()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterSpec, TaskType};
    use crate::coordinator::resolve::values::EndRule;
    use crate::handles::Job as _;
    use expect_test::{Expect, expect};
    use std::time::Duration;

    fn check(runs: u32, expected: Expect) {
        let reason = Reason::Terminated;
        let run = |index| {
            let outcome = Outcome::failed(reason.exit(), format!("{}; the guest was computing", reason.text()));
            (Task::new(TaskType::Worker, index), outcome)
        };
        let outcome = stopped(&reason, (0..runs).rev().map(run).collect());
        assert_eq!(outcome.exit, Exit::Terminated);
        expected.assert_eq(&outcome.message.expect("it tells why"));
    }

    #[test]
    fn a_process_that_had_to_end_blames_none_of_its_runs() {
        check(1, expect!["ended by SIGTERM; the guest was computing"]);
        check(
            2,
            expect![[r#"
                ended by SIGTERM
                worker:0: the guest was computing
                worker:1: the guest was computing"#]],
        );
        check(
            300,
            expect![[r#"
                ended by SIGTERM
                worker:0: the guest was computing
                worker:1: the guest was computing
                worker:2: the guest was computing
                worker:3: the guest was computing
                worker:4: the guest was computing
                worker:5: the guest was computing
                worker:6: the guest was computing
                worker:7: the guest was computing
                and 292 more"#]],
        );
    }

    #[test]
    fn an_evaluators_failure_comes_last_and_is_not_tried_again() {
        let failed = |exit| Some(Outcome::failed(exit, "it failed"));
        let ends = Ends { evaluator: failed(Exit::WorkerError), ..Ends::default() };
        let Tried::Over(outcome) = ends.verdict() else { panic!("nothing follows it") };
        assert_eq!(outcome.exit, Exit::WorkerError);
        let ends = Ends { evaluator: failed(Exit::WorkerError), first: failed(Exit::Trap), ..Ends::default() };
        let Tried::Ended(outcome) = ends.verdict() else { panic!("a run's failure may be tried again") };
        assert_eq!(outcome.exit, Exit::Trap);
        assert!(matches!(Ends::default().verdict(), Tried::Ended(outcome) if outcome.exit == Exit::Done));
    }

    #[test]
    fn a_failure_stands_where_the_process_has_to_end_before_the_others_have() {
        let stopped = || {
            let reason = Reason::Timeout(Duration::from_secs(5));
            let outcome = Outcome::failed(reason.exit(), reason.text());
            Some((reason, vec![(Task::new(TaskType::Worker, 0), outcome)]))
        };
        let first = Some(Outcome::failed(Exit::Trap, "worker:1: trapped"));
        let ends = Ends { first, stopped: stopped(), ..Ends::default() };
        assert!(matches!(ends.verdict(), Tried::Ended(outcome) if outcome.exit == Exit::Trap));
        let ends = Ends { stopped: stopped(), ..Ends::default() };
        assert!(matches!(ends.verdict(), Tried::Over(outcome) if outcome.exit == Exit::Timeout));
    }

    /// Two workers of a client.
    fn workers() -> Vec<Sibling> {
        let context = |index| {
            Arc::new(WorkerContext {
                cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]),
                task: Some(Task::new(TaskType::Worker, index)),
                master_target: String::new(),
                num_workers: 2,
                is_chief: index == 0,
                distributed_mode: true,
                has_barrier: true,
            })
        };
        let contexts = [0, 1].map(context).to_vec();
        let (end, evaluator_grace) = (EndRule::AllDone, Duration::from_secs(60));
        Siblings::new(SiblingsOptions { contexts, attempt: 0, end, evaluator_grace }).1
    }

    /// Aim: whatever ends a run's task, nobody waits for the run any more. Method: one panics, which none should, while the
    /// other is at a barrier.
    #[tokio::test(start_paused = true)]
    async fn a_run_whose_task_panics_is_a_bug_and_the_others_hear_of_it() {
        let siblings = workers();
        let waits = siblings[0].clone();
        let mut runs = Runs::default();
        let waiting = runs.set.spawn(async move {
            let error = waits.barrier("", None).await.expect_err("the other is gone");
            (Ended::Run(Outcome::failed(Exit::PeerFailed, error.to_string())), None)
        });
        let panics = runs.set.spawn(async { panic!("on purpose") });
        runs.seats = HashMap::from([(waiting.id(), 0), (panics.id(), 1)]);
        let (ends, _) = timeout(Duration::from_secs(3600), ends(runs, &siblings)).await.expect("nobody waits");
        let Tried::Ended(outcome) = ends.verdict() else { panic!("nobody has stopped it") };
        assert_eq!(outcome.exit, Exit::Bug);
        assert!(outcome.message.is_some_and(|text| text.starts_with("worker:1: the run's task failed")));
    }
}
