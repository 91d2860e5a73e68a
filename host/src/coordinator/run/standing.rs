//! What stands in a process while its task lives: the server, the leader's service, and the task's half of attend.

use super::stop::{Reason, Stop};
use crate::attend::Registration;
use crate::client::attend::LeaderClient;
use crate::client::probe::Dialer;
use crate::cluster::{ClusterSpec, Task, TaskType};
use crate::context::WorkerContext;
use crate::coordinator::member::{Departure, Member, MemberHandle, MemberOptions};
use crate::coordinator::outcome::{self, Outcome};
use crate::coordinator::resolve::values::EndRule;
use crate::coordinator::resolve::{Listen, Resolved};
use crate::exit::Exit;
use crate::handles::{Attend, OpHost, Probe};
use crate::ids::{Incarnation, RunId};
use crate::lifetime;
use crate::server::cluster::LeaderPart;
use crate::server::guard::{Guard, authorize};
use crate::server::leader::{JobEnd, Leader, LeaderOptions};
use crate::server::{Server, ServerOptions};
use crate::variables::Store;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// How often a server whose job has ended looks whether anybody still uses it.
const SESSIONS_POLL: Duration = Duration::from_millis(50);

/// The parts of a process that live beside its run.
pub(super) struct Standing {
    /// Of the run, or of the process where nothing runs.
    pub(super) run_id: RunId,
    /// The task's half of attend; none where the view has no leader, or the leader has nothing to run.
    pub(super) member: Option<MemberHandle>,
    leader: Mutex<Option<JoinHandle<JobEnd>>>,
    server: Mutex<Option<JoinHandle<()>>>,
    guard: Option<Guard>,
    shutdown: CancellationToken,
}

/// What the parts are made from.
pub(super) struct StandingOptions<'a> {
    pub(super) resolved: &'a Resolved,
    /// Namespace of variables and barriers.
    pub(super) container: &'a str,
    pub(super) task: Task,
    /// A socket that was handed over, instead of one that is bound here.
    pub(super) listener: Option<TcpListener>,
    pub(super) store: &'a Store,
    /// Runs ops for others; none where there is no server.
    pub(super) ops: Option<Arc<dyn OpHost>>,
    /// The sha256 of the module of the run that is to follow.
    pub(super) module_digest: Option<[u8; 32]>,
    /// The context of that run.
    pub(super) run: Option<Arc<WorkerContext>>,
    /// Ends the process where the server ends early.
    pub(super) stop: &'a Stop,
}

impl Standing {
    /// Binds and starts everything.
    ///
    /// # Errors
    /// The address can't be bound, which is worth a retry; anything else of the system's.
    ///
    /// # Cancel safety
    /// It never waits, so that it is done at its first poll.
    pub(super) async fn start(options: StandingOptions<'_>) -> Result<Self, Outcome> {
        let StandingOptions { resolved, container, task, listener, store, ops, module_digest, run, stop } = options;
        let incarnation = Incarnation::draw(&mut rand::rng());
        let run_id = RunId::draw(&mut rand::rng());
        let listener = match (&resolved.listen, listener) {
            (None, _) => None,
            (Some(_), Some(listener)) => Some(listener),
            (Some(listen), None) => Some(bind(task, listen)?),
        };
        let control = Handle::current();
        let shutdown = CancellationToken::new();
        let dialer: Arc<dyn Probe> = Arc::new(Dialer::new(container.to_owned(), run_id, control.clone()));
        let leads = resolved.plan.leader == Some(task);
        let leader = leads.then(|| {
            Leader::new(LeaderOptions {
                lifetime: lifetime::Options {
                    leader: task,
                    incarnation,
                    cluster: resolved.cluster.clone(),
                    mode: run.as_ref().and(resolved.mode),
                    replication: resolved.replication,
                    barrier: resolved.cluster_barrier,
                    module_digest,
                    end: resolved.end,
                    connect_timeout: resolved.connect_timeout,
                    rejoin_timeout: resolved.rejoin_timeout,
                    evaluator_grace: resolved.evaluator_grace,
                },
                probe: dialer.clone(),
            })
        });
        let leader_handle = leader.as_ref().map(|(_, handle)| handle.clone());
        let (server, guard) = match listener {
            Some(listener) => {
                let part = leader_handle.clone().map(|leader| LeaderPart::new(leader, container));
                let server = serve(resolved, task, incarnation, listener, store, part, ops);
                let (server, guard) = server.map_err(|error| {
                    Outcome::failed(Exit::Files, format!("the server of {task} doesn't start: {error}"))
                })?;
                (Some(watched(server.run(shutdown.clone()), shutdown.clone(), stop.clone())), Some(guard))
            }
            None => (None, None),
        };
        let leader = leader.map(|(leader, _)| tokio::spawn(leader.run(shutdown.clone())));
        let registration = Registration {
            task,
            incarnation,
            run_id,
            attempt: None,
            mode: resolved.mode,
            replication: resolved.replication,
            barrier: resolved.cluster_barrier,
            module_digest,
            cluster: without_evaluators(&resolved.cluster),
        };
        let member = resolved.plan.leader.filter(|_| !leads || run.is_some()).map(|leader| {
            let address = resolved.cluster.address(leader).unwrap_or_default().to_owned();
            let (attend, probe): (Arc<dyn Attend>, _) = match leader_handle {
                Some(handle) => (Arc::new(handle), None),
                None => {
                    let client = LeaderClient::new(leader, address.clone(), container.to_owned(), control);
                    (Arc::new(client), Some((dialer, address)))
                }
            };
            let (member, handle) = Member::new(MemberOptions {
                registration,
                leader,
                attend,
                probe,
                stay: run.is_none() && resolved.end == EndRule::Never,
                context: run,
                connect_timeout: resolved.connect_timeout,
                rejoin_timeout: resolved.rejoin_timeout,
            });
            tokio::spawn(member.run(shutdown.clone()));
            if let Some(guard) = &guard {
                tokio::spawn(adopt(guard.clone(), container.to_owned(), handle.clone(), shutdown.clone()));
            }
            handle
        });
        Ok(Standing { run_id, member, leader: Mutex::new(leader), server: Mutex::new(server), guard, shutdown })
    }

    /// Waits until a task that only serves may leave. Never ends where there is no leader to say so.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub(super) async fn joined(&self, resolved: &Resolved) -> Outcome {
        let Some(member) = &self.member else { return std::future::pending().await };
        let departure = member.job_ended().await;
        let exit = Exit::from_code(departure.exit_code()).unwrap_or(Exit::Bug);
        match departure {
            Departure::JobEnded { cause: None } => {
                self.sessions_ended().await;
                info!("the job has ended well");
                Outcome::done()
            }
            Departure::JobEnded { cause: Some(cause) } => {
                Outcome::failed(exit, format!("the job has failed: {}: {}", cause.task, cause.message))
            }
            Departure::LeaderLost { error } => Outcome::failed(exit, error.to_string()),
            Departure::Refused(error) => match resolved.plan.leader {
                Some(leader) => {
                    let address = resolved.cluster.address(leader).unwrap_or_default();
                    outcome::of_refusal(exit, leader, address, &error)
                }
                None => Outcome::failed(exit, format!("{error:?}")),
            },
            Departure::ShutDown => Outcome::done(),
        }
    }

    /// Waits until nobody has a session here: a run outside the leader's view may still need the variables.
    async fn sessions_ended(&self) {
        let Some(guard) = &self.guard else { return };
        while !guard.sessions().list().is_empty() {
            tokio::time::sleep(SESSIONS_POLL).await;
        }
    }

    /// Waits until the task whose run ended with `own` may leave: the leader last of all, others at once.
    ///
    /// # Cancel safety
    /// A dropped call leaves the leader's service running; a later one doesn't wait for it.
    pub(super) async fn job_ended(&self, own: Outcome) -> Outcome {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(leader) = leader else { return own };
        match leader.await {
            Ok(end) => {
                let exit = Exit::from_code(end.exit_code(own.exit.code())).unwrap_or(Exit::Bug);
                match (end.cause, own) {
                    (Some(cause), Outcome { exit: Exit::Done, .. }) if exit != Exit::Done => {
                        Outcome::failed(exit, format!("the job has failed: {}: {}", cause.task, cause.message))
                    }
                    (_, own) => own,
                }
            }
            Err(error) => Outcome::failed(
                Exit::Bug,
                format!("the leader's service failed: {error}; a bug in dchost, please report it"),
            ),
        }
    }

    /// Ends the server and everything else, and waits until calls have been answered.
    ///
    /// # Cancel safety
    /// Once polled, all of it ends whether or not anybody waits; a second call doesn't wait.
    pub(super) async fn end(&self) {
        self.shutdown.cancel();
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(server) = server {
            // It doesn't panic: it tells of those of the server.
            let _ = server.await;
        }
    }

    /// Ends the server and everything else without waiting.
    pub(super) fn cut(&self) {
        self.shutdown.cancel();
    }
}

/// Runs a server on a task of its own. One that ends before `shutdown`, however, ends the process: a task that nobody can
/// reach would only be found lost by the others, and they would blame the network.
fn watched<E: std::fmt::Display + Send + 'static>(
    server: impl Future<Output = Result<(), E>> + Send + 'static,
    shutdown: CancellationToken,
    stop: Stop,
) -> JoinHandle<()> {
    let server = tokio::spawn(async move { server.await.map_err(|error| error.to_string()) });
    tokio::spawn(async move {
        let (early, end) = match server.await {
            Ok(Ok(())) => (!shutdown.is_cancelled(), "it takes no connections any more".to_owned()),
            Ok(Err(error)) => (!shutdown.is_cancelled(), error),
            Err(error) => (true, error.to_string()),
        };
        if early {
            tracing::error!("the server ended by itself: {end}");
            stop.stop(Reason::ServerEnded(end));
        }
    })
}

/// Tells the server of each attempt, so that what was stored for the one before is gone before the first call.
async fn adopt(guard: Guard, container: String, member: MemberHandle, shutdown: CancellationToken) {
    let mut attempts = member.attempts();
    loop {
        let attempt = *attempts.borrow_and_update();
        // A leader that only serves has no job, and so no say in what a client does in a container.
        let leads_job = attempt.is_some() && member.registered().await.is_ok_and(|leader| leader.mode.is_some());
        if let Some(attempt) = attempt
            && leads_job
            && let Err(error) = guard.adopt(&container, attempt)
        {
            tracing::warn!("this server keeps to the attempt before: {error}");
        }
        tokio::select! {
            changed = attempts.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// Binds the address where the task's server listens.
fn bind(task: Task, listen: &Listen) -> Result<TcpListener, Outcome> {
    let mut last = None;
    for address in listen.addresses() {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                let in_use = error.kind() == io::ErrorKind::AddrInUse;
                last = Some((address, error));
                if in_use {
                    break;
                }
            }
        }
    }
    let Some((address, error)) = last else {
        return Err(Outcome::failed(Exit::Bug, "there is no address to listen on; a bug in dchost, please report it"));
    };
    let mend = match error.kind() {
        io::ErrorKind::AddrInUse => "another process has the port, perhaps another start of this task",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has the address, see --bind",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege",
        _ => "see --bind",
    };
    Err(Outcome::failed(Exit::Bind, format!("{task} can't listen on `{address}`: {error}; {mend}")))
}

/// Makes the server with its services.
fn serve(
    resolved: &Resolved,
    task: Task,
    incarnation: Incarnation,
    listener: TcpListener,
    store: &Store,
    leader: Option<LeaderPart>,
    ops: Option<Arc<dyn OpHost>>,
) -> io::Result<(Server, Guard)> {
    let server = Server::new(ServerOptions {
        task,
        incarnation,
        listener,
        cluster: resolved.cluster.clone(),
        leader,
        store: store.clone(),
        rejoin_timeout: resolved.rejoin_timeout,
        ops,
        authorize: Arc::new(authorize),
    })?;
    let guard = server.guard();
    info!("{task} serves on {} as incarnation {incarnation}", server.local_addr());
    Ok((server, guard))
}

/// What registrations compare: operators list evaluators for everyone, only for themselves, or for nobody.
fn without_evaluators(cluster: &ClusterSpec) -> ClusterSpec {
    let mut view = ClusterSpec::new();
    for (task, address) in cluster.iter().filter(|(task, _)| task.job != TaskType::Evaluator) {
        view.insert(task, address);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::BoxFuture;

    #[tokio::test]
    async fn a_server_that_ends_early_ends_the_process() {
        let ends: [(&str, BoxFuture<'static, Result<(), String>>); 3] = [
            ("no connections", Box::pin(async { Ok(()) })),
            ("accept", Box::pin(async { Err("accept failed".to_owned()) })),
            ("panicked", Box::pin(async { panic!("on purpose") })),
        ];
        for (text, server) in ends {
            let stop = Stop::new();
            watched(server, CancellationToken::new(), stop.clone()).await.expect("the watch doesn't panic");
            let reason = stop.wait().await;
            assert_eq!((reason.exit(), reason.is_leaving()), (Exit::Bug, false));
            assert!(reason.text().contains(text), "{}", reason.text());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_shut_down_ends_nothing() {
        let (stop, shutdown) = (Stop::new(), CancellationToken::new());
        let wait = shutdown.clone();
        let server = async move {
            wait.cancelled().await;
            Err("a connection outlasted it".to_owned())
        };
        let watch = watched(server, shutdown.clone(), stop.clone());
        shutdown.cancel();
        watch.await.expect("the watch doesn't panic");
        assert!(tokio::time::timeout(Duration::from_secs(3600), stop.wait()).await.is_err());
    }
}
