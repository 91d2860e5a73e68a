//! What a run has on this server beside its session: component, instance, results.

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{OpInstance, OpOpening, RemoteValue};
use crate::ids::{Caller, Incarnation, RunId};
use crate::ops::MODULE;
use crate::server::guard::Admitted;
use crate::sync::lock;
use crate::tensor::Tensor;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// Bytes of inputs and results that a run may have here at once, as a multiple of `--max-tensor`.
pub(super) const HELD_TENSORS_MAX: u64 = 4;

/// Those of all runs together: at most four runs fill it, so that what a server holds has an end, however many they are.
const HELD_TENSORS_IN_ALL_MAX: u64 = 4 * HELD_TENSORS_MAX;

/// Calls and results that a run may leave here at once: those without bytes cost something, too.
const KEPT_MAX: usize = 1 << 16;

type Key = (String, RunId);

/// The runs that have something here. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Runs {
    by_key: Arc<Mutex<HashMap<Key, Arc<Run>>>>,
    /// Bytes that all runs hold.
    held_bytes: Arc<AtomicU64>,
}

/// What one run has here.
#[derive(Default)]
pub(super) struct Run {
    state: Mutex<State>,
    /// Bytes of inputs that wait or are used, and of results that are here.
    held_bytes: AtomicU64,
    /// Those of all runs.
    held_in_all_bytes: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    /// Components that the run has shown to have.
    put: HashSet<[u8; 32]>,
    instance: Option<(OpOpening, Arc<dyn OpInstance>)>,
    /// Ends the stream of calls that was opened last.
    stream: CancellationToken,
    /// By call; none: released.
    kept: HashMap<u64, Vec<Option<Tensor>>>,
    /// Calls and results in it, released ones too.
    kept_count: usize,
    /// The session has ended: nothing is taken in any more.
    ended: bool,
}

/// Room for bytes of a run, given back when it is dropped.
pub(super) struct Room {
    run: Arc<Run>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.run.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.run.held_in_all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Room {
    /// Makes results hold the room that was taken for them, each its own, until nobody has their bytes any more: whoever
    /// releases results may still read them, or not read them, by another stream.
    pub(super) fn hold(mut self, results: Vec<Tensor>) -> Vec<Tensor> {
        let held = |Tensor { ty, data }| {
            let bytes = data.len() as u64;
            if bytes == 0 {
                return Tensor { ty, data };
            }
            self.bytes = self.bytes.saturating_sub(bytes);
            let room = Room { run: self.run.clone(), bytes };
            Tensor { ty, data: Bytes::from_owner(Held { data, _room: room }) }
        };
        results.into_iter().map(held).collect()
    }
}

/// Bytes with the room that they take.
struct Held {
    data: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

fn key(caller: &Caller) -> Key {
    (caller.container.clone(), caller.run_id)
}

impl Runs {
    /// What the caller's run has here.
    ///
    /// # Errors
    /// `cancelled`, `unavailable`: its session has ended, and nobody would drop what begins now.
    pub(super) fn of(&self, admitted: &Admitted) -> Result<Arc<Run>> {
        let mut runs = lock(&self.by_key);
        // The token is cancelled before `end` is called: either it is seen here, or `end` finds what is made here.
        if admitted.session.is_cancelled() {
            return Err(admitted.ended());
        }
        let run = || Arc::new(Run { held_in_all_bytes: self.held_bytes.clone(), ..Run::default() });
        Ok(runs.entry(key(&admitted.caller)).or_insert_with(run).clone())
    }

    /// Instances that the run of a session has here.
    pub(super) fn instances(&self, caller: &Caller) -> u32 {
        let run = lock(&self.by_key).get(&key(caller)).cloned();
        run.map_or(0, |run| u32::from(lock(&run.state).instance.is_some()))
    }

    /// Drops what the run has here, since its session has ended.
    pub(super) fn end(&self, caller: &Caller) {
        let run = lock(&self.by_key).remove(&key(caller));
        if let Some(run) = run {
            let state = std::mem::replace(&mut *lock(&run.state), State { ended: true, ..State::default() });
            // Instances end on the thread that drops them, without the lock.
            drop(state);
        }
    }
}

impl Run {
    /// Notes that the run has shown to have a component.
    pub(super) fn has_put(&self, module: [u8; 32]) {
        lock(&self.state).put.insert(module);
    }

    /// Begins a stream of calls, which ends the one before: its connection may be broken without anybody having noticed, and
    /// what it had begun would hold up what comes now. The token ends this one.
    pub(super) fn stream(&self) -> CancellationToken {
        let stream = CancellationToken::new();
        std::mem::replace(&mut lock(&self.state).stream, stream.clone()).cancel();
        stream
    }

    /// The run's instance, made at its first call. One of another component or other arguments replaces it.
    pub(super) fn instance(
        &self,
        opening: OpOpening,
        open: impl FnOnce(OpOpening) -> Result<Arc<dyn OpInstance>>,
    ) -> Result<Arc<dyn OpInstance>> {
        let mut state = lock(&self.state);
        if !state.put.contains(&opening.module) {
            let message = "the component was not put in this session: its ops can't be called";
            return Err(Error::new(ErrorCode::NotFound, message).with_names([MODULE]));
        }
        if let Some((open, instance)) = &state.instance
            && (open.module, &open.args) == (opening.module, &opening.args)
        {
            return Ok(instance.clone());
        }
        let instance = open(opening.clone())?;
        let before = state.instance.replace((opening, instance.clone()));
        drop(state);
        drop(before);
        Ok(instance)
    }

    /// Takes room for so many bytes.
    ///
    /// # Errors
    /// `resource-exhausted`, naming the flag.
    pub(super) fn hold(self: &Arc<Self>, task: Task, bytes: u64, tensor_bytes_max: u64) -> Result<Room> {
        let run_max = tensor_bytes_max.saturating_mul(HELD_TENSORS_MAX);
        let all_max = tensor_bytes_max.saturating_mul(HELD_TENSORS_IN_ALL_MAX);
        let exhausted = |message| {
            Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["--max-tensor"]).with_tasks([task]))
        };
        if let Err(held) = add_within(&self.held_bytes, bytes, run_max) {
            return exhausted(format!(
                "{task} holds {held} bytes of inputs and results for this run, {bytes} more would be above {run_max} \
                 ({HELD_TENSORS_MAX} times its --max-tensor): take or release some first"
            ));
        }
        if let Err(held) = add_within(&self.held_in_all_bytes, bytes, all_max) {
            self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return exhausted(format!(
                "{task} holds {held} bytes of inputs and results for all runs, {bytes} more would be above {all_max} \
                 ({HELD_TENSORS_IN_ALL_MAX} times its --max-tensor): try again when others have taken theirs"
            ));
        }
        Ok(Room { run: self.clone(), bytes })
    }

    /// Keeps results, for whose bytes there is room already.
    ///
    /// # Errors
    /// `resource-exhausted`: too many are kept.
    pub(super) fn keep(&self, task: Task, call: u64, results: Vec<Tensor>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.ended {
            return Ok(());
        }
        let count = state.kept_count + 1 + results.len();
        if count > KEPT_MAX {
            let message = format!(
                "{task} keeps the results of {} calls for this run: take or release some first",
                state.kept.len()
            );
            return Err(Error::new(ErrorCode::ResourceExhausted, message).with_tasks([task]));
        }
        state.kept_count = count;
        state.kept.insert(call, results.into_iter().map(Some).collect());
        Ok(())
    }

    /// Whether something of the call is kept.
    pub(super) fn keeps(&self, call: u64) -> bool {
        lock(&self.state).kept.contains_key(&call)
    }

    /// Hands all results of a call out. None: they aren't all here.
    pub(super) fn take(&self, call: u64) -> Option<Vec<Tensor>> {
        let mut state = lock(&self.state);
        let results = state.kept.get(&call)?.iter().cloned().collect::<Option<Vec<_>>>()?;
        state.forget(call);
        Some(results)
    }

    /// Drops results of a call, all where none is named. One that isn't there is no fault.
    pub(super) fn release(&self, call: u64, results: &[u32]) {
        let mut state = lock(&self.state);
        let Some(kept) = state.kept.get_mut(&call) else { return };
        if results.is_empty() {
            kept.fill(None);
        }
        for &result in results {
            if let Some(kept) = kept.get_mut(result as usize) {
                *kept = None;
            }
        }
        if kept.iter().all(Option::is_none) {
            state.forget(call);
        }
    }

    /// A kept result.
    ///
    /// # Errors
    /// `peer-restarted` where another incarnation kept it; `not-found`.
    pub(super) fn kept(&self, task: Task, incarnation: Incarnation, value: &RemoteValue) -> Result<Tensor> {
        if value.incarnation != incarnation {
            let message = format!("{task} was started anew, and has lost the result of call {}", value.call);
            return Err(Error::new(ErrorCode::PeerRestarted, message).with_tasks([task]));
        }
        let state = lock(&self.state);
        let kept = state.kept.get(&value.call).and_then(|results| results.get(value.result as usize)?.clone());
        let kept = kept.filter(|_| value.task == task).ok_or_else(|| {
            let message = format!("{task} keeps no result {} of call {}", value.result, value.call);
            Error::new(ErrorCode::NotFound, message).with_tasks([task])
        })?;
        if kept.ty != value.ty {
            let message =
                format!("result {} of call {} on {task} is {}, not {}", value.result, value.call, kept.ty, value.ty);
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]));
        }
        Ok(kept)
    }
}

impl State {
    fn forget(&mut self, call: u64) {
        if let Some(kept) = self.kept.remove(&call) {
            self.kept_count = self.kept_count.saturating_sub(1 + kept.len());
        }
    }
}

/// Adds to a count that stays within `max`.
///
/// # Errors
/// The count as it is.
fn add_within(count: &AtomicU64, bytes: u64, max: u64) -> Result<(), u64> {
    let more = |held: u64| held.checked_add(bytes).filter(|&held| held <= max);
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop)
}

/// Bytes of tensors together.
pub(super) fn bytes_of(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.data.len() as u64).sum()
}
