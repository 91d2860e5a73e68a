//! Relaxed reads and updates: a piece at a time, without a second copy of the value.
//!
//! | while a relaxed update goes on | sees |
//! | --- | --- |
//! | an atomic read | whole pieces: some with the update, some without; the version before it |
//! | a relaxed read | whole pieces, each as it was when it was sent |
//! | an atomic update | is applied between two pieces |
//! | a base version | nothing of it, until its last piece raises the version |

use super::cell::{Held, Kept};
use super::{Container, Payload, Snapshot, Update, check_data};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use crate::variables::{Spare, UpdateKind, VariableRef, lock};
use bytes::Bytes;
use std::sync::Mutex;

/// The pieces in which values go by relaxed consistency, in bytes: as large as the chunks on the wire, and a part of a block.
pub const RELAXED_BYTES: usize = 256 << 10;

/// Values up to this size that an update answers with are those that its last piece made; larger ones are read when it ends, so
/// that it holds none of them meanwhile.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// A relaxed update of several variables, as far as it was applied. Each piece is applied once, and the version rises with the last.
///
/// Dropping it before its end gives it up: a variable that has a part of it gets a new version, so that no base version holds any
/// more, counts a partial write, and a warning names it.
#[derive(Debug)]
pub struct RelaxedWrite(Mutex<Writing>);

#[derive(Debug)]
struct Writing {
    container: Container,
    /// Who writes, for the warning.
    who: String,
    /// Which of its tries may go on: the last.
    holder: u64,
    want_values: bool,
    items: Vec<Item>,
    /// Where the next piece belongs.
    item: usize,
    offset: usize,
}

#[derive(Debug)]
struct Item {
    variable: VariableRef,
    bytes: usize,
    kind: UpdateKind,
    cell: Kept,
    /// What its last piece made, without the value where that is large.
    done: Option<Snapshot>,
}

impl Container {
    /// Begins a relaxed update, of which nothing is applied yet. `who` names the caller in a warning.
    ///
    /// # Errors
    /// `uninitialized` with the names; `invalid-argument`: another type; `aborted`: the container is over.
    pub fn relaxed_write(
        &self,
        changes: &[(VariableRef, UpdateKind)],
        want_values: bool,
        who: String,
    ) -> Result<RelaxedWrite> {
        let cells = self.cells(changes.iter().map(|(variable, _)| variable))?;
        let items = changes.iter().zip(cells).map(|((variable, kind), cell)| {
            let bytes = variable.ty.checked_size_bytes()?;
            Ok(Item { variable: variable.clone(), bytes, kind: *kind, cell: Kept::new(cell), done: None })
        });
        let items = items.collect::<Result<_>>()?;
        let container = self.clone();
        Ok(RelaxedWrite(Mutex::new(Writing { container, who, holder: 0, want_values, items, item: 0, offset: 0 })))
    }

    /// Applies changes piece by piece, as [`push`](Self::push) otherwise: others see parts of one while it is made.
    ///
    /// # Errors
    /// Those of `push`; `invalid-argument` where a change has a base version.
    pub fn push_relaxed(&self, updates: Vec<Update<'_>>, want_values: bool) -> Result<Vec<Snapshot>> {
        for Update { variable, value, base, .. } in &updates {
            check_data(&variable.name, &variable.ty, value.len())?;
            refuse_base(&variable.name, *base)?;
        }
        let changes: Vec<_> = updates.iter().map(|update| (update.variable.clone(), update.kind)).collect();
        let write = self.relaxed_write(&changes, want_values, "this process".to_owned())?;
        for (item, update) in updates.into_iter().enumerate() {
            let mut offset = 0;
            let mut apply = |piece: &[u8]| {
                let applied = write.apply(0, item, offset, piece);
                offset += piece.len();
                applied
            };
            match update.value {
                Payload::Borrowed(data) => data.chunks(RELAXED_BYTES).try_for_each(&mut apply)?,
                Payload::Owned(blocks) => blocks.into_pieces(RELAXED_BYTES).try_for_each(|piece| apply(&piece))?,
            }
        }
        write.finish()
    }

    /// Variables to be read piece by piece.
    ///
    /// # Errors
    /// Those of [`pull`](Self::pull).
    pub fn relaxed_read(&self, variables: &[VariableRef]) -> Result<Vec<RelaxedValue>> {
        let cells = self.cells(variables)?.into_iter().zip(variables);
        let value = |(cell, variable): (_, &VariableRef)| {
            let bytes = variable.ty.checked_size_bytes()?;
            let cell = Kept::new(cell);
            Ok(RelaxedValue { version: cell.news().version(), ty: variable.ty.clone(), bytes, cell })
        };
        cells.map(value).collect()
    }
}

/// The error of a relaxed update with a base version, which is checked for the whole.
///
/// # Errors
/// `invalid-argument`: there is one.
pub fn refuse_base(name: &str, base: Option<u64>) -> Result<()> {
    let Some(base) = base else { return Ok(()) };
    let message = format!(
        "the update of variable `{name}` is relaxed and based on version `{base}`: a base version needs the whole, make it atomic"
    );
    Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]))
}

/// Says in the error of a relaxed update that a part of it may have been applied, where that is so.
pub fn partly_applied(error: Error) -> Error {
    match error.code {
        ErrorCode::PeerFailed | ErrorCode::Cancelled | ErrorCode::Aborted | ErrorCode::Internal => {
            const NOTE: &str = "; a part of this relaxed update may have been applied";
            let message = if error.message.ends_with(NOTE) { error.message } else { error.message + NOTE };
            Error { message, ..error }
        }
        _ => error,
    }
}

impl RelaxedWrite {
    /// Gives the write to the try `holder`, of this container and with these changes; earlier tries can't apply any more.
    /// May wait for a piece that an earlier one applies.
    ///
    /// # Errors
    /// `invalid-argument`: other changes than those that were begun; `aborted`: a variable was deleted meanwhile, or a later try
    /// holds it.
    pub fn hold(&self, holder: u64, container: &Container, changes: &[(VariableRef, UpdateKind)]) -> Result<()> {
        let mut writing = lock(&self.0);
        writing.check_holder(holder)?;
        let same = |item: &Item, (variable, kind): &(VariableRef, UpdateKind)| {
            item.variable == *variable && item.kind == *kind
        };
        if writing.items.len() != changes.len() || !writing.items.iter().zip(changes).all(|(a, b)| same(a, b)) {
            let message =
                "the write was begun with other changes: a retry must repeat it, another write has another sequence";
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        }
        let cells = container.cells(changes.iter().map(|(variable, _)| variable))?;
        if let Some((item, _)) = writing.items.iter().zip(&cells).find(|(item, cell)| !item.cell.is(cell)) {
            let name = &*item.variable.name;
            let message = format!("variable `{name}` was deleted while a relaxed update of it was under way");
            return Err(Error::new(ErrorCode::Aborted, message).with_names([name]));
        }
        writing.holder = holder;
        Ok(())
    }

    /// Applies a piece of an item; what was applied before is passed over. Waits for changes of others.
    ///
    /// # Errors
    /// `aborted`: a later try holds the write; `internal`: a piece was left out.
    pub fn apply(&self, holder: u64, item: usize, offset: usize, piece: &[u8]) -> Result<()> {
        let applied = lock(&self.0).apply(holder, item, offset, piece, |cell| Some(cell.hold()))?;
        debug_assert!(applied, "it has waited");
        Ok(())
    }

    /// As [`apply`](Self::apply), but false, and nothing is applied, where it would have to wait.
    ///
    /// # Errors
    /// Those of `apply`.
    pub fn try_apply(&self, holder: u64, item: usize, offset: usize, piece: &[u8]) -> Result<bool> {
        let Ok(mut writing) = self.0.try_lock() else { return Ok(false) };
        writing.apply(holder, item, offset, piece, |cell| cell.try_hold())
    }

    /// Ends the write, all of which was applied: the versions that it made, and the values if they were wanted.
    ///
    /// # Errors
    /// `internal`: a piece is missing.
    pub fn finish(&self) -> Result<Vec<Snapshot>> {
        let mut writing = lock(&self.0);
        writing.pass_empty();
        if writing.item < writing.items.len() {
            return Err(writing.misplaced(writing.items.len(), 0));
        }
        let want_values = writing.want_values;
        let snapshot = |item: &Item| match &item.done {
            Some(done) if !want_values || done.blocks.len() == item.bytes => done.clone(),
            _ => item.cell.snapshot(&item.cell.hold(), want_values),
        };
        Ok(writing.items.iter().map(snapshot).collect())
    }
}

impl Writing {
    fn check_holder(&self, holder: u64) -> Result<()> {
        if holder >= self.holder {
            return Ok(());
        }
        Err(Error::new(ErrorCode::Aborted, "the write was taken over by its retry"))
    }

    fn apply<'w>(
        &'w mut self,
        holder: u64,
        item: usize,
        offset: usize,
        piece: &[u8],
        hold: impl FnOnce(&'w Kept) -> Option<Held<'w>>,
    ) -> Result<bool> {
        self.check_holder(holder)?;
        self.pass_empty();
        let here = if item == self.item { self.offset.checked_sub(offset) } else { None };
        let passed = match here {
            Some(passed) => passed,
            None if item < self.item => return Ok(true),
            None => return Err(self.misplaced(item, offset)),
        };
        let Some(rest) = piece.get(passed..).filter(|rest| !rest.is_empty()) else { return Ok(true) };
        let Writing { items, item: at, offset: applied, want_values, .. } = self;
        let Some(Item { variable, bytes, kind, cell, done }) = items.get_mut(item) else { return Ok(true) };
        let cell: &'w Kept = cell;
        let Some(mut value) = hold(cell) else { return Ok(false) };
        value.blocks.apply_at(*kind, variable.ty.dtype, *applied, rest);
        *applied += rest.len();
        if *applied >= *bytes {
            value.version += 1;
            *done = Some(cell.snapshot(&value, *want_values && *bytes <= KEPT_BYTES_MAX));
            (*at, *applied) = (*at + 1, 0);
        }
        Ok(true)
    }

    /// Goes past items without bytes, which no piece comes for.
    fn pass_empty(&mut self) {
        while let Some(item) = self.items.get_mut(self.item).filter(|item| item.bytes == 0) {
            let mut value = item.cell.hold();
            value.version += 1;
            item.done = Some(item.cell.snapshot(&value, true));
            self.item += 1;
        }
    }

    fn misplaced(&self, item: usize, offset: usize) -> Error {
        let (at, next) = (self.item, self.offset);
        let message = format!("piece of item `{item}` at `{offset}` came where item `{at}` at `{next}` comes next");
        Error::new(ErrorCode::Internal, message)
    }
}

fn note(mut value: Held<'_>) {
    value.version += 1;
    value.partial_writes += 1;
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(Item { variable, bytes, cell, .. }) = self.items.get(self.item).filter(|_| self.offset > 0) else {
            return;
        };
        // What was deleted, or belongs to an attempt that is over, concerns nobody any more.
        if !self.container.cells([variable]).is_ok_and(|cells| cells.iter().all(|now| cell.is(now))) {
            return;
        }
        let (name, applied, who) = (&variable.name, self.offset, &self.who);
        tracing::warn!(
            "variable `{name}` has a part of a relaxed update: {applied} of {bytes} bytes by {who}, who gave it up or has gone"
        );
        if let Some(value) = cell.try_hold() {
            return note(value);
        }
        // A server's thread must not wait for a large change. Where there is no other thread, the warning has to do.
        let cell = cell.clone();
        let _ = std::thread::Builder::new().name("dchost-partial".to_owned()).spawn(move || note(cell.hold()));
    }
}

/// A variable that is read piece by piece.
#[derive(Clone, Debug)]
pub struct RelaxedValue {
    version: u64,
    ty: TensorType,
    bytes: usize,
    cell: Kept,
}

impl RelaxedValue {
    /// The version when the read began: all up to it is in the value, and maybe parts of what came later.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Element type and extents.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The size, in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The piece at `offset`, a multiple of [`RELAXED_BYTES`], as it is now; waits for a change that is under way.
    pub fn piece(&self, offset: usize) -> Bytes {
        self.cell.hold().blocks.piece(offset, RELAXED_BYTES)
    }

    /// As [`piece`](Self::piece), but none where it would have to wait.
    pub fn try_piece(&self, offset: usize) -> Option<Bytes> {
        Some(self.cell.try_hold()?.blocks.piece(offset, RELAXED_BYTES))
    }

    /// The whole value, read piece by piece, in memory of `spare`.
    pub fn contiguous_in(&self, spare: &Spare) -> Bytes {
        if self.bytes <= RELAXED_BYTES {
            return self.piece(0);
        }
        let mut all = spare.take(self.bytes);
        for offset in (0..self.bytes).step_by(RELAXED_BYTES) {
            all.extend_from_slice(&self.piece(offset));
        }
        spare.lend(all)
    }
}
