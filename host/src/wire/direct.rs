//! Direct connections: the calls that carry tensors, without HTTP/2.
//!
//! A message is read out of the bytes that came, and a value goes from the socket into the memory where it stays, or from where it
//! is into the socket: nothing is copied in between. `proto/dchost/v1/direct.proto` is the contract.

use crate::error::Error;
use crate::wire::status::{error_from_wire, error_to_wire};
use crate::wire::transport::MESSAGE_BYTES_MAX;
use crate::wire::v1;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tonic::Code;

/// What each side says first. Its first byte is another than that of HTTP/2's.
pub const PREFACE: [u8; 24] = *b"dchost direct 0001\r\n\r\n\r\n";

/// What stands before a message: its size.
const PREFIX_BYTES: usize = 4;

/// Bytes that are asked of the system at once while a message is awaited: small values come with it.
const READ_BYTES: usize = 16 << 10;

/// What is left of a value, in bytes, from which it is read to its place without a buffer in between.
const UNBUFFERED_BYTES_MIN: usize = READ_BYTES;

/// What is asked of the system at once for a value, in bytes, so that other connections get their turn.
const VALUE_READ_BYTES_MAX: usize = 1 << 20;

/// Parts that are written with the message before them as one piece of memory, in bytes: copying them costs less than their own
/// place in a list.
const JOINED_BYTES_MAX: usize = 32 << 10;

/// A message behind its size.
pub fn framed(message: &impl prost::Message) -> BytesMut {
    let bytes = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    buffer.put_u32(u32::try_from(bytes).expect("messages are bounded far below 4 GiB"));
    message.encode(&mut buffer).expect("a growing buffer takes any message");
    buffer
}

/// What a failed call is answered with.
pub fn error_to_direct(error: &Error) -> v1::DirectError {
    let (code, detail, message) = error_to_wire(error);
    v1::DirectError { code: code.into(), message, detail: Some(detail) }
}

/// The error of such an answer.
pub fn error_of(error: v1::DirectError) -> Error {
    let v1::DirectError { code, message, detail } = error;
    error_from_wire(Code::from_i32(code), detail.unwrap_or_default(), message)
}

/// Writes a message, or the end of one, and the values behind it.
///
/// # Errors
/// The system's.
///
/// # Cancel safety
/// None: a part may have been written.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), mut head: BytesMut, values: &[&[u8]]) -> io::Result<()> {
    if values.iter().map(|value| value.len()).sum::<usize>() <= JOINED_BYTES_MAX {
        values.iter().for_each(|value| head.extend_from_slice(value));
        return to.write_all(&head).await;
    }
    to.write_all_buf(&mut Parts { head: &head, values }).await
}

/// A message and the values behind it, as they lie.
struct Parts<'a> {
    head: &'a [u8],
    values: &'a [&'a [u8]],
}

impl Buf for Parts<'_> {
    fn remaining(&self) -> usize {
        self.head.len() + self.values.iter().map(|value| value.len()).sum::<usize>()
    }

    fn chunk(&self) -> &[u8] {
        if self.head.is_empty() {
            self.values.iter().find(|value| !value.is_empty()).unwrap_or(&self.head)
        } else {
            self.head
        }
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            if self.head.is_empty() {
                let Some((first, rest)) = self.values.split_first() else { return };
                (self.head, self.values) = (first, rest);
            }
            let taken = count.min(self.head.len());
            self.head = &self.head[taken..];
            count -= taken;
        }
    }

    fn chunks_vectored<'s>(&'s self, slices: &mut [IoSlice<'s>]) -> usize {
        let parts = std::iter::once(self.head).chain(self.values.iter().copied()).filter(|part| !part.is_empty());
        slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }
}

/// Messages and values as they come.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    unread: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Begins to read.
    pub fn new(from: R) -> Self {
        Reader { from, unread: BytesMut::new() }
    }

    /// The next message; none where the connection ends before it.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof`; `InvalidData`: what came is no message, or larger than [`MESSAGE_BYTES_MAX`].
    ///
    /// # Cancel safety
    /// Nothing is lost: a later call goes on.
    pub async fn message<T: prost::Message + Default>(&mut self) -> io::Result<Option<T>> {
        loop {
            let missing = match self.unread.first_chunk::<PREFIX_BYTES>() {
                None => PREFIX_BYTES - self.unread.len(),
                Some(size) => {
                    let bytes = u32::from_be_bytes(*size) as usize;
                    if bytes > MESSAGE_BYTES_MAX {
                        let text = format!("message of {bytes} bytes, at most {MESSAGE_BYTES_MAX} are taken");
                        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                    let bytes = PREFIX_BYTES + bytes;
                    if self.unread.len() >= bytes {
                        let message = self.unread.split_to(bytes).freeze().slice(PREFIX_BYTES..);
                        let message =
                            T::decode(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                        return Ok(Some(message));
                    }
                    bytes - self.unread.len()
                }
            };
            // Memory is taken as bytes come, not as they are announced.
            self.unread.reserve(missing.min(READ_BYTES));
            if self.from.read_buf(&mut self.unread).await? == 0 {
                return if self.unread.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The next `bytes` bytes of a value; memory of the ones before is used again once they are dropped.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof`.
    ///
    /// # Cancel safety
    /// Nothing is lost: a later call goes on.
    pub async fn piece(&mut self, bytes: usize) -> io::Result<Bytes> {
        while self.unread.len() < bytes {
            self.unread.reserve((bytes - self.unread.len()).max(READ_BYTES));
            if self.from.read_buf(&mut self.unread).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.unread.split_to(bytes).freeze())
    }

    /// Puts the next `bytes` bytes of a value behind what is there.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof`.
    ///
    /// # Cancel safety
    /// None: `into` may have a part of them.
    pub async fn append(&mut self, into: &mut Vec<u8>, mut bytes: usize) -> io::Result<()> {
        while bytes > 0 {
            if self.unread.is_empty() && bytes >= UNBUFFERED_BYTES_MIN {
                let read = self.from.read_buf(&mut (&mut *into).limit(bytes.min(VALUE_READ_BYTES_MAX))).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes -= read;
                continue;
            }
            if self.unread.is_empty() {
                self.unread.reserve(READ_BYTES);
                if self.from.read_buf(&mut self.unread).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let taken = bytes.min(self.unread.len());
            into.extend_from_slice(&self.unread[..taken]);
            self.unread.advance(taken);
            bytes -= taken;
        }
        Ok(())
    }

    /// Waits for the other side's next byte, or its end, and keeps what comes.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn stirred(&mut self) {
        if self.unread.is_empty() {
            self.unread.reserve(READ_BYTES);
            // An error is an end as well.
            let _ = self.from.read_buf(&mut self.unread).await;
        }
    }

    /// Throws away what has come, or comes next; false at the end.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Cancel safety
    /// It is thrown away or not.
    pub async fn discard(&mut self) -> io::Result<bool> {
        if self.unread.is_empty() {
            self.unread.reserve(READ_BYTES);
            if self.from.read_buf(&mut self.unread).await? == 0 {
                return Ok(false);
            }
        }
        self.unread.clear();
        Ok(true)
    }

    /// Whether all that has come was read.
    pub fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }
}

#[cfg(test)]
mod tests;
