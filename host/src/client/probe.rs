//! Dials a task once, to see whether it lives.

use super::channel::connect::{Failure, FailureKind, channel, failure};
use super::channel::resolver::Resolver;
use crate::cluster::Task;
use crate::handles::{BoxFuture, Probe, ProbeOutcome};
use crate::ids::{Caller, Incarnation, RunId};
use crate::wire::header::{Header, answered_by};
use crate::wire::status::answer;
use crate::wire::v1;
use crate::wire::v1::cluster_client::ClusterClient;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a probe may take, connecting included.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Dials by connecting and asking for a brief status.
#[derive(Clone, Debug)]
pub struct Dialer {
    container: String,
    run_id: RunId,
    runtime: Handle,
}

impl Dialer {
    /// Makes a dialer. It asks in the name of the container, as `run_id`; `runtime` is the control runtime.
    pub fn new(container: impl Into<String>, run_id: RunId, runtime: Handle) -> Self {
        Dialer { container: container.into(), run_id, runtime }
    }

    async fn dial(self, address: String) -> ProbeOutcome {
        let caller = Caller { container: self.container, task: None, run_id: self.run_id, attempt: None };
        match timeout(PROBE_TIMEOUT, ask(&address, caller)).await {
            Ok(Ok(incarnation)) => ProbeOutcome::Answered(incarnation),
            Ok(Err(Failure { kind: FailureKind::Refused, text })) => ProbeOutcome::Refused(text),
            Ok(Err(failure)) => ProbeOutcome::NoAnswer(failure.text),
            Err(_) => ProbeOutcome::NoAnswer(Failure::timed_out(PROBE_TIMEOUT).text),
        }
    }
}

async fn ask(address: &str, caller: Caller) -> Result<Incarnation, Failure> {
    let broken = |text: String| Failure { kind: FailureKind::Broken, text };
    let channel = channel(address, &Resolver::default()).map_err(|error| broken(error.message))?;
    let request = v1::GetStatusRequest { header: Some((&Header::new(caller)).into()), brief: true, row: None };
    let response = ClusterClient::new(channel).get_status(request).await.map_err(|status| {
        let failure = failure(&status).unwrap_or_else(|| {
            // A dchost server that refuses shows that something lives there, but not which incarnation.
            broken(answer(&status).map_or_else(|| status.message().to_owned(), |error| error.to_string()))
        });
        failure.listening()
    })?;
    answered_by(response.into_inner().header.as_ref()).map_err(|error| broken(error.message))
}

impl Probe for Dialer {
    /// Dials once, within 3 s. The connection lives on the control runtime; the future may be polled on any.
    fn probe(&self, _task: Task, address: &str) -> BoxFuture<'_, ProbeOutcome> {
        let dialling = self.runtime.spawn(self.clone().dial(address.to_owned()));
        Box::pin(async move {
            dialling.await.unwrap_or_else(|_| ProbeOutcome::NoAnswer("the control runtime is stopping".into()))
        })
    }
}
