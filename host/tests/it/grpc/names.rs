//! Names of tasks: when they resolve, and to what, with a resolver of the test.

use super::calls::{ask, call};
use super::*;
use dchost::client::channel::Lane;
use dchost::client::channel::resolver::Resolver;
use dchost::error::ErrorCode;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32};
use tokio::time::Instant;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An address of this machine, as all that begin with 127 are, where no test listens unless it says so.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A run's channels to `ps.test`, with a port, whose addresses `lookup` tells.
fn peers_by(
    port: u16,
    connect_timeout: Duration,
    lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> Peers {
    Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::resolving(Resolver::new(lookup)),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [format!("ps.test:{port}")]),
        caller: caller(1),
        runtime: Handle::current(),
        connect_timeout,
        rejoin_timeout: LONG,
    })
}

fn unknown(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} is not known"))
}

/// Aim: a name that comes late is met, whatever was answered before. Method: the clock stands still, and jumps from try to
/// try, until the name has an address; then it runs, since sockets take real time.
#[tokio::test(start_paused = true)]
async fn a_name_that_resolves_late_is_asked_for_again_until_it_does() {
    const LATE: Duration = Duration::from_secs(20);
    let server = start(options(PS, 7, listener()));
    let (begun, lookups) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let (count, frozen) = (lookups.clone(), AtomicBool::new(true));
    let peers = peers_by(server.addr.port(), Duration::from_secs(600), move |name| {
        assert_eq!(name, "ps.test");
        count.fetch_add(1, Ordering::Relaxed);
        if begun.elapsed() < LATE {
            return Err(unknown(name));
        }
        if frozen.swap(false, Ordering::Relaxed) {
            tokio::time::resume();
        }
        Ok(vec![LOOPBACK])
    });
    assert_eq!(peers.call(PS, Lane::Bulk, false, ask).await, Ok(7));
    assert!(begun.elapsed() >= LATE && begun.elapsed() < LATE + LONG, "{:?}", begun.elapsed());
    // A try each half second, and faster ones in the beginning.
    let lookups = lookups.load(Ordering::Relaxed);
    assert!((40..60).contains(&lookups), "{lookups} look-ups");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_never_resolves_is_told_at_the_deadline() {
    let begun = Instant::now();
    let peers = peers_by(2222, Duration::from_secs(30), |name| Err(unknown(name)));
    let error = peers.call(PS, Lane::Bulk, false, ask).await.expect_err("there is no such name");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::Unavailable, &[PS][..]));
    let part = "name does not resolve: ps.test is not known";
    assert!(error.message.contains(part) && error.message.contains("ps.test:2222"), "{error}");
    assert!((29..=30).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

/// Aim: a leader that takes connections and never answers doesn't keep a task from being tried, nor its deadline from being
/// kept. Method: on a paused clock the task's name never resolves; the leader is a socket that nobody serves.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_silent_holds_up_neither_tries_nor_deadline() {
    const CONNECT: Duration = Duration::from_secs(2);
    let silent = listener();
    let leader = silent.local_addr().expect("it is bound").to_string();
    let (begun, lookups) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let count = lookups.clone();
    let lookup = move |name: &str| {
        count.fetch_add(1, Ordering::Relaxed);
        Err(unknown(name))
    };
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: Some(WORKER),
        connections: Connections::resolving(Resolver::new(lookup)),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, [leader]).with_job(TaskType::Ps, ["ps.test:1"]),
        caller: caller(1),
        runtime: Handle::current(),
        connect_timeout: CONNECT,
        rejoin_timeout: LONG,
    });
    let error = peers.call(PS, Lane::Bulk, false, ask).await.expect_err("there is no such name");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::Unavailable, &[PS][..]), "{error}");
    assert!(begun.elapsed() <= CONNECT, "{:?}", begun.elapsed());
    let lookups = lookups.load(Ordering::Relaxed);
    assert!(lookups >= 5, "{lookups} tries");
}

/// Where only one address answers, the others are passed over, whichever comes first.
#[tokio::test]
async fn every_address_of_a_name_is_tried() {
    let server = start(options(PS, 7, listener()));
    let (other_family, elsewhere) = (IpAddr::V6(Ipv6Addr::LOCALHOST), ELSEWHERE);
    for addresses in [
        vec![other_family, LOOPBACK],
        vec![LOOPBACK, other_family],
        vec![elsewhere, LOOPBACK],
        vec![other_family, elsewhere, LOOPBACK],
    ] {
        let known = addresses.clone();
        let peers = peers_by(server.addr.port(), LONG, move |_| Ok(known.clone()));
        assert_eq!(call(&peers).await, Ok(7), "{addresses:?}");
        peers.close().await;
    }
    server.stop().await;
}

/// Aim: who comes back under its name at another address is found there. Method: the old address is closed, so that nothing
/// answers there but a refusal.
#[tokio::test]
async fn a_name_that_moves_is_followed_at_the_next_connect() {
    let first = start(options(PS, 7, listener()));
    let port = first.addr.port();
    let second = std::net::TcpListener::bind((ELSEWHERE, port)).expect("nobody has the port at that address");
    let address = Arc::new(Mutex::new(LOOPBACK));
    let current = address.clone();
    let peers = peers_by(port, LONG, move |_| Ok(vec![*current.lock().expect("no panic above")]));
    assert_eq!(call(&peers).await, Ok(7));
    first.stop().await;
    *address.lock().expect("no panic above") = ELSEWHERE;
    let second = start(options(PS, 8, second));
    let error = call(&peers).await.expect_err("another incarnation answers there");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[PS][..]), "{error}");
    second.stop().await;
}
