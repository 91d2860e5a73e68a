//! `dchost:worker/summary`: scalars and progress.

use super::bindings::wit::summary;
use super::state::State;
use crate::text::{escaped, truncated};
use std::collections::HashSet;

/// Longest tag of a scalar, in bytes; tags become names in files and dashboards.
const TAG_BYTES_MAX: usize = 256;

/// Different tags of one run: each is kept, so a guest must not make them without end.
const TAGS_MAX: usize = 10_000;

/// Longest note of a progress report, in bytes; it shares one line of a terminal.
const NOTE_BYTES_MAX: usize = 256;

/// The tags that a run has used.
#[derive(Debug, Default)]
pub(super) struct Tags {
    seen: HashSet<String>,
    warned: bool,
}

impl Tags {
    /// Whether a scalar of `tag` is kept: a new one is, while there is room.
    fn admit(&mut self, tag: &str) -> bool {
        if self.seen.contains(tag) {
            return true;
        }
        if self.seen.len() < TAGS_MAX {
            self.seen.insert(tag.to_owned());
            return true;
        }
        if !self.warned {
            self.warned = true;
            tracing::warn!("more than {TAGS_MAX} scalar tags, dropping scalars of further ones, the first is `{tag}`");
        }
        false
    }
}

impl summary::Host for State {
    async fn scalar(&mut self, tag: String, step: u64, value: f64) -> wasmtime::Result<()> {
        let tag = escaped(truncated(&tag, TAG_BYTES_MAX)).into_owned();
        if self.tags.admit(&tag) {
            self.handles.summary.scalar(&tag, step, value);
        }
        Ok(())
    }

    async fn progress(&mut self, done: u64, total: Option<u64>, note: String) -> wasmtime::Result<()> {
        self.handles.console.progress(done, total, &escaped(truncated(&note, NOTE_BYTES_MAX)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded_and_known_ones_stay_admitted() {
        let mut tags = Tags::default();
        assert!((0..TAGS_MAX).all(|index| tags.admit(&format!("tag-{index}"))));
        assert!(!tags.admit("one-more"));
        assert!(tags.admit("tag-0"));
    }
}
