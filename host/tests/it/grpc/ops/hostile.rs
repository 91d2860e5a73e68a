//! Callers and tasks that break the rules: the other side neither hangs nor grows, and serves others as before.

use super::*;
use dchost::ops::OPERANDS_MAX;
use dchost::server::cluster::ClusterService;
use dchost::server::session::Sessions;
use dchost::wire::status::from_status;
use dchost::wire::v1::call_request::Kind;
use dchost::wire::v1::{call_response, ops_server};
use std::pin::Pin;
use std::slice::from_ref;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// A stream of calls that the test carries out by hand, as run 1.
struct Raw {
    requests: mpsc::Sender<v1::CallRequest>,
    answers: Streaming<v1::CallResponse>,
}

fn opening() -> Kind {
    Kind::Opening(v1::Opening {
        header: Some((&Header::new(caller(1))).into()),
        module_sha256: component_of(b"component").digest.to_vec().into(),
        argument: Vec::new(),
    })
}

fn header(call: u64, op: &str, types: &[TensorType]) -> Kind {
    let input = |ty| v1::Input { kind: Some(v1::input::Kind::Tensor(v1::TensorHeader::from(ty))) };
    Kind::Header(v1::CallHeader { call, op: op.into(), input: types.iter().map(input).collect(), timeout_ms: 0 })
}

fn chunk(item: u32, offset: u64, count: usize) -> Kind {
    Kind::Chunk(v1::Chunk { item, offset, data: vec![0; count].into() })
}

impl Raw {
    async fn open(addr: SocketAddr) -> Raw {
        let (requests, stream) = mpsc::channel(64);
        let raw = v1::CallRequest { kind: Some(opening()) };
        requests.try_send(raw).expect("there is room");
        let mut client = OpsClient::new(channel_to(addr).await);
        let mut answers = client.call(ReceiverStream::new(stream)).await.expect("it opens").into_inner();
        let opened = answers.message().await.expect("it opens").and_then(|answer| answer.kind);
        assert!(matches!(opened, Some(call_response::Kind::Opened(_))));
        Raw { requests, answers }
    }

    async fn send(&self, kind: Kind) -> bool {
        self.requests.send(v1::CallRequest { kind: Some(kind) }).await.is_ok()
    }

    async fn answer(&mut self) -> Result<call_response::Kind> {
        match within(self.answers.message()).await {
            Ok(answer) => Ok(answer.and_then(|answer| answer.kind).expect("an answer")),
            Err(status) => Err(from_status(&status)),
        }
    }
}

#[tokio::test]
async fn streams_that_break_the_rules_are_ended_and_say_why() {
    let ty = bytes(8).ty;
    let many = vec![number(0).ty; OPERANDS_MAX + 1];
    let huge = TensorType::new(DType::F64, [1 << 40, 1 << 40]);
    let remote = |value| {
        Kind::Header(v1::CallHeader {
            call: 1,
            op: "echo".into(),
            input: vec![v1::Input { kind: Some(v1::input::Kind::Remote(value)) }],
            timeout_ms: 0,
        })
    };
    let cases: Vec<(&str, Vec<Kind>)> = vec![
        ("a chunk came that no call announced", vec![chunk(0, 0, 8)]),
        ("the stream is open already", vec![opening()]),
        (
            "call 2 begins before the inputs of call 1 are complete",
            vec![header(1, "echo", from_ref(&ty)), header(2, "echo", &[])],
        ),
        ("call 1 was made already", vec![header(1, "never", &[]), header(1, "echo", &[])]),
        ("came where item `0` at offset `0` comes next", vec![header(1, "echo", from_ref(&ty)), chunk(1, 0, 8)]),
        ("overruns the item's `8`", vec![header(1, "echo", from_ref(&ty)), chunk(0, 0, 9)]),
        ("takes whole elements of `8`", vec![header(1, "echo", &[number(0).ty]), chunk(0, 0, 7)]),
        ("call has 257 inputs, at most 256 are allowed", vec![header(1, "echo", &many)]),
        ("the name of an op is empty", vec![header(1, "", &[])]),
        ("overflows the address space", vec![header(1, "echo", &[huge])]),
        ("`value.task` is missing", vec![remote(v1::RemoteValue::default())]),
        (
            "`input.kind` is missing",
            vec![Kind::Header(v1::CallHeader {
                call: 1,
                op: "echo".into(),
                input: vec![v1::Input::default()],
                timeout_ms: 0,
            })],
        ),
    ];
    let tasks = Tasks::start();
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    for (expected, kinds) in cases {
        let mut raw = Raw::open(tasks.servers[&A].addr).await;
        for kind in kinds {
            raw.send(kind).await;
        }
        let error = raw.answer().await.expect_err(expected);
        assert_eq!(error.code, ErrorCode::InvalidArgument, "{expected}: {error}");
        assert!(error.message.contains(expected), "{expected}: {error}");
    }
    assert_eq!(run_op(&tasks.run(2).a, "echo", [number(1)]).await, Ok(vec![number(1)]));
    tasks.stop().await;
}

#[tokio::test]
async fn what_is_refused_is_passed_over_and_the_stream_goes_on() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let mut raw = Raw::open(tasks.servers[&A].addr).await;
    let large = bytes(2 << 20).ty;
    for kind in
        [header(10, "echo", &[large]), chunk(0, 0, 1 << 20), chunk(0, 1 << 20, 1 << 20), header(11, "calls", &[])]
    {
        raw.send(kind).await;
    }
    let Ok(call_response::Kind::Result(refused)) = raw.answer().await else { panic!("a result comes") };
    assert_eq!((refused.call, refused.code), (10, tonic::Code::ResourceExhausted as u32));
    let Ok(call_response::Kind::Result(served)) = raw.answer().await else { panic!("a result comes") };
    assert_eq!((served.call, served.code), (11, 0));
    // What isn't there can be asked for, dropped and cancelled.
    for kind in [
        Kind::Cancel(v1::Cancel { call: 99 }),
        Kind::Drop(v1::Drop { call: 99, result: vec![7] }),
        Kind::Drop(v1::Drop { call: 11, result: vec![u32::MAX] }),
        Kind::Take(v1::Take { call: 99 }),
    ] {
        raw.send(kind).await;
    }
    let Ok(call_response::Kind::Chunk(_)) = raw.answer().await else { panic!("its bytes come") };
    let Ok(call_response::Kind::Result(unknown)) = raw.answer().await else { panic!("a result comes") };
    assert_eq!((unknown.call, unknown.code), (99, tonic::Code::NotFound as u32));
    tasks.stop().await;
}

#[tokio::test]
async fn a_second_stream_ends_the_first_and_what_it_had_begun() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    let mut raw = Raw::open(tasks.servers[&A].addr).await;
    raw.send(header(100, "calls", &[])).await;
    let Ok(call_response::Kind::Result(served)) = raw.answer().await else { panic!("a result comes") };
    assert_eq!((served.call, served.code), (100, 0), "it doesn't wait for what nobody waits for");
    let error = take(&*never).await.expect_err("its stream has ended");
    assert!(error.message.contains("another stream of the session"), "{error}");
    assert_eq!(Seen::count(&tasks.seen(A).opened), 1, "the instance stays");
    tasks.stop().await;
}

/// Aim: whoever sends calls and reads no answers is made to wait, so that the answers don't pile up. Method: calls are sent
/// until nothing is taken for a while; that happens long before as many are sent as nobody could hold.
#[tokio::test]
async fn a_caller_that_reads_no_answers_has_to_wait() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let mut raw = Raw::open(tasks.servers[&A].addr).await;
    let op = "x".repeat(200);
    let mut sent = 0_u64;
    let stuck = loop {
        let send = raw.send(header(1000 + sent, &op, &[]));
        match tokio::time::timeout(Duration::from_secs(1), send).await {
            Ok(taken) => assert!(taken, "the stream goes on"),
            Err(_) => break true,
        }
        sent += 1;
        if sent > 1_000_000 {
            break false;
        }
    };
    assert!(stuck, "{sent} calls were taken of somebody who reads nothing");
    // Reading them makes room.
    for _ in 0..sent {
        assert!(matches!(raw.answer().await, Ok(call_response::Kind::Result(_))));
    }
    tasks.stop().await;
}

#[tokio::test]
async fn results_without_bytes_are_counted_too() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let mut raw = Raw::open(tasks.servers[&A].addr).await;
    let none = vec![bytes(0).ty; OPERANDS_MAX];
    let mut refused = None;
    for call in 100..500 {
        raw.send(header(call, "echo", &none)).await;
        let Ok(call_response::Kind::Result(result)) = raw.answer().await else { panic!("a result comes") };
        if result.code != 0 {
            refused = Some((call, result));
            break;
        }
    }
    let (call, result) = refused.expect("there is an end");
    assert_eq!(result.code, tonic::Code::ResourceExhausted as u32);
    assert!(result.message.contains("take or release some first"), "{}", result.message);
    for dropped in 100..call {
        raw.send(Kind::Drop(v1::Drop { call: dropped, result: Vec::new() })).await;
    }
    raw.send(header(1000, "echo", &none)).await;
    let Ok(call_response::Kind::Result(result)) = raw.answer().await else { panic!("a result comes") };
    assert_eq!(result.code, 0, "{}", result.message);
    tasks.stop().await;
}

/// A task whose server of ops says what the test wants.
struct Strange {
    /// To the first call of each stream.
    answers: Vec<call_response::Kind>,
}

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
        let mut requests = request.into_inner();
        let kinds = self.answers.clone();
        tokio::spawn(async move {
            let opened = call_response::Kind::Opened(v1::ResponseHeader { incarnation: 7 });
            let answer = |kind| Ok(v1::CallResponse { kind: Some(kind) });
            drop(sender.send(answer(opened)).await);
            // The opening, and the first call.
            let _ = (requests.message().await, requests.message().await);
            for kind in kinds {
                drop(sender.send(answer(kind)).await);
            }
            while let Ok(Some(_)) = requests.message().await {}
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn fetch(&self, _request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let tensor = v1::TensorHeader::from(&bytes(8).ty);
        let header = v1::FetchHeader { header: None, tensor: Some(tensor) };
        let header = v1::FetchResponse { kind: Some(v1::fetch_response::Kind::Header(header)) };
        let chunk = v1::Chunk { item: 0, offset: 0, data: vec![0; 4].into() };
        let chunk = v1::FetchResponse { kind: Some(v1::fetch_response::Kind::Chunk(chunk)) };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(header), Ok(chunk)]))))
    }
}

/// Serves `A` strangely, and a run that calls it.
async fn strange(answers: Vec<call_response::Kind>) -> (Asker, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let cluster =
        ClusterSpec::new().with_job(TaskType::Worker, [listener.local_addr().expect("it is bound").to_string()]);
    let stopping = CancellationToken::new();
    let sessions = Sessions::new(LONG, stopping.clone(), Handle::current());
    let guard = Guard::new(A, Incarnation(7), sessions, Arc::new(authorize), stopping.clone());
    let service = ClusterService::new(guard, cluster.clone(), None, Store::default(), stopping.clone());
    let serving = tonic::transport::Server::builder()
        .add_service(v1::cluster_server::ClusterServer::new(service))
        .add_service(ops_server::OpsServer::new(Strange { answers }))
        .serve_with_incoming_shutdown(
            tonic::transport::server::TcpIncoming::from(listener),
            stopping.clone().cancelled_owned(),
        );
    tokio::spawn(serving);
    (Tasks::run_at(cluster, 1), stopping)
}

fn result(call: u64, types: &[TensorType], with_data: bool) -> call_response::Kind {
    let tensor = types.iter().map(v1::TensorHeader::from).collect();
    call_response::Kind::Result(v1::CallResult { call, tensor, with_data, ..Default::default() })
}

fn answer_chunk(item: u32, offset: u64, count: usize) -> call_response::Kind {
    call_response::Kind::Chunk(v1::Chunk { item, offset, data: vec![0; count].into() })
}

/// What a strange task answers to call 1, and what the caller makes of it.
#[tokio::test]
async fn a_caller_bears_any_answer() {
    let eight = bytes(8).ty;
    let huge = TensorType::new(DType::F64, [1 << 59]);
    let above = bytes(2 << 20).ty;
    let over = |call: u64| {
        let answers = (0..2_u64).map(move |part| answer_chunk(0, part << 20, 1 << 20));
        std::iter::once(result(call, &[bytes(2 << 20).ty], true)).chain(answers)
    };
    let cases: Vec<(&str, Vec<call_response::Kind>)> = vec![
        ("bytes of nothing", vec![answer_chunk(0, 0, 8)]),
        ("an opening twice", vec![call_response::Kind::Opened(v1::ResponseHeader { incarnation: 9 })]),
        ("a result before the bytes", vec![result(1, from_ref(&eight), true), result(2, &[], true)]),
        ("257 results, at most 256", vec![result(1, &vec![eight.clone(); OPERANDS_MAX + 1], false)]),
        ("comes next", vec![result(1, from_ref(&eight), true), answer_chunk(3, 0, 8)]),
        ("overruns the item's `8`", vec![result(1, from_ref(&eight), true), answer_chunk(0, 0, 9)]),
        ("at most 1048576 are taken here", vec![result(1, from_ref(&above), true)]),
        ("at most 1048576 are taken here", vec![result(1, &[above], false)]),
        ("at most 1048576 are taken here", over(1).collect()),
        ("at most 1048576 are taken here", vec![result(1, &vec![huge; 200], true)]),
        ("at most 1048576 are taken here", over(9).chain(over(1)).collect()),
    ];
    for (expected, answers) in cases {
        let (run, stopping) = strange(answers).await;
        let started = begin(&run.a, "echo", []);
        let error = take(&*started).await.expect_err(expected);
        assert!(error.message.contains(expected), "{expected}: {error}");
        stopping.cancel();
    }
    // Results of calls that nobody made, and errors of any code, do nothing.
    let error = |call, code| call_response::Kind::Result(v1::CallResult { call, code, ..Default::default() });
    let (run, stopping) = strange(vec![
        error(77, 5),
        result(78, from_ref(&eight), false),
        result(79, from_ref(&eight), true),
        answer_chunk(0, 0, 8),
        error(1, u32::MAX),
    ])
    .await;
    assert_eq!(run_op(&run.a, "echo", []).await.expect_err("an error").code, ErrorCode::Unknown);
    stopping.cancel();
    // A value of fewer bytes than it is told to have.
    let (run, stopping) = strange(vec![result(1, from_ref(&eight), false)]).await;
    let kept = keep(&*begin(&run.a, "echo", [])).await.expect("so it says");
    let error = within(run.a.fetch(kept[0].clone())).await.expect_err("too few");
    assert!(error.message.contains("too few bytes"), "{error}");
    stopping.cancel();
}
