//! Asks a server how it and its cluster are doing.

use super::channel::connect::{Failure, FailureKind, channel, failure};
use super::channel::resolver::Resolver;
use crate::error::{Error, ErrorCode, Result};
use crate::ids::Caller;
use crate::status::ServerStatus;
use crate::wire::header::Header;
use crate::wire::status::answer;
use crate::wire::transport::MESSAGE_BYTES_MAX;
use crate::wire::v1;
use crate::wire::v1::cluster_client::ClusterClient;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::Status;
use tonic::transport::Channel;

/// The pause between tries: a person waits, and a connection that is refused costs little.
const TRY_INTERVAL: Duration = Duration::from_millis(200);

/// Why there is no status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// Nothing answered, or nothing as a dchost server does; asking again may help.
    #[error("{why}")]
    NotReached {
        /// The cause.
        why: String,
        /// Whether somebody listens there, who may be no dchost server.
        listens: bool,
    },
    /// What answers is no dchost server, or speaks as none that this build knows.
    #[error("{0}")]
    Foreign(String),
    /// A dchost server says no.
    #[error("the server refuses: {0}")]
    Refused(Error),
}

/// Asks one server. It connects at the first call, and again where the connection has broken.
#[derive(Clone, Debug)]
pub struct StatusClient {
    client: ClusterClient<Channel>,
    caller: Caller,
}

impl StatusClient {
    /// Makes a client; dials nobody. Needs no session, and is no task of the cluster. Has to be called on the runtime that
    /// calls are made on.
    ///
    /// # Errors
    /// `invalid-argument` where the address is no `host:port`.
    pub fn new(address: &str, caller: Caller) -> Result<Self> {
        let channel = channel(address, &Resolver::default())?;
        let client = ClusterClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok(StatusClient { client, caller })
    }

    /// Asks once, for at most `patience`.
    ///
    /// # Errors
    /// Every one of [`StatusError`].
    ///
    /// # Cancel safety
    /// Asking has no effect.
    pub async fn ask(&mut self, patience: Duration) -> Result<ServerStatus, StatusError> {
        timeout(patience, self.try_once()).await.unwrap_or_else(|_| Err(Failure::timed_out(patience).into()))
    }

    /// Asks, and tries again until `patience` has passed while the server isn't there or is stopping.
    ///
    /// # Errors
    /// Every one of [`StatusError`].
    ///
    /// # Cancel safety
    /// Asking has no effect.
    pub async fn ask_patiently(&mut self, patience: Duration) -> Result<ServerStatus, StatusError> {
        let deadline = Instant::now() + patience;
        let mut last = None;
        loop {
            match timeout_at(deadline, self.try_once()).await {
                Ok(Err(error @ StatusError::NotReached { .. })) => last = Some(error),
                Ok(outcome) => return outcome,
                // What an earlier try showed says more than that this one was cut off.
                Err(_) => return Err(last.unwrap_or_else(|| Failure::timed_out(patience).into())),
            }
            sleep_until(deadline.min(Instant::now() + TRY_INTERVAL)).await;
        }
    }

    async fn try_once(&mut self) -> Result<ServerStatus, StatusError> {
        let header = Some((&Header::new(self.caller.clone())).into());
        let request = v1::GetStatusRequest { header, brief: false, row: None };
        let response = self.client.get_status(request).await.map_err(|status| refusal(&status))?;
        ServerStatus::try_from(response.into_inner())
            .map_err(|error| StatusError::Foreign(format!("its answer makes no sense: {}", error.message)))
    }
}

impl From<Failure> for StatusError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::Foreign => StatusError::Foreign(failure.text),
            FailureKind::Broken => StatusError::NotReached { why: failure.listening().text, listens: true },
            FailureKind::Refused | FailureKind::Unresolved | FailureKind::TimedOut => {
                StatusError::NotReached { why: failure.text, listens: false }
            }
        }
    }
}

fn refusal(status: &Status) -> StatusError {
    match (answer(status), failure(status)) {
        // It is stopping.
        (Some(error), _) if error.code == ErrorCode::Unavailable => {
            StatusError::NotReached { why: error.message, listens: false }
        }
        (Some(error), _) => StatusError::Refused(error),
        (None, Some(failure)) => failure.into(),
        (None, None) => StatusError::Foreign(status.message().to_owned()),
    }
}
