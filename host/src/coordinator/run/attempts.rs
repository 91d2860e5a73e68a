//! Runs that are tried again after a failure: a local one, and those of a split client.

use super::guest::Ended;
use super::stop::Reason;
use super::{Process, Reach};
use crate::context::WorkerContext;
use crate::coordinator::member::SoloJob;
use crate::coordinator::outcome::Outcome;
use crate::exit::Exit;
use crate::runtime::Module;
use std::sync::Arc;
use tracing::{info, warn};

impl Process {
    /// Runs without a cluster: the variables live in this process, and nobody else has them.
    ///
    /// Each attempt has a store and variables of its own, so that nothing of the one before is left.
    ///
    /// # Cancel safety
    /// As [`guest::run`](super::guest::run): the attempt that runs goes on unheard, and none follows.
    pub(super) async fn run_local(&self, module: &Module, context: Arc<WorkerContext>) -> Outcome {
        let attempt = async |number| {
            let reach = Reach {
                overseer: Arc::new(SoloJob::new(context.clone(), number)),
                peers: None,
                local: self.local_variables(&self.store(), None),
                name: "local".to_owned(),
                attempt: number,
            };
            let (ended, dump) = self.run_guest(module, context.clone(), reach).await;
            if let Some(dump) = dump {
                // Its memory has to go before the next attempt has its own.
                dump.finish(&self.stop).await;
            }
            match ended {
                Ended::Run(outcome) => Tried::Ended(outcome),
                Ended::Stopped(_, outcome) => Tried::Over(outcome),
            }
        };
        self.attempts(attempt).await
    }

    /// Makes attempts, counted from 0, until one ends well or none is left.
    ///
    /// They follow each other at once: what would have to recover meanwhile is outside of this process, and has its own
    /// timeouts.
    ///
    /// # Cancel safety
    /// That of `attempt`; none follows.
    pub(super) async fn attempts(&self, mut attempt: impl AsyncFnMut(u32) -> Tried) -> Outcome {
        // Reading refuses 0.
        let attempts_max = self.resolved.attempts_max.max(1);
        let mut number = 0;
        loop {
            let outcome = match attempt(number).await {
                Tried::Ended(outcome) => outcome,
                Tried::Over(outcome) => return within(outcome, number, attempts_max),
            };
            match next(outcome, number, attempts_max, self.stop.now()) {
                Next::End(outcome) => return outcome,
                // A line each: the log escapes newlines.
                Next::Again { warning } => warning.lines().for_each(|line| warn!("{line}")),
            }
            number += 1;
        }
    }
}

/// How an attempt ended.
pub(super) enum Tried {
    /// By itself: a failure may be tried again.
    Ended(Outcome),
    /// No other one follows: the process has to end, or the training has ended well and something beside it has not.
    Over(Outcome),
}

/// How it goes on after an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The process ends so.
    End(Outcome),
    /// Another attempt begins, and this is told.
    Again { warning: String },
}

/// Decides on what follows an attempt (counted from 0) that ended by itself.
fn next(outcome: Outcome, attempt: u32, attempts_max: u32, stop: Option<Reason>) -> Next {
    if outcome.exit == Exit::Done {
        if attempt > 0 {
            info!("attempt {} of {attempts_max} has ended well", attempt + 1);
        }
        return Next::End(outcome);
    }
    if !may_succeed_later(outcome.exit) {
        return Next::End(within(outcome, attempt, attempts_max));
    }
    let number = attempt + 1;
    if number >= attempts_max {
        let note = format!("(after {attempts_max} attempts)");
        return Next::End(if attempts_max > 1 { noted(outcome, &note) } else { outcome });
    }
    let message = outcome.message.unwrap_or_default();
    // The process would end the next attempt at once: it ends for that reason, not for this failure.
    if let Some(reason) = stop {
        let text = format!("{} after attempt {number} of {attempts_max} had failed: {message}", reason.text());
        return Next::End(Outcome::failed(reason.exit(), text));
    }
    let (first, rest) = split_first_line(&message);
    Next::Again { warning: format!("attempt {number} of {attempts_max} failed: {first}; the next one begins{rest}") }
}

/// Whether another attempt may not meet the failure: the guest's own, or that of a task that a client needs.
fn may_succeed_later(exit: Exit) -> bool {
    match exit {
        Exit::WorkerError | Exit::Trap | Exit::Limit | Exit::Unreachable | Exit::PeerFailed => true,
        Exit::Done
        | Exit::Refused
        | Exit::Bug
        | Exit::Files
        | Exit::Timeout
        | Exit::Interrupted
        | Exit::Terminated
        | Exit::Bind => false,
    }
}

/// Tells in which attempt a run ended that is not tried again, where there may be several.
fn within(outcome: Outcome, attempt: u32, attempts_max: u32) -> Outcome {
    if attempts_max == 1 {
        return outcome;
    }
    noted(outcome, &format!("(in attempt {} of {attempts_max})", attempt + 1))
}

/// Adds a note to what happened, before frames and hints.
fn noted(outcome: Outcome, note: &str) -> Outcome {
    let message = outcome.message.map(|message| {
        let (first, rest) = split_first_line(&message);
        format!("{first} {note}{rest}")
    });
    Outcome { message, ..outcome }
}

/// The first line, and the rest with the newline that begins it.
fn split_first_line(text: &str) -> (&str, &str) {
    text.split_at(text.find('\n').unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn failed(exit: Exit) -> Outcome {
        Outcome::failed(exit, "it failed\nframe 1")
    }

    #[test]
    fn failures_of_guests_and_peers_are_tried_again_and_no_others() {
        for exit in (0..=u8::MAX).filter_map(Exit::from_code) {
            let again = matches!(next(failed(exit), 0, 2, None), Next::Again { .. });
            let may = [Exit::WorkerError, Exit::Trap, Exit::Limit, Exit::Unreachable, Exit::PeerFailed].contains(&exit);
            assert_eq!(again, may, "{exit:?}");
        }
    }

    #[test]
    fn a_warning_counts_and_keeps_the_first_line_first() {
        let Next::Again { warning } = next(failed(Exit::Trap), 1, 3, None) else { panic!("it is tried again") };
        assert_eq!(warning, "attempt 2 of 3 failed: it failed; the next one begins\nframe 1");
    }

    #[test]
    fn the_last_failure_says_how_often_it_was_tried() {
        let end = |attempt, attempts_max, exit| match next(failed(exit), attempt, attempts_max, None) {
            Next::End(outcome) => (outcome.exit, outcome.message.expect("a failure")),
            Next::Again { warning } => panic!("{warning}"),
        };
        assert_eq!(end(2, 3, Exit::Limit), (Exit::Limit, "it failed (after 3 attempts)\nframe 1".to_owned()));
        assert_eq!(end(1, 3, Exit::Bug), (Exit::Bug, "it failed (in attempt 2 of 3)\nframe 1".to_owned()));
        assert_eq!(
            end(0, 1, Exit::Trap),
            (Exit::Trap, "it failed\nframe 1".to_owned()),
            "one attempt isn't worth a word"
        );
        assert_eq!(end(0, 1, Exit::Bug).1, "it failed\nframe 1");
    }

    #[test]
    fn nothing_begins_once_the_process_has_to_end() {
        for (reason, exit) in [
            (Reason::Interrupted, Exit::Interrupted),
            (Reason::Terminated, Exit::Terminated),
            (Reason::Timeout(Duration::from_secs(2)), Exit::Timeout),
        ] {
            let Next::End(outcome) = next(failed(Exit::WorkerError), 0, 3, Some(reason)) else { panic!("no end") };
            assert_eq!(outcome.exit, exit);
            assert!(outcome.message.expect("a failure").contains("after attempt 1 of 3 had failed: it failed"));
        }
        let end = next(Outcome::done(), 0, 3, Some(Reason::Interrupted));
        assert_eq!(end, Next::End(Outcome::done()), "what ended well has ended well");
    }
}
