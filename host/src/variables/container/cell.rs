//! One variable: its value under a lock, and the news of its version.

use super::sync::Collected;
use super::{Snapshot, drop_large, lock};
use crate::tensor::TensorType;
use crate::variables::slots::Slots;
use crate::variables::store::Charge;
use crate::variables::{Blocks, Payload, Shard, UpdateKind, VariableRef};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use tokio::sync::Notify;

/// One variable. It exists once it is initialized; its type never changes.
#[derive(Debug)]
pub(in crate::variables) struct Cell {
    /// Of what is held here.
    pub(super) ty: TensorType,
    /// Which part of the variable that is; none: all.
    pub(super) shard: Option<Shard>,
    /// Only by [`Cell::hold`] and [`Cell::try_hold`], which tell the news.
    value: Mutex<Versioned>,
    pub(super) charge: Charge,
    news: Arc<News>,
    /// Gradients for synchronous steps. Held before the value, where both are.
    pub(super) collected: Collected,
}

/// What changes of a variable.
#[derive(Debug)]
pub(in crate::variables) struct Versioned {
    pub(super) blocks: Blocks,
    pub(super) version: u64,
    /// How many relaxed writes were given up half-way.
    pub(super) partial_writes: u64,
    /// What an optimizer keeps; none before its first step.
    pub(super) slots: Option<Slots>,
}

impl Versioned {
    pub(super) fn apply(&mut self, kind: UpdateKind, ty: &TensorType, value: Payload<'_>) {
        match value {
            Payload::Owned(blocks) if kind == UpdateKind::Assign => self.blocks = blocks,
            Payload::Owned(blocks) => self.blocks.apply_blocks(kind, ty.dtype, blocks),
            Payload::Borrowed(data) => self.blocks.apply(kind, ty.dtype, data),
        }
        self.version += 1;
    }
}

/// The version of a variable, for those who wait for one: they take no lock that a large change holds, and keep no value that
/// was deleted.
#[derive(Debug)]
pub(super) struct News {
    version: AtomicU64,
    raised: Notify,
}

impl News {
    /// The present version.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until the version is at least `version`.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub(super) async fn reached(&self, version: u64) {
        loop {
            // Before the look: a rise after it completes this future, also where it wasn't polled yet.
            let raised = self.raised.notified();
            if self.version() >= version {
                return;
            }
            raised.await;
        }
    }
}

impl Cell {
    pub(super) fn new(variable: VariableRef, blocks: Blocks, charge: Charge) -> Self {
        Cell::with_slots(variable, blocks, None, charge)
    }

    pub(super) fn with_slots(variable: VariableRef, blocks: Blocks, slots: Option<Slots>, charge: Charge) -> Self {
        let VariableRef { name: _, ty, shard } = variable;
        let news = Arc::new(News { version: AtomicU64::new(1), raised: Notify::new() });
        let value = Mutex::new(Versioned { blocks, version: 1, partial_writes: 0, slots });
        Cell { ty, shard, value, charge, news, collected: Collected::default() }
    }

    pub(super) fn news(&self) -> &Arc<News> {
        &self.news
    }

    /// Holds the value; waits for a change that is under way.
    pub(super) fn hold(&self) -> Held<'_> {
        self.held(lock(&self.value))
    }

    /// Holds the value; none where it would have to wait.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        match self.value.try_lock() {
            Ok(value) => Some(self.held(value)),
            Err(TryLockError::Poisoned(value)) => Some(self.held(value.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn held<'c>(&'c self, value: MutexGuard<'c, Versioned>) -> Held<'c> {
        let told = value.version;
        Held { value, told, tell: Tell { news: &self.news, raised: false } }
    }

    #[cfg(test)]
    pub(in crate::variables) fn hold_for_test(&self) -> impl Drop + use<'_> {
        self.hold()
    }

    /// Drops what an optimizer keeps.
    pub(super) fn drop_slots(&self, value: &mut Versioned) {
        if let Some(slots) = value.slots.take() {
            self.charge.shrink(slots.bytes());
            slots.discard();
        }
    }

    pub(super) fn snapshot(&self, value: &Versioned, want_value: bool) -> Snapshot {
        let blocks = if want_value { value.blocks.clone() } else { Blocks::default() };
        Snapshot { ty: self.ty.clone(), blocks, version: value.version }
    }
}

/// A value that is held. Its end tells those who wait that the version has risen, where it has: an uncontended lock more,
/// while nobody waits.
pub(super) struct Held<'c> {
    // Dropped in this order: who is woken finds the value free.
    value: MutexGuard<'c, Versioned>,
    told: u64,
    tell: Tell<'c>,
}

impl Deref for Held<'_> {
    type Target = Versioned;

    fn deref(&self) -> &Versioned {
        &self.value
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Versioned {
        &mut self.value
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.value.version != self.told {
            self.tell.news.version.store(self.value.version, Ordering::Release);
            self.tell.raised = true;
        }
    }
}

struct Tell<'c> {
    news: &'c News,
    raised: bool,
}

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if self.raised {
            self.news.raised.notify_waiters();
        }
    }
}

/// A variable that a call keeps while it goes on. Where it was deleted meanwhile and this is the last who had it, its memory goes
/// without keeping the caller waiting.
pub(super) struct Kept(Option<Arc<Cell>>);

impl Kept {
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Kept(Some(cell))
    }

    /// Whether it is that very variable, and not another of its name.
    pub(super) fn is(&self, cell: &Arc<Cell>) -> bool {
        self.0.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, cell))
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        Kept(self.0.clone())
    }
}

impl Deref for Kept {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        self.0.as_ref().expect("it is taken by its drop only")
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.ty).finish()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take().and_then(Arc::into_inner) {
            drop_large(cell.ty.checked_size_bytes().unwrap_or(usize::MAX), cell);
        }
    }
}
