//! Direct connections: what they carry, how they end, and when calls go by gRPC instead.

use super::broken::Relay;
use super::optimizers::{apply, bytes, f32s, options};
use super::*;
use dchost::client::channel::{Connections, PeersOptions};
use dchost::error::{Error, ErrorCode};
use dchost::handles::ApplyOptions;
use dchost::variables::{Consistency, Optimizer, SyncStep};
use dchost::wire::direct::{PREFACE, Reader, error_of, framed};
use dchost::wire::v1::{self, direct_request, direct_response};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// A direct connection as anyone may make it.
struct Raw {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// What the answer that was heard last says of the connection.
    last: bool,
}

impl Raw {
    async fn connect(addr: SocketAddr) -> Raw {
        let mut stream = TcpStream::connect(addr).await.expect("it listens");
        stream.write_all(&PREFACE).await.expect("it is open");
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).await.expect("it answers");
        assert_eq!(preface, PREFACE);
        let (reader, writer) = stream.into_split();
        Raw { reader: Reader::new(reader), writer, last: false }
    }

    async fn say(&mut self, kind: direct_request::Kind) {
        self.writer.write_all(&framed(&v1::DirectRequest { kind: Some(kind) })).await.expect("it is open");
    }

    /// The next answer; none once the connection has ended.
    async fn hear(&mut self) -> Option<direct_response::Kind> {
        let answer = tokio::time::timeout(LONG, self.reader.message::<v1::DirectResponse>()).await;
        let answer = answer.expect("it answers, or ends").ok().flatten()?;
        self.last = answer.last;
        answer.kind
    }

    async fn refused(&mut self) -> Error {
        match self.hear().await {
            Some(direct_response::Kind::Error(error)) => error_of(error),
            other => panic!("not refused: {other:?}"),
        }
    }

    async fn versions(&mut self) -> Vec<u64> {
        match self.hear().await {
            Some(direct_response::Kind::Values(header)) => header.version,
            other => panic!("no values: {other:?}"),
        }
    }
}

/// The header of run 1's requests, which has a session; `sequence` 0: not a write.
async fn header(peers: &Peers, sequence: u64) -> v1::RequestHeader {
    let read = peers.call(PS, Lane::Control, false, |at| async move { Ok(at.header) }).await.expect("it has a session");
    v1::RequestHeader { sequence, ..read }
}

fn add(header: v1::RequestHeader, variable: &VariableRef) -> direct_request::Kind {
    let item = v1::PushItem { variable: Some(variable.into()), kind: v1::UpdateKind::Add.into(), ..Default::default() };
    direct_request::Kind::Push(v1::PushHeader { header: Some(header), item: vec![item], ..Default::default() })
}

fn read(header: v1::RequestHeader, variable: &VariableRef, min_version: Option<u64>) -> direct_request::Kind {
    let request =
        v1::PullRequest { header: Some(header), variable: vec![variable.into()], min_version, ..Default::default() };
    direct_request::Kind::Pull(request)
}

/// A run's view of the ps at `addr` that makes no direct connections.
fn by_grpc(addr: SocketAddr, run: u64) -> RemoteVariables {
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default().only_grpc(),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [addr.to_string()]),
        caller: caller("default", WORKER, run),
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: REJOIN_TIMEOUT,
    });
    RemoteVariables::new(peers, PS)
}

/// Passes connections on to a server: of those that are direct it counts the first, and lets `direct_max` through.
async fn sorting(to: SocketAddr, direct_max: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let addr = listener.local_addr().expect("it is bound");
    let direct = Arc::new(AtomicUsize::new(0));
    let counted = direct.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let Ok(first) = client.read_u8().await else { return };
                if first == PREFACE[0] && counted.fetch_add(1, Ordering::SeqCst) >= direct_max {
                    return;
                }
                let mut server = TcpStream::connect(to).await.expect("it listens");
                server.write_all(&[first]).await.expect("it is open");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (addr, direct)
}

/// Aim: whichever way a call takes, it does the same. Method: the same calls by both, values of sizes around the limits of
/// buffers, several in a call, with and without values in the answer.
#[tokio::test(flavor = "multi_thread")]
async fn both_ways_do_the_same() {
    let ps = Ps::default();
    let (addr, direct) = sorting(ps.addr, usize::MAX).await;
    let sizes = [0, 1, 4095, 16 << 10, (32 << 10) + 1, 256 << 10, (1 << 20) + 3, 5 << 20];
    let mut seen = Vec::new();
    for (run, name, variables) in [(1, "a", connect(addr, 1)), (2, "b", by_grpc(addr, 2))] {
        let refs: Vec<_> = sizes.iter().map(|&size| u8s(&format!("{name}{size}"), size)).collect();
        let data: Vec<_> = sizes.iter().map(|&size| (0..size).map(|i| (i / 3) as u8).collect::<Vec<_>>()).collect();
        let values =
            || refs.iter().cloned().zip(&data).map(|(variable, data)| (variable.clone(), view(&variable, data)));
        let set = variables.initialize(values().collect(), InitializeMode::Overwrite).await.unwrap();
        assert_eq!(set, vec![1; sizes.len()]);
        let mut answers = Vec::new();
        for consistency in [Consistency::Atomic, Consistency::Relaxed] {
            for want_values in [false, true] {
                let change = |(variable, value)| Change { variable, kind: UpdateKind::Add, value, base: None };
                let options = WriteOptions { want_values, consistency };
                answers.extend(variables.push(values().map(change).collect(), options).await.unwrap());
            }
            let options = ReadOptions { consistency, ..ReadOptions::default() };
            answers.extend(variables.pull(refs.clone(), options).await.unwrap());
        }
        seen.push(answers.into_iter().map(|value| (value.version, value.tensor)).collect::<Vec<_>>());
        assert_eq!(
            direct.load(Ordering::SeqCst),
            1,
            "run {run}: one connection for all calls of the first, none of the second"
        );
    }
    assert!(seen[0] == seen[1]);
    ps.stop().await;
}

/// Aim: errors come as by gRPC, also while the values of a refused write are still being sent, and the run goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_comes_before_all_values_are_sent() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let data = vec![1; 40 << 20];
    for _ in 0..3 {
        let missing = u8s("missing", data.len());
        let error = push(&variables, &missing, UpdateKind::Add, &data).await.unwrap_err();
        assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["missing".to_owned()][..]), "{error}");
    }
    let w = u8s("w", 4);
    initialize(&variables, &w, &[1; 4]).await.unwrap();
    assert_eq!(&*pull(&variables, &w).await.unwrap().tensor.data, [1; 4]);
    ps.stop().await;
}

/// Aim: where something between client and server takes HTTP/2 only, calls go by gRPC.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_by_grpc_where_direct_connections_do_not_get_through() {
    let ps = Ps::default();
    let (addr, direct) = sorting(ps.addr, 0).await;
    let (variables, w) = (connect(addr, 1), u8s("w", 1 << 20));
    initialize(&variables, &w, &vec![1; 1 << 20]).await.unwrap();
    for version in 2..5 {
        assert_eq!(push(&variables, &w, UpdateKind::Add, &vec![1; 1 << 20]).await.unwrap().version, version);
    }
    assert_eq!(direct.load(Ordering::SeqCst), 1, "it isn't tried at every call");
    ps.stop().await;
}

/// Aim: where something between client and server ends direct connections only when it sees what they carry, calls go by gRPC.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_by_grpc_where_direct_connections_break_at_their_first_call() {
    let ps = Ps::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let (addr, to, direct) = (listener.local_addr().expect("it is bound"), ps.addr, Arc::new(AtomicUsize::new(0)));
    let counted = direct.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let Ok(first) = client.read_u8().await else { return };
                let mut server = TcpStream::connect(to).await.expect("it listens");
                server.write_all(&[first]).await.expect("it is open");
                if first != PREFACE[0] {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let mut preface = [0; PREFACE.len()];
                client.read_exact(&mut preface[1..]).await.expect("it comes");
                server.write_all(&preface[1..]).await.expect("it is open");
                server.read_exact(&mut preface).await.expect("it answers");
                client.write_all(&preface).await.expect("it is open");
                let _ = client.read_u8().await;
            });
        }
    });
    let (variables, w) = (connect(addr, 1), u8s("w", 1 << 20));
    initialize(&variables, &w, &vec![1; 1 << 20]).await.unwrap();
    for version in 2..5 {
        assert_eq!(push(&variables, &w, UpdateKind::Add, &vec![1; 1 << 20]).await.unwrap().version, version);
    }
    assert_eq!(direct.load(Ordering::SeqCst), 1, "it isn't tried at every call");
    ps.stop().await;
}

/// Aim: calls beyond the direct connections of a client wait for none of them. Method: reads that wait for a version, more of them
/// than there are connections, and the write that makes it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_connections_of_a_client_go_by_grpc() {
    let ps = Ps::default();
    let (addr, direct) = sorting(ps.addr, usize::MAX).await;
    let (variables, w) = (connect(addr, 1), u8s("w", 8));
    initialize(&variables, &w, &[0; 8]).await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (variables, w) = (variables.clone(), w.clone());
            let options = ReadOptions { min_version: Some(2), ..ReadOptions::default() };
            tokio::spawn(async move { variables.pull(vec![w], options).await })
        })
        .collect();
    until("both connections in use", || direct.load(Ordering::SeqCst) == 2).await;
    push(&variables, &w, UpdateKind::Add, &[1; 8]).await.unwrap();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap()[0].version, 2);
    }
    assert_eq!(direct.load(Ordering::SeqCst), 2);
    ps.stop().await;
}

/// Aim: a call on a direct connection is let in as by gRPC, and a refused one leaves the connection for the next.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_admitted_by_header_and_session() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let w = u8s("w", 4);
    initialize(&RemoteVariables::new(peers.clone(), PS), &w, &[3; 4]).await.unwrap();
    let mut raw = Raw::connect(ps.addr).await;
    let good = header(&peers, 0).await;
    raw.say(direct_request::Kind::Pull(v1::PullRequest::default())).await;
    assert_eq!(raw.refused().await.code, ErrorCode::InvalidArgument);
    let mut stranger = good.clone();
    stranger.caller.as_mut().expect("it has one").run_id = 77;
    raw.say(read(stranger, &w, None)).await;
    let error = raw.refused().await;
    assert_eq!((error.code, &*error.names), (ErrorCode::FailedPrecondition, &["session".to_owned()][..]), "{error}");
    raw.say(read(good, &w, None)).await;
    assert_eq!((raw.versions().await, raw.last), (vec![1], false));
    let mut value = Vec::new();
    raw.reader.append(&mut value, 4).await.expect("it comes");
    assert_eq!(value, [3; 4]);
    raw.say(direct_request::Kind::Push(v1::PushHeader::default())).await;
    assert_eq!((raw.refused().await.code, raw.last), (ErrorCode::InvalidArgument, true));
    assert!(raw.hear().await.is_none(), "where its values would begin can't be known");
    ps.stop().await;
}

/// Aim: what is no call ends its connection, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_call_ends_its_connection() {
    let ps = Ps::default();
    let (variables, w) = (connect(ps.addr, 1), u8s("w", 4));
    initialize(&variables, &w, &[3; 4]).await.unwrap();
    for said in [&[0xff; 64][..], &[0, 0, 0, 3, 1, 2, 3], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut raw = Raw::connect(ps.addr).await;
        raw.writer.write_all(said).await.expect("it is open");
        assert!(raw.hear().await.is_none());
    }
    let mut other = TcpStream::connect(ps.addr).await.expect("it listens");
    other.write_all(b"dchost direct 9999\r\n\r\n\r\n").await.expect("it is open");
    assert!(other.read_to_end(&mut Vec::new()).await.is_ok_and(|bytes| bytes == 0), "another version");
    assert_eq!(pull(&variables, &w).await.unwrap().version, 1);
    ps.stop().await;
}

/// Aim: a write that is cut anywhere changes nothing and holds nothing. Method: cuts around every boundary of chunk and block.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_cut_at_every_boundary_changes_nothing() {
    const BYTES: usize = (2 << 20) + 5;
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let w = u8s("w", BYTES);
    initialize(&RemoteVariables::new(peers.clone(), PS), &w, &vec![7; BYTES]).await.unwrap();
    let header = header(&peers, 0).await;
    let boundaries = (0..=BYTES).step_by(256 << 10).chain([BYTES]);
    let cuts = boundaries.flat_map(|at| [at.saturating_sub(1), at, at + 1]).filter(|&at| at < BYTES);
    for (sequence, cut) in (1000..).zip(cuts) {
        let mut raw = Raw::connect(ps.addr).await;
        raw.say(add(v1::RequestHeader { sequence, ..header.clone() }, &w)).await;
        raw.writer.write_all(&vec![1; cut]).await.expect("it is open");
        raw.writer.shutdown().await.expect("it is open");
        assert!(raw.hear().await.is_none(), "cut at {cut}: a refusal would keep the caller from trying again");
    }
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    let value = pull(&connect(ps.addr, 2), &w).await.unwrap();
    assert!(value.version == 1 && value.tensor.data.iter().all(|&byte| byte == 7));
    ps.stop().await;
}

/// Aim: a caller that speaks or goes while its read waits ends the read.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_ends_with_its_caller() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let w = u8s("w", 4);
    initialize(&RemoteVariables::new(peers.clone(), PS), &w, &[3; 4]).await.unwrap();
    let header = header(&peers, 0).await;
    let mut raw = Raw::connect(ps.addr).await;
    raw.say(read(header.clone(), &w, Some(9))).await;
    raw.say(read(header, &w, None)).await;
    assert!(raw.hear().await.is_none(), "one call at a time");
    peers.close().await;
    ps.stop().await;
}

/// Aim: a reader that stops in the middle of a large value holds it for no longer than its session, and delays nobody. Method: it
/// reads the header alone; another run reads and writes the variable; then its session ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_is_dropped_with_its_session() {
    const BYTES: usize = 64 << 20;
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let (other, w) = (connect(ps.addr, 2), u8s("w", BYTES));
    initialize(&other, &w, &vec![7; BYTES]).await.unwrap();
    let mut raw = Raw::connect(ps.addr).await;
    raw.say(read(header(&peers, 0).await, &w, None)).await;
    assert_eq!(raw.versions().await, [1]);
    push(&other, &w, UpdateKind::Add, &vec![1; BYTES]).await.unwrap();
    assert!(pull(&other, &w).await.unwrap().tensor.data.iter().all(|&byte| byte == 8));
    peers.close().await;
    let mut rest = Vec::new();
    // First comes what the system has kept on its way.
    let ended = tokio::time::timeout(LONG, raw.reader.append(&mut rest, BYTES)).await.expect("it ends");
    assert!(ended.is_err(), "before the value does");
    assert!(rest.iter().all(|&byte| byte == 7), "it was a snapshot");
    ps.stop().await;
}

/// Aim: a connection that has ended while nobody used it is no call's trouble.
#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_are_dialled_anew() {
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let (variables, w) = (connect(relay.addr, 1), u8s("w", 4));
    initialize(&variables, &w, &[0; 4]).await.unwrap();
    for version in 2..6 {
        relay.cut_all();
        assert_eq!(push(&variables, &w, UpdateKind::Add, &[1; 4]).await.unwrap().version, version);
    }
    ps.stop().await;
}

/// Passes connections on to a server. Nothing more passes those that are direct once `frozen` says so, and nobody closes them; the
/// others end then.
async fn freezing(to: SocketAddr, frozen: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut frozen = frozen.clone();
            let already = *frozen.borrow_and_update();
            tokio::spawn(async move {
                let Ok(first) = client.read_u8().await else { return };
                let mut server = TcpStream::connect(to).await.expect("it listens");
                server.write_all(&[first]).await.expect("it is open");
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    changed = frozen.changed(), if !already => if changed.is_ok() && first == PREFACE[0] {
                        std::future::pending().await
                    },
                }
            });
        }
    });
    addr
}

/// Aim: a call doesn't wait for ever on a connection that has become silent: it goes on with the session. Method: a read waits for a
/// version when its connection freezes and its session breaks; then the version comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_a_silent_connection_goes_on_with_its_session() {
    let ps = Ps::default();
    let (freeze, frozen) = watch::channel(false);
    let addr = freezing(ps.addr, frozen).await;
    let (variables, other, w) = (connect(addr, 1), connect(ps.addr, 2), u8s("w", 4));
    initialize(&variables, &w, &[0; 4]).await.unwrap();
    let waits = async {
        let options = ReadOptions { min_version: Some(2), ..ReadOptions::default() };
        variables.pull(vec![w.clone()], options).await
    };
    let goes_on = async {
        freeze.send_replace(true);
        push(&other, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    };
    let (waited, ()) =
        tokio::time::timeout(LONG, async { tokio::join!(waits, goes_on) }).await.expect("it is answered");
    assert_eq!(waited.unwrap()[0].version, 2);
    ps.stop().await;
}

/// Aim: a caller that has gone while its gradients wait for others leaves them, and no connection: neither its first try, nor one
/// that waits for the first. Method: half-closed connections, which end only where the server looks.
#[tokio::test(flavor = "multi_thread")]
async fn gradients_that_wait_keep_no_connection_of_a_caller_that_has_gone() {
    let ps = Ps::default();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let (other, w, gradient) = (connect(ps.addr, 2), f32s("w", 2), bytes([2.0, 4.0]));
    initialize(&other, &w, &bytes([0.0, 0.0])).await.unwrap();
    let optimizer = Optimizer::Sgd { learning_rate: 1.0 };
    let push = v1::PushHeader {
        sync: Some(v1::Sync { step: 1, replicas: 2 }),
        ..super::optimizers::header(header(&peers, 1).await, &w, &optimizer)
    };
    let connect = async || {
        let mut raw = Raw::connect(ps.addr).await;
        raw.say(direct_request::Kind::Push(push.clone())).await;
        raw.writer.write_all(&gradient).await.expect("it is open");
        raw
    };
    for _ in 0..3 {
        let mut raw = connect().await;
        until("the gradient to wait", || ps.store.variable_bytes() == 16 && ps.store.staged_bytes() == 0).await;
        raw.writer.shutdown().await.expect("it is open");
        let answer = tokio::time::timeout(LONG / 8, raw.hear()).await.expect("it ends");
        assert!(answer.is_none(), "{answer:?}");
    }
    let mut waiting = connect().await;
    let sync = Some(SyncStep { step: 1, replicas: 2 });
    let applied = apply(&other, vec![(&w, &gradient)], ApplyOptions { sync, ..options(optimizer) }).await.unwrap();
    assert!(applied[0].version == 2 && applied[0].tensor.data == bytes([-2.0, -4.0]), "taken once");
    assert_eq!(waiting.versions().await, [2], "the retry gets its answer");
    ps.stop().await;
}
