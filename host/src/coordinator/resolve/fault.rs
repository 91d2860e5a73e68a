//! Faults of a configuration: all of them in one report.

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
    /// Makes a fault of its parts.
    pub fn new(place: impl Into<String>, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Fault { place: place.into(), what: what.into(), mend: mend.into() }
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
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Faults {}
