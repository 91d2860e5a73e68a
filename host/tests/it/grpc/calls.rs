//! Channels: connect, sessions, retry, restart.

use super::*;
use dchost::client::channel::{Lane, Try};
use dchost::error::{ErrorCode, Result};
use dchost::wire::v1;
use dchost::wire::v1::cluster_client::ClusterClient;
use dchost::wire::v1::variables_client::VariablesClient;
use std::sync::atomic::{AtomicU32, Ordering};
use tonic::Status;

const SHORT: Duration = Duration::from_millis(400);

/// A call that needs a session; answers with the server's incarnation.
pub(super) async fn ask(Try { channel, header, .. }: Try) -> std::result::Result<u64, Status> {
    let request = v1::UninitializedRequest { header: Some(header), ..Default::default() };
    let response = VariablesClient::new(channel).uninitialized(request).await?.into_inner();
    Ok(response.header.expect("every answer has a header").incarnation)
}

pub(super) async fn call(peers: &Peers) -> Result<u64> {
    tokio::time::timeout(LONG, peers.call(PS, Lane::Bulk, false, ask)).await.expect("calls end")
}

#[tokio::test]
async fn call_opens_one_session_and_close_ends_it() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, LONG);
    assert!(server.guard.sessions().list().is_empty(), "nobody is dialled before the first call");
    assert_eq!(call(&peers).await, Ok(7));
    assert_eq!(call(&peers.clone()).await, Ok(7));
    let sessions = server.guard.sessions().list();
    assert_eq!(sessions.iter().map(|row| row.caller.clone()).collect::<Vec<_>>(), [caller(1)]);
    peers.close().await;
    until("the session ends", || server.guard.sessions().list().is_empty()).await;
    assert_eq!(call(&peers).await.expect_err("the run has closed").code, ErrorCode::Cancelled);
    server.stop().await;
}

#[tokio::test]
async fn drop_of_the_last_clone_ends_the_session() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    drop(peers);
    until("the session ends", || server.guard.sessions().list().is_empty()).await;
    server.stop().await;
}

#[tokio::test]
async fn unknown_task_is_the_callers_mistake() {
    let peers = peers("127.0.0.1:1", LONG, LONG);
    let error = peers.call(Task::new(TaskType::Ps, 9), Lane::Control, false, ask).await.expect_err("there is none");
    assert_eq!(error.to_string(), "invalid-argument: the cluster has no task `ps:9`, it has ps:0");
}

#[tokio::test]
async fn refused_connection_is_unavailable_at_the_deadline() {
    let port = Held::new();
    let peers = peers(port.addr, SHORT, LONG);
    let started = std::time::Instant::now();
    let error = call(&peers).await.expect_err("nobody listens");
    assert!(started.elapsed() >= SHORT / 2, "{:?}", started.elapsed());
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::Unavailable, &[PS][..]));
    for part in [port.addr.to_string().as_str(), "connection refused", "is it running", "--connect-timeout"] {
        assert!(error.message.contains(part), "{error}");
    }
    // Not for good: the server comes late, and the next call finds it.
    let server = start(options(PS, 7, port.listen()));
    assert_eq!(call(&peers).await, Ok(7));
    server.stop().await;
}

#[tokio::test]
async fn start_order_does_not_matter() {
    let port = Held::new();
    let peers = peers(port.addr, LONG, LONG);
    let early = tokio::spawn(async move { call(&peers).await });
    // Gives the call the time to be refused, as far as a yield can; it passes in either order.
    tokio::task::yield_now().await;
    let server = start(options(PS, 7, port.listen()));
    assert_eq!(early.await.expect("no panic"), Ok(7));
    server.stop().await;
}

#[tokio::test]
async fn name_that_does_not_resolve_is_retried_and_told() {
    let peers = peers("no-such-host.invalid:2222", SHORT, LONG);
    let error = call(&peers).await.expect_err("there is no such name");
    assert_eq!(error.code, ErrorCode::Unavailable);
    // A resolver may be slower than the deadline; then that is the cause.
    assert!(error.message.contains("does not resolve") || error.message.contains("no answer"), "{error}");
}

#[tokio::test]
async fn name_with_several_addresses_is_tried_on_all() {
    // On most machines `localhost` has an IPv6 address too, where nobody listens.
    let server = start(options(PS, 7, listener()));
    let peers = peers(format!("localhost:{}", server.addr.port()), LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    server.stop().await;
}

#[tokio::test]
async fn session_survives_broken_connections() {
    let server = start(options(PS, 7, listener()));
    let relay = Relay::to(server.addr).await;
    let peers = peers(relay.addr, LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    let token = server.guard.sessions().token("default", RunId(1)).expect("it is open");
    for _ in 0..5 {
        relay.cut();
        assert_eq!(call(&peers).await, Ok(7));
    }
    until("the session is attached again", || server.guard.sessions().list().iter().all(|row| row.attached)).await;
    assert!(!token.is_cancelled(), "it is the same session");
    peers.close().await;
    token.cancelled().await;
    server.stop().await;
}

#[tokio::test]
async fn session_dies_with_the_rejoin_timeout_and_the_peer_is_failed() {
    let mut options = options(PS, 7, listener());
    options.rejoin_timeout = SHORT;
    let server = start(options);
    let relay = Relay::to(server.addr).await;
    let peers = peers(relay.addr, LONG, SHORT);
    assert_eq!(call(&peers).await, Ok(7));
    let token = server.guard.sessions().token("default", RunId(1)).expect("it is open");
    relay.sever();
    let error = call(&peers).await.expect_err("nothing comes through");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[PS][..]), "{error}");
    tokio::time::timeout(LONG, token.cancelled()).await.expect("the lease ends");
    assert!(server.guard.sessions().list().is_empty());
    // The network heals: the same incarnation may be called again.
    relay.cut();
    assert_eq!(call(&peers).await, Ok(7));
    server.stop().await;
}

#[tokio::test]
async fn restarted_task_is_peer_restarted_for_good() {
    let socket = listener();
    let again = socket.try_clone().expect("a socket can be shared");
    let first = start(options(PS, 7, socket));
    let peers = peers(first.addr, LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    first.stop().await;
    let second = start(options(PS, 8, again));
    for _ in 0..2 {
        let error = call(&peers).await.expect_err("it has lost what the run had there");
        assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[PS][..]), "{error}");
    }
    assert!(second.guard.sessions().list().is_empty());
    second.stop().await;
}

#[tokio::test]
async fn retry_has_the_same_sequence_and_the_next_write_another() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, LONG);
    let seen = Mutex::new(Vec::new());
    let tries = AtomicU32::new(0);
    let flaky = |Try { header, .. }: Try| {
        seen.lock().expect("no panic above").push(header.sequence);
        let fails = tries.fetch_add(1, Ordering::Relaxed) < 2;
        async move { if fails { Err(Status::unavailable("connection reset")) } else { Ok(()) } }
    };
    assert_eq!(peers.call(PS, Lane::Bulk, true, flaky).await, Ok(()));
    assert_eq!(peers.call(PS, Lane::Bulk, true, flaky).await, Ok(()));
    assert_eq!(peers.call(PS, Lane::Bulk, false, flaky).await, Ok(()));
    assert_eq!(*seen.lock().expect("no panic above"), [1, 1, 1, 2, 0]);
    server.stop().await;
}

#[tokio::test]
async fn answer_of_the_server_is_not_retried() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, LONG);
    let tries = AtomicU32::new(0);
    let drain = |Try { channel, header, .. }: Try| {
        tries.fetch_add(1, Ordering::Relaxed);
        let request = v1::DrainRequest { header: Some(header), grace_ms: 0 };
        async move { ClusterClient::new(channel).drain(request).await }
    };
    let error = peers.call(PS, Lane::Control, false, drain).await.expect_err("it is not served");
    assert_eq!((error.code, tries.load(Ordering::Relaxed)), (ErrorCode::Unimplemented, 1));

    // Larger than any message that is served: gRPC's own answer.
    let oversized = |Try { channel, mut header, .. }: Try| {
        tries.fetch_add(1, Ordering::Relaxed);
        header.container = "x".repeat(5 << 20);
        let request = v1::DrainRequest { header: Some(header), grace_ms: 0 };
        async move { ClusterClient::new(channel).drain(request).await }
    };
    let error = peers.call(PS, Lane::Control, false, oversized).await.expect_err("it is too large");
    assert_eq!((error.code, tries.load(Ordering::Relaxed)), (ErrorCode::OutOfRange, 2), "{error}");
    assert_eq!(call(&peers).await, Ok(7), "the connection goes on");
    server.stop().await;
}

#[tokio::test]
async fn lost_session_is_opened_again() {
    let server = start(options(PS, 7, listener()));
    let peers = peers(server.addr, LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    // Another stream of the same run takes the session over and ends it, behind the client's back.
    let lease = server.guard.sessions().open(&caller(1)).expect("there is room");
    lease.close();
    assert_eq!(call(&peers).await, Ok(7));
    server.stop().await;
}

#[tokio::test]
async fn newer_attempt_ends_calls_of_the_old_one() {
    use dchost::ids::Attempt;
    let attempt = |number| Attempt { leader: Incarnation(3), number };
    let server = start(options(PS, 7, listener()));
    let peers = peers_of(Caller { attempt: Some(attempt(0)), ..caller(1) }, server.addr, LONG, LONG);
    assert_eq!(call(&peers).await, Ok(7));
    assert_eq!(server.guard.attempt("default"), Some(attempt(0)));
    server.guard.adopt("default", attempt(1)).expect("it is newer");
    let error = call(&peers).await.expect_err("the attempt is over");
    assert_eq!(error.code, ErrorCode::Aborted, "{error}");
    server.stop().await;
}

#[test]
fn call_may_be_polled_outside_of_any_runtime_with_io() {
    let control =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("it starts");
    let (server, peers) = control.block_on(async {
        let server = start(options(PS, 7, listener()));
        let peers = peers(server.addr, LONG, LONG);
        (server, peers)
    });
    // Neither timers nor sockets: what the guest's side has at least.
    let guest = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
    assert_eq!(guest.block_on(peers.call(PS, Lane::Bulk, false, ask)), Ok(7));
    let tries = AtomicU32::new(0);
    let flaky = |_: Try| {
        let fails = tries.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if fails { Err(Status::unavailable("connection reset")) } else { Ok(()) } }
    };
    assert_eq!(guest.block_on(peers.call(PS, Lane::Bulk, true, flaky)), Ok(()));
    guest.block_on(peers.close());
    control.block_on(server.stop());
}
