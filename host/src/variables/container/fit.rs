//! Whether what is held here is what a call takes it for.

use super::Cell;
use crate::error::{Error, ErrorCode, Result};
use crate::variables::{Shard, StoredShard, VariableRef, whole_type};

impl Cell {
    fn check(&self, wanted: &VariableRef) -> Result<()> {
        if self.ty == wanted.ty && self.shard == wanted.shard {
            return Ok(());
        }
        let name = &*wanted.name;
        let (here, taken) = (whole_type(&self.ty, self.shard.as_ref()), wanted.whole_type());
        if here != taken {
            let message = format!("variable `{name}` is `{here}` here, but this call takes it for `{taken}`");
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]));
        }
        let message = format!(
            "variable `{name}` is held here {}, but this call takes it for {}; declare it with the same placement everywhere, and \
             give all tasks the same cluster",
            describe(self.shard.as_ref()),
            describe(wanted.shard.as_ref())
        );
        let stored = StoredShard { name: name.to_owned(), shard: self.shard.clone() };
        Err(Error::new(ErrorCode::InvalidArgument, message).with_names([name]).with_stored(stored))
    }
}

fn describe(shard: Option<&Shard>) -> String {
    match shard {
        None => "whole".to_owned(),
        Some(shard) => {
            let tasks: Vec<_> = shard.ps.iter().map(|index| format!("ps:{index}")).collect();
            format!("in part, {shard} on {}", tasks.join(", "))
        }
    }
}

/// The checks of all variables of a call: one error that tells of every other part that is held here, so that the caller
/// learns all at once.
#[derive(Default)]
pub(super) struct Checks(Option<Error>);

impl Checks {
    pub(super) fn check(&mut self, cell: &Cell, wanted: &VariableRef) {
        let Err(mut error) = cell.check(wanted) else { return };
        match &mut self.0 {
            None => self.0 = Some(error),
            // Another type can't be mended by the caller's host: that is the call's error.
            Some(first) if error.stored.is_empty() != first.stored.is_empty() => {
                if error.stored.is_empty() {
                    *first = error;
                }
            }
            Some(_) if error.stored.is_empty() => {}
            Some(first) => {
                first.stored.append(&mut error.stored);
                first.names.append(&mut error.names);
            }
        }
    }

    pub(super) fn end(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
