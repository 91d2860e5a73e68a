//! Ops on another task over gRPC: one stream of calls for each run and task.
//!
//! The stream is opened at the first call, after the component was put there, and kept. A task of the control runtime owns
//! it: it sends what runs ask for, in that order, and notes what comes back. When it breaks, the calls under way fail, and the
//! next call opens another; what the task keeps for the run lives as long as the run's session there.

mod fetch;
mod put;
mod stream;

pub use fetch::Fetcher;

use crate::client::channel::Peers;
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, OpCall, RemoteValue, StartedOp};
use crate::ids::Incarnation;
use crate::ops::op_failed;
use crate::sync::lock;
use crate::tensor::{Tensor, TensorType};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stream::Command;
use tokio::sync::{mpsc, watch};

/// How much later than its timeout a call is ended here that its task was told of. The task ends it in time, or has its results, but
/// what it says of that may stand behind large results of other calls.
const ANSWER_GRACE: Duration = Duration::from_secs(30);

/// The component whose ops are called.
#[derive(Clone, Debug)]
pub struct Component {
    /// Its sha256.
    pub digest: [u8; 32],
    /// Its bytes.
    pub bytes: Bytes,
    /// Arguments that its instances get.
    pub args: Vec<String>,
    /// All tensors of one call together, in bytes: more is not taken from a task.
    pub tensor_bytes_max: u64,
}

/// A run's ops on one other task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RemoteOps(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    peers: Peers,
    task: Task,
    component: Arc<Component>,
    /// Of the last call.
    calls: AtomicU64,
    /// To the task that owns the stream, which ends when this is dropped.
    commands: Mutex<Option<mpsc::UnboundedSender<Command>>>,
}

impl RemoteOps {
    /// Makes the view of `task`; dials nobody.
    pub fn new(peers: Peers, task: Task, component: Arc<Component>) -> Self {
        RemoteOps(Arc::new(Inner { peers, task, component, calls: AtomicU64::new(0), commands: Mutex::default() }))
    }

    /// Starts an op.
    ///
    /// # Errors
    /// Those of [`OpCall::check`].
    pub fn start(&self, call: OpCall) -> Result<Box<dyn StartedOp>> {
        call.check()?;
        let number = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let slot = Arc::new(Slot::new(self.0.task, call.op.clone()));
        let timeout = call.timeout;
        self.send(Command::Start { number, call, slot: slot.clone() });
        if let Some(timeout) = timeout {
            self.0.peers.runtime().spawn(self.clone().end_late(number, slot.clone(), timeout));
        }
        let (asked, cancelled) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Box::new(RemoteOp { ops: self.clone(), number, slot, asked, cancelled }))
    }

    /// Ends a call that its task hasn't ended in time: it can't be reached, or it is stuck.
    async fn end_late(self, number: u64, slot: Arc<Slot>, timeout: Duration) {
        let mut ended = slot.ended.subscribe();
        let mut ends_within = async |limit| tokio::time::timeout(limit, ended.wait_for(|&ended| ended)).await.is_ok();
        let ended =
            ends_within(timeout).await || (slot.sent.load(Ordering::Relaxed) && ends_within(ANSWER_GRACE).await);
        if !ended {
            let what =
                format!("was not done within {}, and its task has not answered", humantime::format_duration(timeout));
            slot.fail(op_failed(ErrorCode::DeadlineExceeded, slot.task, &slot.op, &what));
            self.send(Command::GiveUp { number });
        }
    }

    /// Copies a value here that the task keeps.
    pub fn fetch(&self, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        let (peers, max) = (self.0.peers.clone(), self.0.component.tensor_bytes_max);
        Box::pin(async move { fetch::by_run(&peers, value, max).await })
    }

    /// Frees a value that the task keeps.
    pub fn release(&self, value: &RemoteValue) {
        self.send(Command::Release { number: value.call, results: vec![value.result] });
    }

    /// Hands a command to the task that owns the stream, and begins one where there is none.
    fn send(&self, command: Command) {
        let mut commands = lock(&self.0.commands);
        let command = match commands.as_ref() {
            Some(open) => match open.send(command) {
                Ok(()) => return,
                Err(mpsc::error::SendError(command)) => command,
            },
            None => command,
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        // The receiver is here.
        let _ = sender.send(command);
        let (peers, task, component) = (self.0.peers.clone(), self.0.task, self.0.component.clone());
        self.0.peers.runtime().spawn(stream::keep(peers, task, component, receiver));
        *commands = Some(sender);
    }
}

/// Where what comes of a call is put.
#[derive(Debug)]
pub(super) struct Slot {
    task: Task,
    op: String,
    ended: watch::Sender<bool>,
    /// Whether there was a stream to send it on.
    sent: AtomicBool,
    state: Mutex<SlotState>,
}

/// What is known of a call.
#[derive(Debug, Default)]
enum SlotState {
    #[default]
    Running,
    /// Its results are kept there; their types.
    Kept {
        incarnation: Incarnation,
        types: Vec<TensorType>,
    },
    /// Its results are here; `kept`: there as well.
    Here {
        incarnation: Incarnation,
        tensors: Vec<Tensor>,
        kept: bool,
    },
    Failed(Error),
    /// Its results were handed out.
    Taken,
}

impl Slot {
    fn new(task: Task, op: String) -> Self {
        Slot { task, op, ended: watch::Sender::new(false), sent: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Notes a failure, unless the call has ended.
    fn fail(&self, error: Error) {
        self.set(|state| match state {
            SlotState::Running | SlotState::Kept { .. } => SlotState::Failed(error),
            ended => ended,
        });
    }

    fn set(&self, next: impl FnOnce(SlotState) -> SlotState) {
        let mut state = lock(&self.state);
        *state = next(std::mem::take(&mut *state));
        let ended = !matches!(*state, SlotState::Running);
        drop(state);
        self.ended.send_replace(ended);
    }
}

/// An op that was started on another task.
struct RemoteOp {
    ops: RemoteOps,
    number: u64,
    slot: Arc<Slot>,
    /// Whether its results were asked for: once is enough, however often a guest asks, since what is asked may wait long.
    asked: AtomicBool,
    /// Whether its end was asked for, likewise.
    cancelled: AtomicBool,
}

impl StartedOp for RemoteOp {
    fn ended(&self) -> watch::Receiver<bool> {
        self.slot.ended.subscribe()
    }

    fn take(&self) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        let (ops, number, slot) = (self.ops.clone(), self.number, self.slot.clone());
        // Asked for at once, so that they are on their way as soon as they are there.
        let open = matches!(*lock(&slot.state), SlotState::Running | SlotState::Kept { .. });
        if open && !self.asked.swap(true, Ordering::Relaxed) {
            ops.send(Command::Take { number });
        }
        Box::pin(async move {
            let mut ended = slot.ended.subscribe();
            loop {
                {
                    let mut state = lock(&slot.state);
                    match std::mem::take(&mut *state) {
                        SlotState::Here { tensors, kept, .. } => {
                            *state = SlotState::Taken;
                            if kept {
                                ops.send(Command::Release { number, results: Vec::new() });
                            }
                            return Ok(tensors);
                        }
                        SlotState::Failed(error) => {
                            *state = SlotState::Failed(error.clone());
                            return Err(error);
                        }
                        SlotState::Taken => {
                            *state = SlotState::Taken;
                            return Err(taken(&slot));
                        }
                        // On their way.
                        waits @ (SlotState::Running | SlotState::Kept { .. }) => *state = waits,
                    }
                }
                if ended.changed().await.is_err() {
                    return Err(Error::new(ErrorCode::Cancelled, "this process is shutting down"));
                }
            }
        })
    }

    fn keep(&self) -> BoxFuture<'static, Result<Vec<RemoteValue>>> {
        let (number, slot) = (self.number, self.slot.clone());
        Box::pin(async move {
            let mut ended = slot.ended.subscribe();
            if ended.wait_for(|&ended| ended).await.is_err() {
                return Err(Error::new(ErrorCode::Cancelled, "this process is shutting down"));
            }
            let mut state = lock(&slot.state);
            let (incarnation, types) = match std::mem::replace(&mut *state, SlotState::Taken) {
                SlotState::Kept { incarnation, types } => (incarnation, types),
                SlotState::Here { incarnation, tensors, kept: true } => {
                    (incarnation, tensors.into_iter().map(|tensor| tensor.ty).collect())
                }
                SlotState::Failed(error) => {
                    *state = SlotState::Failed(error.clone());
                    return Err(error);
                }
                SlotState::Here { kept: false, .. } | SlotState::Taken | SlotState::Running => {
                    return Err(taken(&slot));
                }
            };
            let value = |(result, ty)| RemoteValue { task: slot.task, incarnation, call: number, result, ty };
            Ok((0..).zip(types).map(value).collect())
        })
    }

    fn cancel(&self) {
        let running = matches!(*lock(&self.slot.state), SlotState::Running);
        if running && !self.cancelled.swap(true, Ordering::Relaxed) {
            self.ops.send(Command::Cancel { number: self.number });
        }
    }
}

impl Drop for RemoteOp {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.slot.state), SlotState::Taken);
        self.slot.ended.send_replace(true);
        match state {
            SlotState::Running => self.ops.send(Command::GiveUp { number: self.number }),
            SlotState::Kept { .. } | SlotState::Here { kept: true, .. } => {
                self.ops.send(Command::Release { number: self.number, results: Vec::new() });
            }
            SlotState::Here { .. } | SlotState::Failed(_) | SlotState::Taken => {}
        }
    }
}

fn taken(slot: &Slot) -> Error {
    let message = format!("the results of op `{}` on {} were taken already", crate::text::shown(&slot.op), slot.task);
    Error::new(ErrorCode::FailedPrecondition, message)
}
