//! Ops of a run: which task runs them, and who may start any.

use crate::client::channel::Peers;
use crate::client::ops::{Component, RemoteOps};
use crate::cluster::{Task, list_tasks};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, OpCall, Ops, RemoteValue, StartedOp};
use crate::sync::lock;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The ops of a run on the tasks of its cluster, its own task too: every server runs them alike.
pub struct PlacedOps {
    peers: Peers,
    component: Arc<Component>,
    tasks: Mutex<HashMap<Task, RemoteOps>>,
}

impl PlacedOps {
    /// Makes a run's view; reaches no task.
    pub fn new(peers: Peers, component: Arc<Component>) -> Self {
        PlacedOps { peers, component, tasks: Mutex::default() }
    }

    /// The ops of `task`; `what` needs it.
    fn on(&self, task: Task, what: impl FnOnce() -> String) -> Result<RemoteOps> {
        let cluster = self.peers.cluster();
        if !cluster.contains(task) {
            let tasks: Vec<_> = cluster.iter().map(|(task, _)| task).collect();
            let message = format!("{} {task}: the cluster has only {}", what(), list_tasks(&tasks));
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]));
        }
        let make = || RemoteOps::new(self.peers.clone(), task, self.component.clone());
        Ok(lock(&self.tasks).entry(task).or_insert_with(make).clone())
    }
}

impl Ops for PlacedOps {
    fn start(&self, task: Task, call: OpCall) -> Result<Box<dyn StartedOp>> {
        self.on(task, || format!("op `{}` can't run on", call.op))?.start(call)
    }

    fn fetch(&self, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        match self.on(value.task, || "no value is kept on".to_owned()) {
            Ok(task) => task.fetch(value),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn release(&self, value: RemoteValue) {
        // One that was made here names a task of the cluster.
        if let Ok(task) = self.on(value.task, String::new) {
            task.release(&value);
        }
    }
}

/// Ops of a run that can start none; says why.
#[derive(Clone, Debug)]
pub struct NoOps(Error);

impl NoOps {
    /// Of a local run, which has no tasks.
    pub fn local() -> Self {
        NoOps(Error::new(
            ErrorCode::FailedPrecondition,
            "no ops in a local run, which has no other tasks: call the function itself",
        ))
    }

    /// Of a component that came as compiled code only.
    pub fn precompiled() -> Self {
        let text = "no ops of a precompiled component, which can't travel to other tasks: run the component itself";
        NoOps(Error::new(ErrorCode::FailedPrecondition, text))
    }

    /// Of an op: what it started would have nobody to end it.
    pub fn within_op() -> Self {
        NoOps(Error::new(
            ErrorCode::FailedPrecondition,
            "an op can't start ops: return, and let worker_fn start the next",
        ))
    }
}

impl Ops for NoOps {
    fn start(&self, _task: Task, _call: OpCall) -> Result<Box<dyn StartedOp>> {
        Err(self.0.clone())
    }

    fn fetch(&self, _value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        let error = self.0.clone();
        Box::pin(async { Err(error) })
    }

    fn release(&self, _value: RemoteValue) {}
}
