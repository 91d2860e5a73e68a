//! Writes of whole values, cut along the parts of their variables.

use super::PlacedVariables;
use super::groups::{Groups, Refused, Until};
use super::maps::{Learned, Map};
use crate::error::Result;
use crate::handles::{BoxFuture, TaskVariables, Variable, VariableRef};
use crate::tensor::TensorView;
use std::sync::Arc;

/// What a call writes to one variable, and how.
pub(super) struct Write<'a, H> {
    pub(super) variable: Variable,
    pub(super) value: TensorView<'a>,
    pub(super) how: H,
}

/// What came of a write.
pub(super) struct Written<A> {
    pub(super) variables: Vec<Variable>,
    /// How each variable is held.
    pub(super) maps: Vec<Map>,
    /// The answer for each part, in order.
    pub(super) parts: Vec<A>,
}

impl PlacedVariables {
    /// Writes values, each part to its task; none is copied. `check` has the last word on how a variable is held, `cut` makes what
    /// a task is asked of a part.
    pub(super) async fn write<'a, H: Copy, T, A>(
        &self,
        writes: Vec<Write<'a, H>>,
        check: impl Fn(&Write<'a, H>, &Map) -> Result<()>,
        cut: impl Fn(VariableRef, TensorView<'a>, H) -> T,
        ask: impl Fn(Arc<dyn TaskVariables>, Vec<T>) -> BoxFuture<'a, Result<Vec<A>>>,
    ) -> Result<Written<A>> {
        self.settle(writes.iter().map(|write| &write.variable)).await?;
        let mut learned = Learned::default();
        loop {
            let (mut groups, mut maps, mut index) = (Groups::default(), Vec::with_capacity(writes.len()), 0);
            for write in &writes {
                let map = self.map_to_write(&write.variable)?;
                check(write, &map)?;
                self.each_part(&write.variable, &map, |place, part, bytes| {
                    let value = TensorView { ty: part.ty.clone(), data: &write.value.data[bytes] };
                    groups.add(place, index, cut(part, value, write.how));
                    index += 1;
                });
                maps.push(map);
            }
            match groups.ask(self, Until::Answered, &ask).await {
                Ok(parts) => {
                    self.confirm(writes.iter().map(|write| &write.variable).zip(&maps));
                    let variables = writes.into_iter().map(|write| write.variable).collect();
                    return Ok(Written { variables, maps, parts });
                }
                Err(refused) => self.refused(&mut learned, refused, writes.iter().map(|write| &write.variable))?,
            }
        }
    }

    /// Goes by how variables are held, if the write can be made again: nothing of it may have been made. That holds for one of a
    /// single variable, which all tasks that have it have refused.
    pub(super) fn refused<'v>(
        &self,
        learned: &mut Learned,
        refused: Refused,
        variables: impl Iterator<Item = &'v Variable> + Clone,
    ) -> Result<()> {
        let again = variables.clone().count() == 1;
        match refused {
            Refused::Held(stored, error) if !again => {
                // The next call goes by it.
                self.learn(learned, Refused::Held(stored, error.clone()), variables)?;
                Err(error)
            }
            refused => self.learn(learned, refused, variables),
        }
    }
}
