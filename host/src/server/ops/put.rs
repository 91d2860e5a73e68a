//! Takes a component from a caller that has it, or learns that it is here already.

use super::places::{Places, Who};
use super::run::Run;
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::OpHost;
use crate::ids::Incarnation;
use crate::server::guard::Admitted;
use crate::wire::header::{missing, response_header};
use crate::wire::ops::{DIGEST_BYTES, digest, proof};
use crate::wire::v1;
use crate::wire::v1::put_module_request::Kind;
use rand::Rng as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Status, Streaming};

/// How long a component may take to come: 64 MiB within it are half a mebibyte a second. Others wait for the room that it has.
const PUT_TIMEOUT: Duration = Duration::from_secs(120);

/// How long its next bytes may take: who sends none doesn't keep the room for so long.
const DATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers of one stream: a challenge, wanted, ready or an error.
const ANSWERS_MAX: usize = 4;

/// A component that a caller offers.
pub(super) struct Put {
    pub(super) task: Task,
    pub(super) incarnation: Incarnation,
    pub(super) host: Arc<dyn OpHost>,
    pub(super) run: Arc<Run>,
    pub(super) admitted: Admitted,
    pub(super) module: [u8; DIGEST_BYTES],
    pub(super) size: u64,
    pub(super) who: Who,
    pub(super) places: Places,
}

impl Put {
    /// Checks what the header says.
    ///
    /// # Errors
    /// `resource-exhausted`: too large a component.
    pub(super) fn check(&self) -> Result<()> {
        let max = self.host.limits().component_bytes_max;
        if self.size <= max {
            return Ok(());
        }
        let message = format!(
            "the component has {} bytes, {} takes at most {max} (its --max-module-size): its ops can't run there",
            self.size, self.task
        );
        Err(Error::new(ErrorCode::ResourceExhausted, message).with_names(["--max-module-size"]).with_tasks([self.task]))
    }

    /// Serves the stream on a task of its own; the answers come by the receiver.
    pub(super) fn serve(
        self,
        requests: Streaming<v1::PutModuleRequest>,
    ) -> mpsc::Receiver<Result<v1::PutModuleResponse, Status>> {
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        tokio::spawn(async move {
            let admitted = self.admitted.clone();
            if let Err(error) = admitted.run(self.take(requests, &answers)).await {
                // Who gave up hears nothing.
                let _ = answers.send(Err(error.into())).await;
            }
        });
        stream
    }

    async fn take(
        &self,
        mut requests: Streaming<v1::PutModuleRequest>,
        answers: &mpsc::Sender<Result<v1::PutModuleResponse, Status>>,
    ) -> Result<()> {
        let challenge: [u8; DIGEST_BYTES] = rand::rng().random();
        let answer = |response| v1::PutModuleResponse { header: response_header(self.incarnation), ..response };
        let gone = || Error::new(ErrorCode::Cancelled, "the caller has gone");
        let asked = v1::PutModuleResponse { challenge: challenge.to_vec().into(), ..Default::default() };
        answers.send(Ok(answer(asked))).await.map_err(|_| gone())?;
        let given = match next(&mut requests).await? {
            Some(Kind::Proof(given)) => digest("proof", &given)?,
            Some(_) | None => return Err(missing("proof")),
        };
        if !self.is_shown(challenge, given).await {
            let _place = self.places.take(self.task, self.who.clone()).await?;
            // Another may have brought it meanwhile.
            if !self.is_shown(challenge, given).await {
                let wanted = v1::PutModuleResponse { wanted: true, ..Default::default() };
                answers.send(Ok(answer(wanted))).await.map_err(|_| gone())?;
                let component = receive(self.task, self.size, &mut requests).await?;
                self.host.load(self.module, component.into()).await?;
            }
        }
        self.run.has_put(self.module);
        answers.send(Ok(answer(v1::PutModuleResponse { ready: true, ..Default::default() }))).await.map_err(|_| gone())
    }

    /// Whether the component is here, and the caller has shown that it has it. It is told as lacking to whoever can't.
    async fn is_shown(&self, challenge: [u8; DIGEST_BYTES], given: [u8; DIGEST_BYTES]) -> bool {
        let Some(component) = self.host.component(&self.module) else { return false };
        let right = tokio::task::spawn_blocking(move || proof(&challenge, &component)).await;
        right.is_ok_and(|right| right == given)
    }
}

/// Reads the bytes of a component.
///
/// # Errors
/// `deadline-exceeded` where they don't come in time; `invalid-argument` where others come.
async fn receive(
    task: Task,
    size_bytes: u64,
    requests: &mut (impl Stream<Item = Result<v1::PutModuleRequest, Status>> + Unpin),
) -> Result<Vec<u8>> {
    let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    let mut component = Vec::new();
    let all_by = Instant::now() + PUT_TIMEOUT;
    while component.len() < size {
        let by = all_by.min(Instant::now() + DATA_TIMEOUT);
        let next = timeout_at(by, next(requests)).await.map_err(|_| {
            let message = format!(
                "{} of {size} bytes of the component came to {task}, and no more in time: try again",
                component.len()
            );
            Error::new(ErrorCode::DeadlineExceeded, message).with_tasks([task])
        });
        match next?? {
            Some(Kind::Data(data)) if !data.is_empty() && data.len() <= size - component.len() => {
                component.extend_from_slice(&data);
            }
            Some(Kind::Data(_)) => {
                let message = format!("more bytes of the component came than the {size} that its header says");
                return Err(Error::new(ErrorCode::InvalidArgument, message));
            }
            Some(_) | None => return Err(missing("data")),
        }
    }
    Ok(component)
}

async fn next(
    requests: &mut (impl Stream<Item = Result<v1::PutModuleRequest, Status>> + Unpin),
) -> Result<Option<Kind>> {
    match requests.next().await.transpose() {
        Ok(message) => Ok(message.and_then(|message| message.kind)),
        Err(status) => {
            Err(Error::new(ErrorCode::Cancelled, format!("the caller's stream broke: {}", status.message())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TaskType;

    const PS: Task = Task::new(TaskType::Ps, 0);

    fn data(bytes: usize) -> Result<v1::PutModuleRequest, Status> {
        Ok(v1::PutModuleRequest { kind: Some(Kind::Data(vec![0; bytes].into())) })
    }

    /// Aim: who says that it has a component, and then sends nothing or next to nothing, keeps no place from others.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_do_not_come_are_not_waited_for() {
        const SIZE: u64 = 8 << 20;
        let began = Instant::now();
        let mut silent = tokio_stream::iter([data(1)]).chain(tokio_stream::pending());
        let error = receive(PS, SIZE, &mut silent).await.expect_err("nothing more comes");
        assert_eq!((error.code, began.elapsed()), (ErrorCode::DeadlineExceeded, DATA_TIMEOUT));
        assert!(error.message.contains("1 of 8388608 bytes"), "{error}");

        let began = Instant::now();
        let drip = async |()| {
            tokio::time::sleep(DATA_TIMEOUT / 2).await;
            data(1)
        };
        let mut drips = Box::pin(tokio_stream::iter(std::iter::repeat(())).then(drip));
        let error = receive(PS, SIZE, &mut drips).await.expect_err("it takes for ever");
        assert_eq!(error.code, ErrorCode::DeadlineExceeded);
        assert_eq!(began.elapsed(), PUT_TIMEOUT);

        let mut slow = Box::pin(tokio_stream::iter([(); 8]).then(async |()| {
            tokio::time::sleep(DATA_TIMEOUT - Duration::from_millis(1)).await;
            data(1 << 20)
        }));
        assert_eq!(receive(PS, SIZE, &mut slow).await.expect("a slow line is enough").len() as u64, SIZE);
    }
}
