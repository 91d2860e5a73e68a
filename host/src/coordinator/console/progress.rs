//! Progress of one task: how often it is shown, and in which form.

use super::event::Event;
use super::screen::{ProgressMode, Screen, Stream};
use super::{LineFormat, line};
use crate::cluster::Task;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps in all; none where nobody knows.
    pub total: Option<u64>,
    /// What the run says about it.
    pub note: String,
}

impl Progress {
    /// Whether nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.done >= total)
    }
}

/// Shortest time between two lines of progress where there is no terminal: enough to see life, little enough to read.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two redraws of a bar, or two events: what an eye can follow.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the progress of one task on a screen, at a bounded rate, in the screen's form.
pub struct ProgressView {
    screen: Screen,
    name: String,
    /// The run's task, where its process has several.
    run: Option<Task>,
    prefix: String,
    format: LineFormat,
    throttle: Mutex<Throttle>,
}

impl ProgressView {
    /// Makes the view of the task `name` (empty in a local run); `prefix` stands before its lines.
    pub fn new(screen: Screen, name: String, prefix: String, format: LineFormat) -> Self {
        ProgressView { screen, name, run: None, prefix, format, throttle: Mutex::new(Throttle::default()) }
    }

    /// Makes the view of one of several runs of a process, whose lines carry its task.
    pub fn of_run(screen: Screen, task: Task, prefix: String, format: LineFormat) -> Self {
        ProgressView { run: Some(task), ..ProgressView::new(screen, task.to_string(), prefix, format) }
    }

    /// Shows `progress`, unless the one before was shown a moment ago. The complete one is always shown, once.
    pub fn show(&self, progress: &Progress) {
        let mode = self.screen.progress_mode();
        let interval = if mode == ProgressMode::Lines { LINE_INTERVAL } else { REDRAW_INTERVAL };
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        if !throttle.admit(Instant::now(), interval, progress.is_complete()) {
            return;
        }
        drop(throttle);
        match mode {
            ProgressMode::Bars => self.screen.bar(&self.name, progress.clone()),
            ProgressMode::Events => {
                self.screen.line(Stream::Stderr, Event::Progress(self.run, progress.clone()).encode())
            }
            ProgressMode::Lines => self.screen.line(Stream::Stderr, self.as_line(progress).into_bytes()),
        }
    }

    fn as_line(&self, Progress { done, total, note }: &Progress) -> String {
        if self.format == LineFormat::Json {
            return line::json_progress(&self.name, *done, *total, note);
        }
        let total = total.map(|total| format!("/{total}")).unwrap_or_default();
        format!("{}progress {done}{total} {note}", self.prefix).trim_end().to_owned()
    }
}

#[derive(Debug, Default)]
struct Throttle {
    shown: Option<Instant>,
    complete: bool,
}

impl Throttle {
    fn admit(&mut self, now: Instant, interval: Duration, complete: bool) -> bool {
        let due = self.shown.is_none_or(|shown| now.duration_since(shown) >= interval);
        if !due && (!complete || self.complete) {
            return false;
        }
        self.shown = Some(now);
        self.complete = complete;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_at_a_bounded_rate_and_its_completion_once() {
        let start = Instant::now();
        let mut throttle = Throttle::default();
        let mut admit =
            |millis, complete| throttle.admit(start + Duration::from_millis(millis), Duration::from_secs(5), complete);
        assert!(admit(0, false), "the first is shown at once");
        assert!(!admit(4999, false));
        assert!(admit(5000, false));
        assert!(admit(5001, true), "completion does not wait");
        assert!(!admit(5002, true), "but is not repeated at once");
        assert!(admit(10_001, true));
    }
}
