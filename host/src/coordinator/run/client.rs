//! A split client: every run of `worker_fn` in this process, beside each other, on standard servers that know nothing of it.

use super::guest::{Dump, Ended};
use super::stop::{Reason, Stop};
use super::{CLOSE_TIMEOUT, Process, Reach};
use crate::client::channel::{Connections, Peers};
use crate::context::WorkerContext;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::siblings::{CLIENT, Sibling, Siblings, SiblingsOptions};
use crate::exit::Exit;
use crate::ids::{Attempt, Caller, ClientUse, Incarnation, RunId};
use crate::runtime::Module;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Runs that share their connections to each task: a connection carries 1024 calls at once, of which each run's session is
/// one and the rest are for data.
const RUNS_PER_CONNECTION: usize = 128;

impl Process {
    /// Runs `worker_fn` once for each context, all at the same time. The process owns the attempts, as a leader does.
    pub(super) async fn run_client(
        self: &Arc<Self>,
        module: &Module,
        contexts: &[Arc<WorkerContext>],
        stop: &Stop,
    ) -> Outcome {
        let leader = Incarnation::draw(&mut rand::rng());
        let (runs, container) = (contexts.len(), &self.container);
        info!("split client with {runs} runs of worker_fn, in container `{container}`");
        self.attempts(async |number| self.run_siblings(module, contexts, Attempt { leader, number }, stop).await, stop)
            .await
    }

    /// One attempt: all runs, until the last has ended.
    async fn run_siblings(
        self: &Arc<Self>,
        module: &Module,
        contexts: &[Arc<WorkerContext>],
        attempt: Attempt,
        stop: &Stop,
    ) -> Ended {
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
        let mut runs = JoinSet::new();
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
                console: if context.task.is_some() { self.console.of_run(task) } else { self.console.clone() },
                name: task.to_string(),
                attempt: attempt.number,
            };
            let (process, module, context, stop) = (self.clone(), module.clone(), context.clone(), stop.clone());
            runs.spawn(async move {
                let (ended, dump) = process.run_guest(&module, context, reach, &stop).await;
                (seat, ended, dump)
            });
        }
        let (ends, dumps) = ends(runs, &siblings).await;
        for dump in dumps {
            // Its memory has to go before the next attempt has its own.
            dump.finish(stop).await;
        }
        // Only now: with its last session a server deletes the client's container.
        close(peers).await;
        ends.verdict()
    }
}

/// How the runs of an attempt ended.
#[derive(Default)]
struct Ends {
    /// The first failure of a chief, worker or driver.
    first: Option<Outcome>,
    /// The failure of the evaluator, which fails nobody else.
    evaluator: Option<Outcome>,
    /// What ended the process, with the end of a run that it met first.
    stopped: Option<(Reason, Outcome)>,
}

/// Waits for every run, and tells the others of each end.
async fn ends(mut runs: JoinSet<(usize, Ended, Option<Dump>)>, siblings: &[Sibling]) -> (Ends, Vec<Dump>) {
    let (mut ends, mut dumps) = (Ends::default(), Vec::new());
    while let Some(joined) = runs.join_next().await {
        let (seat, ended, dump) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                let text = format!("a run's task failed: {error}; a bug in dchost, please report it");
                ends.first.get_or_insert(Outcome::failed(Exit::Bug, text));
                continue;
            }
        };
        dumps.extend(dump);
        let sibling = &siblings[seat];
        let task = sibling.task();
        match ended {
            Ended::Run(outcome) => {
                let failed_before = sibling.cause().is_some();
                sibling.ended(outcome.report(false));
                match &outcome.message {
                    _ if outcome.exit == Exit::Done => debug!("the run of {task} has ended"),
                    Some(message) if failed_before && !sibling.is_evaluator() => {
                        let line = message.lines().last().unwrap_or_default();
                        warn!("{task}: {line}");
                    }
                    _ if sibling.is_evaluator() => ends.evaluator = Some(of_task(&task.to_string(), outcome)),
                    _ => ends.first = Some(of_task(&task.to_string(), outcome)),
                }
            }
            Ended::Stopped(reason, outcome) => {
                sibling.ended(outcome.report(reason.is_leaving()));
                ends.stopped.get_or_insert((reason, of_task(&task.to_string(), outcome)));
            }
        }
    }
    (ends, dumps)
}

impl Ends {
    /// What the attempt comes to.
    fn verdict(self) -> Ended {
        match self {
            Ends { stopped: Some((reason, outcome)), .. } => Ended::Stopped(reason, outcome),
            Ends { first: Some(outcome), .. } | Ends { evaluator: Some(outcome), .. } => Ended::Run(outcome),
            Ends { .. } => Ended::Run(Outcome::done()),
        }
    }
}

/// Says whose end it is.
fn of_task(task: &str, outcome: Outcome) -> Outcome {
    Outcome { message: outcome.message.map(|message| format!("{task}: {message}")), ..outcome }
}

/// Ends the sessions of all runs.
async fn close(peers: Vec<Peers>) {
    let mut closing = JoinSet::new();
    for peers in peers {
        closing.spawn(async move { peers.close().await });
    }
    let _ = timeout(CLOSE_TIMEOUT, closing.join_all()).await;
}
