//! Sets a task's variables to what a checkpoint has.

use super::{CHUNKS_QUEUED, RemoteVariables, WRITE_BYTES_MAX, batches, header_bytes, versions_of};
use crate::client::channel::{Lane, Try};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::BoxFuture;
use crate::variables::{SlotState, VariableRef, tensor_count};
use crate::wire::bulk;
use crate::wire::saved::slots_to_wire;
use crate::wire::tensor::CHUNK_BYTES;
use crate::wire::v1::{self, push_request};
use bytes::Bytes;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

const RESTORE: &str = "/dchost.v1.Variables/Restore";

/// What an item's slots take in the header: their field, the name of a method and a number of steps.
const SLOTS_BYTES: usize = 32;

/// What a variable is set to.
#[derive(Clone, Debug)]
pub struct Restore<T> {
    /// Which, as the task is to hold it.
    pub variable: VariableRef,
    /// What an optimizer keeps beside it.
    pub slots: Option<SlotState>,
    /// Where its value is, and those of its slots, for a [`Source`].
    pub tensors: Vec<T>,
}

/// Reads bytes of a tensor. Called on threads that may wait, maybe more than once for the same bytes.
pub type Source<T> = Arc<dyn Fn(&T, Range<u64>) -> Result<Bytes> + Send + Sync>;

impl RemoteVariables {
    /// Sets variables to what `source` reads, in several writes where they are large: a broken call may have set some. Answers with
    /// the versions. Holds 1 MiB of the values at a time.
    ///
    /// # Errors
    /// Those of a write, and of `source`.
    ///
    /// # Cancel safety
    /// Each variable is set as a whole or not at all.
    pub fn restore<'a, T: Clone + Send + Sync + 'static>(
        &'a self,
        items: Vec<Restore<T>>,
        source: &'a Source<T>,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        Box::pin(async move {
            let mut versions = Vec::with_capacity(items.len());
            let size = |item: &Restore<T>| {
                let tensor_bytes = item.variable.ty.size_bytes().unwrap_or_default();
                let header_bytes = header_bytes(&item.variable) + SLOTS_BYTES;
                (header_bytes, tensor_bytes * tensor_count(item.slots))
            };
            for batch in batches(items, WRITE_BYTES_MAX, size) {
                let batch = Arc::new(batch);
                let call = |Try { channel, header, .. }: Try| {
                    let (batch, source) = (batch.clone(), source.clone());
                    async move {
                        let (sender, receiver) = mpsc::channel(CHUNKS_QUEUED);
                        let mut feed = pin!(self.feed(sender, header, batch, source));
                        let mut call = pin!(async {
                            versions_of(bulk::call(channel, RESTORE, ReceiverStream::new(receiver)).await?).await
                        });
                        let mut fed = false;
                        loop {
                            tokio::select! {
                                biased;
                                // A fault of the source first: the server only sees that the stream ends early.
                                result = &mut feed, if !fed => {
                                    result?;
                                    fed = true;
                                }
                                result = &mut call => return result,
                            }
                        }
                    }
                };
                versions.extend(self.peers.call(self.task, Lane::Bulk, true, call).await?);
            }
            Ok(versions)
        })
    }

    /// Sends header and chunks; ends early where nobody takes them any more.
    async fn feed<T: Clone + Send + Sync + 'static>(
        &self,
        sender: mpsc::Sender<v1::PushRequest>,
        header: v1::RequestHeader,
        batch: Arc<Vec<Restore<T>>>,
        source: Source<T>,
    ) -> Result<()> {
        let message = |kind| v1::PushRequest { kind: Some(kind) };
        let item = |item: &Restore<T>| v1::PushItem {
            variable: Some((&item.variable).into()),
            slots: item.slots.map(slots_to_wire),
            ..Default::default()
        };
        let header =
            v1::PushHeader { header: Some(header), item: batch.iter().map(item).collect(), ..Default::default() };
        if sender.send(message(push_request::Kind::Header(header))).await.is_err() {
            return Ok(());
        }
        let mut tensors = Vec::new();
        for item in batch.iter() {
            let size = item.variable.ty.checked_size_bytes()? as u64;
            tensors.extend(item.tensors.iter().map(|tensor| (tensor.clone(), size)));
        }
        for (item, (tensor, size)) in (0..).zip(tensors) {
            for offset in (0..size).step_by(CHUNK_BYTES) {
                let Ok(permit) = sender.reserve().await else { return Ok(()) };
                let (tensor, source) = (tensor.clone(), source.clone());
                let range = offset..size.min(offset + CHUNK_BYTES as u64);
                let read = self.peers.runtime().spawn_blocking(move || source(&tensor, range)).await;
                let data = read.unwrap_or_else(|error| {
                    Err(Error::new(ErrorCode::Internal, format!("reading a checkpoint ended early: {error}")))
                })?;
                permit.send(message(push_request::Kind::Chunk(v1::Chunk { item, offset, data })));
            }
        }
        Ok(())
    }
}
