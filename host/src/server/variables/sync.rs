//! Gradients of synchronous replicas: a push is answered once the step that it belongs to is applied.
//!
//! No thread waits. A task of the runtime does, for the caller: where its connection breaks meanwhile, the gradients stay taken, and
//! the retry waits for the same answer. It ends with the session.

use super::gradients::apply_options;
use super::values::Values;
use super::{APPLY_INLINE_BYTES_MAX, VariablesService, invalid, off_thread, references, replay};
use crate::error::{Error, ErrorCode, Result};
use crate::server::guard::Admitted;
use crate::variables::{
    ApplyOptions, Begin, Blocks, Container, Joined, Payload, Remembered, Snapshot, Staging, SyncStep, TryJoin,
    VariableRef,
};
use crate::wire::v1;
use crate::wire::variables::variables;
use std::pin::pin;
use tonic::Status;

impl VariablesService {
    /// Receives gradients for a step, and waits until it is applied.
    pub(super) async fn push_sync(
        &self,
        admitted: &Admitted,
        mut header: v1::PushHeader,
        sync: v1::Sync,
        incoming: &mut Values<'_>,
    ) -> Result<Vec<Snapshot>, Status> {
        if header.optimizer.is_none() {
            return Err(invalid("`sync` belongs to a push with an optimizer").into());
        }
        let sync = SyncStep { step: sync.step, replicas: sync.replicas };
        sync.check()?;
        let options = apply_options(&mut header)?;
        let want_values = options.write.want_values;
        let variables = variables(references(header.item)?)?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin_or_pass(admitted, incoming).await? {
            Begin::Replay(answer) => return Ok(replay(&container, &variables, want_values, answer?).await?),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_join(&variables, sync, &options)?;
        let staging = self.receive(admitted, &mut ticket, incoming, &variables).await?;
        let applying = ticket.apply()?;
        let waiting = admitted.clone();
        let collected = tokio::spawn(async move {
            let applied = async { join(container, variables, staging, sync, options).await?.applied().await };
            // Of a session that has ended nobody asks again, and its writes are forgotten.
            let result = tokio::select! {
                biased;
                result = applied => result,
                () = waiting.session.cancelled() => return Err(waiting.ended()),
            };
            applying
                .finish(result.as_ref().map(|snapshots| Remembered::of(snapshots, want_values)).map_err(Error::clone));
            result
        });
        let failed = |error| Error::new(ErrorCode::Internal, format!("a wait for a step ended early: {error}"));
        tokio::select! {
            biased;
            collected = collected => Ok(collected.unwrap_or_else(|error| Err(failed(error)))?),
            // The gradients stay, and so does what waits for the retry, but not the connection.
            gone = incoming.given_up() => Err(gone.into()),
        }
    }

    /// Begins a write. Where an earlier try of it still waits for its answer, its values are passed over meanwhile: unread, they would
    /// hold up all else that a stream's connection carries, and hide the end of a direct one.
    async fn begin_or_pass(&self, admitted: &Admitted, incoming: &mut Values<'_>) -> Result<Begin, Status> {
        let mut begin = pin!(self.begin(admitted));
        let (mut passed, mut ended) = (false, false);
        loop {
            tokio::select! {
                biased;
                begin = &mut begin => return match begin? {
                    // Not with what is left of the stream.
                    Begin::Fresh(_) if passed => {
                        Err(Error::new(ErrorCode::Unavailable, "the write was given up while its retry waited; try again").into())
                    }
                    begin => Ok(begin),
                },
                more = incoming.pass_over(), if !ended => match more? {
                    true => passed = true,
                    false => ended = true,
                },
            }
        }
    }
}

/// Hands gradients over; they count as staged until then.
async fn join(
    container: Container,
    variables: Vec<VariableRef>,
    mut staging: Staging,
    sync: SyncStep,
    options: ApplyOptions,
) -> Result<Joined> {
    let gradient = |(variable, value): (VariableRef, Blocks)| (variable, Payload::Owned(value));
    let mut gradients: Vec<_> = variables.into_iter().zip(staging.take()).map(gradient).collect();
    if staging.bytes() <= APPLY_INLINE_BYTES_MAX {
        match container.try_join(gradients, sync, &options)? {
            TryJoin::Joined(joined) => return Ok(joined),
            TryJoin::Busy(returned) => gradients = returned,
        }
    }
    off_thread(move || {
        let joined = container.join(gradients, sync, &options);
        drop(staging);
        joined
    })
    .await
}
