//! Ops of a mock cluster: an instance for each run and task, which is a thread and keeps its order.

use super::cluster::panic_message;
use super::state::{Shared, State, Who};
use super::{Context, Pending, check_name};
use crate::op::{OpEntry, OpSet};
use crate::raw::RawInput;
use crate::{Error, ErrorCode, Result, Task, Tensor, WorkerContext};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Most inputs of one call, and most results, as on a host.
const OPERANDS_MAX: usize = 256;

/// Most calls of one run alive at once: a host's default of `-W max-ops`.
const CALLS_MAX: usize = 256;

/// An op that was started.
pub(crate) struct Call {
    shared: Arc<Shared>,
    who: Who,
    id: u64,
}

/// A result that stays on its task.
pub(crate) struct Remote {
    shared: Arc<Shared>,
    who: Who,
    task: Task,
    tensor: Arc<Tensor>,
}

/// What may be waited for together.
pub(crate) enum Waiting<'a> {
    Pending(&'a Pending),
    Call(&'a Call),
}

/// A run's part of a task: where its ops run, in order.
type Place = (usize, Task);

/// All ops of a cluster's run.
#[derive(Debug, Default)]
pub(super) struct Ops {
    calls: BTreeMap<u64, Started>,
    instances: BTreeMap<Place, Instance>,
    next: u64,
}

#[derive(Debug)]
struct Started {
    place: Place,
    op: String,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// None before the op has ended.
    result: Option<Result<Vec<Arc<Tensor>>>>,
}

/// What keeps an op's state between calls: here a thread, with what is local to it.
#[derive(Debug, Default)]
struct Instance {
    queue: VecDeque<Job>,
    /// Which thread it is that serves the queue; another number tells one to go.
    thread: Option<u64>,
    running: Option<u64>,
}

#[derive(Debug)]
struct Job {
    call: u64,
    entry: &'static OpEntry,
    inputs: Vec<Arc<Tensor>>,
}

impl Ops {
    /// Whether any op is under way.
    pub(super) fn any_runs(&self) -> bool {
        self.calls.values().any(|call| call.result.is_none())
    }

    /// Whether an op's own call is still wanted.
    pub(super) fn is_wanted(&self, call: u64) -> bool {
        self.calls.get(&call).is_some_and(|call| call.result.is_none())
    }

    /// Gives up all that a run has started; its instances' threads end when their op returns.
    pub(super) fn end_run(&mut self, run: usize) {
        self.calls.retain(|_, call| call.place.0 != run);
        self.instances.retain(|place, _| place.0 != run);
    }

    fn finish(&mut self, id: u64, result: Result<Vec<Arc<Tensor>>>) {
        if let Some(call) = self.calls.get_mut(&id)
            && call.result.is_none()
        {
            call.result = Some(result);
        }
    }

    /// Takes a call from the instance that runs it: its thread is left to itself, and the next call begins in a new one.
    fn abandon(&mut self, shared: &Arc<Shared>, id: u64) {
        let Some(place) = self.calls.get(&id).map(|call| call.place.clone()) else { return };
        let Some(instance) = self.instances.get_mut(&place) else { return };
        instance.queue.retain(|job| job.call != id);
        if instance.running == Some(id) {
            instance.running = None;
            instance.thread = None;
            self.serve(shared, &place);
        }
    }

    /// Starts an instance's thread where it has work and none.
    fn serve(&mut self, shared: &Arc<Shared>, place: &Place) {
        let instance = self.instances.entry(place.clone()).or_default();
        if instance.thread.is_some() || instance.queue.is_empty() {
            return;
        }
        self.next += 1;
        let number = self.next;
        instance.thread = Some(number);
        let (run, task) = place.clone();
        // The name shows in a panic's message.
        let caller = shared.setup.runs[run].as_ref().map_or("the driver".to_owned(), Task::to_string);
        let thread = thread::Builder::new().name(format!("{task}, ops of {caller}"));
        let shared = Arc::clone(shared);
        thread.spawn(move || serve(&shared, &(run, task), number)).expect("the system starts a thread");
    }

    /// Fails the calls whose time is over; returns when the next one's is.
    fn expire(&mut self, shared: &Arc<Shared>) -> Option<Instant> {
        let now = Instant::now();
        let open = |call: &Started| if call.result.is_none() { call.deadline } else { None };
        let late: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| open(call).is_some_and(|deadline| deadline <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            let call = &self.calls[&id];
            let what = format!("was not done within {:?}", call.timeout.unwrap_or_default());
            let error = op_error(ErrorCode::DeadlineExceeded, &call.place.1, &call.op, &what);
            self.abandon(shared, id);
            self.finish(id, Err(error));
        }
        self.calls.values().filter_map(open).min()
    }
}

/// An instance's thread: runs one op after the other until it is told to go.
fn serve(shared: &Arc<Shared>, place: &Place, number: u64) {
    let mine = |state: &State| state.ops.instances.get(place).is_some_and(|instance| instance.thread == Some(number));
    let mut state = shared.lock();
    loop {
        if !mine(&state) {
            return;
        }
        state.ops.expire(shared);
        let instance = state.ops.instances.get_mut(place).expect("it is this thread's");
        let Some(Job { call, entry, inputs }) = instance.queue.pop_front() else {
            (state, _) = shared.wait(state, None);
            continue;
        };
        instance.running = Some(call);
        drop(state);

        let (run, task) = place.clone();
        let who = Who { run, call: Some(call) };
        let context = WorkerContext::__new(Context { shared: Arc::clone(shared), who, op_task: Some(task.clone()) });
        let inputs = inputs.into_iter().map(Arc::unwrap_or_clone).collect();
        let ended = panic::catch_unwind(AssertUnwindSafe(|| (entry.call)(&context, inputs)));

        state = shared.lock();
        if !mine(&state) {
            return;
        }
        state.ops.expire(shared);
        let failed = |code, what: String| Err(op_error(code, &task, entry.name, &what));
        let panicked = ended.is_err();
        let result = match ended {
            Ok(Ok(results)) if results.len() > OPERANDS_MAX => {
                let count = results.len();
                let what = format!("has no valid results: it has {count} results, at most {OPERANDS_MAX} are allowed");
                failed(ErrorCode::Unknown, what)
            }
            Ok(Ok(results)) => Ok(results.into_iter().map(Arc::new).collect()),
            Ok(Err(error)) => failed(ErrorCode::Unknown, format!("failed: {error}")),
            Err(payload) => {
                let words = panic_message(&*payload);
                let what = format!("trapped: unreachable code reached (a panic or an abort); its last words: {words}");
                failed(ErrorCode::Aborted, what)
            }
        };
        state.ops.finish(call, result);
        if let Some(instance) = state.ops.instances.get_mut(place)
            && instance.running == Some(call)
        {
            instance.running = None;
            if panicked {
                // The state goes with it, as on a host.
                instance.thread = None;
                state.ops.serve(shared, place);
            }
        }
        shared.changed.notify_all();
    }
}

impl Context {
    pub(crate) fn start_op(
        &self,
        task: &Task,
        op: &str,
        inputs: &[RawInput<'_>],
        timeout: Option<Duration>,
    ) -> Result<Call> {
        let setup = &self.shared.setup;
        let refused = |text: &str| Err(Error::new(ErrorCode::FailedPrecondition, text));
        if self.op_task.is_some() {
            return refused("an op can't start ops: return, and let worker_fn start the next");
        }
        if setup.cluster.is_empty() {
            return refused("no ops in a local run, which has no other tasks: call the function itself");
        }
        check_name("op", op)?;
        if inputs.len() > OPERANDS_MAX {
            let count = inputs.len();
            return Err(Error::invalid(format!(
                "op `{op}` is given {count} inputs, at most {OPERANDS_MAX} are allowed"
            )));
        }
        if setup.cluster.address(task).is_none() {
            let tasks: Vec<_> = setup.cluster.iter().map(|(task, _)| task.to_string()).collect();
            let text = format!("op `{op}` can't run on {task}: the cluster has only {}", tasks.join(", "));
            return Err(Error::invalid(text));
        }
        let inputs = inputs.iter().map(owned).collect();

        let mut state = self.shared.ready(self.who)?;
        let place = (self.who.run, task.clone());
        if state.ops.calls.values().filter(|call| call.place.0 == place.0).count() >= CALLS_MAX {
            let text = format!(
                "{CALLS_MAX} calls are in flight, the most that is allowed (-W max-ops): `get` or drop some first"
            );
            return Err(Error::new(ErrorCode::ResourceExhausted, text));
        }
        state.ops.next += 1;
        let id = state.ops.next;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let entry = setup.ops.and_then(|ops| ops.find(op));
        let result = entry.is_none().then(|| Err(unknown_op(task, op, setup.ops)));
        let started = Started { place: place.clone(), op: op.to_owned(), timeout, deadline, result };
        state.ops.calls.insert(id, started);
        if let Some(entry) = entry {
            state.ops.instances.entry(place.clone()).or_default().queue.push_back(Job { call: id, entry, inputs });
            state.ops.serve(&self.shared, &place);
        }
        self.shared.changed.notify_all();
        Ok(Call { shared: Arc::clone(&self.shared), who: self.who, id })
    }
}

impl Call {
    pub(crate) fn is_ready(&self) -> bool {
        let mut state = self.shared.lock();
        state.ops.expire(&self.shared);
        self.ended(&state)
    }

    /// Whether taking the results doesn't block; also when the run's calls fail by now.
    fn ended(&self, state: &State) -> bool {
        !state.ops.is_wanted(self.id) || self.shared.check_interrupt(state, self.who).is_err()
    }

    fn take(&self) -> Result<Vec<Arc<Tensor>>> {
        let mut state = wait(&self.shared, |state| self.ended(state));
        // Comes before what the op itself made of the same failure.
        self.shared.check_interrupt(&state, self.who)?;
        if let Some(result) = state.ops.calls.get_mut(&self.id).and_then(|call| call.result.take()) {
            return result;
        }
        // Natively a call can be carried out of its run.
        Err(Error::new(ErrorCode::Cancelled, "the run that started the op has ended"))
    }

    pub(crate) fn get(&self) -> Result<Vec<Tensor>> {
        Ok(self.take()?.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    pub(crate) fn keep(&self) -> Result<Vec<Remote>> {
        let results = self.take()?;
        let task = match self.shared.lock().ops.calls.get(&self.id) {
            Some(call) => call.place.1.clone(),
            None => return Err(Error::new(ErrorCode::Cancelled, "the run that started the op has ended")),
        };
        let keep = |tensor| Remote { shared: Arc::clone(&self.shared), who: self.who, task: task.clone(), tensor };
        Ok(results.into_iter().map(keep).collect())
    }

    pub(crate) fn cancel(&self) {
        let mut state = self.shared.lock();
        if !state.ops.is_wanted(self.id) {
            return;
        }
        let call = &state.ops.calls[&self.id];
        let error = op_error(ErrorCode::Cancelled, &call.place.1, &call.op, "was cancelled");
        state.ops.abandon(&self.shared, self.id);
        state.ops.finish(self.id, Err(error));
        self.shared.changed.notify_all();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.cancel();
        self.shared.lock().ops.calls.remove(&self.id);
    }
}

impl Remote {
    pub(crate) fn fetch(&self) -> Result<Tensor> {
        drop(self.shared.ready(self.who)?);
        Ok(Tensor::clone(&self.tensor))
    }

    pub(crate) fn on(&self) -> Task {
        self.task.clone()
    }
}

/// Waits until one is ready, and tells which; the first of several.
pub(crate) fn wait_any(waiting: &[Waiting<'_>]) -> usize {
    let ready = |state: &State| {
        waiting.iter().position(|waiting| match waiting {
            Waiting::Pending(pending) => pending.ended(state),
            Waiting::Call(call) => call.ended(state),
        })
    };
    let shared = waiting.iter().find_map(|waiting| match waiting {
        Waiting::Call(call) => Some(&call.shared),
        Waiting::Pending(pending) => pending.shared(),
    });
    // Else there are answers only that the mock knows at once.
    let Some(shared) = shared else { return 0 };
    let state = wait(shared, |state| ready(state).is_some());
    ready(&state).expect("it was waited for")
}

/// Waits for `done`, and meanwhile sees to the deadlines of all calls: this thread may be the only one awake.
fn wait(shared: &Arc<Shared>, done: impl Fn(&State) -> bool) -> std::sync::MutexGuard<'_, State> {
    let mut state = shared.lock();
    loop {
        let deadline = state.ops.expire(shared);
        if done(&state) {
            return state;
        }
        (state, _) = shared.wait(state, deadline);
    }
}

fn owned(input: &RawInput<'_>) -> Arc<Tensor> {
    match *input {
        RawInput::Tensor { dtype, shape, data } => {
            Arc::new(Tensor::from_bytes(dtype, shape, data.to_vec()).expect("it was a tensor"))
        }
        RawInput::Remote(value) => Arc::clone(&value.tensor),
    }
}

fn op_error(code: ErrorCode, task: &Task, op: &str, what: &str) -> Error {
    Error::new(code, format!("op `{op}` on {task} {what}")).with_tasks([task.clone()])
}

fn unknown_op(task: &Task, op: &str, known: Option<OpSet>) -> Error {
    let known = match known {
        None => "it has none; a test gives them to `MockCluster::builder().ops(OPS)`".to_owned(),
        Some(known) => {
            let mut names: Vec<_> = known.names().map(|name| format!("`{name}`")).collect();
            names.sort();
            format!("it has {}", names.join(", "))
        }
    };
    let text = format!("the component that runs on {task} has no op `{op}`: {known}");
    Error::new(ErrorCode::NotFound, text).with_tasks([task.clone()])
}
