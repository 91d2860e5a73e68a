//! Incoming values on their way: staged as blocks, applied when they are complete.

use super::blocks::{BLOCK_BYTES, BlockRoom};
use super::{Blocks, Spare, Store, drop_large, lock};
use crate::error::{Error, ErrorCode, Result};
use crate::tensor::TensorType;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// What every write may stage whatever the others do, in bytes: the small writes of a busy job never meet the budget.
const ALWAYS_STAGED_BYTES: u64 = 256 << 10;

/// The name in an error that says that the staging budget is used up: the write may be tried again, from its beginning.
pub const STAGING: &str = "staging";

/// The values of one unfinished write.
///
/// An atomic write needs all its bytes before the first is applied, so a server holds one copy of what is on its way, and no
/// more: an assigned value's blocks become the variable's, added ones are freed block by block. Dropping it (the stream broke, the
/// session ended) frees the bytes and leaves every variable as it was.
///
/// All unfinished writes share a budget, of which bytes are taken as they arrive, never because they were announced. When it
/// is used up the oldest write goes on, beyond the budget if need be, and others are refused, which frees theirs: a write
/// that waited instead would hold its bytes here and its window on the connection, and so hold up the one that it waits for.
#[derive(Debug)]
pub struct Staging {
    items: Vec<Item>,
    staged: u64,
    /// Orders unfinished writes by their first byte; none before it.
    place: Option<u64>,
    budget: Arc<StagingBudget>,
    /// Where blocks come from.
    spare: Spare,
}

#[derive(Debug)]
struct Item {
    blocks: Blocks,
    bytes: usize,
}

impl Staging {
    /// Begins to stage values of these types. Memory is taken only as bytes arrive.
    ///
    /// # Errors
    /// `invalid-argument`: a type that can't be served.
    pub fn new<'t>(store: &Store, types: impl IntoIterator<Item = &'t TensorType>) -> Result<Staging> {
        let sizes = types.into_iter().map(TensorType::checked_size_bytes).collect::<Result<Vec<_>>>()?;
        let items = sizes.into_iter().map(|bytes| Item { blocks: Blocks::default(), bytes }).collect();
        Ok(Staging { items, staged: 0, place: None, budget: store.staging().clone(), spare: store.spare().clone() })
    }

    /// Copies the next bytes of a value. The caller has checked that they are in order and don't overrun.
    ///
    /// # Errors
    /// `resource-exhausted` with the name [`STAGING`]: the budget is used up, and another write is older.
    pub fn append(&mut self, item: usize, data: &[u8]) -> Result<()> {
        let Some(Item { blocks, bytes }) = self.items.get_mut(item) else { return Ok(()) };
        self.budget.take(&mut self.place, self.staged, data.len() as u64)?;
        self.staged += data.len() as u64;
        if blocks.is_empty() {
            *blocks = Blocks::with_capacity(*bytes).with_spare(self.spare.clone());
        }
        blocks.append(data, *bytes);
        Ok(())
    }

    /// Where at most `bytes_max` next bytes of a value belong, all of which count as staged. The caller sees to it that they are
    /// in order, and puts all of them there or gives the write up.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    ///
    /// # Panics
    /// There is no such item.
    pub fn room(&mut self, item: usize, bytes_max: usize) -> Result<BlockRoom<'_>> {
        let Item { blocks, bytes } = &mut self.items[item];
        let next = bytes_max.min(BLOCK_BYTES - blocks.len() % BLOCK_BYTES);
        self.budget.take(&mut self.place, self.staged, next as u64)?;
        self.staged += next as u64;
        if blocks.is_empty() {
            *blocks = Blocks::with_capacity(*bytes).with_spare(self.spare.clone());
        }
        Ok(blocks.room(next, *bytes))
    }

    /// Counts bytes of this write that the caller keeps by itself.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.budget.take(&mut self.place, self.staged, bytes)?;
        self.staged += bytes;
        Ok(())
    }

    /// Expects another value behind the others.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn expect(&mut self, ty: &TensorType) -> Result<()> {
        self.items.push(Item { blocks: Blocks::default(), bytes: ty.checked_size_bytes()? });
        Ok(())
    }

    /// Bytes that were staged.
    pub fn bytes(&self) -> u64 {
        self.staged
    }

    /// Hands the values over, in order; they count as staged until `self` is dropped, after they were applied.
    pub fn take(&mut self) -> Vec<Blocks> {
        self.items.iter_mut().map(|item| std::mem::take(&mut item.blocks)).collect()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.budget.give_back(self.place, self.staged);
        let unused = std::mem::take(&mut self.items);
        drop_large(unused.iter().map(|item| item.blocks.len()).sum(), unused);
    }
}

/// What all unfinished writes of a server may hold together.
#[derive(Debug)]
pub(super) struct StagingBudget {
    bytes_max: u64,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    staged: u64,
    peak: u64,
    next_place: u64,
    places: BTreeSet<u64>,
}

impl StagingBudget {
    pub(super) fn new(bytes_max: u64) -> Self {
        StagingBudget { bytes_max, state: Mutex::default() }
    }

    pub(super) fn staged_bytes(&self) -> u64 {
        lock(&self.state).staged
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        lock(&self.state).peak
    }

    /// Takes room for `bytes` more of a write that holds `held`.
    fn take(&self, place: &mut Option<u64>, held: u64, bytes: u64) -> Result<()> {
        let mut state = lock(&self.state);
        let oldest = match *place {
            Some(place) => state.places.first() == Some(&place),
            None => state.places.is_empty(),
        };
        let fits = state.staged.saturating_add(bytes) <= self.bytes_max;
        if !fits && !oldest && held.saturating_add(bytes) > ALWAYS_STAGED_BYTES {
            let message = format!(
                "the server holds {} bytes of unfinished writes, of {} that it may; try again when some have ended",
                state.staged, self.bytes_max
            );
            return Err(Error::new(ErrorCode::ResourceExhausted, message).with_names([STAGING]));
        }
        if place.is_none() {
            *place = Some(state.next_place);
            let next = state.next_place;
            state.places.insert(next);
            state.next_place += 1;
        }
        state.staged += bytes;
        state.peak = state.peak.max(state.staged);
        Ok(())
    }

    fn give_back(&self, place: Option<u64>, bytes: u64) {
        let mut state = lock(&self.state);
        state.staged -= bytes;
        if let Some(place) = place {
            state.places.remove(&place);
        }
    }
}
