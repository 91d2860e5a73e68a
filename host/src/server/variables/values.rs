//! The values of a write on their way in: chunks of a gRPC stream, or what follows on a direct connection.

use super::invalid;
use crate::error::{Error, ErrorCode, Result};
use crate::server::first_message;
use crate::tensor::TensorType;
use crate::variables::Staging;
use crate::wire::bulk::Messages;
use crate::wire::direct::Reader;
use crate::wire::tensor::{CHUNK_BYTES, ChunkOrder};
use crate::wire::v1::{self, push_request};
use bytes::Bytes;
use std::io;
use tokio::io::AsyncRead;
use tonic::Status;

/// What a direct connection's messages are read from.
pub(super) type DirectReader = Reader<Box<dyn AsyncRead + Send + Unpin>>;

/// The values of a write.
pub(super) enum Values<'c> {
    /// Chunks of a stream of gRPC.
    Chunks(Messages<v1::PushRequest>),
    /// What follows on a direct connection, and how far it has come.
    Direct(&'c mut DirectReader, Progress),
}

/// How far the values on a direct connection have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some are to come.
    Unread,
    /// All have come.
    Complete,
    /// The connection has ended before: nobody is to be told of what comes of the call, for the caller asks again.
    Cut,
}

/// A piece of a value, in whole elements. Pieces come in order, without gaps.
pub(super) struct Piece {
    pub(super) item: usize,
    /// In bytes, from the value's beginning.
    pub(super) offset: usize,
    pub(super) data: Bytes,
}

impl<'c> Values<'c> {
    /// What follows on a direct connection.
    pub(super) fn direct(reader: &'c mut DirectReader) -> Self {
        Values::Direct(reader, Progress::Unread)
    }

    /// Passes over a message of a stream, or what has come on a direct connection; false at the stream's end.
    ///
    /// # Errors
    /// Those of the transport; `cancelled`: the direct connection has ended.
    ///
    /// # Cancel safety
    /// A message is passed over or not.
    pub(super) async fn pass_over(&mut self) -> Result<bool, Status> {
        match self {
            Values::Chunks(stream) => Ok(stream.message().await?.is_some()),
            Values::Direct(reader, progress) => match reader.discard().await {
                Ok(true) => Ok(true),
                // Else who asks again and again would have a connection for each try.
                Ok(false) | Err(_) => {
                    *progress = Progress::Cut;
                    Err(gone().into())
                }
            },
        }
    }

    /// Waits, after the values, until the caller gives the call up; who does so on a stream has it dropped.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn given_up(&mut self) -> Error {
        match self {
            Values::Chunks(_) => std::future::pending().await,
            Values::Direct(reader, progress) => {
                reader.stirred().await;
                *progress = Progress::Cut;
                gone()
            }
        }
    }

    /// How far those of a direct connection are.
    pub(super) fn progress(&self) -> Progress {
        match self {
            Values::Chunks(_) => Progress::Unread,
            Values::Direct(_, progress) => *progress,
        }
    }

    /// Reads the header of a stream; none where the stream begins with something else.
    ///
    /// # Errors
    /// Those of the transport; `deadline-exceeded`.
    pub(super) async fn of_stream(
        mut stream: Messages<v1::PushRequest>,
    ) -> Result<(Option<v1::PushHeader>, Self), Status> {
        let header = match first_message(stream.message()).await?.and_then(|message| message.kind) {
            Some(push_request::Kind::Header(header)) => Some(header),
            Some(push_request::Kind::Chunk(_)) | None => None,
        };
        Ok((header, Values::Chunks(stream)))
    }
}

/// Values of known types, as they come.
pub(super) struct Pieces<'v, 'c> {
    values: &'v mut Values<'c>,
    order: ChunkOrder,
}

impl<'v, 'c> Pieces<'v, 'c> {
    /// Expects values of these types.
    ///
    /// # Errors
    /// `invalid-argument`: a type that can't be served.
    pub(super) fn new<'t>(values: &'v mut Values<'c>, types: impl IntoIterator<Item = &'t TensorType>) -> Result<Self> {
        Ok(Pieces { values, order: ChunkOrder::new(types)? })
    }

    /// Stages all that comes.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), and of the staging budget.
    pub(super) async fn stage(&mut self, staging: &mut Staging) -> Result<(), Broken> {
        if let Values::Direct(reader, progress) = self.values {
            // Out of the socket to where they stay.
            while let Some((item, offset, left)) = self.order.next() {
                let mut room = staging.room(item, left.min(CHUNK_BYTES))?;
                let bytes = room.bytes();
                let read = reader.append(room.block(), bytes).await;
                read.map_err(|error| cut(progress, item, offset, &error))?;
                self.order.pass(bytes);
            }
            *progress = Progress::Complete;
            return Ok(());
        }
        while let Some(piece) = self.next().await? {
            staging.append(piece.item, &piece.data)?;
        }
        Ok(())
    }

    /// The next piece; none once all have come, and the caller has ended what it sends.
    ///
    /// # Errors
    /// [`Broken::Stream`]: the rest didn't come; [`Broken::Fault`]: `invalid-argument`, what came is something else.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, Broken> {
        match self.values {
            Values::Chunks(stream) => match stream.message().await.map_err(Broken::Stream)?.map(|message| message.kind)
            {
                Some(Some(push_request::Kind::Chunk(chunk))) => {
                    let item = self.order.accept(&chunk)?;
                    let offset = usize::try_from(chunk.offset).expect("it is within the item");
                    Ok(Some(Piece { item, offset, data: chunk.data }))
                }
                Some(Some(push_request::Kind::Header(_))) => Err(invalid("stream has a second header").into()),
                Some(None) => Err(invalid("stream has a message that is neither header nor chunk").into()),
                // Maybe the rest was lost on its way.
                None => self.order.finish().map(|()| None).map_err(|error| Broken::Stream(error.into())),
            },
            Values::Direct(reader, progress) => {
                let Some((item, offset, left)) = self.order.next() else {
                    *progress = Progress::Complete;
                    return Ok(None);
                };
                let data = reader.piece(left.min(CHUNK_BYTES)).await;
                let data = data.map_err(|error| cut(progress, item, offset, &error))?;
                self.order.pass(data.len());
                Ok(Some(Piece { item, offset, data }))
            }
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorCode::Cancelled, "the caller has gone before its answer")
}

fn cut(progress: &mut Progress, item: usize, offset: usize, error: &io::Error) -> Broken {
    *progress = Progress::Cut;
    let text = format!("the direct connection ended in item `{item}` behind byte `{offset}`: {error}");
    Broken::Stream(Error::new(ErrorCode::Cancelled, text).into())
}

/// Why values ended before the last.
pub(super) enum Broken {
    /// The stream ended, or the session: a retry may come.
    Stream(Status),
    /// The caller sends what it mustn't, and hears of it.
    Fault(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken::Fault(error)
    }
}

impl From<Broken> for Status {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(status) => status,
            Broken::Fault(error) => error.into(),
        }
    }
}
