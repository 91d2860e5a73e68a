//! Connections as the server takes them: bounded in number, cut when they never begin to speak, and sorted by what they speak.

use crate::wire::direct;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// Most connections at once: each task of a cluster keeps five at most, so that this is a cluster of some eight hundred.
const CONNECTIONS_MAX: usize = 4096;

/// Descriptors that are left to everything else: 256 files and 128 sockets that the process's guest may have open, and 128
/// for what the process has itself (granted directories, the component, runtimes, connections to other tasks). A guest that opens
/// all it may must not keep other tasks from connecting.
const DESCRIPTORS_RESERVED: u64 = 512;

/// Connections that each task of a cluster keeps to a server that it uses.
const CONNECTIONS_PER_TASK: usize = 5;

/// How long a new connection may take to send its preface. A client sends it at once.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often the same trouble is told.
const TOLD_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes of the preface of HTTP/2 (RFC 9113, section 3.4), and of a direct connection.
const PREFACE_BYTES: usize = direct::PREFACE.len();

/// Connections that wait for the transport to take them.
const SORTED_QUEUED: usize = 64;

/// The connections of a server in a cluster of `tasks_count` tasks. One beyond the limit is closed at once, and said so. Those
/// that are direct ones go to `direct`, which may begin behind their preface. Has to be called on the control runtime.
///
/// There is no error in the stream: the transport would end the server at one.
pub(super) fn connections(
    incoming: TcpIncoming,
    tasks_count: usize,
    direct: impl Fn(Connection) + Clone + Send + 'static,
) -> impl Stream<Item = io::Result<Connection>> {
    let descriptors = getrlimit(Resource::Nofile).current;
    let connections_max = connections_max(descriptors);
    let needed = tasks_count.saturating_mul(CONNECTIONS_PER_TASK);
    if connections_max < needed.min(CONNECTIONS_MAX) {
        tracing::warn!(
            "this process may open {} files, so that its server takes {connections_max} connections, but {tasks_count} \
             tasks keep up to {needed}; raise the limit (`ulimit -n`)",
            descriptors.unwrap_or(u64::MAX)
        );
    }
    sort(bounded(incoming, connections_max, PREFACE_TIMEOUT), direct)
}

/// Hands direct connections to `direct`, and lets all others through.
fn sort<S: AsyncRead + Send + Unpin + 'static>(
    taken: impl Stream<Item = io::Result<Connection<S>>> + Send + 'static,
    direct: impl Fn(Connection<S>) + Clone + Send + 'static,
) -> impl Stream<Item = io::Result<Connection<S>>> {
    let (others, stream) = mpsc::channel(SORTED_QUEUED);
    tokio::spawn(async move {
        let mut taken = pin!(taken);
        loop {
            let connection = tokio::select! {
                biased;
                () = others.closed() => return,
                connection = taken.next() => connection,
            };
            let Some(Ok(mut connection)) = connection else { return };
            let (direct, others) = (direct.clone(), others.clone());
            // What never says a word is cut by itself.
            tokio::spawn(async move {
                match connection.is_direct().await {
                    Ok(true) => direct(connection),
                    Ok(false) => drop(others.send(Ok(connection)).await),
                    Err(_) => {}
                }
            });
        }
    });
    ReceiverStream::new(stream)
}

/// How many connections a process may take that may have `descriptors` open; none: any number.
fn connections_max(descriptors: Option<u64>) -> usize {
    let Some(descriptors) = descriptors else { return CONNECTIONS_MAX };
    let allowed = descriptors.saturating_sub(DESCRIPTORS_RESERVED).max(descriptors / 2);
    usize::try_from(allowed).unwrap_or(CONNECTIONS_MAX).clamp(1, CONNECTIONS_MAX)
}

fn bounded<S>(
    incoming: impl Stream<Item = io::Result<S>>,
    connections_max: usize,
    preface_timeout: Duration,
) -> impl Stream<Item = io::Result<Connection<S>>> {
    let room = Arc::new(Semaphore::new(connections_max));
    let (mut errors, mut refusals) = (Trouble::default(), Trouble::default());
    let connections = incoming.then(move |accepted| {
        let (connection, pause) = match accepted {
            Ok(stream) => match room.clone().try_acquire_owned() {
                Ok(permit) => {
                    let preface = Preface { missing: PREFACE_BYTES, deadline: Box::pin(sleep(preface_timeout)) };
                    (Some(Connection { stream, preface: Some(preface), first: None, _permit: permit }), false)
                }
                Err(_) => {
                    if let Some(times) = refusals.tell(Instant::now()) {
                        tracing::warn!(
                            times,
                            "closed a new connection: {connections_max} are open, the most that this server takes"
                        );
                    }
                    (None, false)
                }
            },
            Err(error) => {
                if let Some(times) = errors.tell(Instant::now()) {
                    tracing::warn!(times, "can't take a connection, trying again: {error}{}", mend(&error));
                }
                (None, !is_of_one_connection(&error))
            }
        };
        async move {
            if pause {
                // Out of descriptors or memory: the connection still waits, and asking at once would be asking for ever.
                sleep(ACCEPT_PAUSE).await;
            }
            connection
        }
    });
    connections.filter_map(|connection| connection.map(Ok))
}

/// Whether an error is about a connection that has gone already, rather than about taking any.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

fn mend(error: &io::Error) -> &'static str {
    let errno = rustix::io::Errno::from_io_error(error);
    if errno == Some(rustix::io::Errno::MFILE) {
        "; raise the limit on open files of this process (`ulimit -n`)"
    } else if errno == Some(rustix::io::Errno::NFILE) {
        "; the whole system is out of open files (`fs.file-max`)"
    } else {
        ""
    }
}

/// One kind of trouble, told at a bounded rate.
#[derive(Debug, Default)]
struct Trouble {
    told_at: Option<Instant>,
    untold: u64,
}

impl Trouble {
    /// Counts one more; how many there were since the last one told, this one included, where it is time to tell.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if self.told_at.is_some_and(|told_at| now - told_at < TOLD_INTERVAL) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// One connection, which has to begin with the preface in time.
#[derive(Debug)]
pub(super) struct Connection<S = TcpStream> {
    stream: S,
    /// None once it has come.
    preface: Option<Preface>,
    /// Its first byte, read ahead.
    first: Option<u8>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + Unpin> Connection<S> {
    /// Reads as much as shows whether it is a direct one: then its preface, else a byte, which is read again.
    ///
    /// # Errors
    /// The system's; `TimedOut`; `InvalidData`: it is neither.
    async fn is_direct(&mut self) -> io::Result<bool> {
        let mut preface = [0; PREFACE_BYTES];
        let [first, rest @ ..] = &mut preface;
        *first = self.read_u8().await?;
        if *first != direct::PREFACE[0] {
            self.first = Some(*first);
            return Ok(false);
        }
        self.read_exact(rest).await?;
        if preface != direct::PREFACE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(true)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if buf.remaining() > 0
            && let Some(first) = connection.first.take()
        {
            buf.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio_stream::wrappers::UnboundedReceiverStream;

    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    /// What comes to a server, and what it takes.
    struct Listener {
        comes: UnboundedSender<io::Result<DuplexStream>>,
        taken: Pin<Box<dyn Stream<Item = io::Result<Connection<DuplexStream>>> + Send>>,
    }

    fn listen(connections_max: usize) -> Listener {
        let (comes, incoming) = unbounded_channel();
        let taken = bounded(UnboundedReceiverStream::new(incoming), connections_max, PREFACE_TIMEOUT);
        Listener { comes, taken: Box::pin(taken) }
    }

    impl Listener {
        fn connect(&self) -> DuplexStream {
            let (client, server) = duplex(1024);
            self.comes.send(Ok(server)).expect("it listens");
            client
        }

        async fn take(&mut self) -> Connection<DuplexStream> {
            self.taken.next().await.expect("it listens").expect("errors are kept from the transport")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_says_too_little_is_cut() {
        for said in [&PREFACE[..0], &PREFACE[..23]] {
            let mut listener = listen(1);
            let mut client = listener.connect();
            client.write_all(said).await.expect("it is open");
            let mut connection = listener.take().await;
            let (began, mut bytes) = (Instant::now(), Vec::new());
            let error = connection.read_to_end(&mut bytes).await.expect_err("too late");
            assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, PREFACE_TIMEOUT));
            assert_eq!(bytes, said);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_has_begun_may_be_silent() {
        let mut listener = listen(1);
        let mut client = listener.connect();
        client.write_all(PREFACE).await.expect("it is open");
        let mut connection = listener.take().await;
        let mut bytes = [0; PREFACE_BYTES];
        connection.read_exact(&mut bytes).await.expect("all came");
        let silence = tokio::time::timeout(PREFACE_TIMEOUT * 1000, connection.read(&mut bytes)).await;
        assert!(silence.is_err(), "nothing came, and nothing was cut");
    }

    /// Aim: each connection goes where it belongs, with all its bytes, and none waits for one that is silent.
    #[tokio::test(start_paused = true)]
    async fn connections_are_sorted_by_their_preface() {
        let Listener { comes, taken } = listen(10);
        let (direct, mut sorted) = unbounded_channel();
        let others = sort(taken, move |connection| direct.send(connection).expect("it is awaited"));
        let mut others = pin!(others);
        let connect = || {
            let (client, server) = duplex(1024);
            comes.send(Ok(server)).expect("it listens");
            client
        };
        let _silent = connect();
        let mut strange = connect();
        strange.write_all(b"dchost direct 9999\r\n\r\n\r\n").await.expect("it is open");
        let mut http = connect();
        http.write_all(PREFACE).await.expect("it is open");
        let mut taken = others.next().await.expect("it listens").expect("errors are kept from the transport");
        let mut bytes = [0; PREFACE_BYTES];
        taken.read_exact(&mut bytes).await.expect("all came");
        assert_eq!(&bytes, PREFACE);
        let mut client = connect();
        for byte in direct::PREFACE {
            client.write_all(&[byte]).await.expect("it is open");
        }
        client.write_all(b"call").await.expect("it is open");
        let mut taken = sorted.recv().await.expect("it is one");
        let mut bytes = [0; 4];
        taken.read_exact(&mut bytes).await.expect("all came");
        assert_eq!(&bytes, b"call");
        assert_eq!(strange.read(&mut bytes).await.expect("it is closed"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_beyond_the_limit_are_closed() {
        let mut listener = listen(1);
        let first = listener.connect();
        let taken = listener.take().await;
        let mut second = listener.connect();
        let no_room = tokio::time::timeout(Duration::from_secs(3600), listener.taken.next()).await;
        assert!(no_room.is_err(), "it isn't taken");
        assert_eq!(second.read(&mut [0; 1]).await.expect("it is closed"), 0);
        drop((taken, first));
        let _third = listener.connect();
        let _there_is_room_again = listener.take().await;
    }

    /// Aim: a process that is out of descriptors neither ends its server nor spins, and takes connections when it can again.
    #[tokio::test(start_paused = true)]
    async fn errors_of_accepting_are_waited_out() {
        const TOO_MANY_OPEN_FILES: i32 = 24;
        const ERRORS: u32 = 1000;
        let mut listener = listen(1);
        for _ in 0..ERRORS {
            listener.comes.send(Err(io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES))).expect("it listens");
        }
        listener.comes.send(Err(io::ErrorKind::ConnectionAborted.into())).expect("it listens");
        let _client = listener.connect();
        let began = Instant::now();
        let _connection = listener.take().await;
        assert_eq!(began.elapsed(), ACCEPT_PAUSE * ERRORS, "one that was given up needs no pause");
        assert!(mend(&io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES)).contains("ulimit -n"));
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_is_told_at_a_bounded_rate_and_counted() {
        let (mut trouble, start) = (Trouble::default(), Instant::now());
        assert_eq!(trouble.tell(start), Some(1));
        for _ in 0..500 {
            assert_eq!(trouble.tell(start + TOLD_INTERVAL / 2), None);
        }
        assert_eq!(trouble.tell(start + TOLD_INTERVAL), Some(501));
    }

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for (descriptors, connections) in
            [(None, 4096), (Some(1 << 20), 4096), (Some(1024), 512), (Some(4096), 3584), (Some(300), 150), (Some(1), 1)]
        {
            assert_eq!(connections_max(descriptors), connections, "{descriptors:?}");
        }
    }
}
