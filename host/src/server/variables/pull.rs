//! Reads: waits for versions, and values as whole snapshots or piece by piece.

use super::{PullStream, VariablesService, off_thread};
use crate::error::Result;
use crate::server::guard::Admitted;
use crate::variables::{Consistency, Container, RelaxedValue, Snapshot, VariableRef};
use crate::wire::v1;
use crate::wire::variables::{consistency, variables};
use std::future::ready;
use tonic::Status;

impl VariablesService {
    /// Answers a read once each of its variables has the version that it asks for, as long as its session lasts. What is read here
    /// is the present value, which is young enough for any `max_age_ms`.
    pub(super) async fn pull_stream(&self, admitted: Admitted, request: v1::PullRequest) -> Result<PullStream, Status> {
        let consistency = consistency(request.consistency)?;
        let variables = variables(request.variable)?;
        let container = self.open(&admitted.caller)?;
        let min_version = request.min_version.unwrap_or_default();
        match consistency {
            Consistency::Atomic => {
                let read = || pull(&container, &variables);
                let snapshots =
                    container.read_at_least(&variables, min_version, |value: &Snapshot| value.version, read);
                let snapshots = admitted.run(snapshots).await?;
                Ok(self.send(admitted, snapshots))
            }
            Consistency::Relaxed => {
                let read = || ready(container.relaxed_read(&variables));
                let values = container.read_at_least(&variables, min_version, RelaxedValue::version, read);
                let values = admitted.run(values).await?;
                Ok(self.send_relaxed(admitted, values))
            }
        }
    }
}

/// Reads values; where one is being updated, waits for it on another thread.
pub(super) async fn pull(container: &Container, variables: &[VariableRef]) -> Result<Vec<Snapshot>> {
    if let Some(snapshots) = container.try_pull(variables)? {
        return Ok(snapshots);
    }
    let (container, variables) = (container.clone(), variables.to_vec());
    off_thread(move || container.pull(&variables)).await
}
