//! Callers that break the rules: a task neither hangs nor grows, and serves others as before.

use super::*;
use dchost::ops::OPERANDS_MAX;
use dchost::wire::status::from_status;
use dchost::wire::transport::STREAM_WINDOW_BYTES;
use dchost::wire::v1::call_request::Kind;
use dchost::wire::v1::call_response::Kind as Answer;
use dchost::wire::v1::cluster_client::ClusterClient;
use std::slice::from_ref;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// A stream of calls that the test carries out by hand, as run 1.
struct Raw {
    requests: mpsc::Sender<v1::CallRequest>,
    answers: Streaming<v1::CallResponse>,
}

fn opening(run: u64) -> Kind {
    Kind::Opening(v1::Opening {
        header: Some((&Header::new(caller(run))).into()),
        module_sha256: component_of(b"component").digest.to_vec().into(),
        argument: Vec::new(),
    })
}

fn chunk(item: u32, offset: u64, count: usize) -> Kind {
    Kind::Chunk(v1::Chunk { item, offset, data: vec![0; count].into() })
}

impl Raw {
    async fn open(addr: SocketAddr) -> Raw {
        Raw::open_on(channel_to(addr).await).await
    }

    async fn open_on(channel: Channel) -> Raw {
        Raw::open_as(1, channel).await
    }

    async fn open_as(run: u64, channel: Channel) -> Raw {
        let (requests, stream) = mpsc::channel(64);
        let raw = v1::CallRequest { kind: Some(opening(run)) };
        requests.try_send(raw).expect("there is room");
        let mut answers =
            OpsClient::new(channel).call(ReceiverStream::new(stream)).await.expect("it opens").into_inner();
        let opened = answers.message().await.expect("it opens").and_then(|answer| answer.kind);
        assert!(matches!(opened, Some(Answer::Opened(_))));
        Raw { requests, answers }
    }

    async fn send(&self, kind: Kind) -> bool {
        self.requests.send(v1::CallRequest { kind: Some(kind) }).await.is_ok()
    }

    async fn answer(&mut self) -> Result<Answer> {
        match within(self.answers.message()).await {
            Ok(answer) => Ok(answer.and_then(|answer| answer.kind).expect("an answer")),
            Err(status) => Err(from_status(&status)),
        }
    }

    /// The next answer, which is how a call ended.
    async fn result(&mut self) -> v1::CallResult {
        match self.answer().await {
            Ok(Answer::Result(result)) => result,
            other => panic!("a result comes, not {other:?}"),
        }
    }

    /// The next answer, which is a part of a result.
    async fn bytes(&mut self) {
        let answer = self.answer().await;
        assert!(matches!(answer, Ok(Answer::Chunk(_))), "bytes come, not {answer:?}");
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
        ("the stream is open already", vec![opening(1)]),
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
    let refused = raw.result().await;
    assert_eq!((refused.call, refused.code), (10, Code::ResourceExhausted as u32));
    let served = raw.result().await;
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
    raw.bytes().await;
    let unknown = raw.result().await;
    assert_eq!((unknown.call, unknown.code), (99, Code::NotFound as u32));
    tasks.stop().await;
}

/// Aim: a run has one stream of calls, so that what it may have under way is bounded, and a caller that comes again isn't kept
/// waiting by its own broken connection.
#[tokio::test]
async fn a_second_stream_ends_the_first_and_what_it_had_begun() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    let mut second = Raw::open(tasks.servers[&A].addr).await;
    second.send(header(100, "calls", &[])).await;
    let served = second.result().await;
    assert_eq!((served.call, served.code), (100, 0), "it doesn't wait for what nobody waits for");
    second.bytes().await;
    let error = take(&*never).await.expect_err("its stream has ended");
    assert!(error.message.contains("another stream of the session"), "{error}");
    let mut third = Raw::open(tasks.servers[&A].addr).await;
    assert_eq!(second.answer().await.expect_err("it is over").code, ErrorCode::Cancelled);
    third.send(header(101, "nothing", &[])).await;
    assert_eq!(third.result().await.code, 0);
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
        raw.result().await;
    }
    tasks.stop().await;
}

/// Aim: a caller that reads no answers can't fill a task's memory with them, also where it releases each result at once.
/// Method: beyond some answers that wait nothing is taken of the stream any more; once they are read all goes on.
#[tokio::test]
async fn answers_that_nobody_reads_stop_the_stream() {
    const CALLS: u64 = 10_000;
    let tasks = Tasks::start_with(LARGE_BYTES_MAX);
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let channel = channel_to(tasks.servers[&A].addr).await;
    let mut raw = Raw::open_on(channel.clone()).await;
    let before = Seen::count(&tasks.seen(A).called);
    let called = || Seen::count(&tasks.seen(A).called) - before;
    let requests = raw.requests.clone();
    let sending = tokio::spawn(async move {
        for call in 101..=100 + CALLS {
            for kind in [header(call, "eager", &[]), Kind::Drop(v1::Drop { call, result: Vec::new() })] {
                requests.send(v1::CallRequest { kind: Some(kind) }).await.expect("it is read");
            }
        }
    });
    // What the connection takes, and twice what the task lets wait: answers, and calls that end meanwhile.
    let unread = STREAM_WINDOW_BYTES as usize / (16 << 10) + 2 * 1024;
    until("all are sent, and many are called", || sending.is_finished() && called() > 1000).await;
    // The task has its turn as often as it needs to take them all.
    for _ in 0..500 {
        let asked = v1::GetStatusRequest { header: Some((&Header::new(caller(2))).into()), brief: true, row: None };
        ClusterClient::new(channel.clone()).get_status(asked).await.expect("it answers others");
    }
    for read in 1..=usize::try_from(CALLS).expect("it is small") {
        // Or refused: more wait there than may.
        let code = raw.result().await.code;
        assert!([0, Code::ResourceExhausted as u32].contains(&code), "{code}");
        if code == 0 {
            raw.bytes().await;
        }
        let ahead = called().saturating_sub(read);
        assert!(ahead < unread + 100, "{ahead} calls are ahead of what is read");
    }
    sending.await.expect("all are sent");
    raw.send(header(101 + CALLS, "nothing", &[])).await;
    assert_eq!(raw.result().await.code, 0, "it goes on");
    tasks.stop().await;
}

/// Aim: results hold their room as long as anybody reads them, also by another call than the one that released them.
#[tokio::test]
async fn a_result_that_is_fetched_holds_its_room_after_its_release() {
    let tasks = Tasks::start_with(LARGE_BYTES_MAX);
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let addr = tasks.servers[&A].addr;
    let mut raw = Raw::open(addr).await;
    let ty = TensorType::new(DType::U8, [LARGE_BYTES_MAX]);
    let mut unread = Vec::new();
    for call in 101..=104 {
        raw.send(header(call, "full", &[])).await;
        assert_eq!(raw.result().await.code, 0);
        let value = RemoteValue { task: A, incarnation: Incarnation(7), call, result: 0, ty: ty.clone() };
        let fetch = v1::FetchRequest { header: Some((&Header::new(caller(1))).into()), value: Some((&value).into()) };
        // Else what isn't read of it would keep the other stream of the connection from being read.
        let mut client = OpsClient::new(channel_to(addr).await);
        unread.push(client.fetch(fetch).await.expect("it is there").into_inner());
        raw.send(Kind::Drop(v1::Drop { call, result: Vec::new() })).await;
    }
    raw.send(header(105, "full", &[])).await;
    let result = raw.result().await;
    assert_eq!(result.code, Code::ResourceExhausted as u32);
    assert!(result.message.contains("take or release some first"), "{}", result.message);
    drop(unread);
    let again = async {
        for call in 106.. {
            raw.send(header(call, "full", &[])).await;
            if raw.result().await.code == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, again).await.expect("room is given back when nobody reads any more");
    tasks.stop().await;
}

/// Aim: the end of a run gives its room back, also where it has asked for results and doesn't read them. Method: four runs fill
/// the room of all with results that they fetch or take; their sessions end, their connections stay.
#[tokio::test]
async fn results_that_nobody_reads_go_with_their_session() {
    let tasks = Tasks::start_with(LARGE_BYTES_MAX);
    let addr = tasks.servers[&A].addr;
    let ty = TensorType::new(DType::U8, [LARGE_BYTES_MAX]);
    let (mut runs, mut streams, mut fetches) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=4 {
        let run = tasks.run(number);
        assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
        let mut raw = Raw::open_as(number, channel_to(addr).await).await;
        for call in [101, 102] {
            raw.send(header(call, "full", &[])).await;
            assert_eq!(raw.result().await.code, 0);
            let value = RemoteValue { task: A, incarnation: Incarnation(7), call, result: 0, ty: ty.clone() };
            let header = Some((&Header::new(caller(number))).into());
            let fetch = v1::FetchRequest { header, value: Some((&value).into()) };
            let mut client = OpsClient::new(channel_to(addr).await);
            fetches.push(client.fetch(fetch).await.expect("it is there").into_inner());
        }
        for call in [103, 104] {
            raw.send(header(call, "full", &[])).await;
            raw.send(Kind::Take(v1::Take { call })).await;
        }
        streams.push(raw);
        runs.push(run);
    }
    let last = tasks.run(5);
    let refused = async {
        while let Ok(kept) = keep(&*begin(&last.a, "full", [])).await {
            last.a.release(&kept[0]);
        }
    };
    tokio::time::timeout(LONG, refused).await.expect("the others have all room");
    for run in &runs {
        run.peers.close().await;
    }
    let served = async {
        while let Err(error) = keep(&*begin(&last.a, "full", [])).await {
            assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
        }
    };
    tokio::time::timeout(LONG, served).await.expect("room is given back at the end of a session");
    for mut raw in streams {
        // What was on its way comes first.
        while raw.answer().await.is_ok() {}
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
        let result = raw.result().await;
        if result.code != 0 {
            refused = Some((call, result));
            break;
        }
    }
    let (call, result) = refused.expect("there is an end");
    assert_eq!(result.code, Code::ResourceExhausted as u32);
    assert!(result.message.contains("take or release some first"), "{}", result.message);
    for dropped in 100..call {
        raw.send(Kind::Drop(v1::Drop { call: dropped, result: Vec::new() })).await;
    }
    raw.send(header(1000, "echo", &none)).await;
    let result = raw.result().await;
    assert_eq!(result.code, 0, "{}", result.message);
    tasks.stop().await;
}
