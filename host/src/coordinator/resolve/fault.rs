//! Faults of a configuration: all of them in one report.

use crate::text::escaped;
use std::borrow::Cow;
use std::fmt;

/// One fault: where it is, what it is and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The flag, variable or file line, and the entry in it: ``cluster of `TF_CONFIG`, `worker:1` ``.
    pub place: String,
    /// What is wrong there, and why.
    pub what: String,
    /// How to mend it; empty where `what` says it.
    pub mend: String,
}

impl Fault {
    /// Makes a fault of its parts: control characters become escapes, so that a report has a line for each fault, and what
    /// is too long is cut.
    pub fn new(place: impl Into<String>, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Fault { place: cut(place.into()), what: cut(what.into()), mend: cut(mend.into()) }
    }
}

/// Longest part of a fault, in bytes before control characters are escaped: it repeats what the user wrote, which may be a
/// whole file.
const PART_BYTES_MAX: usize = 2000;

/// Most faults that are told one by one: more have one reason.
const TOLD_MAX: usize = 50;

fn cut(text: String) -> String {
    let (bytes, end) = (text.len(), text.floor_char_boundary(PART_BYTES_MAX));
    // Cut before it is looked through: there may be as much text as the user likes.
    let part = escaped(&text[..end]);
    match part {
        Cow::Borrowed(_) if end == bytes => text,
        // A new text: the old one's memory goes with it.
        part if end == bytes => part.into_owned(),
        part => format!("{part}... ({bytes} bytes)"),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        if self.mend.is_empty() { Ok(()) } else { write!(f, "; {}", self.mend) }
    }
}

/// Why a configuration is refused: at least one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [fault] = self.0.as_slice() {
            return write!(f, "configuration refused: {fault}");
        }
        write!(f, "configuration refused, {} faults:", self.0.len())?;
        self.0.iter().take(TOLD_MAX).try_for_each(|fault| write!(f, "\n  {fault}"))?;
        match self.0.len().checked_sub(TOLD_MAX) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_line_for_each_fault_whatever_was_written() {
        let text = "a\nb\u{1b}[2J";
        let faults = Faults((0..2).map(|_| Fault::new(text, text, text)).collect());
        let line = r"a\nb\u{1b}[2J: a\nb\u{1b}[2J; a\nb\u{1b}[2J";
        assert_eq!(faults.to_string(), format!("configuration refused, 2 faults:\n  {line}\n  {line}"));
    }

    #[test]
    fn a_report_is_bounded_whatever_was_written() {
        let long = "x".repeat(1 << 20);
        let faults = Faults((0..20_000).map(|_| Fault::new(&long, &long, &long)).collect());
        let text = faults.to_string();
        assert!(text.len() < 500_000, "{} bytes", text.len());
        assert!(text.contains("20000 faults") && text.ends_with("and 19950 more"));
    }
}
