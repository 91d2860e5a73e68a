//! Ops of a component: an instance that keeps its state from call to call, and begins anew where it is lost.

use super::bindings::types;
use super::calls::{catch_panics, caught};
use super::ending::{Ending, bug, is_hostcall_fuel, no_room};
use super::fit::OpEntry;
use super::limits::{LIST_BYTES_MAX, ListExceeded, mib};
use super::load::Module;
use super::output::Output;
use super::run::{GuestOptions, MESSAGE_BYTES_MAX};
use super::state::State;
use super::store::{Meter, metered};
use super::trap;
use super::watch::RunWatch;
use crate::cluster::Task;
use crate::error::{Error, ErrorCode};
use crate::handles::Handles;
use crate::ids::check_name;
use crate::ops::{OPERANDS_MAX, op_failed, unknown_op};
use crate::tensor::{Tensor, TensorType};
use crate::text::{escape_block, shown, truncated};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use wasmtime::Store;
use wasmtime::component::TypedFunc;

/// Most ops of one component: each is looked for by name in every call.
const OPS_MAX: usize = 1024;

/// The ops of one component, called one after the other for one caller.
///
/// An instance begins with the first call, lists its ops, and keeps its state between calls. A call that traps, reaches a limit
/// or is dropped takes the instance along: the next one begins in a new one. What ends well or with the op's own error doesn't.
///
/// Every limit is that of a run. Memory, handles and output are of the instance (output of all instances together); processor
/// time and fuel are of each call, and once more of the beginning.
pub struct OpGuest {
    module: Module,
    entry: OpEntry,
    options: GuestOptions,
    handles: Handles,
    output: Output,
    instance: Option<Instance>,
}

/// A store that ops are called in.
struct Instance {
    store: Store<State>,
    watch: RunWatch,
    meter: Arc<Meter>,
    names: BTreeSet<String>,
    call: CallFunc,
}

/// `call` of `op-entry`.
type CallFunc = TypedFunc<(String, Vec<types::Tensor>), (Result<Vec<types::Tensor>, String>,)>;

/// Why an op has no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpEnd {
    /// The component has no such op.
    Unknown {
        /// Those that it has, in order.
        known: Vec<String>,
    },
    /// It returned an error.
    Failed {
        /// The error, its control characters escaped.
        message: String,
    },
    /// It returned what is no result, or too many of them.
    BadResults {
        /// What is wrong.
        message: String,
    },
    /// Its inputs or its results are above a limit, and nothing else is wrong.
    TooLarge {
        /// What, how much and the flag.
        message: String,
    },
    /// It ended its instance, or none could begin.
    Ended(Ending),
}

impl OpEnd {
    /// The error that the caller of `op` on `task` gets: `not-found`, `unknown` (the op's own), `aborted` (a trap, an exit),
    /// `resource-exhausted`, `failed-precondition` (no instance can begin) or `internal` (a bug in dchost).
    pub fn error(&self, task: Task, op: &str) -> Error {
        let failed = |code, what: &str| op_failed(code, task, op, what);
        match self {
            OpEnd::Unknown { known } => unknown_op(task, op, known),
            OpEnd::Failed { message } => failed(ErrorCode::Unknown, &format!("failed: {message}")),
            OpEnd::BadResults { message } => failed(ErrorCode::Unknown, &format!("has no valid results: {message}")),
            OpEnd::TooLarge { message } => failed(ErrorCode::ResourceExhausted, &format!("was refused: {message}")),
            OpEnd::Ended(ending) => {
                let (code, what) = told(ending);
                failed(code, &what)
            }
        }
    }

    /// What the task's own log tells beside [`error`](Self::error), in several lines: last words, frames, hint.
    pub fn report(&self) -> Option<&str> {
        match self {
            OpEnd::Ended(Ending::Trap { report, .. } | Ending::Limit { report, .. }) => Some(report),
            OpEnd::Ended(Ending::HostBug { message }) => Some(message),
            _ => None,
        }
    }
}

/// What the caller is told of an op that has ended its instance.
fn told(ending: &Ending) -> (ErrorCode, String) {
    match ending {
        Ending::Exit { ok: true, .. } => {
            (ErrorCode::Aborted, "called exit with success, which ends the sandbox".to_owned())
        }
        Ending::Exit { code: Some(code), .. } => {
            (ErrorCode::Aborted, format!("called exit with code {code}, which ends the sandbox"))
        }
        Ending::Exit { code: None, .. } => {
            (ErrorCode::Aborted, "called exit with failure, which ends the sandbox".to_owned())
        }
        Ending::Trap { kind, words: Some(words), .. } => {
            (ErrorCode::Aborted, format!("trapped: {kind}; its last words: {words}"))
        }
        Ending::Trap { kind, words: None, .. } => (ErrorCode::Aborted, format!("trapped: {kind}")),
        Ending::Limit { what, .. } => {
            // A limit and the trap that followed are a line each.
            let what = what.lines().collect::<Vec<_>>().join("; ");
            (ErrorCode::ResourceExhausted, format!("was ended: {what}"))
        }
        Ending::Refused { message } | Ending::NoRoom { message } => {
            (ErrorCode::FailedPrecondition, format!("can't run: {message}"))
        }
        Ending::HostBug { message } => {
            let first = message.lines().next().unwrap_or_default();
            (ErrorCode::Internal, format!("met a bug: {first}"))
        }
    }
}

impl Module {
    /// Makes a place to call ops in; the instance itself begins with the first call.
    ///
    /// # Errors
    /// `failed-precondition` (gRPC `FAILED_PRECONDITION`): the component has no ops that can be called.
    pub fn open_ops(&self, options: GuestOptions, handles: Handles) -> Result<OpGuest, Error> {
        let entry = self.inner.ops.as_ref().map_err(|why| {
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            Error::new(ErrorCode::FailedPrecondition, format!("no op of `{}` can be called: {why}", shown(self.name())))
        })?;
        let output = Output::new(Arc::clone(&handles.console), &options.limits);
        Ok(OpGuest { module: self.clone(), entry: *entry, options, handles, output, instance: None })
    }
}

impl OpGuest {
    /// Runs an op.
    ///
    /// Must be polled within a tokio runtime, best one of its own: a guest computes on the thread that polls it, and
    /// yields every 10 ms.
    ///
    /// # Errors
    /// [`OpEnd`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the instance with its state, at its next yield or host call.
    pub async fn call(&mut self, op: &str, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, OpEnd> {
        let tensor_bytes_max = self.options.limits.tensor_bytes_max;
        check_count("inputs", inputs.len()).map_err(|message| OpEnd::TooLarge { message })?;
        check_bytes("inputs", inputs.iter().map(|input| input.data.len()), tensor_bytes_max)?;
        // It is put back once it is known to be sound; dropped meanwhile, the future takes it along.
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            None => self.begin().await?,
        };
        if !instance.names.contains(op) {
            let known = instance.names.iter().cloned().collect();
            self.instance = Some(instance);
            return Err(OpEnd::Unknown { known });
        }
        let inputs = inputs.into_iter().map(types::Tensor::from).collect();
        let prepared = instance.prepare(&self.module, &self.output);
        let Instance { store, meter, call, .. } = &mut instance;
        let outcome = match prepared {
            Ok(()) => metered(meter, catch_panics(call.call_async(store, (op.to_owned(), inputs)))).await,
            Err(message) => return Err(OpEnd::Ended(Ending::Refused { message })),
        };
        let results = match outcome {
            Ok(Ok((results,))) => results,
            Ok(Err(error)) => return Err(self.over(instance.store, &instance.watch, Ok(error))),
            Err(panic) => return Err(self.over(instance.store, &instance.watch, Err(bug(&panic)))),
        };
        self.instance = Some(instance);
        match results {
            Ok(results) => checked(results, tensor_bytes_max),
            Err(message) => Err(OpEnd::Failed { message: escape_block(truncated(&message, MESSAGE_BYTES_MAX)) }),
        }
    }

    /// Whether an instance lives, with whatever state it has.
    pub fn lives(&self) -> bool {
        self.instance.is_some()
    }

    /// Begins an instance and has it list its ops.
    async fn begin(&mut self) -> Result<Instance, OpEnd> {
        // Of an instance that was dropped.
        self.output.end_lines();
        self.output.forget_tail();
        let (watch, meter) = (RunWatch::new(), Arc::new(Meter::default()));
        let refused = |message| OpEnd::Ended(Ending::Refused { message });
        let mut store = self
            .module
            .store(self.options.clone(), self.handles.clone(), &watch, &self.output, &meter)
            .map_err(refused)?;
        let begun = metered(&meter, catch_panics(begin(&self.module, self.entry, &mut store))).await;
        let (call, names) = match begun {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => return Err(self.over(store, &watch, Ok(error))),
            Err(panic) => return Err(self.over(store, &watch, Err(bug(&panic)))),
        };
        let names = checked_names(names).map_err(|why| refused(format!("`{}` {why}", shown(self.module.name()))))?;
        Ok(Instance { store, watch, meter, names, call })
    }

    /// Tells how an instance ended, by an error or a panic, and throws it away.
    fn over(&self, store: Store<State>, watch: &RunWatch, outcome: Result<wasmtime::Error, String>) -> OpEnd {
        let shown = caught(|| self.output.end_lines());
        let end = match &outcome {
            // No core dump: each would be the doing of whoever called the op, and there is no end of calls.
            Ok(error) => Ending::of(error, store.data(), watch, &self.output),
            Err(message) => Ending::HostBug { message: message.clone() },
        };
        // What the store holds may panic too when it goes.
        OpEnd::Ended(match (end, shown.and(caught(|| drop(store)))) {
            (end @ Ending::HostBug { .. }, _) | (end, Ok(())) => end,
            (_, Err(panic)) => Ending::HostBug { message: bug(&panic) },
        })
    }
}

impl Drop for OpGuest {
    fn drop(&mut self) {
        // Whatever panics here, perhaps while another panic is under way, would end the process.
        let _ = caught(|| drop(self.instance.take()));
        let _ = caught(|| self.output.finish());
    }
}

impl fmt::Debug for OpGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpGuest").field("module", &self.module).field("lives", &self.lives()).finish_non_exhaustive()
    }
}

impl Instance {
    /// Gives the next call its own budgets.
    fn prepare(&mut self, module: &Module, output: &Output) -> Result<(), String> {
        output.forget_tail();
        self.meter.reset();
        self.store.data_mut().limiter.forget_refusal();
        module.refuel(&mut self.store)
    }
}

/// Instantiates, and calls `list`.
async fn begin(module: &Module, entry: OpEntry, store: &mut Store<State>) -> wasmtime::Result<(CallFunc, Vec<String>)> {
    let instance = module.inner.pre.instantiate_async(&mut *store).await.map_err(no_room)?;
    store.data_mut().limiter.instantiated();
    let list = instance.get_typed_func::<(), (Vec<String>,)>(&mut *store, entry.list)?;
    let call = instance.get_typed_func(&mut *store, entry.call)?;
    // Names are copied before they can be counted.
    let hostcall_bytes = store.hostcall_fuel();
    store.set_hostcall_fuel(LIST_BYTES_MAX.min(hostcall_bytes));
    let names = list.call_async(&mut *store, ()).await;
    store.set_hostcall_fuel(hostcall_bytes);
    let too_long = |error: &wasmtime::Error| is_hostcall_fuel(&trap::cause(error));
    match names {
        Ok((names,)) => Ok((call, names)),
        Err(error) if too_long(&error) => Err(error.context(ListExceeded)),
        Err(error) => Err(error),
    }
}

/// Checks what a component lists as its ops.
fn checked_names(names: Vec<String>) -> Result<BTreeSet<String>, String> {
    if names.len() > OPS_MAX {
        return Err(format!("lists {} ops, at most {OPS_MAX} are allowed", names.len()));
    }
    let mut checked = BTreeSet::new();
    for name in names {
        check_name("op", &name).map_err(|error| format!("lists an op that can't be called: {}", error.message))?;
        if checked.contains(&name) {
            return Err(format!("lists op `{}` twice", shown(&name)));
        }
        checked.insert(name);
    }
    Ok(checked)
}

fn check_count(what: &str, count: usize) -> Result<(), String> {
    if count > OPERANDS_MAX {
        return Err(format!("it has {count} {what}, at most {OPERANDS_MAX} are allowed"));
    }
    Ok(())
}

/// Bounds inputs and results as the tensors of any call: by `--max-tensor` of this task.
fn check_bytes(what: &str, sizes: impl Iterator<Item = usize>, bytes_max: u64) -> Result<(), OpEnd> {
    let bytes = sizes.fold(0_u64, |sum, bytes| sum.saturating_add(bytes as u64));
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(OpEnd::TooLarge { message: format!("its {what} have {}, above {} (--max-tensor)", mib(bytes), mib(bytes_max)) })
}

/// Checks results: as many as may be, each of its type, together within `bytes_max`.
fn checked(results: Vec<types::Tensor>, bytes_max: u64) -> Result<Vec<Tensor>, OpEnd> {
    let bad = |message| OpEnd::BadResults { message };
    check_count("results", results.len()).map_err(bad)?;
    check_bytes("results", results.iter().map(|result| result.data.len()), bytes_max)?;
    let tensor = |types::Tensor { dtype, shape, data }| {
        // Before a shape of any length is shown.
        TensorType::check_rank(shape.len())?;
        Ok(Tensor { ty: types::checked_type(dtype, shape, data.len())?, data })
    };
    results.into_iter().map(tensor).collect::<Result<_, Error>>().map_err(|error| bad(error.message))
}
