//! Reads all of a container, for a checkpoint.
//!
//! The variables' own blocks are sent, all as one moment after the call came has them; while it goes on, a change copies what it
//! changes. Each block is given up when it was sent.

use super::{VariablesService, off_thread};
use crate::server::answers::{Answers, while_session};
use crate::server::guard::Rpc;
use crate::variables::{Blocks, Saved};
use crate::wire::header::response_header;
use crate::wire::saved::saved_to_wire;
use crate::wire::tensor::CHUNK_BYTES;
use crate::wire::v1::{self, save_response};
use prost::Message as _;
use tonic::Status;

/// Bytes of one header: well below the 4 MiB that one message takes.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// Headers and chunks.
pub(super) type SaveStream = Answers<v1::SaveResponse>;

impl VariablesService {
    /// Streams what the container holds here, as long as the caller's session lasts.
    pub(super) async fn save_stream(&self, request: v1::SaveRequest) -> Result<SaveStream, Status> {
        let admitted = self.guard.admit(Rpc::Save, request.header)?;
        let container = self.open(&admitted.caller)?;
        // A variable that is being changed makes it wait.
        let all = admitted.run(off_thread(move || container.save())).await?;
        let (saved, tensors): (Vec<Saved>, Vec<Vec<Blocks>>) = all.into_iter().unzip();
        let mut headers = headers(&saved);
        if let Some(first) = headers.first_mut() {
            first.header = response_header(self.guard.incarnation());
        }
        let headers = headers.into_iter().map(save_response::Kind::Header);
        let tensors = if request.list_only { Vec::new() } else { tensors };
        let chunks = (0..).zip(tensors.into_iter().flatten()).flat_map(|(item, blocks)| {
            let mut offset = 0;
            blocks.into_pieces(CHUNK_BYTES).map(move |data| {
                let chunk = v1::Chunk { item, offset, data };
                offset += chunk.data.len() as u64;
                save_response::Kind::Chunk(chunk)
            })
        });
        let messages = headers.chain(chunks).map(|kind| Ok(v1::SaveResponse { kind: Some(kind) }));
        Ok(while_session(admitted, tokio_stream::iter(messages)))
    }
}

/// The list in as many messages as it takes, at least one.
fn headers(saved: &[Saved]) -> Vec<v1::SaveHeader> {
    let (mut headers, mut bytes) = (vec![v1::SaveHeader::default()], 0);
    for saved in saved {
        let variable = saved_to_wire(saved);
        bytes += variable.encoded_len() + 4;
        if let Some(last) = headers.last_mut().filter(|_| bytes > HEADER_BYTES_MAX) {
            last.more = true;
            headers.push(v1::SaveHeader::default());
            bytes = variable.encoded_len() + 4;
        }
        if let Some(last) = headers.last_mut() {
            last.variable.push(variable);
        }
    }
    headers
}
