//! The tasks of a launched cluster, each with its listening socket.

use super::{LaunchError, LaunchOptions};
use crate::cluster::{Task, TaskType};
use serde_json::{Map, Value};
use std::net::{Ipv4Addr, TcpListener};

/// A cluster whose ports are bound.
pub(super) struct Layout {
    /// The cluster spec as JSON.
    pub(super) cluster: String,
    /// Every task with its socket, the leader first.
    pub(super) listeners: Vec<(Task, TcpListener)>,
}

impl Layout {
    /// Binds a port of loopback for each task.
    pub(super) fn bind(options: &LaunchOptions) -> Result<Self, LaunchError> {
        let jobs = [
            (TaskType::Chief, u32::from(options.chief)),
            (TaskType::Worker, options.workers),
            (TaskType::Ps, options.ps),
            (TaskType::Evaluator, u32::from(options.evaluator)),
        ];
        let mut listeners = Vec::new();
        let mut cluster = Map::new();
        for (job, count) in jobs.into_iter().filter(|&(_, count)| count > 0) {
            let mut addresses = Vec::new();
            for task in (0..count).map(|index| Task::new(job, index)) {
                let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
                let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
                let (address, listener) = bound.map_err(|source| LaunchError::Bind { task, source })?;
                addresses.push(Value::from(address.to_string()));
                listeners.push((task, listener));
            }
            cluster.insert(job.as_str().to_owned(), Value::from(addresses));
        }
        Ok(Layout { cluster: Value::Object(cluster).to_string(), listeners })
    }
}
