//! From a plan to its effects: the one place that says which part of a plan is carried out how.
//!
//! The effects themselves are behind a trait, [`Effects`]: a process has its own (`run`), and a program that wants to see
//! what a plan comes to, without a socket or a component, can bring others.

use super::outcome::Outcome;
use super::plan::{Plan, ServerPlan};
use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::exit::Exit;
use std::sync::Arc;

/// What a coordinator does to the world. [`execute`] calls exactly one of these, once.
pub trait Effects {
    /// Starts the server and serves until the job has ended; nothing runs here.
    fn join(&self, server: &ServerPlan) -> impl Future<Output = Outcome>;

    /// Starts the server, if there is one (an evaluator that isn't listed has none), and runs `worker_fn` beside it.
    fn run_task(
        &self,
        task: Task,
        server: Option<&ServerPlan>,
        context: Arc<WorkerContext>,
    ) -> impl Future<Output = Outcome>;

    /// Runs `worker_fn` without a cluster.
    fn run_local(&self, context: Arc<WorkerContext>) -> impl Future<Output = Outcome>;

    /// Runs `worker_fn` once for each context, all at the same time, without a server of its own.
    fn run_client(&self, contexts: Vec<Arc<WorkerContext>>) -> impl Future<Output = Outcome>;
}

/// Carries out a plan; ends as its effect does.
///
/// # Source
/// The second half of `run_distribute_coordinator` of TensorFlow's `distribute_coordinator.py`: `_run_std_server`,
/// `_run_single_worker`, `_run_between_graph_client` and `_run_in_graph_client`.
///
/// # Cancel safety
/// That of the effects.
pub async fn execute(plan: &Plan, effects: &impl Effects) -> Outcome {
    let contexts: Vec<_> = plan.runs.iter().cloned().map(Arc::new).collect();
    match (&plan.server, contexts.as_slice()) {
        (Some(server), []) => effects.join(server).await,
        (Some(server), [context]) => effects.run_task(server.task, Some(server), context.clone()).await,
        (None, [context]) if context.cluster.is_empty() => effects.run_local(context.clone()).await,
        (None, [_, ..]) if plan.is_client() => effects.run_client(contexts).await,
        // An evaluator that isn't listed.
        (None, [context]) if let Some(task) = context.task => effects.run_task(task, None, context.clone()).await,
        (server, runs) => {
            let server = server.as_ref().map_or_else(|| "no server".to_owned(), |server| server.task.to_string());
            let text = format!("{} runs were planned beside {server}; a bug in dchost, please report it", runs.len());
            Outcome::failed(Exit::Bug, text)
        }
    }
}
