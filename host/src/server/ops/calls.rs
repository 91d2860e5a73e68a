//! One stream of calls: reads them in order, hands them to the instance, and sends what comes of them.
//!
//! Two tasks: one reads requests and notes ends, the other writes answers, so that neither a slow reader of results nor a
//! sender of large inputs keeps a cancel waiting. The end of the stream gives up what is under way; what was kept stays.

use super::run::{Room, Run, bytes_of};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, OpHost, OpInstance, RemoteValue};
use crate::ids::{Caller, Incarnation, check_name};
use crate::ops::op_failed;
use crate::server::guard::Admitted;
use crate::server::session::CALLS_PER_SESSION_MAX;
use crate::tensor::{Tensor, TensorType};
use crate::wire::header::missing;
use crate::wire::ops::{Announced, EAGER_BYTES_MAX, announced};
use crate::wire::status::error_to_wire;
use crate::wire::tensor::{ChunkOrder, Gather, chunks};
use crate::wire::v1;
use crate::wire::v1::{call_request, call_response};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// Messages that wait for the connection: four chunks are enough that it never waits for the next.
const ANSWERS_QUEUED: usize = 4;

/// Answers that may wait for the writer before no more requests are read: whoever sends calls but doesn't read what comes of
/// them has to wait. As many again come of calls that are under way.
const UNWRITTEN_MAX: usize = CALLS_PER_SESSION_MAX;

/// A deadline of whoever asks for more than a clock can tell.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(super) struct Options {
    pub(super) task: Task,
    pub(super) incarnation: Incarnation,
    pub(super) admitted: Admitted,
    pub(super) host: Arc<dyn OpHost>,
    pub(super) run: Arc<Run>,
    pub(super) instance: Arc<dyn OpInstance>,
    /// Ends the stream when another one takes its place.
    pub(super) replaced: CancellationToken,
    pub(super) requests: Streaming<v1::CallRequest>,
}

type Answer = Result<v1::CallResponse, Status>;

/// Serves the stream; the answers come by the receiver.
pub(super) fn serve(options: Options) -> mpsc::Receiver<Answer> {
    let (answers, stream) = mpsc::channel(ANSWERS_QUEUED);
    let Options { task, incarnation, admitted, host, run, instance, replaced, requests } = options;
    let opened = call_response::Kind::Opened(v1::ResponseHeader { incarnation: incarnation.0 });
    answers.try_send(Ok(message(opened))).expect("the channel is new and has room");
    let (outgoing, written) = mpsc::unbounded_channel();
    let unwritten = watch::Sender::new(0);
    tokio::spawn(write(written, answers, unwritten.clone()));
    let (ended, ends) = mpsc::unbounded_channel();
    let serving = Serving {
        task,
        incarnation,
        caller: admitted.caller.clone(),
        host,
        run,
        instance,
        outgoing,
        ended,
        calls: HashMap::new(),
        announced: None,
        unwritten,
        over: CancellationToken::new(),
    };
    tokio::spawn(serving.serve(admitted, replaced, requests, ends));
    stream
}

/// What the writing task sends.
enum Outgoing {
    /// A call's end, with the bytes of its results where they are to be sent.
    Result { result: v1::CallResult, tensors: Vec<Tensor> },
    /// The stream's end.
    Failed(Status),
}

struct Serving {
    task: Task,
    incarnation: Incarnation,
    caller: Caller,
    host: Arc<dyn OpHost>,
    run: Arc<Run>,
    instance: Arc<dyn OpInstance>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    ended: mpsc::UnboundedSender<End>,
    calls: HashMap<u64, Under>,
    /// The call whose chunks come.
    announced: Option<Begun>,
    /// Answers that wait for the writer.
    unwritten: watch::Sender<usize>,
    /// Cancelled when the stream ends.
    over: CancellationToken,
}

/// A call that is under way.
struct Under {
    op: String,
    cancel: CancellationToken,
    /// Its results are asked for.
    taken: bool,
    /// What its inputs take.
    _room: Room,
}

/// How a call ended.
struct End {
    call: u64,
    result: Result<Vec<Tensor>>,
}

/// A call whose inputs are still coming.
struct Begun {
    call: u64,
    op: String,
    /// When it has to be done, and the time that it has got.
    deadline: Option<(Instant, Duration)>,
    inputs: Vec<Announced>,
    bytes: Coming,
}

/// The bytes of a call's inputs.
enum Coming {
    Wanted(Gather),
    /// The call is refused already; they are passed over.
    Refused(ChunkOrder),
}

impl Serving {
    async fn serve(
        mut self,
        admitted: Admitted,
        replaced: CancellationToken,
        mut requests: Streaming<v1::CallRequest>,
        mut ends: mpsc::UnboundedReceiver<End>,
    ) {
        let over = self.over.clone().drop_guard();
        let outgoing = self.outgoing.clone();
        let mut unwritten = self.unwritten.subscribe();
        let failed = loop {
            tokio::select! {
                () = admitted.session.cancelled() => break Some(admitted.ended()),
                () = outgoing.closed() => break None,
                () = replaced.cancelled() => {
                    let message = "another stream of the session has taken the place of this one";
                    break Some(Error::new(ErrorCode::Cancelled, message));
                }
                Some(end) = ends.recv() => self.end(end),
                request = read(&mut requests, &mut unwritten) => match request {
                    Ok(Some(request)) => {
                        if let Err(error) = self.request(request) {
                            break Some(error);
                        }
                    }
                    // Ended and broken are the same: nobody is left to be told.
                    Ok(None) | Err(_) => break None,
                },
            }
        };
        drop(over);
        if let Some(error) = failed {
            // The writer has gone only with the stream.
            let _ = outgoing.send(Outgoing::Failed(error.into()));
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// A fault of the stream itself, which ends it.
    fn request(&mut self, request: v1::CallRequest) -> Result<()> {
        match request.kind.ok_or_else(|| missing("kind"))? {
            call_request::Kind::Header(header) => self.begin(header),
            call_request::Kind::Chunk(chunk) => self.chunk(chunk),
            call_request::Kind::Cancel(v1::Cancel { call }) => {
                if let Some(under) = self.calls.get(&call) {
                    under.cancel.cancel();
                }
                Ok(())
            }
            call_request::Kind::Drop(v1::Drop { call, result }) => {
                self.run.release(call, &result);
                Ok(())
            }
            call_request::Kind::Take(v1::Take { call }) => {
                self.take(call);
                Ok(())
            }
            call_request::Kind::Opening(_) => {
                Err(Error::new(ErrorCode::InvalidArgument, "the stream is open already: one opening is enough"))
            }
        }
    }

    fn begin(&mut self, header: v1::CallHeader) -> Result<()> {
        let v1::CallHeader { call, op, input, timeout_ms } = header;
        if let Some(begun) = &self.announced {
            let message = format!("call {call} begins before the inputs of call {} are complete", begun.call);
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
        if self.calls.contains_key(&call) || self.run.keeps(call) {
            let message = format!("call {call} was made already: each needs a number of its own");
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
        check_name("op", &op)?;
        let inputs = announced(input)?;
        let mut types: Vec<TensorType> = Vec::new();
        let mut bytes = 0_u64;
        for input in &inputs {
            let ty = match input {
                Announced::Tensor(ty) => {
                    types.push(ty.clone());
                    ty
                }
                // It takes room here too, for as long as the call lasts.
                Announced::Remote(value) => &value.ty,
            };
            bytes = bytes.saturating_add(ty.checked_size_bytes()? as u64);
        }
        let deadline = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms)).map(|limit| {
            let now = Instant::now();
            (now.checked_add(limit).unwrap_or_else(|| now + FAR_FUTURE), limit)
        });
        let admitted = self.admit(&op, bytes);
        let coming = match &admitted {
            Ok(_) => Coming::Wanted(Gather::new(types)?),
            Err(_) => Coming::Refused(ChunkOrder::new(&types)?),
        };
        match admitted {
            Ok(room) => {
                let under = Under { op: op.clone(), cancel: self.over.child_token(), taken: false, _room: room };
                self.calls.insert(call, under);
            }
            Err(error) => self.answer(call, Err(error)),
        }
        self.announced = Some(Begun { call, op, deadline, inputs, bytes: coming });
        self.go_on()
    }

    /// Whether there is room for another call with so many bytes of inputs; takes it.
    fn admit(&self, op: &str, bytes: u64) -> Result<Room> {
        let max = self.host.limits().tensor_bytes_max;
        let refuse =
            |what: &str, flag| Err(op_failed(ErrorCode::ResourceExhausted, self.task, op, what).with_names([op, flag]));
        if self.calls.len() >= CALLS_PER_SESSION_MAX {
            let what = format!("is one more than {CALLS_PER_SESSION_MAX} calls of this run that wait there");
            return refuse(&what, "calls");
        }
        if bytes > max {
            let what = format!("is given {bytes} bytes, that task takes at most {max} (its --max-tensor)");
            return refuse(&what, "--max-tensor");
        }
        self.hold(op, bytes)
    }

    /// Takes room for inputs or results of an op.
    fn hold(&self, op: &str, bytes: u64) -> Result<Room> {
        self.run.hold(self.task, bytes, self.host.limits().tensor_bytes_max).map_err(|error| self.refused(op, &error))
    }

    /// The error of an op for which there is no room.
    fn refused(&self, op: &str, error: &Error) -> Error {
        let names = std::iter::once(op.to_owned()).chain(error.names.iter().cloned());
        op_failed(error.code, self.task, op, &format!("was refused: {}", error.message)).with_names(names)
    }

    fn chunk(&mut self, chunk: v1::Chunk) -> Result<()> {
        let Some(begun) = &mut self.announced else {
            return Err(Error::new(ErrorCode::InvalidArgument, "a chunk came that no call announced"));
        };
        match &mut begun.bytes {
            Coming::Wanted(gather) => gather.accept(chunk)?,
            Coming::Refused(order) => drop(order.accept(&chunk)?),
        }
        self.go_on()
    }

    /// Hands the announced call on, if all of its inputs are here.
    fn go_on(&mut self) -> Result<()> {
        let complete = |begun: &mut Begun| match &begun.bytes {
            Coming::Wanted(gather) => gather.is_complete(),
            Coming::Refused(order) => order.is_complete(),
        };
        let Some(begun) = self.announced.take_if(complete) else { return Ok(()) };
        let Coming::Wanted(gather) = begun.bytes else { return Ok(()) };
        let tensors = gather.finish()?;
        let Some(under) = self.calls.get(&begun.call) else { return Ok(()) };
        let work = match self.inputs(begun.inputs, tensors) {
            // The place in the queue is taken here, in the order of the stream.
            Ok(inputs) => self.instance.call(begun.op.clone(), inputs),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        };
        let (task, op, call) = (self.task, begun.op, begun.call);
        let (cancel, ended) = (under.cancel.clone(), self.ended.clone());
        tokio::spawn(async move {
            let timed = async {
                match begun.deadline {
                    None => work.await,
                    Some((deadline, limit)) => timeout_at(deadline, work).await.unwrap_or_else(|_| {
                        let what = format!("was not done within {}", humantime::format_duration(limit));
                        Err(op_failed(ErrorCode::DeadlineExceeded, task, &op, &what))
                    }),
                }
            };
            let result = tokio::select! {
                biased;
                result = timed => result,
                () = cancel.cancelled() => Err(op_failed(ErrorCode::Cancelled, task, &op, "was cancelled")),
            };
            // The stream may have ended.
            let _ = ended.send(End { call, result });
        });
        Ok(())
    }

    /// What the call is to work on: what came with it, what is kept here, and what another task keeps, which is fetched.
    fn inputs(&self, inputs: Vec<Announced>, tensors: Vec<Tensor>) -> Result<BoxFuture<'static, Result<Vec<Tensor>>>> {
        enum Source {
            Here(Tensor),
            There(RemoteValue),
        }
        let mut tensors = tensors.into_iter();
        let source = |input| match input {
            Announced::Tensor(_) => Ok(Source::Here(tensors.next().expect("one came for each that was announced"))),
            Announced::Remote(value) if value.task == self.task => {
                self.run.kept(self.task, self.incarnation, &value).map(Source::Here)
            }
            Announced::Remote(value) => Ok(Source::There(value)),
        };
        let sources: Vec<Source> = inputs.into_iter().map(source).collect::<Result<_>>()?;
        let (host, caller) = (self.host.clone(), self.caller.clone());
        Ok(Box::pin(async move {
            let mut tensors = Vec::with_capacity(sources.len());
            for source in sources {
                tensors.push(match source {
                    Source::Here(tensor) => tensor,
                    Source::There(value) => host.fetch(caller.clone(), value).await?,
                });
            }
            Ok(tensors)
        }))
    }

    /// Notes a call's end, and says so. Results that are small or asked for go with it.
    fn end(&mut self, End { call, result }: End) {
        let Some(under) = self.calls.remove(&call) else { return };
        let max = self.host.limits().tensor_bytes_max;
        let results = result.and_then(|results| {
            let bytes = bytes_of(&results);
            if bytes > max {
                let what = format!("has results of {bytes} bytes, that task sends at most {max} (its --max-tensor)");
                let error = op_failed(ErrorCode::ResourceExhausted, self.task, &under.op, &what);
                return Err(error.with_names([&*under.op, "--max-tensor"]));
            }
            let results = self.hold(&under.op, bytes)?.hold(results);
            if !under.taken {
                let kept = self.run.keep(self.task, call, results.clone());
                kept.map_err(|error| self.refused(&under.op, &error))?;
            }
            Ok(results)
        });
        match results {
            Err(error) => self.answer(call, Err(error)),
            Ok(results) if under.taken || bytes_of(&results) <= EAGER_BYTES_MAX => {
                self.send(call, Ok(&results), Some(results.clone()));
            }
            Ok(results) => self.send(call, Ok(&results), None),
        }
    }

    /// Sends the results of a call now or, where it still runs, when they are there.
    fn take(&mut self, call: u64) {
        if let Some(under) = self.calls.get_mut(&call) {
            under.taken = true;
        } else if let Some(results) = self.run.take(call) {
            self.send(call, Ok(&results), Some(results.clone()));
        } else {
            let message = format!("{} has no results of call {call} to send", self.task);
            self.answer(call, Err(Error::new(ErrorCode::NotFound, message).with_tasks([self.task])));
        }
    }

    /// Tells how a call ended that has left nothing.
    fn answer(&self, call: u64, result: Result<&[Tensor]>) {
        self.send(call, result, None);
    }

    fn send(&self, call: u64, result: Result<&[Tensor]>, data: Option<Vec<Tensor>>) {
        let result = match result {
            Ok(results) => v1::CallResult {
                call,
                tensor: results.iter().map(|tensor| (&tensor.ty).into()).collect(),
                with_data: data.is_some(),
                ..Default::default()
            },
            Err(error) => {
                let (code, detail, message) = error_to_wire(&error);
                v1::CallResult { call, code: code as u32, detail: Some(detail), message, ..Default::default() }
            }
        };
        self.unwritten.send_modify(|count| *count += 1);
        // The writer has gone only with the stream.
        let _ = self.outgoing.send(Outgoing::Result { result, tensors: data.unwrap_or_default() });
    }
}

/// Reads the next request once there is room for its answer.
async fn read(
    requests: &mut Streaming<v1::CallRequest>,
    unwritten: &mut watch::Receiver<usize>,
) -> Result<Option<v1::CallRequest>, Status> {
    // The sender lives as long as the stream; were it gone, reading would do no harm.
    let _ = unwritten.wait_for(|&count| count < UNWRITTEN_MAX).await;
    requests.message().await
}

/// Writes what has come of calls, each with the bytes of its results.
async fn write(
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    answers: mpsc::Sender<Answer>,
    unwritten: watch::Sender<usize>,
) {
    while let Some(next) = outgoing.recv().await {
        match next {
            Outgoing::Failed(status) => {
                // Who has gone hears nothing.
                let _ = answers.send(Err(status)).await;
                return;
            }
            Outgoing::Result { result, tensors } => {
                let kinds = std::iter::once(call_response::Kind::Result(result))
                    .chain(chunks(tensors).map(call_response::Kind::Chunk));
                for kind in kinds {
                    if answers.send(Ok(message(kind))).await.is_err() {
                        // Nobody reads any more.
                        return;
                    }
                }
                unwritten.send_modify(|count| *count -= 1);
            }
        }
    }
}

fn message(kind: call_response::Kind) -> v1::CallResponse {
    v1::CallResponse { kind: Some(kind) }
}
