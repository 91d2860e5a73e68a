//! Calls on direct connections: values go from the caller's memory into the socket, and from the socket to their place.

use super::{checked_types, strange};
use crate::client::channel::direct::{Answer, Connection};
use crate::handles::Value;
use crate::tensor::{Tensor, TensorType};
use crate::variables::Spare;
use crate::wire::v1::{self, direct_request, direct_response};
use bytes::Bytes;
use tonic::Status;

/// Values below this size, in bytes, are worth no memory that is kept.
const SPARE_BYTES_MIN: usize = 256 << 10;

/// Sets initial values; answers with the versions.
pub(super) async fn initialize(
    connection: Connection,
    header: v1::PushHeader,
    data: &[&[u8]],
) -> Result<Vec<u64>, Status> {
    written(connection, direct_request::Kind::Initialize(header), data).await
}

/// Changes rows; answers with the version of their variable.
pub(super) async fn scatter(
    connection: Connection,
    header: v1::ScatterHeader,
    data: &[&[u8]],
) -> Result<Vec<u64>, Status> {
    written(connection, direct_request::Kind::Scatter(header), data).await
}

async fn written(connection: Connection, kind: direct_request::Kind, data: &[&[u8]]) -> Result<Vec<u64>, Status> {
    let (kind, answer) = connection.call(&v1::DirectRequest { kind: Some(kind) }, data).await?;
    let direct_response::Kind::Written(response) = kind else { return Err(of_another_call()) };
    answer.end();
    Ok(response.version)
}

/// Updates variables; answers with their versions, and the values where the header wants them.
pub(super) async fn push(
    connection: Connection,
    header: v1::PushHeader,
    types: &[&TensorType],
    data: &[&[u8]],
    spare: &Spare,
) -> Result<Vec<Value>, Status> {
    let want_values = header.want_values;
    let request = v1::DirectRequest { kind: Some(direct_request::Kind::Push(header)) };
    values(connection.call(&request, data).await?, types, want_values, spare).await
}

/// Reads values.
pub(super) async fn pull(
    connection: Connection,
    request: v1::PullRequest,
    types: &[&TensorType],
    spare: &Spare,
) -> Result<Vec<Value>, Status> {
    let request = v1::DirectRequest { kind: Some(direct_request::Kind::Pull(request)) };
    values(connection.call(&request, &[]).await?, types, true, spare).await
}

/// Reads rows, which make a value of this type.
pub(super) async fn gather(
    connection: Connection,
    request: v1::GatherRequest,
    ty: &TensorType,
    spare: &Spare,
) -> Result<Vec<Value>, Status> {
    let request = v1::DirectRequest { kind: Some(direct_request::Kind::Gather(request)) };
    values(connection.call(&request, &[]).await?, &[ty], true, spare).await
}

/// Reads the values of an answer. Nothing is allocated that wasn't asked for.
async fn values(
    (kind, mut answer): (direct_response::Kind, Answer),
    types: &[&TensorType],
    with_data: bool,
    spare: &Spare,
) -> Result<Vec<Value>, Status> {
    let direct_response::Kind::Values(header) = kind else { return Err(of_another_call()) };
    let versions = checked_types(header, types)?;
    let mut values = Vec::with_capacity(types.len());
    for (ty, version) in types.iter().zip(versions) {
        let bytes = if with_data { ty.checked_size_bytes()? } else { 0 };
        let data = if bytes < SPARE_BYTES_MIN {
            let mut data = Vec::with_capacity(bytes);
            answer.append(&mut data, bytes).await?;
            Bytes::from(data)
        } else {
            let mut data = spare.take(bytes);
            answer.append(&mut data, bytes).await?;
            spare.lend(data)
        };
        values.push(Value { tensor: Tensor { ty: (*ty).clone(), data }, version });
    }
    answer.end();
    Ok(values)
}

fn of_another_call() -> Status {
    strange("the values of another call")
}
