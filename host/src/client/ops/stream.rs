//! The task that owns a stream of calls.

use super::put::put;
use super::{Component, Slot, SlotState};
use crate::client::channel::{Lane, Peers, Try};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{OpCall, OpInput};
use crate::ids::Incarnation;
use crate::ops::{MODULE, OPERANDS_MAX, op_failed};
use crate::tensor::{Tensor, TensorType};
use crate::wire::ops::EAGER_BYTES_MAX;
use crate::wire::status::{error_from_wire, from_status};
use crate::wire::tensor::{ChunkOrder, Gather, chunks};
use crate::wire::v1::ops_client::OpsClient;
use crate::wire::v1::{self, call_request, call_response};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// Messages that wait for the connection.
const QUEUED: usize = 4;

/// Results of calls that aren't there which do no harm: each may be answered, and what waits to be sent must not grow by what
/// a task likes to tell.
const STRANGE_RESULTS_MAX: u64 = 1024;

/// What a run asks of the stream.
#[derive(Debug)]
pub(super) enum Command {
    /// Begin a call.
    Start { number: u64, call: OpCall, slot: Arc<Slot> },
    /// Send its results as soon as they are there.
    Take { number: u64 },
    /// End it.
    Cancel { number: u64 },
    /// End it; nobody wants to know.
    GiveUp { number: u64 },
    /// Forget results; none: all of the call.
    Release { number: u64, results: Vec<u32> },
}

/// Keeps a stream to `task` until the run's end, and opens another after it broke.
pub(super) async fn keep(
    peers: Peers,
    task: Task,
    component: Arc<Component>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    // Commands that wait for a stream.
    let mut waiting: VecDeque<Command> = VecDeque::new();
    let mut left = Left::default();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Start { .. } => waiting.push_back(command),
            // What is under way goes with the stream, and what was kept can wait to be freed: only a call needs a stream.
            Command::Release { number, results } => {
                left.values.push((number, results));
                continue;
            }
            Command::Take { .. } | Command::Cancel { .. } | Command::GiveUp { .. } => continue,
        }
        let opening = open(&peers, task, &component);
        tokio::pin!(opening);
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                command = commands.recv() => match command {
                    Some(command) => wait(task, &mut waiting, command),
                    None => return,
                },
            }
        };
        let error = match opened {
            Ok(stream) => {
                let calls = Calls::new(task, &component, stream.incarnation);
                calls.run(stream, &mut left, &mut waiting, &mut commands).await
            }
            Err(error) => Some(error),
        };
        let Some(error) = error else { return };
        for command in waiting.drain(..) {
            if let Command::Start { slot, .. } = command {
                slot.fail(error.clone());
            }
        }
    }
}

/// Adds a command to those that wait for a stream. A call that is given up meanwhile is none any more.
fn wait(task: Task, waiting: &mut VecDeque<Command>, command: Command) {
    let (Command::Cancel { number } | Command::GiveUp { number }) = command else {
        waiting.push_back(command);
        return;
    };
    let of_call = |command: &Command| matches!(command, Command::Start { number: start, .. } if *start == number);
    let Some(place) = waiting.iter().position(of_call) else { return };
    if let Some(Command::Start { slot, .. }) = waiting.remove(place) {
        slot.fail(cancelled(task, &slot));
    }
}

/// The error of a call that is cancelled here, before its task has heard of it.
fn cancelled(task: Task, slot: &Slot) -> Error {
    op_failed(ErrorCode::Cancelled, task, &slot.op, "was cancelled")
}

/// What a task may keep that nobody here wants any more, and hasn't been told of yet.
#[derive(Default)]
struct Left {
    /// Of which incarnation; another has none of it.
    incarnation: Option<Incarnation>,
    /// Calls and their results; none: all.
    values: Vec<(u64, Vec<u32>)>,
}

impl Left {
    /// Hands them out to be told to an incarnation.
    fn told(&mut self, incarnation: Incarnation) -> Vec<(u64, Vec<u32>)> {
        let before = self.incarnation.replace(incarnation);
        let values = std::mem::take(&mut self.values);
        if before == Some(incarnation) { values } else { Vec::new() }
    }
}

/// An open stream.
struct Opened {
    requests: mpsc::Sender<v1::CallRequest>,
    answers: Streaming<v1::CallResponse>,
    incarnation: Incarnation,
}

async fn open(peers: &Peers, task: Task, component: &Component) -> Result<Opened> {
    peers
        .call(task, Lane::Bulk, false, |at: Try| async move {
            match put_and_open(&at, component).await {
                // Others have taken its room since it was put; whom it happens to twice is told.
                Err(status) if is_put_away(&status) => put_and_open(&at, component).await,
                outcome => outcome,
            }
        })
        .await
}

/// Whether the task says no more than that it hasn't got the component (any more).
fn is_put_away(status: &Status) -> bool {
    let error = crate::wire::status::answer(status);
    error.is_some_and(|error| error.code == ErrorCode::NotFound && error.names == [MODULE])
}

async fn put_and_open(at: &Try, component: &Component) -> Result<Opened, Status> {
    put(at, component).await?;
    let (requests, stream) = mpsc::channel(QUEUED);
    let opening = call_request::Kind::Opening(v1::Opening {
        header: Some(at.header.clone()),
        module_sha256: component.digest.to_vec().into(),
        argument: component.args.clone(),
    });
    requests.try_send(message(opening)).expect("the channel is new and has room");
    let mut answers = OpsClient::new(at.channel.clone()).call(ReceiverStream::new(stream)).await?.into_inner();
    let strange = || Status::from(Error::new(ErrorCode::Internal, "a stream of calls began without an answer"));
    let Some(call_response::Kind::Opened(header)) = answers.message().await?.and_then(|answer| answer.kind) else {
        return Err(strange());
    };
    let incarnation = Incarnation(header.incarnation);
    Ok(Opened { requests, answers, incarnation })
}

/// Results that are on their way.
struct Arriving {
    number: u64,
    bytes: Bytes,
    /// The task keeps them as well.
    kept: bool,
}

/// Bytes of results.
enum Bytes {
    Wanted(Gather),
    /// Nobody wants them, or they are too many: they are passed over.
    Unwanted(ChunkOrder),
}

impl Bytes {
    fn is_complete(&self) -> bool {
        match self {
            Bytes::Wanted(gather) => gather.is_complete(),
            Bytes::Unwanted(order) => order.is_complete(),
        }
    }
}

/// The calls of one open stream.
struct Calls<'a> {
    task: Task,
    component: &'a Component,
    incarnation: Incarnation,
    slots: HashMap<u64, Slotted>,
    arriving: Option<Arriving>,
    /// Results that the task may still tell of: one for each call that it knows, another one where they were asked for, and some.
    results_due: u64,
    /// Messages about calls, which go before bytes.
    urgent: VecDeque<v1::CallRequest>,
    /// Beginnings of calls with their bytes, in order.
    outgoing: VecDeque<Beginning>,
}

/// The messages of a call's beginning that are still to be sent.
struct Beginning {
    number: u64,
    messages: Box<dyn Iterator<Item = v1::CallRequest> + Send>,
}

struct Slotted {
    slot: Arc<Slot>,
    /// Asked for, so that the task doesn't keep what it sends.
    taken: bool,
    /// Its beginning is sent, so that it may be spoken of.
    begun: bool,
}

impl Calls<'_> {
    fn new(task: Task, component: &Component, incarnation: Incarnation) -> Calls<'_> {
        Calls {
            task,
            component,
            incarnation,
            slots: HashMap::new(),
            arriving: None,
            results_due: STRANGE_RESULTS_MAX,
            urgent: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Serves the run until the stream breaks (why), or the run ends (none).
    async fn run(
        mut self,
        stream: Opened,
        left: &mut Left,
        waiting: &mut VecDeque<Command>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Option<Error> {
        let Opened { requests, mut answers, .. } = stream;
        for (call, result) in left.told(self.incarnation) {
            self.urgent.push_back(message(call_request::Kind::Drop(v1::Drop { call, result })));
        }
        for command in waiting.drain(..) {
            self.command(command);
        }
        let error = loop {
            let next = self.next_message();
            let has_next = next.is_some();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return None,
                },
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        if let Err(error) = self.answer(answer) {
                            break error;
                        }
                    }
                    Ok(None) => break self.broken("it ended"),
                    Err(status) => break match crate::wire::status::answer(&status) {
                        Some(error) => error,
                        None => self.broken(&from_status(&status).message),
                    },
                },
                permit = requests.reserve(), if has_next => match permit {
                    Ok(permit) => {
                        if let Some(next) = next {
                            permit.send(next);
                            continue;
                        }
                    }
                    Err(_) => break self.broken("it takes nothing any more"),
                },
            }
            if let Some(next) = next {
                self.urgent.push_front(next);
            }
        };
        for (number, slotted) in self.slots {
            // What it did may have ended well, without its results being on their way, or all of them.
            left.values.push((number, Vec::new()));
            slotted.slot.fail(op_failed(
                error.code,
                self.task,
                &slotted.slot.op,
                &format!("is lost: {}", error.message),
            ));
        }
        Some(error)
    }

    fn broken(&self, why: &str) -> Error {
        let message = format!("the connection to {} broke while ops ran there: {why}", self.task);
        Error::new(ErrorCode::PeerFailed, message).with_tasks([self.task])
    }

    /// The next message to send: what is urgent, else the next of the calls that begin.
    fn next_message(&mut self) -> Option<v1::CallRequest> {
        if let Some(urgent) = self.urgent.pop_front() {
            return Some(urgent);
        }
        while let Some(call) = self.outgoing.front_mut() {
            match call.messages.next() {
                Some(message) => {
                    if let Some(call_request::Kind::Header(header)) = &message.kind {
                        self.begun(header.call);
                    }
                    return Some(message);
                }
                None => drop(self.outgoing.pop_front()),
            }
        }
        None
    }

    /// What was asked of a call before it began follows its beginning.
    fn begun(&mut self, number: u64) {
        self.results_due += 1;
        if let Some(slotted) = self.slots.get_mut(&number) {
            slotted.begun = true;
            if slotted.taken {
                self.results_due += 1;
                self.urgent.push_back(message(call_request::Kind::Take(v1::Take { call: number })));
            }
        }
    }

    fn command(&mut self, command: Command) {
        let mut say = |kind| self.urgent.push_back(message(kind));
        match command {
            Command::Start { number, call, slot } => {
                slot.sent.store(true, Ordering::Relaxed);
                self.slots.insert(number, Slotted { slot, taken: false, begun: false });
                self.outgoing.push_back(Beginning { number, messages: begin(number, call) });
            }
            Command::Take { number } => {
                let Some(slotted) = self.slots.get_mut(&number) else { return };
                slotted.taken = true;
                if slotted.begun {
                    self.results_due += 1;
                    say(call_request::Kind::Take(v1::Take { call: number }));
                }
            }
            Command::Cancel { number } => match self.slots.get(&number) {
                Some(slotted) if slotted.begun => say(call_request::Kind::Cancel(v1::Cancel { call: number })),
                // Its turn to be sent hasn't come, and doesn't any more.
                Some(slotted) => {
                    slotted.slot.fail(cancelled(self.task, &slotted.slot));
                    self.slots.remove(&number);
                    self.outgoing.retain(|beginning| beginning.number != number);
                }
                None => {}
            },
            // Results of a call without a slot are freed there when they come.
            Command::GiveUp { number } => match self.slots.remove(&number) {
                Some(slotted) if slotted.begun => say(call_request::Kind::Cancel(v1::Cancel { call: number })),
                Some(_) => self.outgoing.retain(|beginning| beginning.number != number),
                None => {}
            },
            Command::Release { number, results } => {
                self.slots.remove(&number);
                say(call_request::Kind::Drop(v1::Drop { call: number, result: results }));
            }
        }
    }

    fn answer(&mut self, answer: v1::CallResponse) -> Result<()> {
        let strange = |what: &str| Error::new(ErrorCode::Internal, format!("{} answers calls with {what}", self.task));
        match answer.kind {
            Some(call_response::Kind::Result(result)) => {
                if self.arriving.is_some() {
                    return Err(strange("a result before the bytes of the one before are complete"));
                }
                self.result(result)
            }
            Some(call_response::Kind::Chunk(chunk)) => {
                let Some(arriving) = &mut self.arriving else { return Err(strange("bytes of nothing")) };
                match &mut arriving.bytes {
                    Bytes::Wanted(gather) => gather.accept(chunk)?,
                    Bytes::Unwanted(order) => drop(order.accept(&chunk)?),
                }
                self.arrived()
            }
            Some(call_response::Kind::Opened(_)) => Err(strange("an opening twice")),
            // Of a newer dchost.
            None => Ok(()),
        }
    }

    fn result(&mut self, result: v1::CallResult) -> Result<()> {
        let v1::CallResult { call, code, detail, message: text, tensor, with_data } = result;
        let strange = |what: &str| Error::new(ErrorCode::Internal, format!("{} answers calls with {what}", self.task));
        let Some(due) = self.results_due.checked_sub(1) else { return Err(strange("more results than it has calls")) };
        self.results_due = due;
        if code != 0 {
            let error = error_from_wire(
                Code::from_i32(i32::try_from(code).unwrap_or(i32::MAX)),
                detail.unwrap_or_default(),
                text,
            );
            if let Some(slotted) = self.slots.remove(&call) {
                slotted.slot.fail(error);
            }
            return Ok(());
        }
        if tensor.len() > OPERANDS_MAX {
            let count = tensor.len();
            return Err(Error::new(
                ErrorCode::Internal,
                format!("{} answers call {call} with {count} results, at most {OPERANDS_MAX} are allowed", self.task),
            ));
        }
        let types: Vec<TensorType> = tensor.into_iter().map(TensorType::try_from).collect::<Result<_>>()?;
        let mut bytes = 0_u64;
        for ty in &types {
            bytes = bytes.saturating_add(ty.checked_size_bytes()? as u64);
        }
        let max = self.component.tensor_bytes_max;
        if let Some(slotted) = self.slots.get(&call)
            && (slotted.taken || with_data)
            && bytes > max
        {
            let what = format!("has results of {bytes} bytes, at most {max} are taken here (--max-tensor)");
            let error = op_failed(ErrorCode::ResourceExhausted, self.task, &slotted.slot.op, &what);
            slotted.slot.fail(error.with_names([&*slotted.slot.op, "--max-tensor"]));
            self.slots.remove(&call);
        }
        let slotted = self.slots.get(&call);
        if with_data && bytes > EAGER_BYTES_MAX && slotted.is_some_and(|slotted| !slotted.taken) {
            return Err(strange(&format!("{bytes} bytes that were not asked for")));
        }
        if with_data {
            let kept = slotted.is_none_or(|slotted| !slotted.taken);
            // Of a call that was given up they are passed over, and freed there.
            let bytes = match slotted {
                Some(_) => Bytes::Wanted(Gather::new(types)?),
                None => Bytes::Unwanted(ChunkOrder::new(&types)?),
            };
            self.arriving = Some(Arriving { number: call, bytes, kept });
            return self.arrived();
        }
        let incarnation = self.incarnation;
        let Some(slotted) = slotted else {
            self.urgent.push_back(message(call_request::Kind::Drop(v1::Drop { call, result: Vec::new() })));
            return Ok(());
        };
        slotted.slot.set(|state| match state {
            SlotState::Running => SlotState::Kept { incarnation, types },
            other => other,
        });
        Ok(())
    }

    /// Hands results on whose bytes are complete.
    fn arrived(&mut self) -> Result<()> {
        let Some(Arriving { number, bytes, kept }) = self.arriving.take_if(|arriving| arriving.bytes.is_complete())
        else {
            return Ok(());
        };
        let incarnation = self.incarnation;
        match (self.slots.remove(&number), bytes) {
            (Some(slotted), Bytes::Wanted(gather)) => {
                let tensors: Vec<Tensor> = gather.finish()?;
                let mut wanted = true;
                slotted.slot.set(|state| match state {
                    SlotState::Running | SlotState::Kept { .. } => SlotState::Here { incarnation, tensors, kept },
                    other => {
                        wanted = false;
                        other
                    }
                });
                if !wanted && kept {
                    self.urgent
                        .push_back(message(call_request::Kind::Drop(v1::Drop { call: number, result: Vec::new() })));
                }
            }
            (_, Bytes::Wanted(_) | Bytes::Unwanted(_)) if kept => {
                self.urgent.push_back(message(call_request::Kind::Drop(v1::Drop { call: number, result: Vec::new() })));
            }
            (_, Bytes::Wanted(_) | Bytes::Unwanted(_)) => {}
        }
        Ok(())
    }
}

/// The messages of a call's beginning.
fn begin(number: u64, call: OpCall) -> Box<dyn Iterator<Item = v1::CallRequest> + Send> {
    let mut tensors = Vec::new();
    let mut inputs = Vec::with_capacity(call.inputs.len());
    for input in call.inputs {
        let kind = match input {
            OpInput::Tensor(tensor) => {
                let header = v1::input::Kind::Tensor((&tensor.ty).into());
                tensors.push(tensor);
                header
            }
            OpInput::Remote(value) => v1::input::Kind::Remote((&value).into()),
        };
        inputs.push(v1::Input { kind: Some(kind) });
    }
    let timeout_ms = call.timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
    let header = v1::CallHeader { call: number, op: call.op, input: inputs, timeout_ms };
    let header = call_request::Kind::Header(header);
    Box::new(std::iter::once(header).chain(chunks(tensors).map(call_request::Kind::Chunk)).map(message))
}

fn message(kind: call_request::Kind) -> v1::CallRequest {
    v1::CallRequest { kind: Some(kind) }
}
