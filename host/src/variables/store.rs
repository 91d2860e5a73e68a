//! All containers of one server.

use super::staging::StagingBudget;
use super::{Container, Ledger, lock};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::{Attempt, Incarnation};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most containers of one server; each is a job or a split client, so that more are a leak.
const CONTAINERS_MAX: usize = 10_000;

/// How many leader incarnations a container remembers as over: one for each restart of the leader.
const RETIRED_MAX: usize = 64;

/// Limits of one server's variables.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `--max-variable-bytes`: most bytes of values over all containers; none: no limit.
    ///
    /// A variable counts with its own size, whoever still reads older blocks of it.
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

#[derive(Debug)]
struct Inner {
    room: Room,
    staging: Arc<StagingBudget>,
    containers: Mutex<HashMap<String, Slot>>,
    ledger: Ledger,
}

/// A container's place: which attempt its present content belongs to.
#[derive(Debug)]
struct Slot {
    container: Container,
    attempt: Option<Attempt>,
    retired: VecDeque<Incarnation>,
}

/// One variable for a status listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariableStatus {
    /// Its container.
    pub container: String,
    /// Its name.
    pub name: String,
    /// Size of its value.
    pub bytes: u64,
    /// Counts applied writes.
    pub version: u64,
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
                let message = format!("server has `{CONTAINERS_MAX}` containers, the most it keeps; delete some");
                return Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["containers"]));
            }
            let container = Container::new(name, self.0.room.clone());
            containers.insert(name.to_owned(), Slot { container, attempt, retired: VecDeque::new() });
        }
        let slot = containers.get_mut(name).expect("inserted above if it was missing");
        slot.enter(attempt, &self.0.room)?;
        Ok(slot.container.clone())
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
        let status = |container: &Container| {
            let of = |(name, bytes, version)| VariableStatus {
                container: container.name().to_owned(),
                name,
                bytes: bytes as u64,
                version,
            };
            container.list().into_iter().map(of).collect::<Vec<_>>()
        };
        let mut statuses: Vec<_> = containers.iter().flat_map(status).collect();
        statuses.sort();
        statuses
    }

    /// Bytes of all values.
    pub fn variable_bytes(&self) -> u64 {
        self.0.room.used.load(Ordering::Relaxed)
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
}

impl Slot {
    /// Lets a caller of `attempt` in; a newer one begins with an empty container.
    fn enter(&mut self, attempt: Option<Attempt>, room: &Room) -> Result<()> {
        let Some(new) = attempt else { return Ok(()) };
        let Some(now) = self.attempt else {
            // What callers without an attempt made belongs to no attempt; it stays, as under TensorFlow.
            self.attempt = Some(new);
            return Ok(());
        };
        if new == now {
            return Ok(());
        }
        let name = self.container.name();
        let aborted = |why: String| Error::new(ErrorCode::Aborted, why);
        if new.leader == now.leader && new.number < now.number {
            return Err(aborted(format!(
                "attempt `{}` is over in container `{name}`, now is `{}`",
                new.number, now.number
            )));
        }
        if self.retired.contains(&new.leader) {
            return Err(aborted(format!(
                "leader `{}` was replaced in container `{name}` by `{}`",
                new.leader, now.leader
            )));
        }
        if new.leader != now.leader {
            self.retired.push_back(now.leader);
            if self.retired.len() > RETIRED_MAX {
                self.retired.pop_front();
            }
        }
        let over = format!("attempt `{}` is over in container `{name}`, `{}` has begun", now.number, new.number);
        let fresh = Container::new(name, room.clone());
        std::mem::replace(&mut self.container, fresh).end(aborted(over));
        self.attempt = Some(new);
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
        let sum = sizes.clone().fold(0, u64::saturating_add);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let next = self.fits(used, sum)?;
            match self.used.compare_exchange_weak(used, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => used = other,
            }
        }
        Ok(sizes.map(|bytes| Charge { used: self.used.clone(), bytes }).collect())
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

/// Room that one variable takes; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
