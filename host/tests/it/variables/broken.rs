//! Connections that break while values are on their way: the old value stays, or the new one is applied once.

use super::*;
use dchost::error::ErrorCode;
use dchost::wire::v1::variables_client::VariablesClient;
use dchost::wire::v1::{self, push_request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Forwards connections to a server, and cuts them after so many bytes from the client: one number for each connection that
/// carries a stream; once they are used up, `rest` holds.
pub(super) struct Relay {
    pub(super) addr: SocketAddr,
    cuts: Arc<Mutex<(VecDeque<usize>, Option<usize>)>>,
    /// How many connections there are.
    pub(super) open: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

impl Relay {
    pub(super) async fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let addr = listener.local_addr().expect("it is bound");
        let relay = Relay { addr, cuts: Arc::default(), open: Arc::default(), all: Arc::default() };
        let (cuts, open, all) = (relay.cuts.clone(), relay.open.clone(), relay.all.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(to).await else { continue };
                let (cuts, open, all) = (cuts.clone(), open.clone(), all.clone());
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    let cut = all.notified();
                    tokio::select! {
                        () = relay_one(client, server, cuts) => {}
                        () = cut => {}
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        relay
    }

    /// Cuts the connections that carry more than `LARGE` bytes, in turn.
    pub(super) fn cut(&self, cuts: impl IntoIterator<Item = usize>, rest: Option<usize>) {
        *self.cuts.lock().expect("no panic under the lock") = (cuts.into_iter().collect(), rest);
    }

    /// Cuts every connection that there is now.
    pub(super) fn cut_all(&self) {
        self.all.notify_waiters();
    }
}

/// Aborts a task with what runs it.
struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sessions and headers stay below this; only values come above it.
pub(super) const LARGE: usize = 64 << 10;

async fn relay_one(client: TcpStream, server: TcpStream, cuts: Arc<Mutex<(VecDeque<usize>, Option<usize>)>>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let _back = Aborted(tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    }));
    let mut buffer = vec![0; 16 << 10];
    let (mut sent, mut cut) = (0, None::<Option<usize>>);
    while let Ok(read) = from_client.read(&mut buffer).await {
        let next = sent + read;
        if next > LARGE && cut.is_none() {
            let mut cuts = cuts.lock().expect("no panic under the lock");
            let rest = cuts.1;
            cut = Some(cuts.0.pop_front().or(rest));
        }
        let limit = cut.flatten().unwrap_or(usize::MAX);
        let take = read.min(limit.saturating_sub(sent));
        if to_server.write_all(&buffer[..take]).await.is_err() || take < read || read == 0 {
            break;
        }
        sent = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_streams_are_retried_and_applied_once() {
    const BYTES: usize = 2 << 20;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = VariableRef::whole("w", TensorType::new(DType::S32, [BYTES as u64 / 4]));
    let one: Vec<u8> = std::iter::repeat_n(1_i32.to_le_bytes(), BYTES / 4).flatten().collect();
    initialize(&connect(ps.addr, 99), &w, &vec![0; BYTES]).await.unwrap();
    let mut rng = StdRng::seed_from_u64(20);
    for round in 1..=8_u64 {
        let cuts: Vec<_> = (0..rng.random_range(1..4)).map(|_| rng.random_range(LARGE + 1..BYTES + 20_000)).collect();
        relay.cut(cuts, None);
        let run = connect(relay.addr, round);
        let value = push(&run, &w, UpdateKind::Add, &one).await.unwrap();
        assert_eq!(value.version, round + 1);
        let seen = pull(&connect(ps.addr, 98), &w).await.unwrap();
        assert_eq!(seen.version, round + 1, "applied once");
        assert!(seen.tensor.data.chunks(4).all(|element| element == (round as i32).to_le_bytes()));
    }
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_never_completes_leaves_the_old_value() {
    const BYTES: usize = 2 << 20;
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = u8s("w", BYTES);
    initialize(&connect(ps.addr, 99), &w, &vec![7; BYTES]).await.unwrap();
    relay.cut([], Some(BYTES / 2));
    let peers = grpc::peers_of(caller("default", WORKER, 1), relay.addr, LONG, Duration::from_secs(1));
    let error = push(&RemoteVariables::new(peers, PS), &w, UpdateKind::Add, &vec![1; BYTES]).await.unwrap_err();
    assert_eq!((error.code, &*error.tasks), (ErrorCode::PeerFailed, &[PS][..]), "{error}");
    let value = pull(&connect(ps.addr, 98), &w).await.unwrap();
    assert!(value.version == 1 && value.tensor.data.iter().all(|&byte| byte == 7));
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    ps.stop().await;
}

/// A run that ends in the middle of a push gives its staging memory back.
#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_session_frees_an_unfinished_push() {
    let ps = Ps::default();
    let w = u8s("w", 1 << 20);
    initialize(&connect(ps.addr, 99), &w, &vec![7; 1 << 20]).await.unwrap();
    let peers = peers(ps.addr, caller("default", WORKER, 1));
    let pushing = tokio::spawn({
        let (peers, w) = (peers.clone(), w.clone());
        async move {
            let w = &w;
            let push = |attempt: dchost::client::channel::Try| async move {
                let item = v1::PushItem { variable: Some(w.into()), ..Default::default() };
                let header = v1::PushHeader { header: Some(attempt.header), item: vec![item], ..Default::default() };
                let chunk = v1::Chunk { item: 0, offset: 0, data: vec![1; 1 << 19].into() };
                let (messages, receiver) = tokio::sync::mpsc::channel(4);
                for kind in [push_request::Kind::Header(header), push_request::Kind::Chunk(chunk)] {
                    messages.send(v1::PushRequest { kind: Some(kind) }).await.expect("the receiver is here");
                }
                let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
                let answer = VariablesClient::new(attempt.channel).push(stream).await.map(drop);
                drop(messages);
                answer
            };
            peers.call(PS, Lane::Bulk, true, push).await
        }
    });
    until("a staged half", || ps.store.staged_bytes() == 1 << 19).await;
    peers.close().await;
    until("freed staging", || ps.store.staged_bytes() == 0).await;
    assert_eq!(pushing.await.unwrap().unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(pull(&connect(ps.addr, 98), &w).await.unwrap().version, 1);
    ps.stop().await;
}
