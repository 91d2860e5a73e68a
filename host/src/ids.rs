//! Identities that tell one life of a process, one run and one attempt from the next; and what a name may be.

mod gate;

pub use gate::{AttemptGate, AttemptOrder};

use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::text::shown;
use rand::Rng;
use std::fmt;

/// Longest name that a guest gives to a variable or barrier, in bytes: long enough for nested scopes, short enough to be kept
/// on servers and listed in errors.
pub const NAME_BYTES_MAX: usize = 256;

/// Checks a name that a guest gave; `of` says what it names: `variable`, `barrier`.
///
/// # Errors
/// `invalid-argument` (gRPC `INVALID_ARGUMENT`): an empty name, one above [`NAME_BYTES_MAX`] or with control characters.
pub fn check_name(of: &str, name: &str) -> Result<()> {
    let invalid = |message| Err(Error::new(ErrorCode::InvalidArgument, message));
    let of = if of.starts_with(['a', 'e', 'i', 'o']) { format!("an {of}") } else { format!("a {of}") };
    if name.is_empty() {
        return invalid(format!("the name of {of} is empty; give it one"));
    }
    if name.len() > NAME_BYTES_MAX {
        let (bytes, start) = (name.len(), shown(&name[..name.floor_char_boundary(32)]));
        return invalid(format!(
            "the name `{start}...` of {of} has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed"
        ));
    }
    if name.contains(char::is_control) {
        return invalid(format!("the name `{}` of {of} has control characters, leave them out", shown(name)));
    }
    Ok(())
}

/// Random 64-bit number drawn when a process starts: a restarted task is a different one. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Draws an incarnation.
    pub fn draw(rng: &mut impl Rng) -> Self {
        Incarnation(rng.random_range(1..=u64::MAX))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Random 64-bit number of one start of `worker_fn`. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

impl RunId {
    /// Draws a run id.
    pub fn draw(rng: &mut impl Rng) -> Self {
        RunId(rng.random_range(1..=u64::MAX))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The job's numbered try. Numbers are compared only within one leader incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The incarnation of the leader that owns the attempt.
    pub leader: Incarnation,
    /// Counts from 0.
    pub number: u32,
}

/// Who makes a call: the identity that stands in every request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Namespace of variables and barriers.
    pub container: String,
    /// The caller's task; none for a split client itself, or a tool.
    pub task: Option<Task>,
    /// The caller's run.
    pub run_id: RunId,
    /// The attempt that the caller is in; none before it knows one (a job without a leader, a tool).
    pub attempt: Option<Attempt>,
}

/// How a split client uses its container on the servers that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientUse {
    /// Alone: what another one left is dropped, and one that lives is in the way.
    Exclusive,
    /// With others (`--share-container`): it takes the content as it is.
    Shared,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_without_control_characters() {
        for good in ["w", "layer/1/weights:0", &"n".repeat(NAME_BYTES_MAX), "gr\u{f6}\u{df}e"] {
            assert_eq!(check_name("variable", good), Ok(()));
        }
        for (bad, why) in [
            ("", "is empty"),
            ("a\u{0}", "the name `a\\u{0}` of a barrier has control characters"),
            (&"\u{f6}".repeat(NAME_BYTES_MAX), "of a barrier has 512 bytes, at most 256 are allowed"),
        ] {
            let error = check_name("barrier", bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument);
            assert!(error.message.contains(why), "{error}");
        }
        assert!(check_name("op", "").unwrap_err().message.starts_with("the name of an op is empty"));
    }
}
