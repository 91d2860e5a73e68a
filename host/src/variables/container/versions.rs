//! Waits for versions.

use super::Container;
use crate::error::Result;
use crate::variables::VariableRef;

impl Container {
    /// Waits until each of these has at least this version. Writers pay for it while somebody waits only.
    ///
    /// # Errors
    /// `uninitialized` with the names: one has no value, also where it was deleted meanwhile; `invalid-argument`: another type;
    /// `aborted`: the container is over. As soon as one holds.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn wait_versions(&self, variables: &[VariableRef], version: u64) -> Result<()> {
        // Subscribed before the look, so that no delete falls between both.
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let behind = self.cells(variables)?.into_iter().find(|cell| cell.news().version() < version);
            // The variable itself isn't kept: it may be deleted.
            let Some(news) = behind.map(|cell| cell.news().clone()) else { return Ok(()) };
            tokio::select! {
                () = news.reached(version) => {}
                // The sender is the container's own, which `self` holds.
                _ = changed.changed() => {}
            }
        }
    }

    /// Reads by `read` what has at least a version, which `version_of` tells of each value; waits until all have. Of 0 there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// Those of [`wait_versions`](Self::wait_versions), and of `read`.
    ///
    /// # Cancel safety
    /// That of `read`.
    pub async fn read_at_least<T, F>(
        &self,
        variables: &[VariableRef],
        min_version: u64,
        version_of: impl Fn(&T) -> u64,
        read: impl Fn() -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<Vec<T>>>,
    {
        loop {
            if min_version > 0 {
                self.wait_versions(variables, min_version).await?;
            }
            let values = read().await?;
            // One that was deleted and set anew in between begins at version 1.
            if values.iter().all(|value| version_of(value) >= min_version) {
                return Ok(values);
            }
        }
    }
}
