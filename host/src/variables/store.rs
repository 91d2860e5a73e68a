//! All containers of one server.

use super::staging::StagingBudget;
use super::{Container, Ledger, Shard, Spare, lock};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, AttemptGate, AttemptOrder};
use crate::tensor::TensorType;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most containers of one server; each is a job or a split client, so that more are a leak.
pub const CONTAINERS_MAX: usize = 10_000;

/// Limits of one server's variables.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `--max-variable-bytes`: most bytes of values over all containers; none: no limit.
    ///
    /// A variable counts with its own size, that of its slots and that of gradients that are collected for synchronous steps, until
    /// it is deleted, whoever still reads blocks of it.
    pub variable_bytes_max: Option<u64>,
    /// Most bytes that wait in unfinished writes, over all callers; see [`Staging`](super::Staging) for what comes beyond.
    pub staged_bytes_max: u64,
}

impl Default for StoreOptions {
    /// No limit on values; 1 GiB of staging: five writers of a 200 MB variable at a time.
    fn default() -> Self {
        StoreOptions { variable_bytes_max: None, staged_bytes_max: 1 << 30 }
    }
}

/// The variables of one server. Cheap to clone; clones are the same store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

/// Memory of applied writes that a store keeps for the next ones, in bytes.
const SPARE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
struct Inner {
    room: Room,
    staging: Arc<StagingBudget>,
    /// Blocks of writes that were applied, for the next ones.
    spare: Spare,
    containers: Mutex<HashMap<String, Slot>>,
    ledger: Ledger,
}

/// A container's place: which attempt its present content belongs to.
#[derive(Debug)]
struct Slot {
    container: Container,
    /// None until a caller of an attempt has come.
    gate: Option<AttemptGate>,
}

/// One variable for a status listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableStatus {
    /// Its container.
    pub container: String,
    /// Its name.
    pub name: String,
    /// Element type and extents of what the server holds.
    pub ty: TensorType,
    /// Which part of the variable that is; none: all.
    pub shard: Option<Shard>,
    /// Size of its value.
    pub bytes: u64,
    /// Counts applied writes.
    pub version: u64,
    /// How many relaxed updates ended half-way and were not taken up again: the value has a part of each.
    pub partial_writes: u64,
    /// What an optimizer keeps beside it, in bytes.
    pub slot_bytes: u64,
    /// Gradients of synchronous steps that were over when they came, or ended without being applied.
    pub stale_gradients: u64,
    /// Gradients beyond the replicas of a step, of backup workers.
    pub dropped_gradients: u64,
}

impl Default for Store {
    fn default() -> Self {
        Store::new(StoreOptions::default())
    }
}

impl Store {
    /// Makes an empty store.
    pub fn new(options: StoreOptions) -> Self {
        Store(Arc::new(Inner {
            room: Room { used: Arc::default(), max: options.variable_bytes_max },
            staging: Arc::new(StagingBudget::new(options.staged_bytes_max)),
            spare: Spare::new(SPARE_BYTES_MAX.min(options.staged_bytes_max)),
            containers: Mutex::default(),
            ledger: Ledger::default(),
        }))
    }

    /// Opens a container for a caller of `attempt`, and makes it where it isn't there.
    ///
    /// The first caller of a newer attempt, or of a new leader, ends what was there: its variables are dropped and who waits
    /// in it fails with `aborted`. A caller without an attempt (a job without leader, a tool) gets the present content.
    ///
    /// # Errors
    /// `aborted` (gRPC `ABORTED`): the attempt, or its leader, is over; `resource-exhausted`: too many containers.
    pub fn open(&self, name: &str, attempt: Option<Attempt>) -> Result<Container> {
        let mut containers = lock(&self.0.containers);
        if !containers.contains_key(name) {
            if containers.len() >= CONTAINERS_MAX {
                // Whoever names a container makes it. One without variables that no call holds is made anew when it is named
                // again; which attempts are over, the guard before the server's handlers remembers as long as a session needs it.
                containers.retain(|_, slot| !slot.container.is_unused());
            }
            if containers.len() >= CONTAINERS_MAX {
                let message = format!(
                    "server has `{CONTAINERS_MAX}` containers with variables, the most it keeps; delete some, or end the runs \
                     that they belong to"
                );
                return Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["containers"]));
            }
            let container = Container::new(name, self.0.room.clone());
            containers.insert(name.to_owned(), Slot { container, gate: None });
        }
        let slot = containers.get_mut(name).expect("inserted above if it was missing");
        slot.enter(attempt, &self.0.room)?;
        Ok(slot.container.clone())
    }

    /// Begins an attempt with an empty container: as [`open`](Self::open), and what callers without an attempt made ends too.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn begin(&self, name: &str, attempt: Attempt) -> Result<()> {
        let mut containers = lock(&self.0.containers);
        let of_nobody = |slot: &&mut Slot| slot.gate.is_none();
        if let Some(slot) = containers.get_mut(name).filter(of_nobody) {
            let fresh = Container::new(name, self.0.room.clone());
            let over = || Error::new(ErrorCode::Aborted, format!("an attempt has begun in container `{name}`"));
            std::mem::replace(&mut slot.container, fresh).end(over());
        }
        drop(containers);
        self.open(name, Some(attempt)).map(drop)
    }

    /// Deletes a container with all its variables; answers with their number. Who waits in it fails with `aborted`.
    ///
    /// Which attempts are over is forgotten with it; the guard before the server's handlers remembers that too.
    pub fn delete_container(&self, name: &str) -> usize {
        let slot = lock(&self.0.containers).remove(name);
        let over = || Error::new(ErrorCode::Aborted, format!("container `{name}` was deleted"));
        slot.map_or(0, |slot| slot.container.end(over()))
    }

    /// Every variable, by container and name.
    pub fn statuses(&self) -> Vec<VariableStatus> {
        let containers: Vec<_> = lock(&self.0.containers).values().map(|slot| slot.container.clone()).collect();
        let mut statuses: Vec<_> = containers.iter().flat_map(Container::list).collect();
        statuses.sort_by(|a, b| (&a.container, &a.name).cmp(&(&b.container, &b.name)));
        statuses
    }

    /// Bytes of all values, and of what optimizers keep beside them.
    pub fn variable_bytes(&self) -> u64 {
        self.0.room.used.load(Ordering::Relaxed)
    }

    /// Most bytes of all values; none: no limit.
    pub fn variable_bytes_max(&self) -> Option<u64> {
        self.0.room.max
    }

    /// Bytes that wait in unfinished writes now.
    pub fn staged_bytes(&self) -> u64 {
        self.0.staging.staged_bytes()
    }

    /// The most bytes that ever waited in unfinished writes at once.
    pub fn staged_bytes_peak(&self) -> u64 {
        self.0.staging.peak_bytes()
    }

    /// What was applied for whom.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    pub(super) fn staging(&self) -> &Arc<StagingBudget> {
        &self.0.staging
    }

    pub(super) fn spare(&self) -> &Spare {
        &self.0.spare
    }
}

impl Slot {
    /// Lets a caller of `attempt` in; a newer one begins with an empty container.
    fn enter(&mut self, attempt: Option<Attempt>, room: &Room) -> Result<()> {
        let Some(new) = attempt else { return Ok(()) };
        let Some(gate) = &mut self.gate else {
            // What callers without an attempt made belongs to no attempt; it stays, as under TensorFlow.
            self.gate = Some(AttemptGate::new(new));
            return Ok(());
        };
        let (now, name) = (gate.current(), self.container.name());
        let aborted = |why: String| Error::new(ErrorCode::Aborted, why);
        match gate.order(new) {
            AttemptOrder::Same => return Ok(()),
            AttemptOrder::Over if new.leader == now.leader => {
                let why = format!("attempt `{}` is over in container `{name}`, now is `{}`", new.number, now.number);
                return Err(aborted(why));
            }
            AttemptOrder::Over => {
                let why = format!("leader `{}` was replaced in container `{name}` by `{}`", new.leader, now.leader);
                return Err(aborted(why));
            }
            AttemptOrder::Newer => {}
        }
        let over = format!("attempt `{}` is over in container `{name}`, `{}` has begun", now.number, new.number);
        let fresh = Container::new(name, room.clone());
        gate.advance(new);
        std::mem::replace(&mut self.container, fresh).end(aborted(over));
        Ok(())
    }
}

/// Bytes of values, and how many there may be.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    used: Arc<AtomicU64>,
    max: Option<u64>,
}

impl Room {
    /// Whether all of these would fit now.
    pub(crate) fn check(&self, sizes: impl IntoIterator<Item = u64>) -> Result<()> {
        let sum = sizes.into_iter().fold(0, u64::saturating_add);
        self.fits(self.used.load(Ordering::Relaxed), sum).map(drop)
    }

    /// Takes room for all of these or for none.
    pub(crate) fn take(&self, sizes: impl Iterator<Item = u64> + Clone) -> Result<Vec<Charge>> {
        self.reserve(sizes.clone())?;
        Ok(sizes.map(|bytes| Charge { used: self.used.clone(), bytes: bytes.into() }).collect())
    }

    /// Takes more room for all of these or for none.
    pub(crate) fn grow<'c>(&self, charges: impl Iterator<Item = (&'c Charge, u64)> + Clone) -> Result<()> {
        self.reserve(charges.clone().map(|(_, more)| more))?;
        // One that was released meanwhile gives it back when it is dropped.
        for (charge, more) in charges {
            charge.bytes.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    fn reserve(&self, sizes: impl Iterator<Item = u64>) -> Result<()> {
        let sum = sizes.fold(0, u64::saturating_add);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let next = self.fits(used, sum)?;
            match self.used.compare_exchange_weak(used, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => used = other,
            }
        }
    }

    fn fits(&self, used: u64, more: u64) -> Result<u64> {
        let next = used.saturating_add(more);
        match self.max {
            Some(max) if next > max && more > 0 => {
                let message = format!(
                    "variables of this server hold `{used}` bytes and can't take `{more}` more, `--max-variable-bytes` is `{max}`; \
                     raise it or spread them over more tasks"
                );
                Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["--max-variable-bytes"]))
            }
            _ => Ok(next),
        }
    }
}

/// Room that one variable takes; given back when it is dropped, if not before.
#[derive(Debug)]
pub(crate) struct Charge {
    used: Arc<AtomicU64>,
    bytes: AtomicU64,
}

impl Charge {
    /// Gives part of the room back; nothing where all was given back before.
    pub(crate) fn shrink(&self, less: u64) {
        let rest = |bytes: u64| Some(bytes.saturating_sub(less));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).unwrap_or_default();
        self.used.fetch_sub(before.min(less), Ordering::Relaxed);
    }

    /// Gives the room back now, once.
    pub(crate) fn release(&self) {
        self.used.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}
