//! Puts a run's component on a task, which asks for its bytes only where it lacks them.

use super::Component;
use crate::client::channel::Try;
use crate::error::{Error, ErrorCode};
use crate::wire::ops::proof;
use crate::wire::v1::ops_client::OpsClient;
use crate::wire::v1::{self, put_module_request::Kind};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes of one message.
const DATA_BYTES: usize = 256 << 10;

/// Messages that wait for the connection.
const QUEUED: usize = 4;

/// Puts the component there; after it, calls of the session may name it.
///
/// # Errors
/// The task's: it can't run the component, and why.
pub(super) async fn put(at: &Try, component: &Component) -> Result<(), Status> {
    let (sender, stream) = mpsc::channel(QUEUED);
    let send = async |kind| {
        let gone = |_| Status::from(Error::new(ErrorCode::Unavailable, "the stream of the component broke"));
        sender.send(v1::PutModuleRequest { kind: Some(kind) }).await.map_err(gone)
    };
    let header = v1::ModuleHeader {
        header: Some(at.header.clone()),
        sha256: component.digest.to_vec().into(),
        size: component.bytes.len() as u64,
    };
    send(Kind::Header(header)).await?;
    let mut answers = OpsClient::new(at.channel.clone()).put_module(ReceiverStream::new(stream)).await?.into_inner();
    let strange = |what: &str| Status::from(Error::new(ErrorCode::Internal, format!("putting the component: {what}")));
    let asked = answers.message().await?.ok_or_else(|| strange("no challenge came"))?;
    let (challenge, bytes) = (asked.challenge, component.bytes.clone());
    let answer = tokio::task::spawn_blocking(move || proof(&challenge, &bytes)).await;
    let answer = answer.map_err(|error| strange(&error.to_string()))?;
    // Where it is refused meanwhile, the answer says so.
    drop(send(Kind::Proof(answer.to_vec().into())).await);
    let mut answer = answers.message().await?.ok_or_else(|| strange("no answer came"))?;
    if answer.wanted {
        let mut rest = component.bytes.clone();
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(DATA_BYTES));
            if send(Kind::Data(data)).await.is_err() {
                break;
            }
        }
        answer = answers.message().await?.ok_or_else(|| strange("no answer came"))?;
    }
    if answer.ready { Ok(()) } else { Err(strange("it isn't ready")) }
}
