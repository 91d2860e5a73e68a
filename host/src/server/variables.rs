//! The Variables service.
//!
//! Values travel as a header and chunks, or on connections of their own (`direct`). A write's bytes are staged ([`Staging`]) and
//! applied when all have come, so that a broken stream changes nothing; a server then holds at most one extra copy of each write
//! under way, within the store's staging budget; a write beyond it is refused and tried again by its client. A read sends the
//! variable's own blocks. Relaxed consistency is in `relaxed`, synchronous replicas are in `sync`.

mod bulk;
pub(super) mod direct;
mod gradients;
mod pull;
mod relaxed;
mod restore;
mod rows;
mod save;
mod sync;
mod values;

use crate::cluster::TaskType;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::Caller;
use crate::server::answers::{Answers, while_session};
use crate::server::guard::{Admitted, Guard, Rpc};
use crate::tensor::TensorType;
use crate::variables::{
    Begin, Blocks, Consistency, Container, InitializeMode, Payload, Remembered, Snapshot, Staging, Store, Ticket,
    TryPush, Update, UpdateKind, VariableRef,
};
use crate::wire::header::{missing, response_header};
use crate::wire::tensor::CHUNK_BYTES;
use crate::wire::v1::{self, pull_response, variables_server};
use crate::wire::variables::{check_items, consistency, update_kind, variables};
pub use bulk::BulkVariables;
use bulk::not_here;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status, Streaming};
use values::{Pieces, Values};

/// Longest wait of one `Uninitialized`; callers that wait longer ask again, so that a lost one is noticed.
const LONG_POLL_MAX: Duration = Duration::from_secs(60);

/// Writes up to this many bytes are applied on the server's own threads, in about a tenth of a millisecond, which is less than another
/// thread takes to begin; larger ones would hold up heartbeats.
const APPLY_INLINE_BYTES_MAX: u64 = 1 << 20;

/// Serves a [`Store`] to other tasks. Cheap to clone.
#[derive(Clone)]
pub struct VariablesService {
    guard: Guard,
    store: Store,
}

impl VariablesService {
    /// Makes the service. From now on the end of a session makes the store forget the run's writes, and deletes a container
    /// `run-<id>` with its last session.
    pub fn new(guard: Guard, store: Store) -> Self {
        let ends = store.clone();
        guard.sessions().on_end(Arc::new(move |end| {
            ends.ledger().forget(end.caller.run_id);
            if end.last_in_container && is_run_container(&end.caller.container) {
                ends.delete_container(&end.caller.container);
            }
        }));
        VariablesService { guard, store }
    }

    /// The gRPC service, ready to be added to a server.
    pub fn into_server(self) -> BulkVariables {
        BulkVariables::new(self)
    }

    fn open(&self, caller: &Caller) -> Result<Container> {
        self.store.open(&caller.container, caller.attempt)
    }

    /// An evaluator is chief of its own run: the same component would otherwise reset the job's variables.
    fn refuse_evaluator(&self, caller: &Caller) -> Result<()> {
        match caller.task {
            Some(task) if task.job == TaskType::Evaluator && task != self.guard.task() => {
                let message = format!(
                    "{task} may read the variables on {}, but write only its own; place what it writes on `{task}`",
                    self.guard.task()
                );
                Err(Error::new(ErrorCode::FailedPrecondition, message))
            }
            _ => Ok(()),
        }
    }

    /// Lets a write in.
    fn admit_write(&self, rpc: Rpc, header: Option<v1::PushHeader>) -> Result<(Admitted, v1::PushHeader)> {
        let Some(header) = header else {
            // The guard says what is missing, after it has checked that the caller may know.
            self.guard.admit(rpc, None)?;
            return Err(invalid("the first message of the stream is no header"));
        };
        let admitted = self.guard.admit(rpc, header.header.clone())?;
        self.refuse_evaluator(&admitted.caller)?;
        check_items(header.item.len())?;
        if rpc != Rpc::Restore && header.item.iter().any(|item| item.slots.is_some()) {
            return Err(invalid("`slots` belong to Restore"));
        }
        Ok((admitted, header))
    }

    async fn initialize_from(
        &self,
        header: Option<v1::PushHeader>,
        incoming: &mut Values<'_>,
    ) -> Result<v1::PushResponse, Status> {
        let (admitted, header) = self.admit_write(Rpc::Initialize, header)?;
        if consistency(header.consistency)? != Consistency::Atomic {
            return Err(invalid("initial values are set as a whole: `consistency` belongs to Push").into());
        }
        if header.optimizer.is_some() || header.clip_scale != 0.0 || header.sync.is_some() {
            return Err(invalid("`optimizer`, `clip_scale` and `sync` belong to Push").into());
        }
        let mode = if header.if_absent { InitializeMode::IfAbsent } else { InitializeMode::Overwrite };
        let variables = variables(references(header.item)?)?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(&admitted).await? {
            Begin::Replay(answer) => return Ok(self.written(answer?.versions)),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_initialize(&variables)?;
        let staging = self.receive(&admitted, &mut ticket, incoming, &variables).await?;
        let write = move |values: Vec<Blocks>, inline| {
            // One that sets values anew may have to wait for changes of theirs.
            let inline = inline && !container.has_any(&variables);
            let values = variables.into_iter().zip(values.into_iter().map(Payload::Owned)).collect();
            let write = move || container.initialize(values, mode);
            if inline { Write::Done(write()) } else { Write::Later(Box::new(write)) }
        };
        let remember = |versions: &Vec<u64>| Remembered { versions: versions.clone(), values: None };
        Ok(self.written(apply(ticket, staging, write, remember).await?))
    }

    fn written(&self, version: Vec<u64>) -> v1::PushResponse {
        v1::PushResponse { header: response_header(self.guard.incarnation()), version }
    }

    async fn push_from(
        &self,
        header: Option<v1::PushHeader>,
        incoming: &mut Values<'_>,
    ) -> Result<(Admitted, Vec<Snapshot>), Status> {
        let (admitted, header) = self.admit_write(Rpc::Push, header)?;
        if header.if_absent {
            return Err(invalid("`if_absent` belongs to Initialize").into());
        }
        let snapshots = if let Some(sync) = header.sync {
            self.push_sync(&admitted, header, sync, incoming).await?
        } else if header.optimizer.is_some() {
            self.push_gradients(&admitted, header, incoming).await?
        } else if header.clip_scale != 0.0 {
            return Err(invalid("`clip_scale` belongs to a push with an optimizer").into());
        } else {
            match consistency(header.consistency)? {
                Consistency::Atomic => self.push_atomic(&admitted, header, incoming).await?,
                Consistency::Relaxed => self.push_relaxed(&admitted, header, incoming).await?,
            }
        };
        Ok((admitted, snapshots))
    }

    async fn push_atomic(
        &self,
        admitted: &Admitted,
        header: v1::PushHeader,
        incoming: &mut Values<'_>,
    ) -> Result<Vec<Snapshot>, Status> {
        let want_values = header.want_values;
        let (variables, how) = changes(header.item)?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(admitted).await? {
            Begin::Replay(answer) => return Ok(replay(&container, &variables, want_values, answer?).await?),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_push(&variables)?;
        let staging = self.receive(admitted, &mut ticket, incoming, &variables).await?;
        let write = move |values, inline| {
            let mut updates = updates(variables, how, values);
            if inline {
                match container.try_push(updates, want_values) {
                    Ok(TryPush::Applied(snapshots)) => return Write::Done(Ok(snapshots)),
                    Ok(TryPush::Busy(returned)) => updates = returned,
                    Err(error) => return Write::Done(Err(error)),
                }
            }
            Write::Later(Box::new(move || container.push(updates, want_values)))
        };
        let remember = move |snapshots: &Vec<Snapshot>| Remembered::of(snapshots, want_values);
        Ok(apply(ticket, staging, write, remember).await?)
    }

    async fn begin(&self, admitted: &Admitted) -> Result<Begin> {
        admitted.run(self.store.ledger().begin(admitted.caller.run_id, admitted.sequence)).await
    }

    /// Stages a write's chunks until all have come and the caller has ended its stream. Ends early, and frees what was staged, when
    /// the stream breaks, the session ends or a retry takes the write over.
    async fn receive(
        &self,
        admitted: &Admitted,
        ticket: &mut Ticket,
        incoming: &mut Values<'_>,
        variables: &[VariableRef],
    ) -> Result<Staging, Status> {
        let types = || variables.iter().map(|variable| &variable.ty);
        let receive = async {
            let mut staging = Staging::new(&self.store, types())?;
            Pieces::new(incoming, types())?.stage(&mut staging).await?;
            Ok(staging)
        };
        while_writing(admitted, ticket, receive).await
    }
}

/// Receives a write, as long as the session lasts and no retry takes the write over.
async fn while_writing<T>(
    admitted: &Admitted,
    ticket: &mut Ticket,
    receive: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::select! {
        biased;
        () = admitted.session.cancelled() => Err(admitted.ended().into()),
        () = ticket.lost() => Err(Error::new(ErrorCode::Aborted, "the write was taken over by its retry").into()),
        received = receive => received,
    }
}

fn references(items: Vec<v1::PushItem>) -> Result<Vec<v1::VariableRef>> {
    items.into_iter().map(|item| item.variable.ok_or_else(|| missing("item.variable"))).collect()
}

/// How a variable changes, and from which version.
type How = (UpdateKind, Option<u64>);

/// The variables of a push, and how each changes.
fn changes(items: Vec<v1::PushItem>) -> Result<(Vec<VariableRef>, Vec<How>)> {
    let how = items.iter().map(|item| Ok((update_kind(item.kind)?, item.base_version)));
    let how = how.collect::<Result<Vec<_>>>()?;
    Ok((variables(references(items)?)?, how))
}

fn updates(variables: Vec<VariableRef>, how: Vec<How>, values: Vec<Blocks>) -> Vec<Update<'static>> {
    let update = |((variable, (kind, base)), value)| Update { variable, kind, value: Payload::Owned(value), base };
    variables.into_iter().zip(how).zip(values).map(update).collect()
}

/// A write on its way into the store.
enum Write<T> {
    /// It was applied, or refused.
    Done(Result<T>),
    /// It may take long: it is large, or has to wait for another one.
    Later(Box<dyn FnOnce() -> Result<T> + Send>),
}

/// Applies a staged write and remembers its answer. `write` is told whether it may apply it at once. Once begun it goes on, whether or not the caller still waits.
async fn apply<T: Send + 'static>(
    ticket: Ticket,
    mut staging: Staging,
    write: impl FnOnce(Vec<Blocks>, bool) -> Write<T>,
    remember: impl FnOnce(&T) -> Remembered + Send + 'static,
) -> Result<T> {
    let inline = staging.bytes() <= APPLY_INLINE_BYTES_MAX;
    let applying = ticket.apply()?;
    let write = write(staging.take(), inline);
    let finish = move |result: Result<T>| {
        applying.finish(result.as_ref().map(remember).map_err(Error::clone));
        // Until here the bytes count as staged.
        drop(staging);
        result
    };
    match write {
        Write::Done(result) => finish(result),
        Write::Later(write) => off_thread(move || finish(write())).await,
    }
}

/// Answers a write that was applied before. Values that were too large to remember are read anew.
async fn replay(
    container: &Container,
    variables: &[VariableRef],
    want_values: bool,
    answer: Remembered,
) -> Result<Vec<Snapshot>> {
    let Remembered { versions, values } = answer;
    if want_values && values.is_none() {
        return pull::pull(container, variables).await;
    }
    let values = values.unwrap_or_else(|| vec![Blocks::default(); versions.len()]);
    let snapshot = |((variable, version), blocks): ((&VariableRef, u64), Blocks)| Snapshot {
        ty: variable.ty.clone(),
        blocks,
        version,
    };
    Ok(variables.iter().zip(versions).zip(values).map(snapshot).collect())
}

async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let failed = |error| Error::new(ErrorCode::Internal, format!("work on variables ended early: {error}"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(error)))
}

/// Whether a container is one that a split client made for itself: `run-` and its id.
pub(super) fn is_run_container(name: &str) -> bool {
    name.strip_prefix("run-").is_some_and(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A stream of a header and chunks. Chunks are parts of the variable's blocks, not copies.
pub type PullStream = Answers<v1::PullResponse>;

impl VariablesService {
    /// Streams values, as long as the caller's session lasts.
    fn send(&self, admitted: Admitted, snapshots: Vec<Snapshot>) -> PullStream {
        let value = |Snapshot { ty, version, blocks }: Snapshot| (ty, version, blocks.into_pieces(CHUNK_BYTES));
        self.send_pieces(admitted, snapshots.into_iter().map(value).collect())
    }

    /// As [`send`](Self::send), of types, versions and values in pieces.
    fn send_pieces<I>(&self, admitted: Admitted, values: Vec<(TensorType, u64, I)>) -> PullStream
    where
        I: Iterator<Item = Bytes> + Send + 'static,
    {
        let header = v1::PullHeader {
            header: response_header(self.guard.incarnation()),
            tensor: values.iter().map(|(ty, ..)| v1::TensorHeader::from(ty)).collect(),
            version: values.iter().map(|(_, version, _)| *version).collect(),
        };
        let chunks = (0..).zip(values).flat_map(|(item, (.., pieces))| {
            let mut offset = 0;
            pieces.map(move |data| {
                let chunk = v1::Chunk { item, offset, data };
                offset += chunk.data.len() as u64;
                pull_response::Kind::Chunk(chunk)
            })
        });
        let kinds = std::iter::once(pull_response::Kind::Header(header)).chain(chunks);
        let messages = kinds.map(|kind| Ok(v1::PullResponse { kind: Some(kind) }));
        while_session(admitted, tokio_stream::iter(messages))
    }
}

#[tonic::async_trait]
impl variables_server::Variables for VariablesService {
    type PushStream = PullStream;
    type PullStream = PullStream;
    type GatherStream = PullStream;
    type SaveStream = save::SaveStream;

    async fn initialize(
        &self,
        _request: Request<Streaming<v1::PushRequest>>,
    ) -> Result<Response<v1::PushResponse>, Status> {
        Err(not_here())
    }

    async fn push(&self, _request: Request<Streaming<v1::PushRequest>>) -> Result<Response<Self::PushStream>, Status> {
        Err(not_here())
    }

    async fn pull(&self, _request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        Err(not_here())
    }

    async fn save(&self, _request: Request<v1::SaveRequest>) -> Result<Response<Self::SaveStream>, Status> {
        Err(not_here())
    }

    async fn restore(
        &self,
        _request: Request<Streaming<v1::PushRequest>>,
    ) -> Result<Response<v1::PushResponse>, Status> {
        Err(not_here())
    }

    async fn gather(&self, _request: Request<v1::GatherRequest>) -> Result<Response<Self::GatherStream>, Status> {
        Err(not_here())
    }

    async fn scatter(
        &self,
        _request: Request<Streaming<v1::ScatterRequest>>,
    ) -> Result<Response<v1::PushResponse>, Status> {
        Err(not_here())
    }

    async fn uninitialized(
        &self,
        request: Request<v1::UninitializedRequest>,
    ) -> Result<Response<v1::UninitializedResponse>, Status> {
        let request = request.into_inner();
        let admitted = self.guard.admit(Rpc::Uninitialized, request.header)?;
        let variables = variables(request.variable)?;
        let container = self.open(&admitted.caller)?;
        let wait = Duration::from_millis(request.wait_ms).min(LONG_POLL_MAX);
        let name = admitted.run(container.uninitialized_after(&variables, tokio::time::sleep(wait))).await?;
        Ok(Response::new(v1::UninitializedResponse { header: response_header(self.guard.incarnation()), name }))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteResponse>, Status> {
        let request = request.into_inner();
        let admitted = self.guard.admit(Rpc::Delete, request.header)?;
        self.refuse_evaluator(&admitted.caller)?;
        let container = self.open(&admitted.caller)?;
        let deleted = match self.begin(&admitted).await? {
            Begin::Replay(answer) => answer?.versions.first().copied().unwrap_or_default(),
            Begin::Fresh(ticket) => {
                let applying = ticket.apply()?;
                let deleted = if request.name.is_empty() {
                    Ok(self.store.delete_container(container.name()))
                } else {
                    container.delete(&request.name)
                };
                let deleted = deleted.map(|deleted| deleted as u64);
                applying.finish(deleted.clone().map(|deleted| Remembered { versions: vec![deleted], values: None }));
                deleted?
            }
        };
        let deleted = u32::try_from(deleted).unwrap_or(u32::MAX);
        Ok(Response::new(v1::DeleteResponse { header: response_header(self.guard.incarnation()), deleted }))
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, message)
}

fn unimplemented(what: &str) -> Error {
    Error::new(ErrorCode::Unimplemented, format!("{what} is not served by this server yet"))
}
