//! Rows of another task's variable.

use super::{RemoteVariables, connection, direct, strange, values, versions_of};
use crate::client::channel::{Lane, Try};
use crate::error::Result;
use crate::handles::{RowChange, Value, VariableRef};
use crate::tensor::{Tensor, check_data};
use crate::variables::check_row_count;
use crate::wire::bulk;
use crate::wire::v1::{self, scatter_request};
use prost::encoding::encoded_len_varint;

const GATHER: &str = "/dchost.v1.Variables/Gather";
const SCATTER: &str = "/dchost.v1.Variables/Scatter";

/// Bytes of row indices in one message, well below the 4 MiB that a server takes: some 700,000 rows below 2 million.
const ROW_LIST_BYTES_MAX: usize = 2 << 20;

/// Cuts a row list into those that a message takes; at least one, which may be empty.
fn row_lists(rows: &[u64], bytes_max: usize) -> Vec<&[u64]> {
    let (mut lists, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, &row) in rows.iter().enumerate() {
        let row_bytes = encoded_len_varint(row);
        if bytes + row_bytes > bytes_max {
            lists.push(&rows[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += row_bytes;
    }
    lists.push(&rows[start..]);
    lists
}

impl RemoteVariables {
    /// Asks for rows. A list that doesn't go into one message is several requests, each answered with a moment of its own; the
    /// version is the least of theirs.
    pub(super) async fn pull_rows(&self, variable: VariableRef, rows: Vec<u64>) -> Result<Value> {
        check_row_count(&variable.name, rows.len())?;
        let mut all = Vec::new();
        for list in row_lists(&rows, ROW_LIST_BYTES_MAX) {
            let request = v1::GatherRequest { header: None, variable: Some((&variable).into()), row: list.to_vec() };
            let ty = &variable.ty.with_rows(list.len() as u64);
            let request = &request;
            let ask = move |Try { channel, direct: connections, header }: Try| async move {
                let request = v1::GatherRequest { header: Some(header), ..request.clone() };
                if let Some(connection) = connection(connections).await {
                    return direct::gather(connection, request, ty, &self.spare).await;
                }
                let mut stream = bulk::call(channel, GATHER, tokio_stream::once(request)).await?;
                values(&mut stream, &[ty], true, &self.spare).await
            };
            all.extend(self.peers.call(self.task, Lane::Bulk, false, ask).await?);
        }
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        let ty = variable.ty.with_rows(rows.len() as u64);
        let version = all.iter().map(|value| value.version).min().unwrap_or_default();
        let mut data = self.spare.take(ty.checked_size_bytes()?);
        all.into_iter().for_each(|value| data.extend_from_slice(&value.tensor.data));
        Ok(Value { tensor: Tensor { ty, data: self.spare.lend(data) }, version })
    }

    /// Sends a change of rows, which is one write however long the list is. Answers with the version.
    pub(super) async fn push_rows(&self, change: RowChange<'_, VariableRef>) -> Result<u64> {
        let RowChange { variable, rows, kind, value } = change;
        check_row_count(&variable.name, rows.len())?;
        check_data(&variable.name, &variable.ty.with_rows(rows.len() as u64), value.data.len())?;
        let lists = row_lists(&rows, ROW_LIST_BYTES_MAX);
        let header = |request| v1::ScatterHeader {
            header: Some(request),
            variable: Some((&variable).into()),
            kind: v1::UpdateKind::from(kind).into(),
            row: lists[0].to_vec(),
            optimizer: None,
        };
        let first = |request| {
            let more =
                lists[1..].iter().map(|list| scatter_request::Kind::Rows(v1::ScatterRows { row: list.to_vec() }));
            let kinds = std::iter::once(scatter_request::Kind::Header(header(request))).chain(more);
            kinds.map(|kind| v1::ScatterRequest { kind: Some(kind) }).collect()
        };
        let chunk = |chunk| v1::ScatterRequest { kind: Some(scatter_request::Kind::Chunk(chunk)) };
        let answer = |channel, stream| async move { versions_of(bulk::call(channel, SCATTER, stream).await?).await };
        let (header, first, answer, lists, data) = (&header, &first, &answer, &lists, &[value.data]);
        let call = move |Try { channel, direct: connections, header: request }| async move {
            let connection = if lists.len() == 1 { connection(connections).await } else { None };
            let versions = match connection {
                Some(connection) => direct::scatter(connection, header(request), data).await?,
                None => self.stream(channel, first(request), chunk, data, answer).await?,
            };
            versions.first().copied().ok_or_else(|| strange("no version"))
        };
        self.peers.call(self.task, Lane::Bulk, true, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_lists_are_cut_by_what_they_take_on_the_wire() {
        assert_eq!(row_lists(&[], 4), [&[0; 0][..]]);
        assert_eq!(row_lists(&[1, 2, 3, 4], 4), [&[1, 2, 3, 4][..]]);
        assert_eq!(row_lists(&[1, 2, 300, 4, 70_000, 6, 7], 4), [&[1, 2, 300][..], &[4, 70_000], &[6, 7]]);
    }
}
