//! Rows of variables, split along their parts.

use super::groups::{Groups, Until};
use super::maps::{Learned, Map};
use super::{Place, PlacedVariables};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, RowChange, TaskVariables, Value, Variable, VariableRef};
use crate::tensor::{Tensor, TensorView};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// The rows of a call that one part has.
#[derive(Debug)]
struct PartRows {
    place: Place,
    part: VariableRef,
    /// Counted from the part's first.
    rows: Vec<u64>,
    /// Where they stand among the rows of the call, in order, as runs.
    at: Vec<Range<usize>>,
}

impl PlacedVariables {
    /// Splits rows by part, each in the order of the call. A part without any isn't asked; where there are none at all, the first.
    fn split_rows(&self, variable: &Variable, map: &Map, rows: &[u64]) -> Vec<PartRows> {
        let mut parts = Vec::with_capacity(map.count());
        let mut firsts = Vec::with_capacity(map.count());
        self.each_part(variable, map, |place, part, _| {
            firsts.push(part.shard.as_ref().map_or(0, |shard| shard.first_row));
            parts.push(PartRows { place, part, rows: Vec::new(), at: Vec::new() });
        });
        for (at, &row) in rows.iter().enumerate() {
            // The first part begins at row 0.
            let index = firsts.partition_point(|&first| first <= row) - 1;
            let part = &mut parts[index];
            part.rows.push(row - firsts[index]);
            match part.at.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                _ => part.at.push(at..at + 1),
            }
        }
        if rows.is_empty() {
            parts.truncate(1);
        } else {
            parts.retain(|part| !part.rows.is_empty());
        }
        parts
    }

    pub(super) async fn gather_rows(&self, variable: Variable, rows: Vec<u64>) -> Result<Value> {
        let mut learned = Learned::default();
        loop {
            let map = self.map(&variable)?;
            let parts = self.split_rows(&variable, &map, &rows);
            let mut groups = Groups::default();
            for (index, part) in parts.iter().enumerate() {
                groups.add(part.place, index, (part.part.clone(), part.rows.clone()));
            }
            let gather = |task: Arc<dyn TaskVariables>,
                          items: Vec<(VariableRef, Vec<u64>)>|
             -> BoxFuture<'static, Result<Vec<Value>>> {
                Box::pin(async move {
                    let mut values = Vec::with_capacity(items.len());
                    for (part, rows) in items {
                        values.push(task.gather(part, rows).await?);
                    }
                    Ok(values)
                })
            };
            match groups.ask(self, Until::Known, gather).await {
                Ok(values) => {
                    self.confirm([(&variable, &map)]);
                    return self.merge_rows(&variable, rows.len(), &parts, values);
                }
                Err(refused) => self.learn(&mut learned, refused, [&variable])?,
            }
        }
    }

    /// Puts the rows of all parts in the order of the call. The version is the least of the parts that were asked.
    fn merge_rows(
        &self,
        variable: &Variable,
        rows: usize,
        parts: &[PartRows],
        mut values: Vec<Value>,
    ) -> Result<Value> {
        if values.len() == 1 {
            return Ok(values.remove(0));
        }
        let ty = variable.ty.with_rows(rows as u64);
        let bytes = ty.checked_size_bytes()?;
        let row_bytes = variable.ty.with_rows(1).checked_size_bytes()?;
        for (part, value) in parts.iter().zip(&values) {
            if value.tensor.data.len() != part.rows.len() * row_bytes {
                let message = format!("a task answered `{}` with another number of rows", variable.name);
                return Err(Error::new(ErrorCode::Internal, message));
            }
        }
        let version = values.iter().map(|value| value.version).min().unwrap_or_default();
        let mut runs: Vec<_> =
            parts.iter().enumerate().flat_map(|(index, part)| part.at.iter().map(move |run| (run, index))).collect();
        runs.sort_unstable_by_key(|(run, _)| run.start);
        let mut taken = vec![0; parts.len()];
        let mut data = self.options.spare.take(bytes);
        for (run, index) in runs {
            let start = taken[index];
            taken[index] += run.len() * row_bytes;
            data.extend_from_slice(&values[index].tensor.data[start..taken[index]]);
        }
        Ok(Value { tensor: Tensor { ty, data: self.options.spare.lend(data) }, version })
    }

    pub(super) async fn scatter_rows(&self, change: RowChange<'_, Variable>) -> Result<()> {
        let RowChange { variable, rows, kind, value } = change;
        self.settle([&variable]).await?;
        let mut learned = Learned::default();
        let row_bytes = variable.ty.with_rows(1).checked_size_bytes()?;
        loop {
            let map = self.map_to_write(&variable)?;
            let parts = self.split_rows(&variable, &map, &rows);
            // Rows that stand together are sent where they lie.
            let slice = |run: &Range<usize>| &value.data[run.start * row_bytes..run.end * row_bytes];
            let values: Vec<Cow<'_, [u8]>> = parts
                .iter()
                .map(|part| match part.at.as_slice() {
                    [] => Cow::Borrowed(&value.data[..0]),
                    [run] => Cow::Borrowed(slice(run)),
                    runs => Cow::Owned(runs.iter().map(slice).collect::<Vec<_>>().concat()),
                })
                .collect();
            let mut groups = Groups::default();
            for (index, (part, data)) in parts.iter().zip(&values).enumerate() {
                let ty = variable.ty.with_rows(part.rows.len() as u64);
                let value = TensorView { ty, data: data.as_ref() };
                let change = RowChange { variable: part.part.clone(), rows: part.rows.clone(), kind, value };
                groups.add(part.place, index, change);
            }
            match groups.ask(self, Until::Answered, scatter_all).await {
                Ok(_) => {
                    self.confirm([(&variable, &map)]);
                    return Ok(());
                }
                Err(refused) => self.refused(&mut learned, refused, [&variable].into_iter())?,
            }
        }
    }
}

fn scatter_all<'v>(
    task: Arc<dyn TaskVariables>,
    changes: Vec<RowChange<'v, VariableRef>>,
) -> BoxFuture<'v, Result<Vec<u64>>> {
    Box::pin(async move {
        let mut versions = Vec::with_capacity(changes.len());
        for change in changes {
            versions.push(task.scatter(change).await?);
        }
        Ok(versions)
    })
}
