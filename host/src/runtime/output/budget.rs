//! How much a run may print: in all, and in each second; and what becomes of the rest.
//!
//! A line is shown if both budgets have room for it. The others are held back: the last of them, a page or two, are shown at
//! the end, since what a guest says last explains most; older ones are dropped and counted.

use super::super::limits::mib;
use crate::handles::Origin;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The rate is measured over this long: a guest that was silent so long may print as much at once.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Bytes of dropped lines that are kept for the end, at most: a page or two of a terminal, or a traceback.
const TAIL_BYTES_MAX: u64 = 64 << 10;

/// Lines of it, at most: empty ones count too.
const TAIL_LINES_MAX: usize = 1000;

/// Which budget had no room for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// `-W max-output`.
    Total,
    /// `-W max-output-rate`.
    Rate,
}

impl Over {
    const ALL: [Over; 2] = [Over::Total, Over::Rate];
}

/// A line that waits for the end.
#[derive(Debug)]
struct Kept {
    over: Over,
    origin: Origin,
    bytes: u64,
    text: String,
}

/// The budgets of one run, and what they have dropped.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    bytes_per_second_max: u64,
    /// Of the total, what the tail may take at the end.
    tail_bytes_max: u64,
    /// Shown so far.
    bytes: u64,
    /// Bytes that may be shown at once now, at most those of one window.
    tokens: u64,
    /// When `tokens` was last brought up to date.
    filled_at: Instant,
    dropped_bytes: [u64; 2],
    tail: VecDeque<Kept>,
    tail_bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes_max: u64, bytes_per_second_max: u64, now: Instant) -> Self {
        Budget {
            bytes_max,
            bytes_per_second_max,
            // A small budget is for the beginning rather than for the end.
            tail_bytes_max: TAIL_BYTES_MAX.min(bytes_max / 2),
            bytes: 0,
            tokens: bytes_per_second_max,
            filled_at: now,
            dropped_bytes: [0; 2],
            tail: VecDeque::new(),
            tail_bytes: 0,
        }
    }

    /// Counts a line of `bytes`; says which budget has no room for it.
    pub(super) fn charge(&mut self, bytes: u64, now: Instant) -> Result<(), Over> {
        // Once passed, the total stays so: no later, shorter line slips through.
        if self.dropped_bytes[Over::Total as usize] > 0 || self.bytes.saturating_add(bytes) > self.head_bytes_max() {
            return Err(Over::Total);
        }
        self.refill(now);
        if bytes > self.tokens {
            return Err(Over::Rate);
        }
        self.tokens -= bytes;
        self.bytes += bytes;
        // Lines were shown after those that were kept: they aren't the last any more.
        self.tail.clear();
        self.tail_bytes = 0;
        Ok(())
    }

    /// Takes a line that was refused; says what to tell if it is the first of its kind.
    pub(super) fn keep(&mut self, over: Over, origin: Origin, bytes: u64, text: &str) -> Option<String> {
        let first = self.dropped_bytes[over as usize] == 0;
        self.dropped_bytes[over as usize] += bytes;
        if bytes <= self.tail_bytes_max {
            self.tail_bytes += bytes;
            self.tail.push_back(Kept { over, origin, bytes, text: text.to_owned() });
        } else {
            // Too large to keep, and newer than all that is kept.
            self.tail.clear();
            self.tail_bytes = 0;
        }
        while self.tail_bytes > self.tail_bytes_max || self.tail.len() > TAIL_LINES_MAX {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.tail_bytes -= oldest.bytes;
        }
        // Held back rather than dropped: where it isn't more than the tail, all of it is shown in the end.
        first.then(|| match over {
            Over::Total => format!(
                "[dchost holds further output back: {} are nearly used up (-W max-output); the last lines are shown at the end]",
                mib(self.bytes_max)
            ),
            Over::Rate => format!(
                "[dchost holds output back: it is above {} in a second (-W max-output-rate)]",
                mib(self.bytes_per_second_max)
            ),
        })
    }

    /// The end: what is to be told of dropped bytes, each kind once, and the last lines. A second call finds nothing.
    pub(super) fn finish(&mut self) -> (Vec<String>, Vec<(Origin, String)>) {
        let mut dropped = std::mem::take(&mut self.dropped_bytes);
        self.tail_bytes = 0;
        let mut tail = Vec::new();
        for kept in self.tail.drain(..) {
            dropped[kept.over as usize] -= kept.bytes;
            tail.push((kept.origin, kept.text));
        }
        let notices = Over::ALL.into_iter().filter(|&over| dropped[over as usize] > 0).map(|over| {
            let (bytes, what) = (
                dropped[over as usize],
                match over {
                    Over::Total => format!("output above {} (-W max-output)", mib(self.bytes_max)),
                    Over::Rate => {
                        format!("output above {} in a second (-W max-output-rate)", mib(self.bytes_per_second_max))
                    }
                },
            );
            let follow = if tail.is_empty() { "" } else { "; the last lines follow" };
            format!("[dchost dropped {bytes} bytes of {what}{follow}]")
        });
        (notices.collect(), tail)
    }

    /// Of the total, what may be shown before the end.
    fn head_bytes_max(&self) -> u64 {
        self.bytes_max - self.tail_bytes_max
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled_at);
        if elapsed >= RATE_WINDOW {
            (self.tokens, self.filled_at) = (self.bytes_per_second_max, now);
            return;
        }
        // Below a second, so the product fits.
        let new = u128::from(self.bytes_per_second_max) * elapsed.as_nanos() / RATE_WINDOW.as_nanos();
        let new = u64::try_from(new).unwrap_or(u64::MAX);
        // Time that wasn't enough for another byte goes on counting. The rate isn't 0 where any byte is new.
        if new > 0 {
            let spent = u128::from(new) * RATE_WINDOW.as_nanos() / u128::from(self.bytes_per_second_max);
            self.filled_at += Duration::from_nanos(u64::try_from(spent).unwrap_or(u64::MAX));
            self.tokens = self.tokens.saturating_add(new).min(self.bytes_per_second_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::Origin::Stdout;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_a_bucket_of_one_second() {
        let mut budget = Budget::new(1 << 20, 100, Instant::now());
        assert_eq!(budget.charge(60, Instant::now()), Ok(()));
        assert_eq!(budget.charge(60, Instant::now()), Err(Over::Rate));
        assert!(budget.keep(Over::Rate, Stdout, 60, "a").is_some(), "the first is told");
        assert!(budget.keep(Over::Rate, Stdout, 60, "b").is_none(), "and no other");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(budget.charge(51, Instant::now()), Err(Over::Rate));
        assert_eq!(budget.charge(50, Instant::now()), Ok(()));
        // No more is saved up than one second's.
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(budget.charge(100, Instant::now()), Ok(()));
        assert_eq!(budget.charge(1, Instant::now()), Err(Over::Rate));
        // What was kept isn't the end any more: all of it was dropped.
        let (notices, tail) = budget.finish();
        assert_eq!(notices, ["[dchost dropped 120 bytes of output above 100 bytes in a second (-W max-output-rate)]"]);
        assert_eq!(tail, []);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_a_nanosecond_at_a_time_fills_the_bucket_too() {
        let mut budget = Budget::new(1 << 20, 100, Instant::now());
        assert_eq!(budget.charge(100, Instant::now()), Ok(()));
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(3)).await;
            let _ = budget.charge(100, Instant::now());
        }
        assert_eq!(budget.charge(3, Instant::now()), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_lines_are_kept_within_the_total() {
        let mut budget = Budget::new(100, 1 << 20, Instant::now());
        let mut told = 0;
        for line in 0..100 {
            if let Err(over) = budget.charge(10, Instant::now()) {
                assert_eq!(over, Over::Total);
                told += u32::from(budget.keep(over, Stdout, 10, &format!("line {line}")).is_some());
            }
        }
        assert_eq!((budget.bytes, told), (50, 1));
        let (notices, tail) = budget.finish();
        assert_eq!(
            notices,
            ["[dchost dropped 900 bytes of output above 100 bytes (-W max-output); the last lines follow]"]
        );
        let lines: Vec<_> = tail.into_iter().map(|(_, text)| text).collect();
        assert_eq!(lines, ["line 95", "line 96", "line 97", "line 98", "line 99"]);
        assert_eq!(budget.finish().0, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn empty_lines_take_no_memory_without_end() {
        let mut budget = Budget::new(1 << 40, 1, Instant::now());
        for _ in 0..10_000 {
            budget.keep(Over::Rate, Stdout, 1, "");
        }
        assert_eq!(budget.tail.len(), TAIL_LINES_MAX);
    }
}
