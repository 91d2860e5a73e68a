//! Round trips of ops, in real instances behind a real server, against plain unary calls of tonic that carry the same bytes.
//!
//! Each caller has a connection and, for ops, a session and an instance of its own. The plain server gives back the message that it
//! got; the channels and HTTP/2 settings are the same.

use crate::fakes::Lines;
use crate::guests;
use crate::measure::{PASSES, Series, head, row};
use crate::plain;
use bytes::Bytes;
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::ops::{Component, RemoteOps};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::coordinator::op_host::{OpHostOptions, Ops};
use dchost::coordinator::plan::op_context;
use dchost::coordinator::resolve::values::RpcLayer;
use dchost::handles::{OpCall, OpInput};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::runtime::{EngineOptions, GuestOptions};
use dchost::server::guard::authorize;
use dchost::server::{Server, ServerOptions};
use dchost::tensor::{DType, Tensor, TensorType};
use dchost::variables::{Spare, Store};
use dchost::wire::transport::MESSAGE_BYTES_MAX;
use dchost::wire::v1;
use sha2::{Digest as _, Sha256};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tonic::codegen::{Body, Service, StdError, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const WORKER: Task = Task::new(TaskType::Worker, 0);

/// Calls of each caller in a pass, and the bytes that go each way.
const CASES: [(usize, usize); 2] = [(0, 400), (1 << 20, 60)];

/// Callers at once.
const CALLERS: [usize; 2] = [1, 8];

pub(crate) fn run() {
    let component = guests::component();
    let guests = Builder::new_multi_thread().enable_all().build().expect("a runtime for guests");
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    head(&["bytes each way", "callers", "op, us a call", "plain unary, us a call", "op / plain in calls a second"]);
    runtime.block_on(async {
        let address = serve(guests.handle().clone());
        let plain = plain::serve(Echo).await;
        let digest = Sha256::digest(&component).into();
        let component = Arc::new(Component { digest, bytes: component, args: Vec::new(), tensor_bytes_max: 256 << 20 });
        for (bytes, calls) in CASES {
            for callers in CALLERS {
                let lanes: Vec<_> = (0..callers).map(|_| (ops(&address, &component), plain::channel(&plain))).collect();
                let (mut own, mut other) = (Series::default(), Series::default());
                // The first pass puts the component, starts instances and connects.
                for pass in 0..=PASSES {
                    let time = each(lanes.iter().map(|(ops, _)| call_ops(ops.clone(), bytes, calls))).await;
                    let plain = each(lanes.iter().map(|(_, channel)| call_plain(channel.clone(), bytes, calls))).await;
                    if pass > 0 {
                        let all = (calls * callers) as u128;
                        own.pass(&[time.as_nanos() / all]);
                        other.pass(&[plain.as_nanos() / all]);
                    }
                }
                row(&[&bytes, &callers, &own.us(), &other.us(), &own.speed(&other)]);
            }
        }
    });
    guests.shutdown_background();
}

/// Runs all at the same time; how long that took.
async fn each(work: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>) -> Duration {
    let started = Instant::now();
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    for task in tasks {
        task.await.expect("it doesn't panic");
    }
    started.elapsed()
}

/// Starts a server that runs ops on `guests`.
fn serve(guests: Handle) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, [address.clone()]);
    let store = Store::default();
    let minute = Duration::from_secs(60);
    let host = Ops::new(OpHostOptions {
        task: WORKER,
        leader: None,
        context: Arc::new(op_context(&cluster, WORKER, RpcLayer::Grpc)),
        engine: EngineOptions::default(),
        guest: GuestOptions::default(),
        store: store.clone(),
        spare: Spare::default(),
        console: Arc::<Lines>::default(),
        guests,
        control: Handle::current(),
        connect_timeout: minute,
        rejoin_timeout: minute,
    });
    let server = Server::new(ServerOptions {
        task: WORKER,
        incarnation: Incarnation(1),
        listener,
        cluster,
        leader: None,
        store,
        rejoin_timeout: minute,
        ops: Some(Arc::new(host)),
        authorize: Arc::new(authorize),
    })
    .expect("the listener is good");
    tokio::spawn(server.run(CancellationToken::new()));
    address
}

/// One caller's ops: a session and a connection of its own.
fn ops(address: &str, component: &Arc<Component>) -> RemoteOps {
    let minute = Duration::from_secs(60);
    let peers = Peers::new(PeersOptions {
        cluster: ClusterSpec::new().with_job(TaskType::Worker, [address]),
        caller: Caller {
            container: "default".into(),
            task: None,
            run_id: RunId::draw(&mut rand::rng()),
            attempt: None,
        },
        client_use: None,
        leader: None,
        connections: Connections::default(),
        runtime: Handle::current(),
        connect_timeout: minute,
        rejoin_timeout: minute,
    });
    RemoteOps::new(peers, WORKER, component.clone())
}

async fn call_ops(ops: RemoteOps, bytes: usize, calls: usize) {
    let data = Bytes::from(vec![1; bytes]);
    for _ in 0..calls {
        let (op, inputs) = if bytes == 0 {
            ("nothing", Vec::new())
        } else {
            let ty = TensorType::new(DType::U8, [bytes as u64]);
            ("echo", vec![OpInput::Tensor(Tensor { ty, data: data.clone() })])
        };
        let started = ops.start(OpCall { op: op.to_owned(), inputs, timeout: None }).expect("it is well formed");
        let results = started.take().await.expect("the op runs");
        assert_eq!(results.iter().map(|tensor| tensor.data.len()).sum::<usize>(), bytes);
    }
}

/// Gives back what it gets.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "bench.Echo";
}

impl UnaryService<v1::Chunk> for Echo {
    type Response = v1::Chunk;
    type Future = Ready<Result<Response<v1::Chunk>, Status>>;

    fn call(&mut self, request: Request<v1::Chunk>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl<B> Service<http::Request<B>> for Echo
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<v1::Chunk, v1::Chunk>::default())
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None);
            Ok(grpc.unary(Echo, request).await)
        })
    }
}

async fn call_plain(channel: Channel, bytes: usize, calls: usize) {
    let mut grpc = tonic::client::Grpc::new(channel);
    let data = Bytes::from(vec![1; bytes]);
    for _ in 0..calls {
        grpc.ready().await.expect("it connects");
        let request = Request::new(v1::Chunk { item: 0, offset: 0, data: data.clone() });
        let path = http::uri::PathAndQuery::from_static("/bench.Echo/Echo");
        let codec = ProstCodec::<v1::Chunk, v1::Chunk>::default();
        let answer = grpc.unary(request, path, codec).await.expect("it answers").into_inner();
        assert_eq!(answer.data.len(), bytes);
    }
}
