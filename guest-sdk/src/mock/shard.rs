//! How a mock cluster cuts variables: as the host does.

use crate::{Error, Result, Task, ps};

/// Least size of a part, in bytes.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// Variables from this size on are cut without being asked to.
pub(super) const AUTO_SHARD_BYTES_MIN: usize = 1 << 20;

/// Most parts of a variable.
const SHARDS_MAX: usize = 256;

/// A part of a variable: rows along axis 0, on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) task: Task,
    pub(super) first_row: usize,
    pub(super) rows: usize,
}

/// The parts of a variable of `bytes` bytes on `count` ps tasks, from the task `first` on; none where it stays whole.
pub(super) fn parts(shape: &[usize], bytes: usize, first: u32, count: u32) -> Vec<Part> {
    let Some(&rows) = shape.first() else { return Vec::new() };
    let parts = (count as usize).min(rows).min(bytes / SHARD_BYTES_MIN).min(SHARDS_MAX);
    if parts < 2 {
        return Vec::new();
    }
    let (least, more) = (rows / parts, rows % parts);
    let part = |index: u32| {
        let at = index as usize;
        let first_row = at * least + at.min(more);
        Part { task: ps((first + index) % count), first_row, rows: least + usize::from(at < more) }
    };
    (0..u32::try_from(parts).unwrap_or(u32::MAX)).map(part).collect()
}

/// Refuses a change that depends on the version of a variable in parts: each has its own.
pub(super) fn refuse_base(name: &str, parts: &[Part]) -> Result<()> {
    let Some(first) = parts.first() else { return Ok(()) };
    let tasks: Vec<_> = parts.iter().map(|part| part.task.to_string()).collect();
    Err(Error::invalid(format!(
        "variable `{name}` is in {} parts on {}, which have a version each: a change can't be made on all of them only if they \
         still have a base version; place the variable on one task, as on `{}`, or make the change without it",
        parts.len(),
        tasks.join(", "),
        first.task
    )))
}
