//! Rows: read at one moment, and changed in order, all or none.

use super::values::{Pieces, Values};
use super::{Begin, PullStream, VariablesService, Write, apply, invalid, off_thread, unimplemented, while_writing};
use crate::error::Result;
use crate::server::first_message;
use crate::server::guard::{Admitted, Rpc};
use crate::variables::{
    Blocks, Container, Gathered, Payload, Remembered, Spare, Staging, Ticket, TryScatter, VariableRef, check_row_count,
    check_rows,
};
use crate::wire::bulk::Messages;
use crate::wire::header::missing;
use crate::wire::tensor::{CHUNK_BYTES, ChunkOrder};
use crate::wire::v1::{self, scatter_request};
use crate::wire::variables::update_kind;
use tonic::Status;

/// Where a change of rows comes from.
pub(super) enum Rows<'c> {
    /// A stream of gRPC, which may bring more rows before the value.
    Stream(Messages<v1::ScatterRequest>),
    /// A direct connection, of which the value is all that follows.
    Direct(Values<'c>),
}

impl Rows<'_> {
    /// Reads the header of a stream; none where it begins with something else.
    ///
    /// # Errors
    /// Those of the transport; `deadline-exceeded`.
    pub(super) async fn of_stream(
        mut stream: Messages<v1::ScatterRequest>,
    ) -> Result<(Option<v1::ScatterHeader>, Self), Status> {
        let header = match first_message(stream.message()).await?.and_then(|message| message.kind) {
            Some(scatter_request::Kind::Header(header)) => Some(header),
            Some(_) | None => None,
        };
        Ok((header, Rows::Stream(stream)))
    }
}

/// What a row's index takes while it waits for the value.
const INDEX_BYTES: usize = size_of::<u64>();

impl VariablesService {
    /// Answers with rows, as long as the caller's session lasts. However many they are, at most a few MiB of them are copied at a
    /// time: the connection takes the others out of the variable's blocks, as they were.
    pub(super) async fn gather_stream(
        &self,
        admitted: Admitted,
        request: v1::GatherRequest,
    ) -> Result<PullStream, Status> {
        let variable = reference(request.variable)?;
        let container = self.open(&admitted.caller)?;
        let gathered = admitted.run(gather(container, variable, request.row)).await?;
        let (ty, version) = (gathered.ty().clone(), gathered.version());
        Ok(self.send_pieces(admitted, vec![(ty, version, gathered.into_pieces(CHUNK_BYTES))]))
    }

    /// Receives a change of rows and applies it.
    pub(super) async fn scatter_from(
        &self,
        header: Option<v1::ScatterHeader>,
        incoming: &mut Rows<'_>,
    ) -> Result<v1::PushResponse, Status> {
        let Some(mut header) = header else {
            // The guard says what is missing, after it has checked that the caller may know.
            self.guard.admit(Rpc::Scatter, None)?;
            return Err(invalid("the first message of the stream is no header").into());
        };
        let admitted = self.guard.admit(Rpc::Scatter, header.header.take())?;
        self.refuse_evaluator(&admitted.caller)?;
        if header.optimizer.is_some() {
            return Err(unimplemented("scatter with an optimizer").into());
        }
        let kind = update_kind(header.kind)?;
        let variable = reference(header.variable.take())?;
        let container = self.open(&admitted.caller)?;

        let mut ticket = match self.begin(&admitted).await? {
            Begin::Replay(answer) => return Ok(self.written(answer?.versions)),
            Begin::Fresh(ticket) => ticket,
        };
        container.check_scatter(&variable, &header.row)?;
        let (staging, rows) = self.receive_rows(&admitted, &mut ticket, incoming, &variable, header.row).await?;
        let write = move |values: Vec<Blocks>, inline| {
            let mut value = Payload::Owned(values.into_iter().next().unwrap_or_default());
            if inline {
                match container.try_scatter(&variable, &rows, kind, value) {
                    Ok(TryScatter::Applied(version)) => return Write::Done(Ok(version)),
                    Ok(TryScatter::Later(returned)) => value = returned,
                    Err(error) => return Write::Done(Err(error)),
                }
            }
            Write::Later(Box::new(move || container.scatter(&variable, &rows, kind, value)))
        };
        let remember = |&version: &u64| Remembered { versions: vec![version], values: None };
        Ok(self.written(vec![apply(ticket, staging, write, remember).await?]))
    }

    /// Stages rows and their value until all has come and the caller has ended its stream, as [`receive`](Self::receive) does.
    async fn receive_rows(
        &self,
        admitted: &Admitted,
        ticket: &mut Ticket,
        incoming: &mut Rows<'_>,
        variable: &VariableRef,
        mut rows: Vec<u64>,
    ) -> Result<(Staging, Vec<u64>), Status> {
        let receive = async {
            let mut staging = Staging::new(&self.store, [])?;
            staging.count((rows.len() * INDEX_BYTES) as u64)?;
            let stream = match incoming {
                Rows::Stream(stream) => stream,
                Rows::Direct(values) => {
                    expect(&mut staging, variable, &rows)?;
                    let ty = variable.ty.with_rows(rows.len() as u64);
                    Pieces::new(values, [&ty])?.stage(&mut staging).await?;
                    return Ok((staging, rows));
                }
            };
            let mut order = None;
            while let Some(message) = stream.message().await? {
                match message.kind {
                    Some(scatter_request::Kind::Rows(_)) if order.is_some() => {
                        return Err(invalid("stream has rows behind its first chunk").into());
                    }
                    Some(scatter_request::Kind::Rows(v1::ScatterRows { row })) => {
                        if row.is_empty() {
                            return Err(invalid("stream has a message of no rows").into());
                        }
                        check_row_count(&variable.name, rows.len() + row.len())?;
                        staging.count((row.len() * INDEX_BYTES) as u64)?;
                        rows.extend(row);
                    }
                    Some(scatter_request::Kind::Chunk(chunk)) => {
                        if order.is_none() {
                            order = Some(expect(&mut staging, variable, &rows)?);
                        }
                        if let Some(order) = &mut order {
                            let item = order.accept(&chunk)?;
                            staging.append(item, &chunk.data)?;
                        }
                    }
                    Some(scatter_request::Kind::Header(_)) => {
                        return Err(invalid("stream has a second header").into());
                    }
                    None => {
                        return Err(invalid("stream has a message that is neither header nor rows nor chunk").into());
                    }
                }
            }
            match order {
                Some(order) => order.finish()?,
                None => expect(&mut staging, variable, &rows)?.finish()?,
            }
            Ok((staging, rows))
        };
        while_writing(admitted, ticket, receive).await
    }
}

fn reference(variable: Option<v1::VariableRef>) -> Result<VariableRef> {
    variable.ok_or_else(|| missing("variable"))?.try_into()
}

/// Expects the value of all rows, which have come.
fn expect(staging: &mut Staging, variable: &VariableRef, rows: &[u64]) -> Result<ChunkOrder> {
    check_rows(&variable.name, &variable.ty, rows)?;
    let ty = variable.ty.with_rows(rows.len() as u64);
    staging.expect(&ty)?;
    ChunkOrder::new([&ty])
}

/// Reads rows; where that takes long, or the variable is being changed, on another thread.
async fn gather(container: Container, variable: VariableRef, rows: Vec<u64>) -> Result<Gathered> {
    match container.try_gather(&variable, rows, &Spare::default())? {
        Ok(gathered) => Ok(gathered),
        Err(rows) => off_thread(move || container.gather(&variable, rows, &Spare::default())).await,
    }
}
