//! One namespace of variables.

mod cell;
mod fit;
mod gradients;
mod relaxed;
mod rows;
mod saved;
mod sync;
mod together;
mod versions;

pub use gradients::TryApply;
pub use relaxed::{RELAXED_BYTES, RelaxedValue, RelaxedWrite, partly_applied, refuse_base};
pub use rows::{Gathered, TryScatter};
pub use saved::{Restored, Saved, saved_order, tensor_count};
pub use sync::{Joined, TryJoin};
pub use together::TryPush;

use super::slots::Slots;
use super::store::Room;
use super::{Blocks, InitializeMode, UpdateKind, VariableRef, VariableStatus, drop_large, lock};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::check_name;
use crate::tensor::{TensorType, check_data};
use cell::Cell;
use fit::Checks;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Most variables of one container: far above any model's, so that a loop that invents names ends with an error and not
/// with the machine's memory.
pub const VARIABLES_MAX: usize = 1_000_000;

/// Most bytes of names in one error: the status travels in HTTP/2 trailers, which peers bound at 16 KiB.
const ERROR_NAMES_BYTES_MAX: usize = 4096;

/// Checks a declaration: its name and its size.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`): those of [`check_name`], or a type that can't be served.
pub fn check_variable(name: &str, ty: &TensorType) -> Result<()> {
    check_name("variable", name)?;
    match ty.checked_size_bytes() {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::new(error.code, format!("variable `{name}`: {}", error.message))),
    }
}

/// Makes an error about variables whose message lists their names; those beyond what a status can carry are counted.
pub fn name_some<'n>(code: ErrorCode, what: &str, names: impl IntoIterator<Item = &'n str>, mend: &str) -> Error {
    let (mut shown, mut bytes, mut more) = (Vec::new(), 0, 0_usize);
    for name in names {
        bytes += name.len();
        if bytes <= ERROR_NAMES_BYTES_MAX { shown.push(name) } else { more += 1 }
    }
    let mut list = shown.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if more > 0 {
        list += &format!(" and {more} more");
    }
    Error::new(code, format!("{what}: {list}{mend}")).with_names(shown)
}

/// A value's bytes on their way in: borrowed from the caller, or in blocks that may become the value.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Copied, or applied in place.
    Borrowed(&'a [u8]),
    /// Become the variable's value where the write is an assignment.
    Owned(Blocks),
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Payload::Borrowed(data) => data.len(),
            Payload::Owned(blocks) => blocks.len(),
        }
    }

    fn into_blocks(self) -> Blocks {
        match self {
            Payload::Borrowed(data) => Blocks::copy_of(data),
            Payload::Owned(blocks) => blocks,
        }
    }
}

/// One change of one variable.
#[derive(Clone, Debug)]
pub struct Update<'a> {
    /// The variable, as the caller knows it.
    pub variable: VariableRef,
    /// How it changes.
    pub kind: UpdateKind,
    /// By what; as many bytes as the variable has.
    pub value: Payload<'a>,
    /// Only if the variable still has this version.
    pub base: Option<u64>,
}

/// A variable as one moment saw it. Later writes don't change it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Element type and extents.
    pub ty: TensorType,
    /// The value; empty where it wasn't asked for.
    pub blocks: Blocks,
    /// Counts applied writes; 1 after initialize.
    pub version: u64,
}

/// One namespace of variables, for one attempt. Cheap to clone; clones are the same container.
///
/// A container that was deleted, or whose attempt is over, refuses every later call with `aborted`, so that a write that
/// was on its way can't reach its successor.
#[derive(Clone, Debug)]
pub struct Container(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    room: Room,
    state: RwLock<State>,
    /// Sent after every initialize and delete, and at the container's end.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    cells: HashMap<Box<str>, Arc<Cell>>,
    /// Why the container is over.
    over: Option<Error>,
}

impl Container {
    pub(crate) fn new(name: &str, room: Room) -> Self {
        let (changed, _) = watch::channel(());
        Container(Arc::new(Inner { name: name.to_owned(), room, state: RwLock::default(), changed }))
    }

    /// The container's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sets initial values; all new variables appear at once. Answers with the versions.
    ///
    /// A variable that exists counts the write as any other: its version rises by 1 and doesn't start anew, so that a base
    /// version from before is refused. What an optimizer keeps beside it is dropped: its next step is the first; so is what is
    /// collected for synchronous steps, and who waits for them fails with `aborted`. With [`InitializeMode::IfAbsent`] it keeps
    /// value, version and all that.
    ///
    /// # Errors
    /// `invalid-argument`: a bad name or size, another type than the variable has, a variable named twice;
    /// `resource-exhausted`: `--max-variable-bytes`, or [`VARIABLES_MAX`]; `aborted`: the container is over. Then nothing is set.
    pub fn initialize(&self, values: Vec<(VariableRef, Payload<'_>)>, mode: InitializeMode) -> Result<Vec<u64>> {
        for (variable, value) in &values {
            check_variable(&variable.name, &variable.ty)?;
            check_data(&variable.name, &variable.ty, value.len())?;
        }
        refuse_twice(values.iter().map(|(variable, _)| variable))?;
        // Values are copied before the lock is taken: nobody waits for it while memory moves.
        let values: Vec<_> = values.into_iter().map(|(variable, value)| (variable, value.into_blocks())).collect();

        let names: Vec<_> = values.iter().map(|(variable, _)| variable.name.clone()).collect();
        let mut versions = vec![1; values.len()];
        let mut existing = Vec::new();
        {
            let mut state = self.write();
            state.check()?;
            let new = self.check_room_in(&state, values.iter().map(|(variable, _)| variable))?;
            let mut charges = self.0.room.take(new.iter().map(|&bytes| bytes as u64))?.into_iter();
            for (index, (variable, blocks)) in values.into_iter().enumerate() {
                if let Some(cell) = state.cells.get(&*variable.name) {
                    existing.push((index, cell.clone(), blocks));
                    continue;
                }
                let charge = charges.next().expect("one charge was taken for each variable that is new");
                state.cells.insert(variable.name.clone().into(), Arc::new(Cell::new(variable, blocks, charge)));
            }
        }
        for (index, cell, blocks) in existing {
            let steps = (mode == InitializeMode::Overwrite).then(|| cell.reset_steps(&names[index]));
            let mut value = cell.hold();
            if mode == InitializeMode::Overwrite {
                value.apply(UpdateKind::Assign, &cell.ty, Payload::Owned(blocks));
                cell.drop_slots(&mut value);
            }
            versions[index] = value.version;
            drop(value);
            drop(steps);
        }
        self.0.changed.send_replace(());
        Ok(versions)
    }

    /// Checks whether [`initialize`](Self::initialize) would be accepted now, before its bytes are on their way.
    ///
    /// # Errors
    /// Those of `initialize`.
    pub fn check_initialize(&self, variables: &[VariableRef]) -> Result<()> {
        variables.iter().try_for_each(|variable| check_variable(&variable.name, &variable.ty))?;
        refuse_twice(variables)?;
        let state = self.read();
        state.check()?;
        let new = self.check_room_in(&state, variables)?;
        self.0.room.check(new.iter().map(|&bytes| bytes as u64))
    }

    /// Checks whether [`push`](Self::push) would find these variables now, before its bytes are on their way.
    ///
    /// # Errors
    /// `uninitialized`, `invalid-argument` and `aborted`, as `push`.
    pub fn check_push(&self, variables: &[VariableRef]) -> Result<()> {
        self.cells(variables).map(drop)
    }

    /// Names of those that have no value.
    ///
    /// # Errors
    /// `invalid-argument`: one has a value of another type; `aborted`: the container is over.
    pub fn uninitialized(&self, variables: &[VariableRef]) -> Result<Vec<String>> {
        let mut missing: Vec<_> = variables.iter().collect();
        self.keep_missing(&mut missing)?;
        Ok(missing.into_iter().map(|variable| variable.name.clone()).collect())
    }

    /// Waits until all have a value.
    ///
    /// # Errors
    /// Those of [`uninitialized`](Self::uninitialized), as soon as one holds.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn wait_initialized(&self, variables: &[VariableRef]) -> Result<()> {
        // Subscribed before the look, so that no initialize falls between both.
        let mut changed = self.0.changed.subscribe();
        let mut missing: Vec<_> = variables.iter().collect();
        loop {
            changed.borrow_and_update();
            self.keep_missing(&mut missing)?;
            if missing.is_empty() {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                return Err(Error::new(ErrorCode::Internal, "container went away while it was waited for"));
            }
        }
    }

    /// Names of those that have no value, once there are none or `timeout` completes.
    ///
    /// # Errors
    /// Those of [`uninitialized`](Self::uninitialized), as soon as one holds.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn uninitialized_after(
        &self,
        variables: &[VariableRef],
        timeout: impl Future<Output = ()>,
    ) -> Result<Vec<String>> {
        tokio::select! {
            biased;
            result = self.wait_initialized(variables) => result.map(|()| Vec::new()),
            () = timeout => self.uninitialized(variables),
        }
    }

    /// Reads values, each as a whole update left it; waits for updates that are under way.
    ///
    /// # Errors
    /// `uninitialized` with all names that are; `invalid-argument`: another type; `aborted`: the container is over.
    pub fn pull(&self, variables: &[VariableRef]) -> Result<Vec<Snapshot>> {
        Ok(self.cells(variables)?.iter().map(|cell| cell.snapshot(&cell.hold(), true)).collect())
    }

    /// As [`pull`](Self::pull), but none where it would have to wait for an update: for callers that must not block.
    ///
    /// # Errors
    /// Those of `pull`.
    pub fn try_pull(&self, variables: &[VariableRef]) -> Result<Option<Vec<Snapshot>>> {
        let snapshot = |cell: Arc<Cell>| Some(cell.snapshot(&*cell.try_hold()?, true));
        Ok(self.cells(variables)?.into_iter().map(snapshot).collect())
    }

    /// Whether any of these has a value, so that an initialize would write over it, and may have to wait for that.
    pub fn has_any(&self, variables: &[VariableRef]) -> bool {
        let state = self.read();
        variables.iter().any(|variable| state.cells.contains_key(&*variable.name))
    }

    /// Applies changes in order, each atomic for its variable; answers with the versions, and the new values if wanted.
    ///
    /// Where any change has a base version, all of the call are applied together or not at all.
    ///
    /// # Errors
    /// `uninitialized` with the names; `invalid-argument`: another type, a value of the wrong size, or, with a base version, a
    /// variable named twice; `aborted`: a base version is not the present one (both are in the message), or the container is over.
    /// Then nothing is applied.
    pub fn push(&self, updates: Vec<Update<'_>>, want_values: bool) -> Result<Vec<Snapshot>> {
        for update in &updates {
            check_data(&update.variable.name, &update.variable.ty, update.value.len())?;
        }
        let cells = self.cells(updates.iter().map(|update| &update.variable))?;
        if updates.iter().any(|update| update.base.is_some()) {
            return together::push_together(&cells, updates, want_values);
        }
        let apply = |(cell, update): (&Arc<Cell>, Update<'_>)| {
            let mut value = cell.hold();
            value.apply(update.kind, &cell.ty, update.value);
            cell.snapshot(&value, want_values)
        };
        Ok(cells.iter().zip(updates).map(apply).collect())
    }

    /// Deletes variables by name; those that aren't there are ignored. Answers with how many were.
    ///
    /// # Errors
    /// `aborted`: the container is over.
    pub fn delete(&self, names: &[String]) -> Result<usize> {
        let cells: Vec<_> = {
            let mut state = self.write();
            state.check()?;
            names.iter().filter_map(|name| state.cells.remove(name.as_str())).collect()
        };
        self.0.changed.send_replace(());
        let deleted = cells.len();
        discard(cells);
        Ok(deleted)
    }

    /// The number of variables.
    pub fn len(&self) -> usize {
        self.read().cells.len()
    }

    /// Whether no variable is initialized.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A variable, to be held as a change under way holds it.
    #[cfg(test)]
    pub(in crate::variables) fn cell_for_test(&self, name: &str) -> Arc<Cell> {
        self.read().cells[name].clone()
    }

    /// Whether it has no variables and no call holds it.
    pub(super) fn is_unused(&self) -> bool {
        // Only the store makes new clones from its own, under its lock: where it is the last one, none can come.
        Arc::strong_count(&self.0) == 1 && self.read().cells.is_empty()
    }

    /// Every variable, in no order.
    pub(crate) fn list(&self) -> Vec<VariableStatus> {
        let cells: Vec<_> = self.read().cells.iter().map(|(name, cell)| (name.to_string(), cell.clone())).collect();
        cells
            .into_iter()
            .map(|(name, cell)| {
                let value = cell.hold();
                VariableStatus {
                    container: self.name().to_owned(),
                    name,
                    ty: cell.ty.clone(),
                    shard: cell.shard.clone(),
                    bytes: value.blocks.len() as u64,
                    version: value.version,
                    partial_writes: value.partial_writes,
                    slot_bytes: value.slots.as_ref().map_or(0, Slots::bytes),
                    stale_gradients: cell.collected.stale(),
                    dropped_gradients: cell.collected.dropped(),
                }
            })
            .collect()
    }

    /// Ends the container: drops its variables, wakes who waits, refuses later calls with `why`. Answers with their number.
    pub(crate) fn end(&self, why: Error) -> usize {
        let cells = {
            let mut state = self.write();
            state.over.get_or_insert(why);
            std::mem::take(&mut state.cells)
        };
        self.0.changed.send_replace(());
        let ended = cells.len();
        discard(cells.into_values().collect());
        ended
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps those that have no value.
    fn keep_missing(&self, variables: &mut Vec<&VariableRef>) -> Result<()> {
        let state = self.read();
        state.check()?;
        let mut checks = Checks::default();
        variables.retain(|variable| match state.cells.get(&*variable.name) {
            None => true,
            Some(cell) => {
                checks.check(cell, variable);
                false
            }
        });
        checks.end()
    }

    fn cells<'v>(&self, variables: impl IntoIterator<Item = &'v VariableRef>) -> Result<Vec<Arc<Cell>>> {
        let state = self.read();
        state.check()?;
        let (mut cells, mut missing, mut checks) = (Vec::new(), Vec::new(), Checks::default());
        for variable in variables {
            match state.cells.get(&*variable.name) {
                None => missing.push(&*variable.name),
                Some(cell) => {
                    checks.check(cell, variable);
                    cells.push(cell.clone());
                }
            }
        }
        checks.end()?;
        if missing.is_empty() {
            return Ok(cells);
        }
        let mend = "; the chief initializes them, other workers wait until it has";
        Err(name_some(ErrorCode::Uninitialized, "variables are not initialized", missing, mend))
    }

    /// Sizes of those that are new, after checking types and the number of variables.
    fn check_room_in<'v>(
        &self,
        state: &State,
        variables: impl IntoIterator<Item = &'v VariableRef>,
    ) -> Result<Vec<usize>> {
        let (mut new, mut checks) = (Vec::new(), Checks::default());
        for variable in variables {
            match state.cells.get(&*variable.name) {
                Some(cell) => checks.check(cell, variable),
                None => new.push(variable.ty.checked_size_bytes()?),
            }
        }
        checks.end()?;
        if state.cells.len() + new.len() > VARIABLES_MAX {
            let (there, container) = (state.cells.len(), self.name());
            let message = format!(
                "container `{container}` has `{there}` variables and can't take `{}` more, at most `{VARIABLES_MAX}` are allowed",
                new.len()
            );
            return Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["variables-per-container"]));
        }
        Ok(new)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.over.clone().map_or(Ok(()), Err)
    }
}

/// Drops variables that were deleted. They count no longer from now on; their memory follows.
fn discard(cells: Vec<Arc<Cell>>) {
    let sizes = cells.iter().map(|cell| {
        cell.charge.release();
        cell.ty.checked_size_bytes().unwrap_or(usize::MAX)
    });
    let bytes = sizes.fold(0, usize::saturating_add);
    drop_large(bytes, cells);
}

fn refuse_twice<'v>(variables: impl IntoIterator<Item = &'v VariableRef>) -> Result<()> {
    let mut seen = HashSet::new();
    match variables.into_iter().find(|variable| !seen.insert(&*variable.name)) {
        None => Ok(()),
        Some(VariableRef { name, .. }) => {
            let message = format!("variable `{name}` stands twice in one call; name it once");
            Err(Error::new(ErrorCode::InvalidArgument, message).with_names([&**name]))
        }
    }
}
