//! Direct connections to one task: kept while they are used, dialled where its server takes them.

use super::connect::{CONNECT_TRY_TIMEOUT, connector};
use super::resolver::Resolver;
use crate::sync::lock;
use crate::wire::direct::{PREFACE, Reader, error_of, framed, write};
use crate::wire::transport::KEEPALIVE_INTERVAL;
use crate::wire::v1::{self, direct_response};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::codegen::Service as _;

/// Most of them to one task. Further calls go by gRPC, whose connection takes any number of them.
const CONNECTIONS_MAX: usize = 2;

/// How long one is kept without a call: half as long as a server waits for one.
const KEPT_IDLE: Duration = Duration::from_secs(30);

/// How long none is dialled after one couldn't be, or broke at its first call: something between here and the server may speak
/// HTTP/2 only, and take its time to see what this is.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The direct connections of this process to one task. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Direct(Arc<Inner>);

struct Inner {
    address: String,
    resolver: Resolver,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last one used comes last.
    idle: Vec<(Halves, Instant)>,
    /// With those that are idle.
    open: usize,
    /// None is dialled before.
    again_at: Option<Instant>,
}

type Halves = (Reader<OwnedReadHalf>, OwnedWriteHalf);

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl Direct {
    /// Dials nobody. Connections live on `runtime`.
    pub(super) fn new(address: &str, resolver: Resolver, runtime: Handle) -> Self {
        Direct(Arc::new(Inner { address: address.to_owned(), resolver, runtime, state: Mutex::default() }))
    }

    /// A connection for one call; none where all are in use, or one can't be had: the call then goes by gRPC.
    ///
    /// # Cancel safety
    /// Dropping it gives up the connection that is dialled.
    pub async fn connection(&self) -> Option<Connection> {
        let now = Instant::now();
        let mut place = {
            let mut state = lock(&self.0.state);
            let kept = state.idle.len();
            state.idle.retain(|(_, since)| now - *since < KEPT_IDLE);
            state.open -= kept - state.idle.len();
            while let Some((halves, _)) = state.idle.pop() {
                if is_quiet(&halves) {
                    return Some(Connection { halves: Some(halves), home: self.clone(), proven: true, whole: false });
                }
                state.open -= 1;
            }
            if state.open >= CONNECTIONS_MAX || state.again_at.is_some_and(|again_at| now < again_at) {
                return None;
            }
            state.open += 1;
            Connection { halves: None, home: self.clone(), proven: false, whole: false }
        };
        // Its socket belongs to that runtime, whoever uses it.
        let dialled = self.0.runtime.spawn(dial(self.0.address.clone(), self.0.resolver.clone())).await;
        match dialled.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => {
                let (read, write) = stream.into_split();
                place.halves = Some((Reader::new(read), write));
                Some(place)
            }
            Err(error) => {
                tracing::debug!(address = self.0.address, %error, "no direct connection, calls go by gRPC");
                // From now on: the try may have taken half of the pause.
                lock(&self.0.state).again_at = Some(Instant::now() + REFUSED_PAUSE);
                None
            }
        }
    }
}

/// Whether nothing has come on an idle connection, its end for instance.
fn is_quiet((reader, writer): &Halves) -> bool {
    let stream: &TcpStream = writer.as_ref();
    reader.is_empty() && matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

async fn dial(address: String, resolver: Resolver) -> io::Result<TcpStream> {
    let mut connector = connector(&resolver);
    // What only forwards connections forgets one on which nothing moves while a call waits.
    connector.set_keepalive(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    let uri = format!("http://{address}").parse().map_err(io::Error::other)?;
    let greeted = async {
        let mut stream = connector.call(uri).await.map_err(io::Error::other)?.into_inner();
        stream.write_all(&PREFACE).await?;
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).await?;
        if preface == PREFACE { Ok(stream) } else { Err(io::Error::from(io::ErrorKind::InvalidData)) }
    };
    timeout(CONNECT_TRY_TIMEOUT, greeted).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A connection that a call has for itself. Unless the call ends well, it ends with it.
pub struct Connection {
    /// None while it is dialled.
    halves: Option<Halves>,
    home: Direct,
    /// Whether a call has ended well on it.
    proven: bool,
    /// Whether another call may follow.
    whole: bool,
}

impl Connection {
    /// Sends a call with its values, and reads the message that answers it; values of the answer are read next.
    ///
    /// # Errors
    /// The server's own, or those of the connection.
    ///
    /// # Cancel safety
    /// Dropping it ends the connection; whether a write was applied is then unknown.
    pub async fn call(
        mut self,
        request: &v1::DirectRequest,
        values: &[&[u8]],
    ) -> Result<(direct_response::Kind, Answer), Status> {
        let Some((reader, writer)) = &mut self.halves else { return Err(broken(io::ErrorKind::NotConnected.into())) };
        let mut sent = false;
        let answer = {
            let mut send = pin!(write(writer, framed(request), values));
            let mut answer = pin!(reader.message::<v1::DirectResponse>());
            loop {
                tokio::select! {
                    biased;
                    result = &mut send, if !sent => match result {
                        Ok(()) => sent = true,
                        // Why it can't go on may have been said.
                        Err(_) => break answer.await,
                    },
                    // A refusal comes before all values are sent.
                    answer = &mut answer => break answer,
                }
            }
        };
        let answer = answer.map_err(|error| self.broken(error))?;
        let Some(v1::DirectResponse { kind: Some(kind), last }) = answer else {
            return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
        };
        let goes_on = sent && !last;
        match kind {
            direct_response::Kind::Error(error) => {
                self.whole = goes_on;
                Err(error_of(error).into())
            }
            kind => Ok((kind, Answer { connection: self, goes_on })),
        }
    }

    /// The error of a connection that has broken.
    fn broken(&self, error: io::Error) -> Status {
        if !self.proven {
            lock(&self.home.0.state).again_at = Some(Instant::now() + REFUSED_PAUSE);
        }
        broken(error)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = lock(&self.home.0.state);
        match self.halves.take().filter(|(reader, _)| self.whole && reader.is_empty()) {
            Some(halves) => state.idle.push((halves, Instant::now())),
            None => state.open -= 1,
        }
    }
}

/// The values of an answer.
pub struct Answer {
    connection: Connection,
    /// Whether the server has taken all of the call, and waits for another.
    goes_on: bool,
}

impl Answer {
    /// Puts the next `bytes` bytes behind what is there.
    ///
    /// # Errors
    /// Those of the connection.
    ///
    /// # Cancel safety
    /// None: the connection has to be dropped.
    pub async fn append(&mut self, into: &mut Vec<u8>, bytes: usize) -> Result<(), Status> {
        let Some((reader, _)) = &mut self.connection.halves else {
            return Err(broken(io::ErrorKind::NotConnected.into()));
        };
        reader.append(into, bytes).await.map_err(|error| self.connection.broken(error))
    }

    /// Ends the call, all of whose values were read: its connection is kept, unless the server ends it.
    pub fn end(mut self) {
        self.connection.whole = self.goes_on;
    }
}

fn broken(error: io::Error) -> Status {
    Status::from_error(Box::new(error))
}
