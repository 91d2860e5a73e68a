//! Another task's variables, by direct connections or gRPC.
//!
//! By gRPC a value is copied from the caller's memory chunk by chunk, as the connection takes them, so that a call never holds a
//! second copy of what it sends. What it receives goes into one piece of memory, that of a value that was given up where there is one.

mod cache;
mod direct;
mod gradients;
mod restore;
mod rows;
mod save;

pub use cache::{CachedVariables, ReadCache};
pub use restore::{Restore, Source};
pub use save::SaveStream;

use crate::client::channel::direct::{Connection, Direct};
use crate::client::channel::{Lane, Peers, Try};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{
    ApplyOptions, BoxFuture, Change, Gradient, InitializeMode, ReadOptions, RowChange, TaskVariables, Value,
    VariableRef, WriteOptions,
};
use crate::tensor::{Tensor, TensorType, TensorView, check_data};
use crate::variables::{Consistency, Spare, partly_applied, refuse_base};
use crate::wire::bulk::{self, Messages};
use crate::wire::tensor::{CHUNK_BYTES, ChunkOrder};
use crate::wire::v1::variables_client::VariablesClient;
use crate::wire::v1::{self, pull_response, push_request};
use crate::wire::variables::ITEMS_MAX;
use bytes::Bytes;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

const INITIALIZE: &str = "/dchost.v1.Variables/Initialize";
const PULL: &str = "/dchost.v1.Variables/Pull";
const PUSH: &str = "/dchost.v1.Variables/Push";

/// Chunks that wait for the connection: enough that it never waits for the copy, and 1 MiB at most.
const CHUNKS_QUEUED: usize = 4;

/// Bytes of names and types in one message, well below the 4 MiB that a server takes.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// Values of one write; a larger call is several writes, so that it waits for little staging memory on the server.
const WRITE_BYTES_MAX: usize = 64 << 20;

/// The variables of a run's container on another task.
#[derive(Clone, Debug)]
pub struct RemoteVariables {
    peers: Peers,
    task: Task,
    spare: Spare,
}

impl RemoteVariables {
    /// Makes the view of `task`; dials nobody.
    pub fn new(peers: Peers, task: Task) -> Self {
        RemoteVariables { peers, task, spare: Spare::default() }
    }

    /// Shares the memory of large values with other tasks' views.
    pub fn with_spare(self, spare: Spare) -> Self {
        RemoteVariables { spare, ..self }
    }

    /// Sends one write: by `direct` where there is such a connection, else as a stream, and `answer` reads what comes back.
    async fn write<T, D, A>(
        &self,
        header: &v1::PushHeader,
        values: &[&[u8]],
        direct: impl Fn(Connection, v1::PushHeader) -> D + Send + Sync,
        answer: impl Fn(Channel, ReceiverStream<v1::PushRequest>) -> A + Send + Sync,
    ) -> Result<T>
    where
        D: Future<Output = Result<T, Status>> + Send,
        A: Future<Output = Result<T, Status>> + Send,
    {
        let (direct, answer) = (&direct, &answer);
        let first = |request| {
            let header = v1::PushHeader { header: Some(request), ..header.clone() };
            vec![v1::PushRequest { kind: Some(push_request::Kind::Header(header)) }]
        };
        let first = &first;
        let call = move |Try { channel, direct: connections, header: request }| async move {
            if let Some(connection) = connection(connections).await {
                return direct(connection, v1::PushHeader { header: Some(request), ..header.clone() }).await;
            }
            let chunk = |chunk| v1::PushRequest { kind: Some(push_request::Kind::Chunk(chunk)) };
            self.stream(channel, first(request), chunk, values, answer).await
        };
        self.peers.call(self.task, Lane::Bulk, true, call).await
    }

    /// Sends the messages of `first`, then those that `chunk` makes of the values. `answer` reads what comes back.
    async fn stream<M: Send, T, Fut>(
        &self,
        channel: Channel,
        first: Vec<M>,
        chunk: fn(v1::Chunk) -> M,
        values: &[&[u8]],
        answer: impl Fn(Channel, ReceiverStream<M>) -> Fut + Send + Sync,
    ) -> Result<T, Status>
    where
        Fut: Future<Output = Result<T, Status>> + Send,
    {
        // What is small goes as a whole, without turns of the connection in between.
        let small = values.iter().map(|value| value.len()).sum::<usize>() <= CHUNK_BYTES;
        let (sender, receiver) = mpsc::channel(if small { first.len() + values.len() } else { CHUNKS_QUEUED });
        let mut feed = pin!(feed(sender, first, chunk, values, &self.spare));
        let mut call = pin!(answer(channel, ReceiverStream::new(receiver)));
        let mut fed = small;
        if small {
            feed.as_mut().await;
        }
        loop {
            tokio::select! {
                // The answer first: a refusal comes before all chunks are sent.
                biased;
                result = &mut call => return result,
                () = &mut feed, if !fed => fed = true,
            }
        }
    }

    /// Sends one write of values of `types`, and reads the values after it.
    async fn push_batch(&self, header: &v1::PushHeader, types: &[&TensorType], data: &[&[u8]]) -> Result<Vec<Value>> {
        let direct = |connection, header| direct::push(connection, header, types, data, &self.spare);
        let answer = move |channel, stream| async move {
            let mut stream = bulk::call(channel, PUSH, stream).await?;
            values(&mut stream, types, header.want_values, &self.spare).await
        };
        self.write(header, data, direct, answer).await
    }
}

/// A direct connection, where there is one to be had.
async fn connection(connections: Option<Direct>) -> Option<Connection> {
    connections?.connection().await
}

/// Sends the first messages and chunks; ends early where nobody takes them any more.
async fn feed<M>(sender: mpsc::Sender<M>, first: Vec<M>, chunk: fn(v1::Chunk) -> M, values: &[&[u8]], spare: &Spare) {
    for message in first {
        if sender.send(message).await.is_err() {
            return;
        }
    }
    for (item, value) in (0..).zip(values) {
        let mut offset = 0;
        for piece in value.chunks(CHUNK_BYTES) {
            // The place in the queue first: a copy is made when it can go.
            let Ok(permit) = sender.reserve().await else { return };
            let data = copy(piece, spare);
            permit.send(chunk(v1::Chunk { item, offset, data }));
            offset += piece.len() as u64;
        }
    }
}

/// Whole chunks go into memory that is kept; for smaller ones the allocator is as quick.
fn copy(piece: &[u8], spare: &Spare) -> Bytes {
    if piece.len() < CHUNK_BYTES {
        return Bytes::copy_from_slice(piece);
    }
    let mut data = spare.take(piece.len());
    data.extend_from_slice(piece);
    spare.lend(data)
}

/// Reads header and chunks of an answer. Nothing is allocated that wasn't asked for.
async fn values(
    stream: &mut Messages<v1::PullResponse>,
    types: &[&TensorType],
    with_data: bool,
    spare: &Spare,
) -> Result<Vec<Value>, Status> {
    let Some(pull_response::Kind::Header(header)) = stream.message().await?.and_then(|message| message.kind) else {
        return Err(strange("no header"));
    };
    let versions = checked_types(header, types)?;
    let mut data = vec![Vec::new(); types.len()];
    let mut whole = vec![Bytes::new(); types.len()];
    let mut order = ChunkOrder::new(types.iter().copied().filter(|_| with_data))?;
    while !order.is_complete() {
        let message =
            stream.message().await?.ok_or_else(|| order.finish().err().map_or(strange("no end"), Status::from))?;
        let Some(pull_response::Kind::Chunk(chunk)) = message.kind else { return Err(strange("a second header")) };
        let item = order.accept(&chunk)?;
        let bytes = types[item].checked_size_bytes()?;
        if chunk.data.len() == bytes {
            whole[item] = chunk.data;
            continue;
        }
        if data[item].is_empty() {
            data[item] = spare.take(bytes);
        }
        data[item].extend_from_slice(&chunk.data);
        if data[item].len() == bytes {
            whole[item] = spare.lend(std::mem::take(&mut data[item]));
        }
    }
    // The trailers: what follows the last chunk is the call's real end.
    if stream.message().await?.is_some() {
        return Err(strange("more messages than values"));
    }
    let value = |((ty, data), version): ((&&TensorType, Bytes), u64)| Value {
        tensor: Tensor { ty: (*ty).clone(), data },
        version,
    };
    Ok(types.iter().zip(whole).zip(versions).map(value).collect())
}

/// The versions of values that are of the types that were asked for.
fn checked_types(header: v1::PullHeader, types: &[&TensorType]) -> Result<Vec<u64>, Status> {
    if header.tensor.len() != types.len() || header.version.len() != types.len() {
        return Err(strange("another number of values than were asked for"));
    }
    for (tensor, ty) in header.tensor.into_iter().zip(types) {
        if TensorType::try_from(tensor)? != **ty {
            return Err(strange("a value of another type than was asked for"));
        }
    }
    Ok(header.version)
}

fn strange(what: &str) -> Status {
    Error::new(ErrorCode::Internal, format!("answer has {what}")).into()
}

/// Reads the answer of a write without values.
async fn versions_of(mut answer: Messages<v1::PushResponse>) -> Result<Vec<u64>, Status> {
    let versions = answer.message().await?.ok_or_else(|| strange("no message"))?.version;
    // The trailers: only they say that it is so.
    answer.message().await?;
    Ok(versions)
}

/// Cuts a call into messages that a server takes. `size` is the size of an item's name and type, and of its value.
fn batches<T>(items: Vec<T>, write_bytes_max: usize, size: impl Fn(&T) -> (usize, usize)) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let (mut header_bytes, mut value_bytes) = (0, 0);
    for item in items {
        let (header, value) = size(&item);
        let fits = |batch: &Vec<T>| {
            batch.len() < ITEMS_MAX
                && header_bytes + header <= HEADER_BYTES_MAX
                && value_bytes + value <= write_bytes_max
        };
        match batches.last_mut().filter(|batch| fits(batch)) {
            Some(batch) => {
                batch.push(item);
                header_bytes += header;
                value_bytes += value;
            }
            None => {
                batches.push(vec![item]);
                (header_bytes, value_bytes) = (header, value);
            }
        }
    }
    batches
}

/// An upper bound of what a reference takes in a message, in bytes.
fn header_bytes(variable: &VariableRef) -> usize {
    variable.name.len() + 10 * variable.ty.shape.len() + 32
}

impl TaskVariables for RemoteVariables {
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        Box::pin(async move {
            let mut versions = Vec::with_capacity(values.len());
            for (variable, view) in &values {
                check_data(&variable.name, &variable.ty, view.data.len())?;
            }
            for batch in batches(values, WRITE_BYTES_MAX, |(variable, view)| (header_bytes(variable), view.data.len()))
            {
                let item = |(variable, _): &(VariableRef, TensorView<'_>)| v1::PushItem {
                    variable: Some(variable.into()),
                    ..Default::default()
                };
                let header = v1::PushHeader {
                    item: batch.iter().map(item).collect(),
                    if_absent: mode == InitializeMode::IfAbsent,
                    ..Default::default()
                };
                let data: Vec<_> = batch.iter().map(|(_, view)| view.data).collect();
                let direct = |connection, header| direct::initialize(connection, header, &data);
                let answer =
                    |channel, stream| async move { versions_of(bulk::call(channel, INITIALIZE, stream).await?).await };
                versions.extend(self.write(&header, &data, direct, answer).await?);
            }
            Ok(versions)
        })
    }

    fn uninitialized(&self, variables: Vec<VariableRef>, wait: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let mut names = Vec::new();
            let started = std::time::Instant::now();
            for batch in batches(variables, usize::MAX, |variable| (header_bytes(variable), 0)) {
                // Once some are missing there is nothing left to wait for.
                let wait = if names.is_empty() { wait.saturating_sub(started.elapsed()) } else { Duration::ZERO };
                let request = v1::UninitializedRequest {
                    header: None,
                    variable: batch.iter().map(v1::VariableRef::from).collect(),
                    wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                };
                let request = &request;
                let ask = move |Try { channel, header, .. }: Try| async move {
                    let request = v1::UninitializedRequest { header: Some(header), ..request.clone() };
                    Ok(VariablesClient::new(channel).uninitialized(request).await?.into_inner().name)
                };
                names.extend(self.peers.call(self.task, Lane::Control, false, ask).await?);
            }
            Ok(names)
        })
    }

    fn pull(&self, variables: Vec<VariableRef>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        Box::pin(async move {
            let mut all = Vec::with_capacity(variables.len());
            for batch in batches(variables, usize::MAX, |variable| (header_bytes(variable), 0)) {
                let types: Vec<_> = batch.iter().map(|variable| &variable.ty).collect();
                let request = v1::PullRequest {
                    variable: batch.iter().map(v1::VariableRef::from).collect(),
                    min_version: options.min_version,
                    consistency: v1::Consistency::from(options.consistency).into(),
                    ..Default::default()
                };
                let (request, types) = (&request, &types);
                let ask = move |Try { channel, direct: connections, header }: Try| async move {
                    let request = v1::PullRequest { header: Some(header), ..request.clone() };
                    if let Some(connection) = connection(connections).await {
                        return direct::pull(connection, request, types, &self.spare).await;
                    }
                    let mut stream = bulk::call(channel, PULL, tokio_stream::once(request)).await?;
                    values(&mut stream, types, true, &self.spare).await
                };
                all.extend(self.peers.call(self.task, Lane::Bulk, false, ask).await?);
            }
            Ok(all)
        })
    }

    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let WriteOptions { want_values, consistency } = options;
            let relaxed = consistency == Consistency::Relaxed;
            for change in &changes {
                check_data(&change.variable.name, &change.variable.ty, change.value.data.len())?;
                if relaxed {
                    refuse_base(&change.variable.name, change.base)?;
                }
            }
            // Changes with base versions are applied together or not at all, so they go together as long as they fit.
            let together = changes.iter().any(|change| change.base.is_some());
            // A relaxed write takes no staging memory.
            let bytes_max = if together || relaxed { usize::MAX } else { WRITE_BYTES_MAX };
            let mut all = Vec::with_capacity(changes.len());
            let size = |change: &Change<'_, VariableRef>| (header_bytes(&change.variable), change.value.data.len());
            for batch in batches(changes, bytes_max, size) {
                let item = |change: &Change<'_, VariableRef>| v1::PushItem {
                    variable: Some((&change.variable).into()),
                    kind: v1::UpdateKind::from(change.kind).into(),
                    base_version: change.base,
                    ..Default::default()
                };
                let header = v1::PushHeader {
                    item: batch.iter().map(item).collect(),
                    want_values,
                    consistency: v1::Consistency::from(consistency).into(),
                    ..Default::default()
                };
                let data: Vec<_> = batch.iter().map(|change| change.value.data).collect();
                let types: Vec<_> = batch.iter().map(|change| &change.variable.ty).collect();
                let written = self.push_batch(&header, &types, &data).await;
                all.extend(written.map_err(|error| if relaxed { partly_applied(error) } else { error })?);
            }
            Ok(all)
        })
    }

    fn apply<'a>(
        &'a self,
        gradients: Vec<Gradient<'a, VariableRef>>,
        options: ApplyOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(self.push_gradients(gradients, options))
    }

    fn gather(&self, variable: VariableRef, rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        Box::pin(self.pull_rows(variable, rows))
    }

    fn scatter<'a>(&'a self, change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        Box::pin(self.push_rows(change))
    }
}
