//! Times over passes, and how they are shown.

use std::fmt::Display;

/// Passes of every part: medians are taken over them.
pub(crate) const PASSES: usize = 7;

/// The times of one thing, in ns: one median for each pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    /// Adds the samples of a pass.
    pub(crate) fn pass(&mut self, samples: &[u128]) {
        let mut samples: Vec<f64> = samples.iter().map(|&ns| ns as f64).collect();
        self.0.push(middle(&mut samples));
    }

    /// The median pass.
    pub(crate) fn median(&self) -> f64 {
        middle(&mut self.0.clone())
    }

    /// The fastest pass: what the machine can do when nobody else has it.
    pub(crate) fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How much longer this takes than `other`: medians and bests, `1.21 [1.18]`.
    pub(crate) fn ratio(&self, other: &Series) -> String {
        format!("{:.2} [{:.2}]", self.median() / other.median(), self.best() / other.best())
    }

    /// How fast this is in comparison to `other`, which moves the same bytes: `0.83 [0.91]`.
    pub(crate) fn speed(&self, other: &Series) -> String {
        other.ratio(self)
    }

    /// Median and best in ns.
    pub(crate) fn ns(&self) -> String {
        format!("{:.1} [{:.1}]", self.median(), self.best())
    }

    /// Median and best in µs.
    pub(crate) fn us(&self) -> String {
        format!("{:.2} [{:.2}]", self.median() / 1e3, self.best() / 1e3)
    }

    /// Median and best in ms.
    pub(crate) fn ms(&self) -> String {
        format!("{:.2} [{:.2}]", self.median() / 1e6, self.best() / 1e6)
    }

    /// Median and best in GB/s.
    pub(crate) fn gb(&self, bytes: usize) -> String {
        format!("{:.2} [{:.2}]", bytes as f64 / self.median(), bytes as f64 / self.best())
    }
}

fn middle(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the head of a table in Markdown.
pub(crate) fn head(columns: &[&str]) {
    println!("| {} |", columns.join(" | "));
    println!("|{}", " --- |".repeat(columns.len()));
}

/// Prints a row of it.
pub(crate) fn row(cells: &[&dyn Display]) {
    let cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
    println!("| {} |", cells.join(" | "));
}
