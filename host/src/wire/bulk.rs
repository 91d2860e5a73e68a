//! gRPC streams of chunks whose bytes are not copied.
//!
//! tonic's codecs copy each message into a buffer to send it, and each HTTP/2 frame into another to receive it; a tensor then
//! passes the memory twice more than it needs to. These two write and read the same bytes on the wire: [`encode_response`] makes a body in
//! which a chunk's bytes are a frame of their own, [`Messages`] decodes messages out of the frames as they came.
//!
//! # Source
//! The framing of messages, and where the status stands: *gRPC over HTTP/2* (`PROTOCOL-HTTP2.md` of grpc/grpc).

mod pieces;

use crate::wire::transport::MESSAGE_BYTES_MAX;
use crate::wire::v1;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use pieces::Pieces;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header};
use tonic::codegen::{Service as _, StdError};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// What stands before a message: whether it is compressed, and its size.
const PREFIX_BYTES: usize = 5;

/// Chunks below this size are copied behind what stands before them: a frame of their own costs more.
const COPIED_BYTES_MAX: usize = 4096;

/// Small messages share a frame until it has so many bytes. Each frame costs its receiver some 256 bytes, and one that has too many
/// small ones unread ends the connection.
const JOINED_BYTES_MIN: usize = 16 << 10;

/// The number of the field that is the chunk, of all messages that may be one.
const CHUNK_FIELD: u32 = 2;

/// A message that may be a chunk.
pub trait BulkMessage: prost::Message + Default + 'static {
    /// The chunk, or the message as it was.
    fn into_chunk(self) -> Result<v1::Chunk, Self>
    where
        Self: Sized,
    {
        Err(self)
    }
}

impl BulkMessage for v1::PullRequest {}
impl BulkMessage for v1::GatherRequest {}
impl BulkMessage for v1::SaveRequest {}
impl BulkMessage for v1::PushResponse {}

impl BulkMessage for v1::PushRequest {
    fn into_chunk(self) -> Result<v1::Chunk, Self> {
        match self.kind {
            Some(v1::push_request::Kind::Chunk(chunk)) => Ok(chunk),
            kind => Err(v1::PushRequest { kind }),
        }
    }
}

impl BulkMessage for v1::PullResponse {
    fn into_chunk(self) -> Result<v1::Chunk, Self> {
        match self.kind {
            Some(v1::pull_response::Kind::Chunk(chunk)) => Ok(chunk),
            kind => Err(v1::PullResponse { kind }),
        }
    }
}

impl BulkMessage for v1::ScatterRequest {
    fn into_chunk(self) -> Result<v1::Chunk, Self> {
        match self.kind {
            Some(v1::scatter_request::Kind::Chunk(chunk)) => Ok(chunk),
            kind => Err(v1::ScatterRequest { kind }),
        }
    }
}

impl BulkMessage for v1::SaveResponse {
    fn into_chunk(self) -> Result<v1::Chunk, Self> {
        match self.kind {
            Some(v1::save_response::Kind::Chunk(chunk)) => Ok(chunk),
            kind => Err(v1::SaveResponse { kind }),
        }
    }
}

/// The body of a request.
pub fn encode_request<T: BulkMessage>(messages: impl Stream<Item = T> + Send + 'static) -> Body {
    let messages = tokio_stream::StreamExt::map(messages, Ok);
    Body::new(Encode { messages: Box::pin(messages), behind: None, end: None, trailers: false, ended: false })
}

/// The answer of a server: the messages, and how they ended.
pub fn encode_response<T: BulkMessage>(
    messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Response<Body> {
    let body = Encode { messages: Box::pin(messages), behind: None, end: None, trailers: true, ended: false };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// A message behind its prefix.
fn framed(message: &impl prost::Message) -> BytesMut {
    let bytes = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    put_prefix(&mut buffer, bytes);
    message.encode(&mut buffer).expect("a growing buffer takes any message");
    buffer
}

/// What stands before a chunk's bytes: all of its message but them, which come last.
fn chunk_head(chunk: &v1::Chunk) -> BytesMut {
    let v1::Chunk { item, offset, data } = chunk;
    let size = data.len() as u64;
    let number = |field: u32, value: u64| if value == 0 { 0 } else { key_len(field) + encoded_len_varint(value) };
    let inner = number(1, u64::from(*item)) + number(2, *offset) + key_len(3) + encoded_len_varint(size) + data.len();
    let message = key_len(CHUNK_FIELD) + encoded_len_varint(inner as u64) + inner;
    let mut buffer = BytesMut::with_capacity(PREFIX_BYTES + message - data.len());
    put_prefix(&mut buffer, message);
    encode_key(CHUNK_FIELD, WireType::LengthDelimited, &mut buffer);
    encode_varint(inner as u64, &mut buffer);
    for (field, value) in [(1, u64::from(*item)), (2, *offset)] {
        if value != 0 {
            encode_key(field, WireType::Varint, &mut buffer);
            encode_varint(value, &mut buffer);
        }
    }
    encode_key(3, WireType::LengthDelimited, &mut buffer);
    encode_varint(size, &mut buffer);
    buffer
}

fn put_prefix(buffer: &mut BytesMut, bytes: usize) {
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(bytes).expect("messages are bounded far below 4 GiB"));
}

/// A body of messages.
struct Encode<S> {
    messages: Pin<Box<S>>,
    /// A chunk's bytes, behind what was sent last.
    behind: Option<Bytes>,
    /// How the messages have ended, until it is told.
    end: Option<Status>,
    /// Whether the end is told in trailers: a server's.
    trailers: bool,
    ended: bool,
}

impl<S, T> http_body::Body for Encode<S>
where
    S: Stream<Item = Result<T, Status>>,
    T: BulkMessage,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(data) = self.behind.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let mut joined = BytesMut::new();
        while self.end.is_none() && self.behind.is_none() && joined.len() < JOINED_BYTES_MIN {
            match self.messages.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => self.behind = put(&mut joined, message),
                Poll::Ready(Some(Err(status))) => self.end = Some(status),
                Poll::Ready(None) => self.end = Some(Status::new(Code::Ok, "")),
                Poll::Pending if joined.is_empty() => return Poll::Pending,
                // What is there waits for nothing.
                Poll::Pending => break,
            }
        }
        let status = match self.end.take() {
            Some(status) if joined.is_empty() => status,
            end => {
                self.end = end;
                return Poll::Ready(Some(Ok(Frame::data(joined.freeze()))));
            }
        };
        self.ended = true;
        if self.trailers {
            return Poll::Ready(Some(trailers(&status)));
        }
        Poll::Ready(if status.code() == Code::Ok { None } else { Some(Err(status)) })
    }
}

/// Puts a message behind others; of a large chunk all but its bytes, which follow.
fn put<T: BulkMessage>(joined: &mut BytesMut, message: T) -> Option<Bytes> {
    let (message, behind) = match message.into_chunk() {
        Ok(chunk) => {
            let mut head = chunk_head(&chunk);
            let small = chunk.data.len() < COPIED_BYTES_MAX;
            if small {
                head.extend_from_slice(&chunk.data);
            }
            (head, (!small).then_some(chunk.data))
        }
        Err(message) => (framed(&message), None),
    };
    if joined.is_empty() {
        *joined = message;
    } else {
        joined.extend_from_slice(&message);
    }
    behind
}

fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

/// Calls an rpc, `/package.Service/Method`, with a stream of messages.
///
/// # Errors
/// The server's status, where it answers with that alone; else that of the transport.
///
/// # Cancel safety
/// Dropping it, or the messages that it answers with, resets the stream.
pub async fn call<Req: BulkMessage, Res: prost::Message + Default>(
    mut channel: Channel,
    path: &'static str,
    messages: impl Stream<Item = Req> + Send + 'static,
) -> Result<Messages<Res>, Status> {
    let failed = |error| Status::from_error(StdError::from(error));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(failed)?;
    let request = Request::post(path)
        .version(tonic::codegen::http::Version::HTTP_2)
        .header(header::TE, "trailers")
        .header(header::CONTENT_TYPE, GRPC)
        .body(encode_request(messages))
        .map_err(|error| Status::internal(format!("path of an rpc: {error}")))?;
    let response = channel.call(request).await.map_err(failed)?;
    let (parts, body) = response.into_parts();
    let ended = match Status::from_header_map(&parts.headers) {
        Some(status) if status.code() == Code::Ok => true,
        Some(status) => return Err(status),
        None if parts.status.is_success() => false,
        None => return Err(Status::unavailable(format!("HTTP status {}, and no status of gRPC", parts.status))),
    };
    refuse_compressed(&parts.headers)?;
    Ok(Messages { body, unread: Pieces::default(), side: Side::Client, ended, of: PhantomData })
}

/// The messages of a request.
///
/// # Errors
/// `UNIMPLEMENTED`: they are compressed.
pub fn decode_request<T: prost::Message + Default>(request: Request<Body>) -> Result<Messages<T>, Status> {
    let (parts, body) = request.into_parts();
    refuse_compressed(&parts.headers)?;
    Ok(Messages { body, unread: Pieces::default(), side: Side::Server, ended: false, of: PhantomData })
}

fn refuse_compressed(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        None => Ok(()),
        Some(encoding) if encoding == "identity" => Ok(()),
        Some(encoding) => {
            Err(Status::unimplemented(format!("messages are compressed ({encoding:?}); send them as they are")))
        }
    }
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Messages as they come. Bytes of a chunk that came in one frame are a part of that frame.
pub struct Messages<T> {
    body: Body,
    unread: Pieces,
    side: Side,
    ended: bool,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Messages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("unread", &self.unread).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl<T: prost::Message + Default> Messages<T> {
    /// The next message; none at the stream's good end.
    ///
    /// # Errors
    /// The other side's status, or the transport's; `INTERNAL`: what came is no message; `OUT_OF_RANGE`: it is larger than
    /// [`MESSAGE_BYTES_MAX`].
    ///
    /// # Cancel safety
    /// Nothing is lost: a later call goes on.
    pub async fn message(&mut self) -> Result<Option<T>, Status> {
        std::future::poll_fn(|cx| self.poll_message(cx)).await
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>, Status>> {
        loop {
            if let Some(message) = self.decode()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(self.finish());
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unread.push(data),
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.ended = true;
                            if self.side == Side::Client {
                                self.check(&trailers)?;
                            }
                        }
                    }
                },
                // A client that gives its call up: what comes of it interests nobody.
                Some(Err(status)) if self.side == Side::Server && status.code() == Code::Cancelled => self.ended = true,
                Some(Err(status)) => {
                    self.ended = true;
                    return Poll::Ready(Err(status));
                }
                None => {
                    self.ended = true;
                    if self.side == Side::Client {
                        return Poll::Ready(Err(no_status()));
                    }
                }
            }
        }
    }

    fn check(&self, trailers: &HeaderMap) -> Result<(), Status> {
        match Status::from_header_map(trailers) {
            Some(status) if status.code() == Code::Ok => Ok(()),
            Some(status) => Err(status),
            None => Err(no_status()),
        }
    }

    /// The next message, if all of it is there.
    fn decode(&mut self) -> Result<Option<T>, Status> {
        let Some(prefix) = self.unread.peek::<PREFIX_BYTES>() else { return Ok(None) };
        let [compressed, size @ ..] = prefix;
        if compressed != 0 {
            self.ended = true;
            self.unread = Pieces::default();
            return Err(Status::unimplemented("message is compressed; send it as it is"));
        }
        let bytes = u32::from_be_bytes(size) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            self.ended = true;
            self.unread = Pieces::default();
            return Err(Status::out_of_range(format!(
                "message has {bytes} bytes, at most {MESSAGE_BYTES_MAX} are taken"
            )));
        }
        if self.unread.len() < PREFIX_BYTES + bytes {
            return Ok(None);
        }
        T::decode(self.unread.message(PREFIX_BYTES, bytes))
            .map(Some)
            .map_err(|error| Status::internal(format!("what came is no message of this kind: {error}")))
    }

    fn finish(&mut self) -> Result<Option<T>, Status> {
        if self.unread.len() == 0 {
            return Ok(None);
        }
        let bytes = self.unread.len();
        self.unread = Pieces::default();
        Err(Status::internal(format!("stream ended within a message, after {bytes} bytes of it")))
    }
}

fn no_status() -> Status {
    Status::unknown("stream ended without a status of gRPC; something between here and the server may have cut it")
}

#[cfg(test)]
mod tests;
