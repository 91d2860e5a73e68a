//! Tasks that break the rules, or don't read: whoever calls them neither hangs nor grows.

use super::*;
use dchost::ops::OPERANDS_MAX;
use dchost::server::cluster::ClusterService;
use dchost::server::session::Sessions;
use dchost::wire::v1::call_request::Kind;
use dchost::wire::v1::call_response::Kind as Answer;
use dchost::wire::v1::{cluster_server, fetch_response, ops_server};
use std::pin::Pin;
use std::slice::from_ref;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::DropGuard;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// A server of ops that says what the test wants to each request of a stream of calls.
struct Strange(Arc<dyn Fn(Kind) -> Vec<Answer> + Send + Sync>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ops_server::Ops for Strange {
    type PutModuleStream = Answers<v1::PutModuleResponse>;
    type CallStream = Answers<v1::CallResponse>;
    type FetchStream = Answers<v1::FetchResponse>;

    async fn put_module(
        &self,
        _request: Request<Streaming<v1::PutModuleRequest>>,
    ) -> Result<Response<Self::PutModuleStream>, Status> {
        let asked = v1::PutModuleResponse { challenge: vec![1; 32].into(), ..Default::default() };
        let ready = v1::PutModuleResponse { ready: true, ..Default::default() };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(asked), Ok(ready)]))))
    }

    async fn call(&self, request: Request<Streaming<v1::CallRequest>>) -> Result<Response<Self::CallStream>, Status> {
        let (sender, answers) = mpsc::channel(1);
        let (act, mut requests) = (self.0.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(v1::CallRequest { kind: Some(kind) })) = requests.message().await {
                for answer in act(kind) {
                    if sender.send(Ok(v1::CallResponse { kind: Some(answer) })).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn fetch(&self, _request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let tensor = v1::TensorHeader::from(&bytes(8).ty);
        let header = v1::FetchHeader { header: None, tensor: Some(tensor) };
        let header = v1::FetchResponse { kind: Some(fetch_response::Kind::Header(header)) };
        let chunk = v1::Chunk { item: 0, offset: 0, data: vec![0; 4].into() };
        let chunk = v1::FetchResponse { kind: Some(fetch_response::Kind::Chunk(chunk)) };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(header), Ok(chunk)]))))
    }
}

/// Serves `A`, which answers every opening as it should and all else of a stream of calls as `act` says.
async fn serve(act: impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static) -> (ClusterSpec, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let cluster =
        ClusterSpec::new().with_job(TaskType::Worker, [listener.local_addr().expect("it is bound").to_string()]);
    let stopping = CancellationToken::new();
    let sessions = Sessions::new(LONG, stopping.clone(), Handle::current());
    let guard = Guard::new(A, Incarnation(7), sessions, Arc::new(authorize), stopping.clone());
    let service = ClusterService::new(guard, cluster.clone(), None, Store::default(), stopping.clone());
    let strange = Strange(Arc::new(move |kind| match kind {
        Kind::Opening(_) => vec![Answer::Opened(v1::ResponseHeader { incarnation: 7 })],
        kind => act(kind),
    }));
    let serving = tonic::transport::Server::builder()
        .add_service(cluster_server::ClusterServer::new(service))
        .add_service(ops_server::OpsServer::new(strange))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stopping.clone().cancelled_owned());
    tokio::spawn(serving);
    (cluster, stopping.drop_guard())
}

/// A run that calls such a task, and takes tensors of so many bytes.
async fn strange(
    tensor_bytes_max: u64,
    act: impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static,
) -> (Asker, DropGuard) {
    let (cluster, serving) = serve(act).await;
    (asker(cluster, tensor_bytes_max), serving)
}

fn asker(cluster: ClusterSpec, tensor_bytes_max: u64) -> Asker {
    let component = Component { tensor_bytes_max, ..component_of(b"component") };
    Asker::new(Tasks::patient_run_at(cluster, 1, LONG).peers, component)
}

/// Answers so when a call comes.
fn at_once(answers: Vec<Answer>) -> impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static {
    move |kind| if let Kind::Header(_) = kind { answers.clone() } else { Vec::new() }
}

/// Answers so when a call's results are asked for.
fn when_asked(answers: Vec<Answer>) -> impl Fn(Kind) -> Vec<Answer> + Send + Sync + 'static {
    move |kind| if let Kind::Take(_) = kind { answers.clone() } else { Vec::new() }
}

fn result(call: u64, types: &[TensorType], with_data: bool) -> Answer {
    let tensor = types.iter().map(v1::TensorHeader::from).collect();
    Answer::Result(v1::CallResult { call, tensor, with_data, ..Default::default() })
}

fn chunk(item: u32, offset: u64, count: usize) -> Answer {
    Answer::Chunk(v1::Chunk { item, offset, data: vec![0; count].into() })
}

/// A result of so many MiB, with all of its bytes.
fn whole(call: u64, mib: u64) -> impl Iterator<Item = Answer> {
    let chunks = (0..mib).map(|part| chunk(0, part << 20, 1 << 20));
    std::iter::once(result(call, &[TensorType::new(DType::U8, [mib << 20])], true)).chain(chunks)
}

/// Aim: whatever a task answers to call 1, the caller gets an error that says so, and takes no more than it allows. Method: each
/// answer comes at once, and once the results are asked for.
#[tokio::test]
async fn a_caller_bears_any_answer() {
    let eight = bytes(8).ty;
    // Each of them alone has a size that can be served; their sum has none.
    let huge = TensorType::new(DType::F64, [1 << 59]);
    let above = bytes(2 << 20).ty;
    let cases: Vec<(&str, Vec<Answer>)> = vec![
        ("bytes of nothing", vec![chunk(0, 0, 8)]),
        ("an opening twice", vec![Answer::Opened(v1::ResponseHeader { incarnation: 9 })]),
        ("a result before the bytes", vec![result(1, from_ref(&eight), true), result(2, &[], true)]),
        ("257 results, at most 256", vec![result(1, &vec![eight.clone(); OPERANDS_MAX + 1], false)]),
        ("300 results, at most 256", vec![result(1, &vec![bytes(0).ty; 300], true)]),
        ("more results", (0..2000).map(|_| result(2, &[bytes(1).ty], false)).collect()),
        ("comes next", vec![result(1, from_ref(&eight), true), chunk(3, 0, 8)]),
        ("overruns the item's `8`", vec![result(1, from_ref(&eight), true), chunk(0, 0, 9)]),
        ("at most 1048576 are taken here (--max-tensor)", vec![result(1, from_ref(&above), true)]),
        ("at most 1048576 are taken here (--max-tensor)", vec![result(1, &[above], false)]),
        ("at most 1048576 are taken here (--max-tensor)", whole(1, 2).collect()),
        ("at most 1048576 are taken here (--max-tensor)", vec![result(1, &vec![huge.clone(); 200], true)]),
        ("at most 1048576 are taken here (--max-tensor)", vec![result(1, &vec![huge; 200], false)]),
        ("at most 1048576 are taken here (--max-tensor)", whole(9, 2).chain(whole(1, 2)).collect()),
    ];
    for (expected, answers) in cases {
        for (run, _serving) in [
            strange(TENSOR_BYTES_MAX, at_once(answers.clone())).await,
            strange(TENSOR_BYTES_MAX, when_asked(answers)).await,
        ] {
            let error = run_op(&run.a, "echo", []).await.expect_err(expected);
            assert!(error.message.contains(expected), "{expected}: {error}");
            assert_eq!(
                error.code == ErrorCode::ResourceExhausted,
                expected.ends_with("(--max-tensor)"),
                "{expected}: {error:?}"
            );
        }
    }
    // More than a stream takes unread.
    let (run, _serving) = strange(LARGE_BYTES_MAX, when_asked(whole(1, 33).collect())).await;
    let error = run_op(&run.a, "echo", []).await.expect_err("too large");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    assert!(error.message.contains("--max-tensor"), "{error}");
    // Bytes that nobody asked for: the result isn't taken, so that nothing is asked for in time.
    let (run, _serving) = strange(LARGE_BYTES_MAX, at_once(vec![result(1, &[bytes(1 << 20).ty], true)])).await;
    let error = keep(&*begin(&run.a, "echo", [])).await.expect_err("unasked");
    assert!(error.message.contains("not asked for"), "{error}");
    // Results of calls that nobody made, and errors of any code, do nothing.
    let error = |call, code| Answer::Result(v1::CallResult { call, code, ..Default::default() });
    let answers = vec![
        error(77, 5),
        result(78, from_ref(&eight), false),
        result(79, from_ref(&eight), true),
        chunk(0, 0, 8),
        error(1, u32::MAX),
    ];
    let (run, _serving) = strange(TENSOR_BYTES_MAX, at_once(answers)).await;
    assert_eq!(run_op(&run.a, "echo", []).await.expect_err("an error").code, ErrorCode::Unknown);
    // A value of fewer bytes than it is told to have.
    let (run, _serving) = strange(TENSOR_BYTES_MAX, at_once(vec![result(1, from_ref(&eight), false)])).await;
    let kept = keep(&*begin(&run.a, "echo", [])).await.expect("so it says");
    let error = within(run.a.fetch(kept[0].clone())).await.expect_err("too few");
    assert!(error.message.contains("too few bytes"), "{error}");
}

/// Bytes whose owner is counted as long as anybody has them.
fn counted(count: &Arc<AtomicUsize>, bytes: usize) -> Bytes {
    struct Counted(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }
    count.fetch_add(1, Ordering::SeqCst);
    Bytes::from_owner(Counted(vec![0; bytes], count.clone()))
}

/// Aim: what a guest starts and drops holds no memory, though the task that it is for reads nothing, or isn't there.
#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_sent_holds_nothing() {
    const BYTES: usize = 24 << 20;
    let held = Arc::new(AtomicUsize::new(0));
    let start = |run: &Asker| {
        let ty = TensorType::new(DType::U8, [BYTES as u64]);
        begin(&run.a, "echo", [Tensor { ty, data: counted(&held, BYTES) }])
    };

    let port = Held::new();
    let absent = ClusterSpec::new().with_job(TaskType::Worker, [port.addr.to_string()]);
    let absent = asker(absent, LARGE_BYTES_MAX);
    (0..3).for_each(|_| drop(start(&absent)));
    until("nothing is held for a task that isn't there", || Seen::count(&held) == 0).await;

    // It reads the opening and the first header, and then no more.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (begun, stopped) = (Arc::new(AtomicUsize::new(0)), Mutex::new(stopped));
    let seen = begun.clone();
    let (told, cluster) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there are threads");
        runtime.block_on(async {
            let act = move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
                // Blocks its whole runtime, until the test has ended.
                let _ = stopped.lock().map(|stopped| stopped.recv());
                Vec::new()
            };
            let (cluster, _serving) = serve(act).await;
            told.send(cluster).expect("the test waits");
            std::future::pending::<()>().await;
        });
    });
    let stalled = asker(within(cluster).await.expect("it serves"), LARGE_BYTES_MAX);
    let first = start(&stalled);
    until("the first has begun", || Seen::count(&begun) == 1).await;
    (0..3).for_each(|_| drop(start(&stalled)));
    until("only what has begun is held", || Seen::count(&held) == 1).await;
    drop((first, stop));
}

/// Aim: a guest that asks for the same again and again makes nothing grow. Method: all that a task is sent of the call.
#[tokio::test]
async fn a_call_is_cancelled_once() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (seen, all) = (told.clone(), || told.lock().expect("no panic above").clone());
    let (run, _serving) = strange(TENSOR_BYTES_MAX, move |kind| match kind {
        Kind::Header(v1::CallHeader { call, op, .. }) if op == "nothing" => vec![result(call, &[], true)],
        Kind::Take(v1::Take { call: 2.. }) => Vec::new(),
        kind => {
            seen.lock().expect("no panic above").push(kind);
            Vec::new()
        }
    })
    .await;
    let started = begin(&run.a, "never", []);
    until("it has begun", || all() == [header(1, "never", &[])]).await;
    (0..1000).for_each(|_| started.cancel());
    assert_eq!(run_op(&run.a, "nothing", []).await, Ok(Vec::new()));
    let cancel = Kind::Cancel(v1::Cancel { call: 1 });
    assert_eq!(all(), [header(1, "never", &[]), cancel.clone()]);
    // That nobody waits for it any more is told whether or not it was cancelled.
    drop(started);
    assert_eq!(run_op(&run.a, "nothing", []).await, Ok(Vec::new()));
    assert_eq!(all(), [header(1, "never", &[]), cancel.clone(), cancel]);
}
