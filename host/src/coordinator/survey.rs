//! Asks servers of a cluster how they are doing, all at once.

use super::resolve::Target;
use crate::client::status::{StatusClient, StatusError};
use crate::error::Result;
use crate::ids::{Caller, RunId};
use crate::status::ServerStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Servers asked at a time: each costs a descriptor and a buffer of an answer.
const ASKED_MAX: usize = 128;

/// What came back from one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Who was asked.
    pub target: Target,
    /// Its answer, or why there is none.
    pub outcome: Result<ServerStatus, StatusError>,
}

/// The servers that are asked, with connections that stay.
#[derive(Clone, Debug)]
pub struct Survey {
    servers: Vec<(Target, StatusClient)>,
    patience: Duration,
    /// Whether a server that isn't there is tried again within the patience.
    again: bool,
}

impl Survey {
    /// Makes a survey that asks in the name of `container`, as a tool, and dials nobody. `again`: a server that isn't there
    /// is tried again until `patience` has passed. Has to be made on the runtime that it is taken on.
    ///
    /// # Errors
    /// `invalid-argument`: an address is no `host:port`.
    pub fn new(targets: Vec<Target>, container: &str, patience: Duration, again: bool) -> Result<Self> {
        let run_id = RunId::draw(&mut rand::rng());
        let caller = Caller { container: container.to_owned(), task: None, run_id, attempt: None };
        let server = |target: Target| Ok((target.clone(), StatusClient::new(&target.address, caller.clone())?));
        Ok(Survey { servers: targets.into_iter().map(server).collect::<Result<_>>()?, patience, again })
    }

    /// Asks every server; answers in the order of the targets. Each has its patience from when it is asked.
    ///
    /// # Cancel safety
    /// Asking has no effect.
    pub async fn take(&self) -> Vec<Seen> {
        let asked = Arc::new(Semaphore::new(ASKED_MAX));
        let mut asking = JoinSet::new();
        for (index, (target, client)) in self.servers.iter().cloned().enumerate() {
            let (asked, patience, again, mut client) = (asked.clone(), self.patience, self.again, client);
            asking.spawn(async move {
                // The semaphore is never closed.
                let _permit = asked.acquire().await;
                let outcome = if again { client.ask_patiently(patience).await } else { client.ask(patience).await };
                (index, Seen { target, outcome })
            });
        }
        let mut seen = asking.join_all().await;
        seen.sort_by_key(|(index, _)| *index);
        seen.into_iter().map(|(_, seen)| seen).collect()
    }
}
