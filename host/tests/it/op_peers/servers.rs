//! Servers that mean no good to a caller.

use super::*;
use dchost::handles::StartedOp;
use dchost::wire::v1;
use dchost::wire::v1::call_request::Kind;
use dchost::wire::v1::call_response::Kind as Answer;
use dchost::wire::v1::{cluster_server, ops_server};
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the server does with each request of a stream of calls.
type Act = Arc<dyn Fn(Kind) -> Vec<Answer> + Send + Sync>;

#[derive(Clone)]
struct Hostile(Act);

fn header() -> Option<v1::ResponseHeader> {
    Some(v1::ResponseHeader { incarnation: 7 })
}

#[tonic::async_trait]
impl cluster_server::Cluster for Hostile {
    type AttendStream = Answers<v1::AttendEvent>;
    type SessionStream = Answers<v1::SessionEvent>;

    async fn attend(&self, _: Request<Streaming<v1::AttendRequest>>) -> Result<Response<Self::AttendStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn session(
        &self,
        _: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let opened = tokio_stream::once(Ok(v1::SessionEvent { header: header() }));
        Ok(Response::new(Box::pin(opened.chain(tokio_stream::pending()))))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl ops_server::Ops for Hostile {
    type PutModuleStream = Answers<v1::PutModuleResponse>;
    type CallStream = Answers<v1::CallResponse>;
    type FetchStream = Answers<v1::FetchResponse>;

    async fn put_module(
        &self,
        requests: Request<Streaming<v1::PutModuleRequest>>,
    ) -> Result<Response<Self::PutModuleStream>, Status> {
        let mut requests = requests.into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = requests.message().await {} });
        let asked = v1::PutModuleResponse { header: header(), challenge: vec![1; 32].into(), ..Default::default() };
        let ready = v1::PutModuleResponse { header: header(), ready: true, ..Default::default() };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(asked), Ok(ready)]))))
    }

    async fn call(&self, requests: Request<Streaming<v1::CallRequest>>) -> Result<Response<Self::CallStream>, Status> {
        let (sender, stream) = mpsc::channel(4);
        let (act, mut requests) = (self.0.clone(), requests.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(v1::CallRequest { kind: Some(kind) })) = requests.message().await {
                for answer in act(kind) {
                    if sender.send(Ok(v1::CallResponse { kind: Some(answer) })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// Starts a server that answers each beginning of a call as `act` says, and every opening as it should.
async fn serve(act: impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let act = move |kind| match kind {
        Kind::Opening(_) => vec![Answer::Opened(v1::ResponseHeader { incarnation: 7 })],
        kind => act(kind),
    };
    let hostile = Hostile(Arc::new(act));
    let server = tonic::transport::Server::builder()
        .add_service(cluster_server::ClusterServer::new(hostile.clone()))
        .add_service(ops_server::OpsServer::new(hostile));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// A result of so many bytes of u8, announced as if they followed (`with_data`) or stayed.
fn result(call: u64, bytes: &[u64], with_data: bool) -> Answer {
    let tensor = bytes.iter().map(|&bytes| (&TensorType::new(DType::U8, [bytes])).into()).collect();
    Answer::Result(v1::CallResult { call, tensor, with_data, ..Default::default() })
}

/// How a call of `op` on such a server ends, whose results are asked for.
async fn outcome(act: impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static) -> Result<Vec<Tensor>> {
    let ops = remote_ops(serve(act).await);
    let started = ops.start(op("op", Vec::new())).expect("it is started");
    tokio::time::timeout(LONG, started.take()).await.expect("it ends")
}

/// Aim: whatever a server answers to a call, the caller gets an error that says so, and takes no more than it allows.
#[tokio::test]
async fn strange_answers_are_errors_of_the_call() {
    const CHUNK: usize = 1 << 20;
    let on_take = |answers: fn(u64) -> Vec<Answer>| {
        move |kind| match kind {
            Kind::Take(v1::Take { call }) => answers(call),
            _ => Vec::new(),
        }
    };
    let on_header = |answers: fn(u64) -> Vec<Answer>| {
        move |kind| match kind {
            Kind::Header(v1::CallHeader { call, .. }) => answers(call),
            _ => Vec::new(),
        }
    };
    // Each of them alone has a size that can be served; their sum has none.
    let error = outcome(on_take(|call| vec![result(call, &[1 << 62; 8], false)])).await.expect_err("too many");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    let error = outcome(on_take(|call| vec![result(call, &[0; 300], true)])).await.expect_err("too many");
    assert!(error.message.contains("at most 256"), "{error}");
    let error = outcome(on_take(|call| (0..2000).map(|_| result(call + 1, &[1], false)).collect())).await;
    assert!(error.as_ref().is_err_and(|error| error.message.contains("more results")), "{error:?}");

    // More than is taken here, whose bytes come as well.
    let large = on_take(|call| {
        let mut answers = vec![result(call, &[TENSOR_BYTES_MAX + CHUNK as u64], true)];
        answers.extend(
            (0..=TENSOR_BYTES_MAX)
                .step_by(CHUNK)
                .map(|offset| Answer::Chunk(v1::Chunk { item: 0, offset, data: vec![0; CHUNK].into() })),
        );
        answers
    });
    let error = outcome(large).await.expect_err("too large");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    assert!(error.message.contains("--max-tensor"), "{error}");

    // Bytes that nobody asked for. It isn't taken, so that nothing is asked for in time.
    let ops = remote_ops(serve(on_header(|call| vec![result(call, &[1 << 20], true)])).await);
    let started = ops.start(op("op", Vec::new())).expect("it is started");
    let error = tokio::time::timeout(LONG, started.keep()).await.expect("it ends").expect_err("unasked");
    assert!(error.message.contains("not asked for"), "{error}");
}

/// Aim: what a guest starts and drops holds no memory, though the task that it is for reads nothing, or isn't there.
#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_sent_holds_nothing() {
    const BYTES: usize = 24 << 20;
    let held = Arc::new(AtomicUsize::new(0));
    let start = |ops: &RemoteOps| ops.start(op("op", vec![u8s(counted(&held, BYTES))])).expect("it is started");

    let nobody = tokio::net::TcpSocket::new_v4().expect("there are sockets");
    nobody.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("loopback has a free port");
    let absent = remote_ops(nobody.local_addr().expect("it is bound"));
    (0..3).for_each(|_| drop(start(&absent)));
    until("nothing is held for a task that isn't there", || held.load(Ordering::Relaxed) == 0).await;

    // It reads the opening and the first header, and then no more.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = (Arc::new(AtomicUsize::new(0)), std::sync::Mutex::new(stopped));
    let seen = begun.clone();
    let address = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there are threads");
        let (told, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let act = move |_| {
                    seen.fetch_add(1, Ordering::Relaxed);
                    // Blocks its whole runtime, until the test has ended.
                    let _ = begins.lock().map(|begins| begins.recv());
                    Vec::new()
                };
                told.send(serve(act).await).expect("the test waits");
                std::future::pending::<()>().await;
            });
        });
        address.recv().expect("it serves")
    });
    let stalled = remote_ops(address.join().expect("it serves"));
    let first = start(&stalled);
    until("the first has begun", || begun.load(Ordering::Relaxed) == 1).await;
    (0..3).for_each(|_| drop(start(&stalled)));
    until("only what has begun is held", || held.load(Ordering::Relaxed) == 1).await;
    drop((first, stop));
}

/// Aim: a guest that asks for the same again and again makes nothing grow.
#[tokio::test]
async fn a_call_is_cancelled_once() {
    let [begun, cancels] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let seen = (begun.clone(), cancels.clone());
    let ops = remote_ops(
        serve(move |kind| match kind {
            Kind::Cancel(_) => {
                seen.1.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            }
            Kind::Header(v1::CallHeader { call, op, .. }) if op == "last" => vec![result(call, &[], true)],
            _ => {
                seen.0.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            }
        })
        .await,
    );
    let started: Box<dyn StartedOp> = ops.start(op("op", Vec::new())).expect("it is started");
    until("it has begun", || begun.load(Ordering::Relaxed) == 1).await;
    (0..1000).for_each(|_| started.cancel());
    let last = ops.start(op("last", Vec::new())).expect("it is started");
    tokio::time::timeout(LONG, last.take()).await.expect("it ends").expect("it ends well");
    assert_eq!(cancels.load(Ordering::Relaxed), 1);
}
