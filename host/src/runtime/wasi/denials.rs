//! What was refused to a guest, told once: a guest gets an ordinary error, and the operator one line that names the flag.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Lines of one run, at most: a guest that scans ports must not fill the log.
const DENIALS_MAX: usize = 32;

/// Denials of one run.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    told: Mutex<BTreeSet<String>>,
}

impl Denials {
    /// Writes a warning to the log, unless it or too many others were written before.
    pub(super) fn tell(&self, line: String) {
        if let Some(line) = self.first(line) {
            tracing::warn!("{line}");
        }
    }

    /// As [`tell`](Self::tell), for what may well be harmless.
    pub(super) fn mention(&self, line: String) {
        if let Some(line) = self.first(line) {
            tracing::info!("{line}");
        }
    }

    /// The line to write, if one is to be written.
    fn first(&self, line: String) -> Option<String> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() > DENIALS_MAX || told.contains(&line) {
            return None;
        }
        told.insert(line.clone());
        if told.len() > DENIALS_MAX {
            return Some(format!("the guest was refused more than {DENIALS_MAX} things, further ones are not logged"));
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_told_once() {
        let denials = Denials::default();
        assert_eq!(denials.first("a".to_owned()).as_deref(), Some("a"));
        assert_eq!(denials.first("a".to_owned()), None);
        assert_eq!(denials.first("b".to_owned()).as_deref(), Some("b"));
    }

    #[test]
    fn a_flood_of_denials_ends_with_a_line_that_says_so() {
        let denials = Denials::default();
        let lines: Vec<_> = (0..1000).filter_map(|port| denials.first(format!("port {port}"))).collect();
        assert_eq!(lines.len(), DENIALS_MAX + 1);
        assert_eq!(lines[DENIALS_MAX - 1], format!("port {}", DENIALS_MAX - 1));
        assert!(lines[DENIALS_MAX].contains("further ones are not logged"), "{}", lines[DENIALS_MAX]);
        assert_eq!(denials.told.lock().unwrap().len(), DENIALS_MAX + 1);
    }
}
