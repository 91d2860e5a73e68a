//! Push (add) and pull of one f32 variable through loopback, against a plain tonic stream of the same bytes in the same run.
//!
//! Both sides have the same channel and HTTP/2 settings. The plain server drops what it gets and the plain client too; neither
//! copies, stages or adds, so a ratio of 1 is an upper bound. Rounds alternate between all four, so that the machine's mood hits
//! all alike; the table shows medians. Run with `cargo bench -p dchost --bench variables`.

use bytes::Bytes;
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::variables::RemoteVariables;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::handles::{Change, InitializeMode, ReadOptions, TaskVariables, UpdateKind, VariableRef, WriteOptions};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::server::guard::authorize;
use dchost::server::variables::PullStream;
use dchost::server::{Server, ServerOptions};
use dchost::tensor::{DType, TensorType, TensorView};
use dchost::variables::Store;
use dchost::wire::v1::{self, pull_response, push_request, variables_client::VariablesClient, variables_server};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

mod plain;

const PS: Task = Task::new(TaskType::Ps, 0);

/// The best chunk size of a plain stream on loopback.
const CHUNK_BYTES: usize = 256 << 10;

/// Takes and gives bytes, and does nothing else.
struct Plain(Bytes);

fn chunks(data: &Bytes) -> impl Iterator<Item = v1::Chunk> + Send + 'static {
    let data = data.clone();
    (0..data.len()).step_by(CHUNK_BYTES).map(move |offset| {
        let end = (offset + CHUNK_BYTES).min(data.len());
        v1::Chunk { item: 0, offset: offset as u64, data: data.slice(offset..end) }
    })
}

#[tonic::async_trait]
impl variables_server::Variables for Plain {
    type PushStream = PullStream;
    type PullStream = PullStream;
    type GatherStream = PullStream;

    async fn push(&self, request: Request<Streaming<v1::PushRequest>>) -> Result<Response<PullStream>, Status> {
        let mut stream = request.into_inner();
        while stream.message().await?.is_some() {}
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<PullStream>, Status> {
        let elements = request.into_inner().variable.first().map_or(0, |variable| variable.shape[0]);
        let data = self.0.slice(..elements as usize * 4);
        let message = |chunk| Ok(v1::PullResponse { kind: Some(pull_response::Kind::Chunk(chunk)) });
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks(&data)).map(message))))
    }

    async fn initialize(&self, _: Request<Streaming<v1::PushRequest>>) -> Result<Response<v1::PushResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn gather(&self, _: Request<v1::GatherRequest>) -> Result<Response<PullStream>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn scatter(&self, _: Request<Streaming<v1::ScatterRequest>>) -> Result<Response<v1::PushResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn uninitialized(
        &self,
        _: Request<v1::UninitializedRequest>,
    ) -> Result<Response<v1::UninitializedResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }

    async fn delete(&self, _: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteResponse>, Status> {
        Err(Status::unimplemented("plain"))
    }
}

/// Starts the standard server and opens channels to it.
fn start() -> Peers {
    let server = Server::new(ServerOptions {
        task: PS,
        incarnation: Incarnation(1),
        listener: std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"),
        cluster: ClusterSpec::new(),
        leader: None,
        store: Store::default(),
        rejoin_timeout: Duration::from_secs(30),
        ops: None,
        authorize: Arc::new(authorize),
    })
    .expect("the listener is good");
    let address = server.local_addr().to_string();
    tokio::spawn(server.run(CancellationToken::new()));
    Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default(),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [address]),
        caller: Caller { container: "default".into(), task: None, run_id: RunId(1), attempt: None },
        runtime: Handle::current(),
        connect_timeout: Duration::from_secs(30),
        rejoin_timeout: Duration::from_secs(30),
    })
}

async fn plain_push(channel: &Channel, data: &Bytes) {
    let message = |chunk| v1::PushRequest { kind: Some(push_request::Kind::Chunk(chunk)) };
    let stream = tokio_stream::iter(chunks(data).map(message));
    let answer = VariablesClient::new(channel.clone()).push(stream).await.expect("the plain push works");
    answer.into_inner().message().await.expect("the plain push ends well");
}

async fn plain_pull(channel: &Channel, variable: &VariableRef) {
    let request = v1::PullRequest { variable: vec![variable.into()], ..Default::default() };
    let answer = VariablesClient::new(channel.clone()).pull(request).await.expect("the plain pull works");
    let mut stream = answer.into_inner();
    while stream.message().await.expect("the plain pull goes on").is_some() {}
}

async fn push(variables: &RemoteVariables, variable: &VariableRef, data: &Bytes) {
    let value = TensorView { ty: variable.ty.clone(), data };
    let change = Change { variable: variable.clone(), kind: UpdateKind::Add, value, base: None };
    variables.push(vec![change], WriteOptions::default()).await.expect("the push works");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The median as it reads best: microseconds for small values, else GB/s.
fn show(bytes: usize, time: Duration) -> String {
    if bytes < 1 << 20 {
        format!("{:.0} us", time.as_secs_f64() * 1e6)
    } else {
        format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
    }
}

async fn measure() {
    let all = Bytes::from(vec![0_u8; 64 << 20]);
    let plain = plain::serve(variables_server::VariablesServer::new(Plain(all.clone()))).await;
    let (plain, dchost) = (plain::channel(&plain), start());
    let variables = RemoteVariables::new(dchost, PS);
    println!("{:>8} {:>5} {:>14} {:>14} {:>18}", "bytes", "", "dchost", "plain tonic", "dchost/plain speed");
    for (bytes, rounds) in [(4 << 10, 400), (1 << 20, 100), (16 << 20, 30), (64 << 20, 15)] {
        let ty = TensorType::new(DType::F32, [bytes as u64 / 4]);
        let variable = VariableRef::whole(format!("v{bytes}"), ty);
        let data = all.slice(..bytes);
        let initial = vec![(variable.clone(), TensorView { ty: variable.ty.clone(), data: &data })];
        variables.initialize(initial, InitializeMode::Overwrite).await.expect("the initialize works");
        let mut times: [Vec<Duration>; 4] = Default::default();
        for round in 0..rounds + 2 {
            let started = Instant::now();
            push(&variables, &variable, &data).await;
            let pushed = Instant::now();
            plain_push(&plain, &data).await;
            let plain_pushed = Instant::now();
            variables.pull(vec![variable.clone()], ReadOptions::default()).await.expect("the pull works");
            let pulled = Instant::now();
            plain_pull(&plain, &variable).await;
            // The first rounds connect, and fill caches and the allocator.
            if round >= 2 {
                let marks = [started, pushed, plain_pushed, pulled, Instant::now()];
                times.iter_mut().zip(marks.windows(2)).for_each(|(times, pair)| times.push(pair[1] - pair[0]));
            }
        }
        let [push, plain_push, pull, plain_pull] = times.map(median);
        for (name, own, plain) in [("push", push, plain_push), ("pull", pull, plain_pull)] {
            let ratio = plain.as_secs_f64() / own.as_secs_f64();
            println!("{bytes:>8} {name:>5} {:>14} {:>14} {ratio:>17.2}x", show(bytes, own), show(bytes, plain));
        }
    }
}

fn main() {
    // `cargo test --benches` asks for a list of tests: there are none.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("the system gives threads").block_on(measure());
}
