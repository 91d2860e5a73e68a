//! Connections as the server takes them: bounded in number, and cut when they never begin to speak HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// Most connections at once: each task of a cluster keeps three, so that this is a cluster of more than a thousand.
const CONNECTIONS_MAX: usize = 4096;

/// How long a new connection may take to send the preface of HTTP/2. A client sends it at once.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// The server's connections. One beyond the limit is closed at once, and said so.
pub(super) fn connections(incoming: TcpIncoming) -> impl Stream<Item = io::Result<Connection>> {
    bounded(incoming, CONNECTIONS_MAX, PREFACE_TIMEOUT)
}

fn bounded(
    incoming: impl Stream<Item = io::Result<TcpStream>>,
    connections_max: usize,
    preface_timeout: Duration,
) -> impl Stream<Item = io::Result<Connection>> {
    let room = Arc::new(Semaphore::new(connections_max));
    let incoming = incoming.then(async |accepted| {
        if let Err(error) = &accepted {
            tracing::warn!("can't take a connection: {error}");
            // Out of file descriptors, say: the transport would ask again at once, and for ever.
            sleep(ACCEPT_PAUSE).await;
        }
        accepted
    });
    incoming.filter_map(move |accepted| {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => return Some(Err(error)),
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tracing::warn!("closed a new connection: {connections_max} are open, the most that this server takes");
            return None;
        };
        let preface = Some(Preface { missing: PREFACE_BYTES, deadline: Box::pin(sleep(preface_timeout)) });
        Some(Ok(Connection { stream, preface, _permit: permit }))
    })
}

/// One connection, which has to begin with the preface in time.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// None once it has come.
    preface: Option<Preface>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut connection.stream).poll_read(cx, buf);
        if let Some(preface) = &mut connection.preface {
            preface.missing = preface.missing.saturating_sub(buf.filled().len() - before);
            if preface.missing == 0 {
                connection.preface = None;
            } else if read.is_pending() && preface.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::wrappers::TcpListenerStream;

    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    /// Longer than any machine needs, so that a test that hangs fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn listen(
        connections_max: usize,
        preface_timeout: Duration,
    ) -> (SocketAddr, Pin<Box<impl Stream<Item = io::Result<Connection>>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        (address, Box::pin(bounded(TcpListenerStream::new(listener), connections_max, preface_timeout)))
    }

    #[tokio::test]
    async fn connection_that_says_too_little_is_cut() {
        for said in [&PREFACE[..0], &PREFACE[..23]] {
            let (address, mut connections) = listen(1, Duration::from_millis(20)).await;
            let mut client = TcpStream::connect(address).await.expect("it listens");
            client.write_all(said).await.expect("it is open");
            let mut connection = connections.next().await.expect("one came").expect("and is good");
            let mut bytes = Vec::new();
            let read = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut bytes)).await.expect("it is cut");
            assert_eq!(read.expect_err("too late").kind(), io::ErrorKind::TimedOut);
            assert_eq!(bytes, said);
        }
    }

    #[tokio::test]
    async fn connection_that_has_begun_may_be_silent() {
        let (address, mut connections) = listen(1, Duration::from_millis(20)).await;
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(PREFACE).await.expect("it is open");
        let mut connection = connections.next().await.expect("one came").expect("and is good");
        let mut bytes = [0; PREFACE_BYTES];
        connection.read_exact(&mut bytes).await.expect("all came");
        let silence = tokio::time::timeout(Duration::from_millis(60), connection.read(&mut bytes)).await;
        assert!(silence.is_err(), "nothing came, and nothing was cut");
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_closed() {
        let (address, mut connections) = listen(1, PATIENCE).await;
        let first = TcpStream::connect(address).await.expect("it listens");
        let taken = connections.next().await.expect("one came").expect("and is good");
        let mut second = TcpStream::connect(address).await.expect("the system takes it");
        let taking = tokio::spawn(async move { connections.next().await });
        let read = tokio::time::timeout(PATIENCE, second.read(&mut [0; 1])).await.expect("it is closed");
        assert!(matches!(read, Ok(0) | Err(_)));
        drop((taken, first));
        let _third = TcpStream::connect(address).await.expect("it listens");
        let third = tokio::time::timeout(PATIENCE, taking).await.expect("there is room again").expect("no panic");
        assert!(third.expect("one came").is_ok());
    }
}
