//! Reads all that a task holds of a container.

use super::{RemoteVariables, strange};
use crate::client::channel::{Lane, Try};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use crate::variables::{Saved, VARIABLES_MAX, saved_order, tensor_count};
use crate::wire::bulk::{self, Messages};
use crate::wire::saved::saved_from_wire;
use crate::wire::status::answer;
use crate::wire::tensor::ChunkOrder;
use crate::wire::v1::{self, save_response};
use bytes::Bytes;
use tonic::Status;

const SAVE: &str = "/dchost.v1.Variables/Save";

/// What a task holds, as it was at one moment before this was there: the list, and then the values as they are asked for. The task
/// keeps them meanwhile; dropping this gives them up.
#[derive(Debug)]
pub struct SaveStream {
    task: Task,
    saved: Vec<Saved>,
    messages: Messages<v1::SaveResponse>,
    order: ChunkOrder,
}

impl RemoteVariables {
    /// Begins to read all that the task holds.
    ///
    /// # Errors
    /// Those of a call that is no write.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn save(&self) -> Result<SaveStream> {
        self.save_call(false).await
    }

    /// What the task holds, without the values.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn list(&self) -> Result<Vec<Saved>> {
        Ok(self.save_call(true).await?.saved)
    }

    async fn save_call(&self, list_only: bool) -> Result<SaveStream> {
        let task = self.task;
        let ask = move |Try { channel, header, .. }: Try| async move {
            let request = v1::SaveRequest { header: Some(header), list_only };
            let mut messages = bulk::call(channel, SAVE, tokio_stream::once(request)).await?;
            let saved = list(&mut messages).await?;
            let order = ChunkOrder::new(tensors(&saved))?;
            Ok(SaveStream { task, saved, messages, order })
        };
        self.peers.call(task, Lane::Bulk, false, ask).await
    }
}

/// The types of all tensors of a stream, in order.
fn tensors(saved: &[Saved]) -> impl Iterator<Item = &TensorType> {
    saved.iter().flat_map(|saved| std::iter::repeat_n(&saved.variable.ty, tensor_count(saved.slots)))
}

async fn list(messages: &mut Messages<v1::SaveResponse>) -> Result<Vec<Saved>, Status> {
    let mut saved: Vec<Saved> = Vec::new();
    loop {
        let Some(save_response::Kind::Header(header)) = messages.message().await?.and_then(|message| message.kind)
        else {
            return Err(strange("no header"));
        };
        if header.more && header.variable.is_empty() {
            // It could go on so for ever.
            return Err(strange("an empty list before another one"));
        }
        if saved.len() + header.variable.len() > VARIABLES_MAX {
            return Err(strange("more variables than a task has"));
        }
        for variable in header.variable {
            let next = saved_from_wire(variable)?;
            let key =
                |saved: &Saved| (saved_order(&saved.variable.ty, &saved.variable.name).0, saved.variable.name.clone());
            if saved.last().is_some_and(|last| key(last) >= key(&next)) {
                return Err(strange("variables in another order than files have"));
            }
            saved.push(next);
        }
        if !header.more {
            return Ok(saved);
        }
    }
}

impl SaveStream {
    /// Which task it is.
    pub fn task(&self) -> Task {
        self.task
    }

    /// What is saved: of each in turn, its value and its slots come.
    pub fn saved(&self) -> &[Saved] {
        &self.saved
    }

    /// The next bytes: of the first tensor that hasn't all of its own yet. Those without any are passed over.
    ///
    /// # Errors
    /// `peer-failed`: the stream broke; the task's own.
    ///
    /// # Cancel safety
    /// Nothing is lost: a later call goes on.
    pub async fn next(&mut self) -> Result<Bytes> {
        let strange = |what: &str| Error::new(ErrorCode::Internal, format!("{} sends {what}", self.task));
        let message = self.messages.message().await.map_err(|status| {
            answer(&status).unwrap_or_else(|| {
                let message = format!("{} broke off: {}", self.task, status.message());
                Error::new(ErrorCode::PeerFailed, message).with_tasks([self.task])
            })
        })?;
        match message.map(|message| message.kind) {
            Some(Some(save_response::Kind::Chunk(chunk))) => {
                self.order.accept(&chunk)?;
                Ok(chunk.data)
            }
            Some(_) => Err(strange("something else than values")),
            None => Err(strange("fewer values than it has listed")),
        }
    }
}
