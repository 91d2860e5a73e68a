//! Copies results that another task keeps.

use crate::client::channel::{Connections, Lane, Peers, Try};
use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, ErrorCode, Result};
use crate::handles::RemoteValue;
use crate::ids::Caller;
use crate::tensor::{Tensor, TensorType};
use crate::wire::header::Header;
use crate::wire::status::from_status;
use crate::wire::tensor::Gather;
use crate::wire::v1::ops_client::OpsClient;
use crate::wire::v1::{self, fetch_response::Kind};
use tokio::runtime::Handle;
use tonic::Status;

/// Copies a value here that a task keeps for the run of `peers`.
pub(super) async fn by_run(peers: &Peers, value: RemoteValue, tensor_bytes_max: u64) -> Result<Tensor> {
    check_size(&value, tensor_bytes_max)?;
    let task = value.task;
    let value = &value;
    peers.call(task, Lane::Bulk, false, move |at: Try| async move { fetch(at, value).await }).await
}

/// Copies values for runs that this task runs ops for. It has no session of its own there: the run's counts.
#[derive(Clone, Debug)]
pub struct Fetcher {
    cluster: ClusterSpec,
    connections: Connections,
    runtime: Handle,
    tensor_bytes_max: u64,
}

impl Fetcher {
    /// Makes the fetcher; dials nobody. `runtime` is the control runtime.
    pub fn new(cluster: ClusterSpec, runtime: Handle, tensor_bytes_max: u64) -> Self {
        Fetcher { cluster, connections: Connections::default(), runtime, tensor_bytes_max }
    }

    /// Copies a value here that a task keeps for the run of `caller`.
    ///
    /// # Errors
    /// Those of [`OpHost::fetch`](crate::handles::OpHost::fetch).
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn fetch(&self, caller: Caller, value: RemoteValue) -> Result<Tensor> {
        check_size(&value, self.tensor_bytes_max)?;
        let task = value.task;
        let Some(address) = self.cluster.address(task) else {
            let message = format!("a result is on {task}, which this task's cluster doesn't have");
            return Err(Error::new(ErrorCode::InvalidArgument, message).with_tasks([task]));
        };
        let channel = self.connections.channel(task, Lane::Bulk, address, &self.runtime)?;
        let header = Header { caller, sequence: 0, expected: Some(value.incarnation) };
        let at = Try { channel, direct: None, header: (&header).into() };
        fetch(at, &value).await.map_err(|status| unreached(task, address, &status))
    }
}

/// Makes the error of a task that doesn't answer from that of a connection.
fn unreached(task: Task, address: &str, status: &Status) -> Error {
    match crate::wire::status::answer(status) {
        Some(error) => error,
        None => {
            let cause = from_status(status).message;
            let message = format!("{task} at `{address}`, which keeps an input, does not answer: {cause}");
            Error::new(ErrorCode::PeerFailed, message).with_tasks([task])
        }
    }
}

fn check_size(value: &RemoteValue, tensor_bytes_max: u64) -> Result<()> {
    let bytes = value.ty.checked_size_bytes()? as u64;
    if bytes <= tensor_bytes_max {
        return Ok(());
    }
    let message = format!(
        "a result on {} has {bytes} bytes, at most {tensor_bytes_max} are taken (--max-tensor): leave it where it is",
        value.task
    );
    Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["--max-tensor"]))
}

async fn fetch(at: Try, value: &RemoteValue) -> Result<Tensor, Status> {
    let request = v1::FetchRequest { header: Some(at.header), value: Some(value.into()) };
    let mut answers = OpsClient::new(at.channel).fetch(request).await?.into_inner();
    let strange = |what: &str| Status::from(Error::new(ErrorCode::Internal, format!("a fetched result has {what}")));
    let Some(Kind::Header(header)) = answers.message().await?.and_then(|message| message.kind) else {
        return Err(strange("no header"));
    };
    let ty = TensorType::try_from(header.tensor.ok_or_else(|| strange("no type"))?)?;
    if ty != value.ty {
        return Err(strange("another type than it was told to have"));
    }
    let mut gather = Gather::new(vec![ty])?;
    while !gather.is_complete() {
        match answers.message().await?.and_then(|message| message.kind) {
            Some(Kind::Chunk(chunk)) => gather.accept(chunk)?,
            Some(Kind::Header(_)) | None => return Err(strange("too few bytes")),
        }
    }
    let tensors = gather.finish()?;
    tensors.into_iter().next().ok_or_else(|| strange("no value"))
}
