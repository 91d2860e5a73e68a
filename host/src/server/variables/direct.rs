//! Direct connections: the calls that carry tensors, without HTTP/2; see `wire::direct`.
//!
//! One call at a time, each admitted as it is by gRPC, and served by the same functions. A caller that breaks off ends its connection.

use super::rows::Rows;
use super::values::{DirectReader, Progress, Values};
use super::{PullStream, VariablesService, invalid};
use crate::server::answers::UNREAD_TIMEOUT;
use crate::server::guard::{Admitted, Rpc};
use crate::wire::direct::{self, Reader, error_to_direct, framed};
use crate::wire::status::from_status;
use crate::wire::v1::{self, direct_request, direct_response, pull_response};
use bytes::BytesMut;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, WriteHalf};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// How long a connection may be without a call, take to send the message of one, or leave its answer unread. Clients keep theirs for
/// half of it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the rest of a refused write is read, so that its caller gets to see why before the connection is reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Small values that are sent with what stands before them, in bytes.
const GATHERED_BYTES_MAX: usize = 32 << 10;

/// Serves one connection, which has shown that it is a direct one, until it ends or the server stops.
pub(in crate::server) async fn serve<S>(service: VariablesService, stream: S, stopping: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader: DirectReader = Reader::new(Box::new(reader));
    if writer.write_all(&direct::PREFACE).await.is_err() {
        return;
    }
    loop {
        let request = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            request = timeout(IDLE_TIMEOUT, reader.message::<v1::DirectRequest>()) => request,
        };
        let Ok(Ok(Some(request))) = request else { return };
        let Ok(end) = answer(&service, request, &mut reader, &mut writer).await else { return };
        match end {
            End::Whole => {}
            End::Unread => return linger(reader, writer).await,
        }
    }
}

/// How a call has left its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The next one may come.
    Whole,
    /// Values are on their way that nobody wants any more.
    Unread,
}

/// What a call answers with.
enum Answer {
    Written(v1::PushResponse),
    Values(Admitted, PullStream),
}

async fn answer<S: AsyncWrite>(
    service: &VariablesService,
    request: v1::DirectRequest,
    reader: &mut DirectReader,
    writer: &mut WriteHalf<S>,
) -> io::Result<End> {
    let mut end = End::Whole;
    let called = match request.kind {
        Some(direct_request::Kind::Initialize(header)) => {
            let mut incoming = Values::direct(reader);
            let written = service.initialize_from(Some(header), &mut incoming).await;
            end = End::of(&incoming)?;
            written.map(Answer::Written)
        }
        Some(direct_request::Kind::Push(header)) => {
            let mut incoming = Values::direct(reader);
            let pushed = service.push_from(Some(header), &mut incoming).await;
            end = End::of(&incoming)?;
            pushed.map(|(admitted, snapshots)| Answer::Values(admitted.clone(), service.send(admitted, snapshots)))
        }
        Some(direct_request::Kind::Scatter(header)) => {
            let mut incoming = Rows::Direct(Values::direct(reader));
            let written = service.scatter_from(Some(header), &mut incoming).await;
            if let Rows::Direct(values) = &incoming {
                end = End::of(values)?;
            }
            written.map(Answer::Written)
        }
        Some(direct_request::Kind::Pull(request)) => unless_stirred(reader, pull(service, request)).await?,
        Some(direct_request::Kind::Gather(request)) => unless_stirred(reader, gather(service, request)).await?,
        None => {
            end = End::Unread;
            Err(invalid("the message names no call").into())
        }
    };
    let last = end == End::Unread;
    let message = |kind| framed(&v1::DirectResponse { kind: Some(kind), last });
    let head = match called {
        Ok(Answer::Written(response)) => message(direct_response::Kind::Written(response)),
        Ok(Answer::Values(admitted, values)) => {
            let unread = async {
                admitted.session.cancelled().await;
                sleep(UNREAD_TIMEOUT).await;
            };
            let header = |header| message(direct_response::Kind::Values(header));
            return tokio::select! {
                biased;
                sent = send(values, header, writer) => sent.map(|()| end),
                // Else it would stay for as long as the connection stands.
                () = unread => Err(io::ErrorKind::TimedOut.into()),
            };
        }
        Err(status) => message(direct_response::Kind::Error(error_to_direct(&from_status(&status)))),
    };
    // No session bounds it: the caller may have none.
    timeout(IDLE_TIMEOUT, writer.write_all(&head)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(end)
}

impl End {
    /// # Errors
    /// `UnexpectedEof`: the connection is over.
    fn of(incoming: &Values<'_>) -> io::Result<End> {
        match incoming.progress() {
            Progress::Complete => Ok(End::Whole),
            Progress::Unread => Ok(End::Unread),
            Progress::Cut => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

async fn pull(service: &VariablesService, mut request: v1::PullRequest) -> Result<Answer, Status> {
    let admitted = service.guard.admit(Rpc::Pull, request.header.take())?;
    Ok(Answer::Values(admitted.clone(), service.pull_stream(admitted, request).await?))
}

async fn gather(service: &VariablesService, mut request: v1::GatherRequest) -> Result<Answer, Status> {
    let admitted = service.guard.admit(Rpc::Gather, request.header.take())?;
    Ok(Answer::Values(admitted.clone(), service.gather_stream(admitted, request).await?))
}

/// Waits for what has no more to read. Whoever speaks before the answer has given it up, or is no client of ours.
async fn unless_stirred<T>(reader: &mut DirectReader, work: impl Future<Output = T>) -> io::Result<T> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = reader.stirred() => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Writes values as they come, behind what `framed_header` makes of their header. What has begun can't be taken back: where it goes
/// wrong the connection ends, and the caller, who sees that, asks again.
async fn send(
    mut values: PullStream,
    framed_header: impl Fn(v1::PullHeader) -> BytesMut,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut unsent = BytesMut::new();
    while let Some(message) = values.next().await {
        match message.map_err(io::Error::other)?.kind {
            Some(pull_response::Kind::Header(header)) => unsent = framed_header(header),
            Some(pull_response::Kind::Chunk(chunk)) if unsent.len() + chunk.data.len() <= GATHERED_BYTES_MAX => {
                unsent.extend_from_slice(&chunk.data);
            }
            Some(pull_response::Kind::Chunk(chunk)) => {
                direct::write(writer, std::mem::take(&mut unsent), &[&chunk.data]).await?;
            }
            None => {}
        }
    }
    writer.write_all(&unsent).await
}

/// Ends a connection so that its caller gets to read what was written last: one that is closed with bytes unread is reset.
async fn linger<S: AsyncWrite>(mut reader: DirectReader, mut writer: WriteHalf<S>) {
    if writer.shutdown().await.is_ok() {
        let _ = timeout(LINGER_TIMEOUT, async { while let Ok(true) = reader.discard().await {} }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Task, TaskType};
    use crate::ids::Incarnation;
    use crate::server::guard::{Guard, authorize};
    use crate::server::session::Sessions;
    use crate::variables::Store;
    use std::sync::Arc;
    use tokio::runtime::Handle;

    /// Aim: a connection whose caller asks and reads nothing ends by itself, also without a session that could end. Method: calls
    /// that are refused, until nothing fits on the way, on a paused clock.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_reads_no_answers_is_cut() {
        let stopping = CancellationToken::new();
        let sessions = Sessions::new(Duration::from_secs(30), stopping.clone(), Handle::current());
        let task = Task::new(TaskType::Ps, 0);
        let guard = Guard::new(task, Incarnation(1), sessions, Arc::new(authorize), stopping.clone());
        let service = VariablesService::new(guard, Store::default());
        let (mut client, server) = tokio::io::duplex(1024);
        let serving = tokio::spawn(serve(service, server, stopping));
        let kind = Some(direct_request::Kind::Pull(v1::PullRequest::default()));
        let request = framed(&v1::DirectRequest { kind });
        let asking = async { while client.write_all(&request).await.is_ok() {} };
        timeout(IDLE_TIMEOUT * 2, asking).await.expect("it is cut");
        serving.await.expect("no panic");
    }
}
