//! The standard server and its clients, over real sockets on loopback.
//!
//! Every listener is bound by the test. What has to be cut goes through a [`Relay`], whose connections the test breaks.

use dchost::attend::Replication;
use dchost::client::channel::connect::endpoint;
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::server::cluster::LeaderPart;
use dchost::server::guard::{Guard, authorize};
use dchost::server::{Server, ServerOptions};
use dchost::variables::Store;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

mod attend;
mod calls;
mod job;
mod names;
mod ops;
mod service;
mod status;

/// What no test should ever wait for, however busy the machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) const PS: Task = Task::new(TaskType::Ps, 0);
pub(crate) const WORKER: Task = Task::new(TaskType::Worker, 0);

/// A running server.
pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    guard: Guard,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(LONG, self.serving).await.expect("shutdown is bounded").expect("the server doesn't panic");
    }
}

pub(crate) fn listener() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port")
}

pub(crate) fn options(task: Task, incarnation: u64, listener: std::net::TcpListener) -> ServerOptions {
    ServerOptions {
        task,
        incarnation: Incarnation(incarnation),
        listener,
        cluster: ClusterSpec::new().with_job(TaskType::Ps, ["ps.test:1"]).with_job(TaskType::Worker, ["worker.test:1"]),
        leader: None,
        store: Store::default(),
        rejoin_timeout: LONG,
        ops: None,
        authorize: Arc::new(authorize),
    }
}

/// Starts a server with all services.
pub(crate) fn start(options: ServerOptions) -> Running {
    let server = Server::new(options).expect("the listener is good");
    let (addr, guard, shutdown) = (server.local_addr(), server.guard(), CancellationToken::new());
    let serving = server.run(shutdown.clone());
    let serving = tokio::spawn(async move { serving.await.expect("the transport serves") });
    Running { addr, guard, shutdown, serving }
}

async fn channel_to(addr: SocketAddr) -> Channel {
    endpoint(&addr.to_string()).expect("it is an address").connect().await.expect("it listens")
}

fn caller(run: u64) -> Caller {
    Caller { container: "default".into(), task: Some(WORKER), run_id: RunId(run), attempt: None }
}

/// Channels of a run to one ps at `address`.
fn peers(address: impl ToString, connect_timeout: Duration, rejoin_timeout: Duration) -> Peers {
    peers_of(caller(1), address, connect_timeout, rejoin_timeout)
}

pub(crate) fn peers_of(
    caller: Caller,
    address: impl ToString,
    connect_timeout: Duration,
    rejoin_timeout: Duration,
) -> Peers {
    Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default(),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [address.to_string()]),
        caller,
        runtime: Handle::current(),
        connect_timeout,
        rejoin_timeout,
    })
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let polled = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, polled).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

/// A TCP relay whose connections the test cuts.
struct Relay {
    addr: SocketAddr,
    cut: Arc<Mutex<CancellationToken>>,
    /// That have passed, in both directions.
    bytes: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Relay {
    async fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let addr = listener.local_addr().expect("it is bound");
        let cut = Arc::new(Mutex::new(CancellationToken::new()));
        let current = cut.clone();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((mut inbound, _)) = listener.accept().await else { return };
                let cut = current.lock().expect("no panic above").clone();
                let counted = counted.clone();
                tokio::spawn(async move {
                    if cut.is_cancelled() {
                        return;
                    }
                    let Ok(mut outbound) = TcpStream::connect(target).await else { return };
                    let ((from, to), (back_from, back_to)) = (inbound.split(), outbound.split());
                    tokio::select! {
                        () = cut.cancelled() => {}
                        _ = async { tokio::join!(pass(from, back_to, &counted), pass(back_from, to, &counted)) } => {}
                    }
                });
            }
        });
        Relay { addr, cut, bytes, accepting }
    }

    /// Bytes that have passed, in both directions.
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Breaks all connections; new ones are relayed.
    fn cut(&self) {
        let mut cut = self.cut.lock().expect("no panic above");
        std::mem::take(&mut *cut).cancel();
    }

    /// Breaks all connections, and every new one.
    fn sever(&self) {
        self.cut.lock().expect("no panic above").cancel();
    }
}

/// Passes bytes on in one direction until its end, and counts them.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, bytes: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    // The other end may have gone.
    let _ = to.shutdown().await;
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Holds a port that refuses connections while nobody listens there, and is given to no other test.
struct Held {
    _socket: TcpSocket,
    addr: SocketAddr,
}

impl Held {
    fn new() -> Self {
        let socket = Held::bound(SocketAddr::from(([127, 0, 0, 1], 0)));
        let addr = socket.local_addr().expect("it is bound");
        Held { _socket: socket, addr }
    }

    /// Listens, again and again as long as nobody else does.
    fn listen(&self) -> std::net::TcpListener {
        Held::bound(self.addr).listen(64).and_then(TcpListener::into_std).expect("nobody listens there")
    }

    /// A socket that shares its address with others as long as one listens at most.
    fn bound(addr: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().expect("there are sockets");
        socket.set_reuseaddr(true).expect("an address can be shared");
        socket.bind(addr).expect("the port is free, or held by this test");
        socket
    }
}

fn with_leader(mut options: ServerOptions, leader: LeaderPart) -> ServerOptions {
    options.leader = Some(leader);
    options
}

const BETWEEN_GRAPH: Replication = Replication::BetweenGraph;
