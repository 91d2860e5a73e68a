//! Bytes become what another host may send: calls of a leader's server, each with its messages, and single messages.
//!
//! ```text
//! input = part*        part = kind low high byte*        16 bits of length, then so many bytes
//! kind  = 0x00..=0x7F  a call of rpc kind % 14; the bytes are its first message
//!       | 0x80..=0xBF  the next message of the last call
//!       | 0xC0..=0xFF  a message of type kind % 8, converted and written again
//! ```
//!
//! The server is the real one without sockets. Calls of one input run one after the other, on a clock that jumps.

#![no_main]

use bytes::{BufMut as _, Bytes, BytesMut};
use dchost::attend::{Mode, ProbeOutcome, Replication};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::error::ErrorCode;
use dchost::handles::{BoxFuture, Probe};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::lifetime::{self, EndRule};
use dchost::server::cluster::{ClusterService, LeaderPart};
use dchost::server::guard::{Guard, Rpc, authorize};
use dchost::server::leader::{Leader, LeaderOptions};
use dchost::server::ops::OpsService;
use dchost::server::session::{Lease, Sessions};
use dchost::server::variables::VariablesService;
use dchost::tensor::TensorType;
use dchost::variables::{Staging, Store, StoreOptions, VariableRef};
use dchost::wire::header::Header;
use dchost::wire::tensor::ChunkOrder;
use dchost::wire::v1::{self, cluster_server::ClusterServer, ops_server::OpsServer};
use dchost::wire::{attend, status};
use dchost_fuzz::ops::FuzzOpHost;
use dchost_fuzz::text::{check_block, show};
use dchost_fuzz::{run, seeds};
use http_body_util::{BodyExt as _, Full};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower_service::Service as _;

/// Counts what the server allocates.
#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Bytes of all variables; small, so that inputs reach it.
const VARIABLE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of unfinished writes.
const STAGED_BYTES_MAX: u64 = 1 << 20;

/// What an input of a few KiB may make the server allocate, in bytes: variables, staging and fixed buffers.
const PEAK_BYTES_MAX: usize = 16 << 20;

/// How long the events of a call are read.
const LISTEN: Duration = Duration::from_secs(120);

/// Longest message of an error.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The run whose session is open in the container `default`.
const RUN: RunId = RunId(7);

fuzz_target!(init: seeds::write(seeds::wire()), |data: &[u8]| {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let runtime = run::runtime();
    runtime.block_on(serve(data));
    drop(runtime);
    let peak = ALLOCATED.peak_usage();
    assert!(peak < before + PEAK_BYTES_MAX, "{} bytes at the peak", peak - before);
});

async fn serve(data: &[u8]) {
    let server = Server::start();
    let mut calls: Vec<(Rpc, BytesMut)> = Vec::new();
    for (kind, message) in parts(data) {
        match kind {
            0xC0.. => convert(kind, message),
            0x80.. => {
                if let Some((_, frames)) = calls.last_mut() {
                    frame(frames, message);
                }
            }
            _ => {
                let mut frames = BytesMut::new();
                frame(&mut frames, message);
                calls.push((Rpc::ALL[usize::from(kind) % Rpc::ALL.len()], frames));
            }
        }
    }
    for (rpc, frames) in calls {
        server.call(rpc, frames.freeze()).await;
    }
    server.stop().await;
}

fn parts(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[kind, low, high], rest) = data.split_first_chunk()?;
        let (message, rest) = rest.split_at(rest.len().min(u16::from_le_bytes([low, high]).into()));
        data = rest;
        Some((kind, message))
    })
}

/// Adds a message as gRPC frames it: not compressed, 32 bits of length.
fn frame(frames: &mut BytesMut, message: &[u8]) {
    frames.put_u8(0);
    frames.put_u32(u32::try_from(message.len()).expect("a part has at most 64 KiB"));
    frames.put_slice(message);
}

/// A leader's server without sockets.
struct Server {
    store: Store,
    guard: Guard,
    leader: LeaderPart,
    cluster: ClusterSpec,
    ops: OpsService,
    stopping: CancellationToken,
    _session: Lease,
}

impl Server {
    fn start() -> Server {
        let cluster = ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]).with_job(TaskType::Ps, ["c:1"]);
        let task = Task::new(TaskType::Worker, 0);
        let incarnation = Incarnation(1);
        let store = Store::new(StoreOptions {
            variable_bytes_max: Some(VARIABLE_BYTES_MAX),
            staged_bytes_max: STAGED_BYTES_MAX,
        });
        let stopping = CancellationToken::new();
        let sessions = Sessions::new(Duration::from_secs(30), stopping.clone(), Handle::current());
        let guard = Guard::new(task, incarnation, sessions, Arc::new(authorize), stopping.clone());
        let (leader, handle) = Leader::new(LeaderOptions {
            lifetime: lifetime::Options {
                leader: task,
                incarnation,
                cluster: cluster.clone(),
                mode: Some(Mode::IndependentWorker),
                replication: Replication::BetweenGraph,
                barrier: true,
                module_digest: Some([1; 32]),
                end: EndRule::AllDone,
                connect_timeout: Duration::from_secs(60),
                rejoin_timeout: Duration::from_secs(30),
                evaluator_grace: Duration::from_secs(60),
            },
            probe: Arc::new(NoAnswer),
        });
        tokio::spawn(leader.run(stopping.clone()));
        let leader = LeaderPart::new(handle, "default");
        let caller = Caller { container: "default".into(), task: Some(task), run_id: RUN, attempt: None };
        let session = guard.sessions().open(&caller).expect("the first session has room");
        let ops = OpsService::new(guard.clone(), Some(Arc::new(FuzzOpHost)));
        Server { store, guard, leader, cluster, ops, stopping, _session: session }
    }

    async fn call(&self, rpc: Rpc, frames: Bytes) {
        let request = http::Request::post(format!("/{}", rpc.path()))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .body(tonic::body::Body::new(Full::new(frames)))
            .expect("the request has valid parts");
        let (guard, store) = (self.guard.clone(), self.store.clone());
        let response = match rpc.path().split('/').next() {
            Some("dchost.v1.Cluster") => {
                let service = ClusterService::new(
                    guard,
                    self.cluster.clone(),
                    Some(self.leader.clone()),
                    store,
                    self.stopping.clone(),
                );
                ClusterServer::new(service).call(request).await
            }
            Some("dchost.v1.Variables") => VariablesService::new(guard, store).into_server().call(request).await,
            _ => OpsServer::new(self.ops.clone()).call(request).await,
        };
        let Ok(response) = response;
        if let Some(status) = Status::from_header_map(response.headers()) {
            check_status(&status);
        }
        let mut body = response.into_body();
        let listen = async {
            while let Some(frame) = body.frame().await {
                let trailers = frame.ok().and_then(|frame| frame.into_trailers().ok());
                if let Some(status) = trailers.and_then(|trailers| Status::from_header_map(&trailers)) {
                    check_status(&status);
                }
            }
        };
        // A stream may go on for ever; dropping it breaks it.
        let _ = tokio::time::timeout(LISTEN, listen).await;
        assert!(self.store.variable_bytes() <= VARIABLE_BYTES_MAX, "{} bytes", self.store.variable_bytes());
    }

    async fn stop(self) {
        self.stopping.cancel();
        let freed = async {
            while self.store.staged_bytes() > 0 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let freed = tokio::time::timeout(LISTEN, freed).await;
        assert!(freed.is_ok(), "{} bytes are staged after the server has stopped", self.store.staged_bytes());
    }
}

/// A cluster in which nobody else is.
struct NoAnswer;

impl Probe for NoAnswer {
    fn probe(&self, task: Task, _address: &str) -> BoxFuture<'_, ProbeOutcome> {
        let outcome = match task.index {
            0 => ProbeOutcome::Refused("nobody listens".to_owned()),
            1 => ProbeOutcome::Answered(Incarnation(3)),
            _ => ProbeOutcome::NoAnswer("nobody is there".to_owned()),
        };
        Box::pin(async move { outcome })
    }
}

/// What a caller is told is fit to be shown, and never a bug.
fn check_status(status: &Status) {
    show(|| format!("{:?}: {}", status.code(), status.message()));
    check_block(status.message(), MESSAGE_BYTES_MAX);
    if let Some(error) = status::answer(status) {
        assert_ne!(error.code, ErrorCode::Internal, "a bug in dchost: {error}");
    }
}

/// Converts a message; what was accepted must survive the way back.
fn convert(kind: u8, bytes: &[u8]) {
    match kind % 8 {
        0 => both(bytes, Header::try_from, |header| v1::RequestHeader::from(header)),
        1 => both(bytes, VariableRef::try_from, |variable| v1::VariableRef::from(variable)),
        2 => both(bytes, TensorType::try_from, |ty| v1::TensorHeader::from(ty)),
        3 => both(bytes, attend::message_from_wire, |message| attend::message_to_wire(message.clone())),
        4 => {
            both(bytes, attend::registered_from_wire, |registered| match attend::registered_to_wire(registered).kind {
                Some(v1::attend_event::Kind::Registered(registered)) => registered,
                other => panic!("a registration became {other:?}"),
            })
        }
        5 => both(
            bytes,
            |event| attend::event_from_wire(event).and_then(|event| event.ok_or(dchost::wire::header::missing("kind"))),
            |event| attend::event_to_wire(event.clone()),
        ),
        6 => {
            let status =
                Status::with_details(tonic::Code::from(i32::from(kind >> 3)), "m", Bytes::copy_from_slice(bytes));
            let error = status::from_status(&status);
            let again = Status::from(error.clone());
            assert_eq!(status::from_status(&again).code, error.code);
        }
        _ => chunks(bytes),
    }
}

fn both<M: Message + Default, T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    read: impl Fn(M) -> dchost::error::Result<T>,
    write: impl Fn(&T) -> M,
) {
    let Ok(message) = M::decode(bytes) else { return };
    match read(message) {
        Ok(value) => assert_eq!(read(write(&value)).as_ref(), Ok(&value)),
        Err(error) => check_block(&error.message, MESSAGE_BYTES_MAX),
    }
}

/// Chunks in order make exactly the bytes that their types say.
fn chunks(bytes: &[u8]) {
    let Ok(header) = v1::PullHeader::decode_length_delimited(bytes) else { return };
    let types: Result<Vec<TensorType>, _> = header.tensor.into_iter().map(TensorType::try_from).collect();
    let Ok(types) = types else { return };
    let store = Store::new(StoreOptions { variable_bytes_max: None, staged_bytes_max: STAGED_BYTES_MAX });
    let mut order = ChunkOrder::new(&types).expect("each type was checked");
    let mut staging = Staging::new(&store, &types).expect("each type was checked");
    let mut rest = bytes;
    let mut expected = 0;
    while let Ok(chunk) = v1::Chunk::decode_length_delimited(&mut rest) {
        let Ok(item) = order.accept(&chunk) else { return };
        if staging.append(item, &chunk.data).is_err() {
            return;
        }
        expected += chunk.data.len() as u64;
        assert_eq!((staging.bytes(), store.staged_bytes()), (expected, expected));
    }
    if order.finish().is_ok() {
        let sizes: usize = types.iter().filter_map(TensorType::size_bytes).sum();
        assert_eq!(expected, sizes as u64);
        assert_eq!(staging.take().iter().map(|blocks| blocks.len()).sum::<usize>(), sizes);
    }
    drop(staging);
    assert_eq!(store.staged_bytes(), 0);
}
