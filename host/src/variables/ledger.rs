//! Writes are applied once, however often they are retried.

use super::{Blocks, RelaxedWrite, Snapshot, lock};
use crate::error::{Error, ErrorCode, Result};
use crate::ids::RunId;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Answers remembered for each run: well above the calls that a run can have in flight (256), so that a retry always
/// finds its own.
const ANSWERS_MAX: usize = 1024;

/// Bytes of answers remembered for each run.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Bytes of answers remembered over all runs: a thousand tasks keep the answers to all the calls that they can have in flight,
/// 256, at 1 KiB each.
const ALL_ANSWER_BYTES_MAX: usize = 256 << 20;

/// What an answer takes beside what it holds: its place in the map and its allocations.
const ANSWER_ENTRY_BYTES: usize = 128;

/// Returned values up to this many bytes are remembered with their answer. The replay of a larger one reads the present values
/// instead: it has the write in it, and maybe later ones, as its version says.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// Sequences that were passed over and may still arrive, for each run.
const GAPS_MAX: usize = 4096;

/// Relaxed writes of one run that broke half-way and wait for their retries: as many as a run can have in flight (`-W max-ops`).
const BROKEN_MAX: usize = 256;

/// Runs remembered; a run is forgotten when its session ends, so that more are late calls of ended ones, or a leak.
const RUNS_MAX: usize = 4096;

/// What a write answered.
#[derive(Clone, Debug)]
pub struct Remembered {
    /// The versions that the write made.
    pub versions: Vec<u64>,
    /// The values it returned; none where none were wanted or they were too large to keep.
    pub values: Option<Vec<Blocks>>,
}

impl Remembered {
    /// Keeps an answer, with its values where they are wanted and small.
    pub fn of(snapshots: &[Snapshot], want_values: bool) -> Self {
        let small = snapshots.iter().map(|snapshot| snapshot.blocks.len()).sum::<usize>() <= VALUE_BYTES_MAX;
        // The blocks are shared with the variable until its next write, which then copies no more than they hold.
        let values = (want_values && small).then(|| snapshots.iter().map(|snapshot| snapshot.blocks.clone()).collect());
        Remembered { versions: snapshots.iter().map(|snapshot| snapshot.version).collect(), values }
    }

    fn bytes(&self) -> usize {
        let values = self.values.iter().flatten().map(|blocks| blocks.len() + 64).sum::<usize>();
        self.versions.len() * 8 + values
    }
}

/// What an answer takes, a failed one too: its error may name many variables.
fn answer_bytes(answer: &Result<Remembered>) -> usize {
    let held = match answer {
        Ok(remembered) => remembered.bytes(),
        Err(Error { code: _, message, tasks, names, stored }) => {
            let maps = stored.iter().map(|stored| stored.name.len() + size_of_val(stored));
            maps.sum::<usize>()
                + message.len()
                + size_of_val(&**tasks)
                + names.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>()
        }
    };
    ANSWER_ENTRY_BYTES + held
}

/// What was applied, for each run and sequence.
///
/// | the entry is | a first call | a repeated call |
/// | --- | --- | --- |
/// | absent | gets a [`Ticket`] | |
/// | receiving | | takes over; the call before loses its ticket, since its caller has given it up |
/// | applying | | waits, then gets the answer |
/// | broken: a relaxed write that was begun | | goes on where it was |
/// | answered | | gets the answer |
/// | forgotten | | `aborted` |
#[derive(Debug, Default)]
pub struct Ledger(Arc<Mutex<Runs>>);

#[derive(Debug, Default)]
struct Runs {
    runs: HashMap<RunId, Run>,
    order: VecDeque<RunId>,
    /// The sum over all runs.
    answer_bytes: usize,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct Run {
    entries: BTreeMap<u64, Entry>,
    /// Entries that are answered; the others are in flight.
    answers: usize,
    answer_bytes: usize,
    /// The greatest sequence whose answer was forgotten.
    floor: u64,
    /// Sequences below the floor that never came.
    gaps: BTreeSet<u64>,
}

#[derive(Debug)]
enum Entry {
    /// The value is on its way under this ticket; dropping the sender tells its holder that it lost.
    Receiving {
        ticket: u64,
        _held: watch::Sender<()>,
        begun: Option<Begun>,
    },
    /// A relaxed write whose stream broke.
    Broken(Begun),
    /// The write is being applied; dropping the sender wakes those who wait for the answer.
    Applying(watch::Sender<()>),
    Answered(Result<Remembered>),
}

impl Entry {
    fn is_receiving(&self, ticket: u64) -> bool {
        matches!(self, Entry::Receiving { ticket: holder, .. } if *holder == ticket)
    }
}

/// A relaxed write that may be applied in part.
#[derive(Clone, Debug)]
struct Begun {
    write: Arc<RelaxedWrite>,
    /// No retry can come once it is cancelled.
    session: CancellationToken,
}

/// How a write begins.
#[derive(Debug)]
pub enum Begin {
    /// It was never applied: go on.
    Fresh(Ticket),
    /// It was answered already, like this.
    Replay(Result<Remembered>),
}

/// The right to apply a write. Dropping it gives the write up as if it had never come.
#[derive(Debug)]
pub struct Ticket {
    place: Place,
    ticket: u64,
    lost: watch::Receiver<()>,
}

/// A write that is being applied: answer it with [`Applying::finish`]. Dropping it gives the write up.
#[derive(Debug)]
pub struct Applying {
    place: Place,
    done: bool,
}

#[derive(Clone, Debug)]
struct Place {
    runs: Arc<Mutex<Runs>>,
    run: RunId,
    sequence: u64,
}

impl Ledger {
    /// Begins a write; waits while the same one is being applied.
    ///
    /// # Errors
    /// `invalid-argument`: the sequence is 0; `aborted`: so many later writes were answered that this one's answer is forgotten;
    /// `resource-exhausted`: so many runs have writes in flight.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn begin(&self, run: RunId, sequence: u64) -> Result<Begin> {
        if sequence == 0 {
            return Err(Error::new(ErrorCode::InvalidArgument, "sequence of a write is `0`; count writes from 1"));
        }
        let place = Place { runs: self.0.clone(), run, sequence };
        loop {
            let mut applied = match lock(&self.0).begin(&place)? {
                Found::Begin(begin) => return Ok(begin),
                Found::Wait(applied) => applied,
            };
            // Only the end of the sender matters; nothing is ever sent.
            while applied.changed().await.is_ok() {}
        }
    }

    /// Forgets a run: its session has ended, so that no retry can come. Relaxed writes that it left half-way are given up.
    pub fn forget(&self, run: RunId) {
        let mut runs = lock(&self.0);
        let forgotten = runs.remove(run);
        runs.order.retain(|&other| other != run);
        drop(runs);
        drop(forgotten);
    }
}

enum Found {
    Begin(Begin),
    Wait(watch::Receiver<()>),
}

impl Runs {
    fn begin(&mut self, place: &Place) -> Result<Found> {
        if !self.runs.contains_key(&place.run) {
            if self.order.len() >= RUNS_MAX {
                self.make_room()?;
            }
            self.order.push_back(place.run);
        }
        let run = self.runs.entry(place.run).or_default();
        let mut begun = None;
        match run.entries.get_mut(&place.sequence) {
            Some(Entry::Answered(answer)) => return Ok(Found::Begin(Begin::Replay(answer.clone()))),
            Some(Entry::Applying(sender)) => return Ok(Found::Wait(sender.subscribe())),
            Some(Entry::Receiving { begun: earlier, .. }) => begun = earlier.take(),
            Some(Entry::Broken(earlier)) => begun = Some(earlier.clone()),
            None if place.sequence <= run.floor && !run.gaps.remove(&place.sequence) => {
                let (sequence, id) = (place.sequence, place.run);
                let message = format!(
                    "write `{sequence}` of run `{id}` is older than the writes that are remembered, `{ANSWERS_MAX}` at most; \
                     whether it was applied is not known"
                );
                return Err(Error::new(ErrorCode::Aborted, message));
            }
            None => {}
        }
        self.next_ticket += 1;
        let (sender, lost) = watch::channel(());
        run.entries.insert(place.sequence, Entry::Receiving { ticket: self.next_ticket, _held: sender, begun });
        Ok(Found::Begin(Begin::Fresh(Ticket { place: place.clone(), ticket: self.next_ticket, lost })))
    }
}

impl Runs {
    fn entry(&mut self, place: &Place) -> Option<&mut Entry> {
        self.runs.get_mut(&place.run)?.entries.get_mut(&place.sequence)
    }

    /// Forgets the oldest run that has no write in flight: a write that is forgotten while it is applied would be applied
    /// again by its retry.
    fn make_room(&mut self) -> Result<()> {
        let idle = |run: &RunId| self.runs.get(run).is_none_or(|run| run.entries.len() == run.answers);
        let Some(oldest) = self.order.iter().position(idle) else {
            let message = format!("`{RUNS_MAX}` runs have writes in flight, the most that a server takes; try again");
            return Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["runs"]));
        };
        if let Some(run) = self.order.remove(oldest) {
            drop(self.remove(run));
        }
        Ok(())
    }

    fn remove(&mut self, run: RunId) -> Option<Run> {
        let run = self.runs.remove(&run)?;
        self.answer_bytes -= run.answer_bytes;
        Some(run)
    }

    /// Remembers an answer, and forgets old ones where they are too many: first of its own run, then, where all together hold
    /// too much, of those that hold most. A write whose answer is forgotten is refused when it is repeated, never applied again.
    fn remember(&mut self, place: &Place, answer: Result<Remembered>) {
        let Some(run) = self.runs.get_mut(&place.run) else { return };
        let before = run.answer_bytes;
        run.answers += 1;
        run.answer_bytes += answer_bytes(&answer);
        run.entries.insert(place.sequence, Entry::Answered(answer));
        run.trim();
        self.answer_bytes = self.answer_bytes - before + run.answer_bytes;
        while self.answer_bytes > ALL_ANSWER_BYTES_MAX {
            let largest = self.runs.values_mut().max_by_key(|run| run.answer_bytes);
            let forgotten = largest.map_or(0, Run::forget_oldest);
            if forgotten == 0 {
                return;
            }
            self.answer_bytes -= forgotten;
        }
    }
}

impl Run {
    /// Keeps a relaxed write for its retry; answers with one to be given up where too many wait.
    fn keep(&mut self, sequence: u64, begun: Begun) -> Option<(u64, Begun)> {
        self.entries.insert(sequence, Entry::Broken(begun));
        let broken = |(&sequence, entry): (&u64, &Entry)| match entry {
            Entry::Broken(begun) => Some((sequence, begun.clone())),
            _ => None,
        };
        let oldest = self.entries.iter().find_map(broken);
        oldest.filter(|_| self.entries.values().filter(|entry| matches!(entry, Entry::Broken(_))).count() > BROKEN_MAX)
    }

    fn give_up(&mut self, sequence: u64) {
        self.entries.remove(&sequence);
        if sequence <= self.floor {
            self.gaps.insert(sequence);
        }
    }

    /// Forgets the oldest answers that are too many.
    fn trim(&mut self) {
        while self.answers > ANSWERS_MAX || (self.answer_bytes > ANSWER_BYTES_MAX && self.answers > 1) {
            if self.forget_oldest() == 0 {
                return;
            }
        }
    }

    /// Forgets the oldest answer; returns what it took, 0 where there is none.
    fn forget_oldest(&mut self) -> usize {
        let oldest = self.entries.iter().find_map(|(&sequence, entry)| match entry {
            Entry::Answered(answer) => Some((sequence, answer_bytes(answer))),
            _ => None,
        });
        let Some((oldest, bytes)) = oldest else { return 0 };
        self.entries.remove(&oldest);
        self.answers -= 1;
        self.answer_bytes -= bytes;
        // A gap wider than what is kept is nobody's retry; the newest ones are kept.
        let from = (self.floor + 1).max(oldest.saturating_sub(GAPS_MAX as u64));
        self.gaps.extend((from..oldest).filter(|sequence| !self.entries.contains_key(sequence)));
        while self.gaps.len() > GAPS_MAX {
            self.gaps.pop_first();
        }
        self.floor = self.floor.max(oldest);
        bytes
    }
}

impl Ticket {
    /// Waits until a retry has taken the write over.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn lost(&mut self) {
        while self.lost.changed().await.is_ok() {}
    }

    /// Orders the tries of a write: a later one has a greater number.
    pub fn number(&self) -> u64 {
        self.ticket
    }

    /// The relaxed write that an earlier try has begun.
    pub fn begun(&self) -> Option<Arc<RelaxedWrite>> {
        match lock(&self.place.runs).entry(&self.place)? {
            Entry::Receiving { ticket, begun, .. } if *ticket == self.ticket => Some(begun.as_ref()?.write.clone()),
            _ => None,
        }
    }

    /// Remembers a relaxed write, before its first piece is applied: where this ticket is dropped, the write waits for a retry as
    /// long as the session lasts.
    ///
    /// # Errors
    /// `aborted`: a retry has taken the write over.
    pub fn keep(&self, write: Arc<RelaxedWrite>, session: CancellationToken) -> Result<()> {
        match lock(&self.place.runs).entry(&self.place) {
            Some(Entry::Receiving { ticket, begun, .. }) if *ticket == self.ticket => {
                *begun = Some(Begun { write, session });
                Ok(())
            }
            _ => Err(self.taken_over()),
        }
    }

    fn taken_over(&self) -> Error {
        Error::new(ErrorCode::Aborted, format!("write `{}` was taken over by its retry", self.place.sequence))
    }

    /// Goes on to apply the write, whose value has arrived; a relaxed one, to answer it.
    ///
    /// # Errors
    /// `aborted`: a retry has taken the write over.
    pub fn apply(self) -> Result<Applying> {
        let place = self.place.clone();
        let mut runs = lock(&place.runs);
        match runs.entry(&place) {
            Some(entry) if entry.is_receiving(self.ticket) => {
                *entry = Entry::Applying(watch::channel(()).0);
                drop(runs);
                Ok(Applying { place, done: false })
            }
            _ => Err(self.taken_over()),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut runs = lock(&self.place.runs);
        let begun = match runs.entry(&self.place) {
            Some(Entry::Receiving { ticket, begun, .. }) if *ticket == self.ticket => begun.take(),
            _ => return,
        };
        // The session is cancelled before the run is forgotten, so that nothing is kept that nobody would find.
        let (sequence, over) = (self.place.sequence, begun.as_ref().is_some_and(|begun| begun.session.is_cancelled()));
        let Some(run) = runs.runs.get_mut(&self.place.run) else { return };
        let given_up = match begun {
            Some(begun) if !over => run.keep(sequence, begun),
            begun => {
                run.give_up(sequence);
                drop(runs);
                return drop(begun);
            }
        };
        if let Some((sequence, _)) = &given_up {
            let message = "too many relaxed writes broke half-way: this one, the oldest, was given up";
            let place = Place { sequence: *sequence, ..self.place.clone() };
            runs.remember(&place, Err(Error::new(ErrorCode::Aborted, message)));
        }
        // Its drop takes other locks.
        drop(runs);
        drop(given_up);
    }
}

impl Applying {
    /// Remembers the answer, a failure too, and wakes those who wait for it.
    pub fn finish(mut self, answer: Result<Remembered>) {
        self.done = true;
        lock(&self.place.runs).remember(&self.place, answer);
    }
}

impl Drop for Applying {
    fn drop(&mut self) {
        if !self.done
            && let Some(run) = lock(&self.place.runs).runs.get_mut(&self.place.run)
        {
            run.give_up(self.place.sequence);
        }
    }
}

#[cfg(test)]
mod tests;
