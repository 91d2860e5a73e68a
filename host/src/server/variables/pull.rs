//! Reads: waits for versions, and values as whole snapshots or piece by piece.

use super::{PullStream, VariablesService, off_thread};
use crate::error::Result;
use crate::server::guard::Admitted;
use crate::variables::{Consistency, Container, RelaxedValue, Snapshot, VariableRef};
use crate::wire::v1;
use crate::wire::variables::{consistency, variables};
use tonic::Status;

impl VariablesService {
    /// Answers a read once each of its variables has the version that it asks for, as long as its session lasts. What is read here
    /// is the present value, which is young enough for any `max_age_ms`.
    pub(super) async fn pull_stream(&self, admitted: Admitted, request: v1::PullRequest) -> Result<PullStream, Status> {
        let consistency = consistency(request.consistency)?;
        let variables = variables(request.variable)?;
        let container = self.open(&admitted.caller)?;
        let min_version = request.min_version.unwrap_or_default();
        if consistency == Consistency::Relaxed {
            let values = admitted.run(relaxed_at_least(&container, &variables, min_version)).await?;
            return Ok(self.send_relaxed(admitted, values));
        }
        let snapshots = admitted.run(pull_at_least(&container, &variables, min_version)).await?;
        Ok(self.send(admitted, snapshots))
    }
}

/// Begins to read values that have at least a version; waits until they do.
async fn relaxed_at_least(
    container: &Container,
    variables: &[VariableRef],
    min_version: u64,
) -> Result<Vec<RelaxedValue>> {
    loop {
        container.wait_versions(variables, min_version).await?;
        let values = container.relaxed_read(variables)?;
        // One that was deleted and set anew in between begins at version 1.
        if values.iter().all(|value| value.version() >= min_version) {
            return Ok(values);
        }
    }
}

/// Reads values that have at least a version; waits until they do.
async fn pull_at_least(container: &Container, variables: &[VariableRef], min_version: u64) -> Result<Vec<Snapshot>> {
    loop {
        if min_version > 0 {
            container.wait_versions(variables, min_version).await?;
        }
        let snapshots = pull(container, variables).await?;
        if snapshots.iter().all(|snapshot| snapshot.version >= min_version) {
            return Ok(snapshots);
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
