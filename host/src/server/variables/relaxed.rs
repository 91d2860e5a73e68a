//! Relaxed consistency: an update is applied chunk by chunk as it comes, a read sends each chunk as it is then.
//!
//! Neither needs a second copy of the value. An update whose stream breaks goes on with its retry where it was; one that nobody
//! takes up again is told (see [`RelaxedWrite`]).

use super::values::{Broken, Piece, Pieces, Values};
use super::{PullStream, VariablesService, changes, off_thread, replay, while_writing};
use crate::error::{Error, ErrorCode, Result};
use crate::server::answers::while_session;
use crate::server::guard::Admitted;
use crate::variables::{
    Begin, RELAXED_BYTES, RelaxedValue, RelaxedWrite, Remembered, Snapshot, Ticket, VariableRef, refuse_base,
};
use crate::wire::header::response_header;
use crate::wire::tensor::CHUNK_BYTES;
use crate::wire::v1::{self, pull_response};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::Status;

const _: () = assert!(RELAXED_BYTES == CHUNK_BYTES, "a piece is a chunk");

impl VariablesService {
    pub(super) async fn push_relaxed(
        &self,
        admitted: &Admitted,
        header: v1::PushHeader,
        incoming: &mut Values<'_>,
    ) -> Result<Vec<Snapshot>, Status> {
        let want_values = header.want_values;
        let (variables, how) = changes(header.item)?;
        variables.iter().zip(&how).try_for_each(|(variable, (_, base))| refuse_base(&variable.name, *base))?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(admitted).await? {
            Begin::Replay(answer) => return Ok(replay(&container, &variables, want_values, answer?).await?),
            Begin::Fresh(ticket) => ticket,
        };
        let changes: Vec<_> = variables.iter().cloned().zip(how.into_iter().map(|(kind, _)| kind)).collect();
        let write = match ticket.begun() {
            Some(write) => {
                let (begun, holder) = (write.clone(), ticket.number());
                off_thread(move || begun.hold(holder, &container, &changes)).await?;
                write
            }
            None => {
                let write = Arc::new(container.relaxed_write(&changes, want_values, who(admitted))?);
                ticket.keep(write.clone(), admitted.session.clone())?;
                write
            }
        };
        match self.apply_chunks(admitted, &mut ticket, incoming, &variables, &write).await {
            Ok(()) => {}
            // The ticket's drop keeps what was begun for the retry.
            Err(Broken::Stream(status)) => return Err(status),
            Err(Broken::Fault(error)) => {
                ticket.apply()?.finish(Err(error.clone()));
                return Err(error.into());
            }
        }
        let applying = ticket.apply()?;
        let finish = move || {
            let result = write.finish();
            let remember = |snapshots: &Vec<Snapshot>| Remembered::of(snapshots, want_values);
            applying.finish(result.as_ref().map(remember).map_err(Error::clone));
            result
        };
        // Values are read again for the answer, which may have to wait for another change.
        Ok(if want_values { off_thread(finish).await? } else { finish()? })
    }

    /// Applies the chunks as they come, until all have come and the caller has ended its stream.
    async fn apply_chunks(
        &self,
        admitted: &Admitted,
        ticket: &mut Ticket,
        incoming: &mut Values<'_>,
        variables: &[VariableRef],
        write: &Arc<RelaxedWrite>,
    ) -> Result<(), Broken> {
        let holder = ticket.number();
        let mut pieces = Pieces::new(incoming, variables.iter().map(|variable| &variable.ty))?;
        let receive = async {
            while let Some(Piece { item, offset, data }) = pieces.next().await? {
                apply(write, holder, item, offset, data).await?;
            }
            Ok(())
        };
        while_writing(admitted, ticket, async { Ok(receive.await) }).await.map_err(Broken::Stream)?
    }

    /// Streams values, each chunk as it is when the connection takes it, as long as the caller's session lasts.
    pub(super) fn send_relaxed(&self, admitted: Admitted, values: Vec<RelaxedValue>) -> PullStream {
        let header = v1::PullHeader {
            header: response_header(self.guard.incarnation()),
            tensor: values.iter().map(|value| v1::TensorHeader::from(value.ty())).collect(),
            version: values.iter().map(RelaxedValue::version).collect(),
        };
        while_session(admitted, Sending { header: Some(header), values, item: 0, offset: 0, waits: None })
    }
}

/// Applies a chunk: here where that is short, else on a thread that may wait.
async fn apply(write: &Arc<RelaxedWrite>, holder: u64, item: usize, offset: usize, chunk: Bytes) -> Result<()> {
    if chunk.len() <= RELAXED_BYTES && write.try_apply(holder, item, offset, &chunk)? {
        return Ok(());
    }
    let write = write.clone();
    // Where the caller is gone meanwhile, it is applied all the same, and the retry passes it over.
    off_thread(move || write.apply(holder, item, offset, &chunk)).await
}

fn who(admitted: &Admitted) -> String {
    let run = admitted.caller.run_id;
    match admitted.caller.task {
        Some(task) => format!("{task} (run `{run}`)"),
        None => format!("run `{run}`"),
    }
}

/// A relaxed read on its way.
struct Sending {
    header: Option<v1::PullHeader>,
    values: Vec<RelaxedValue>,
    item: usize,
    offset: usize,
    /// A chunk whose variable is being changed.
    waits: Option<JoinHandle<Bytes>>,
}

impl Sending {
    fn chunk(&mut self, data: Bytes) -> pull_response::Kind {
        let chunk = v1::Chunk { item: self.item as u32, offset: self.offset as u64, data };
        self.offset += chunk.data.len();
        pull_response::Kind::Chunk(chunk)
    }

    fn poll_kind(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<pull_response::Kind>>> {
        if let Some(header) = self.header.take() {
            return Poll::Ready(Some(Ok(pull_response::Kind::Header(header))));
        }
        if self.waits.is_none() {
            while self.values.get(self.item).is_some_and(|value| self.offset >= value.len()) {
                (self.item, self.offset) = (self.item + 1, 0);
            }
            let Some(value) = self.values.get(self.item) else { return Poll::Ready(None) };
            if let Some(data) = value.try_piece(self.offset) {
                return Poll::Ready(Some(Ok(self.chunk(data))));
            }
            let (value, offset) = (value.clone(), self.offset);
            self.waits = Some(tokio::task::spawn_blocking(move || value.piece(offset)));
        }
        let Some(waits) = &mut self.waits else { return Poll::Ready(None) };
        let data = ready!(Pin::new(waits).poll(context));
        self.waits = None;
        let failed = |error| Error::new(ErrorCode::Internal, format!("a read of variables ended early: {error}"));
        Poll::Ready(Some(data.map(|data| self.chunk(data)).map_err(failed)))
    }
}

impl Stream for Sending {
    type Item = Result<v1::PullResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let kind = ready!(self.poll_kind(context));
        Poll::Ready(kind.map(|kind| Ok(v1::PullResponse { kind: Some(kind?) })))
    }
}
