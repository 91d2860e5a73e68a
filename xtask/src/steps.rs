//! Named steps with their times, and the table of them at the end.

use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// How a step ended.
struct Row {
    name: &'static str,
    took: Duration,
    note: String,
}

/// The steps done so far.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
}

impl Steps {
    /// Shows the step's heading, does it, and keeps its time and what it returned as a note.
    ///
    /// # Errors
    /// The step's, with its name.
    pub(crate) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<String>) -> Result<()> {
        println!("\n=== {name}");
        let start = Instant::now();
        let note = work().with_context(|| format!("step `{name}` failed after {}", seconds(start.elapsed())))?;
        let took = start.elapsed();
        println!("=== {name}: {}", seconds(took));
        self.rows.push(Row { name, took, note });
        Ok(())
    }

    /// Prints all steps with their times and notes.
    pub(crate) fn summary(&self) {
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        println!();
        for row in &self.rows {
            println!("{:<16} {:>9}  {}", row.name, seconds(row.took), row.note);
        }
        println!("{:<16} {:>9}", "total", seconds(total));
    }
}

/// A duration in seconds, to a tenth.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
