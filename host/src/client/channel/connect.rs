//! Endpoints, and what a failed connection means.

use super::resolver::Resolver;
use crate::error::{Error, ErrorCode, Result};
use crate::wire::status::answer;
use crate::wire::transport::{
    CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, HEADER_LIST_BYTES_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT,
    STREAM_WINDOW_BYTES,
};
use hyper_util::client::legacy::connect::HttpConnector;
use std::error::Error as _;
use std::io;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// How long one try to connect may take, over all addresses that the name resolves to.
pub const CONNECT_TRY_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel to a listed address. It connects, and reconnects, when it is used: each time the name is looked up, and every
/// address that it has is tried. Has to be made on the runtime that its connection shall live on.
///
/// # Errors
/// As [`endpoint`].
pub fn channel(address: &str, resolver: &Resolver) -> Result<Channel> {
    Ok(endpoint(address)?.connect_with_connector_lazy(connector(resolver)))
}

/// What connects to the addresses of a name, one after the other.
pub(super) fn connector(resolver: &Resolver) -> HttpConnector<Resolver> {
    let mut connector = HttpConnector::new_with_resolver(resolver.clone());
    connector.set_nodelay(true);
    // For the addresses alone: a slow look-up shall not hide that it is one.
    connector.set_connect_timeout(Some(CONNECT_TRY_TIMEOUT));
    connector
}

/// The endpoint of a listed address, with the settings that all connections share but for those of [`channel`].
///
/// # Errors
/// `invalid-argument` where the address is no `host:port`.
pub fn endpoint(address: &str) -> Result<Endpoint> {
    let no_address =
        |cause: &str| Error::new(ErrorCode::InvalidArgument, format!("address `{address}` is no host:port: {cause}"));
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| no_address(&error.source().map_or_else(|| error.to_string(), ToString::to_string)))?;
    let uri = endpoint.uri();
    if uri.port_u16().is_none() {
        return Err(no_address("it has no port"));
    }
    // A path or a user name would be passed over in silence.
    if uri.authority().is_none_or(|authority| authority.as_str() != address || authority.as_str().contains('@')) {
        return Err(no_address("it has more than a host and a port"));
    }
    Ok(endpoint
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX))
}

/// Why a connection or a call on it failed, without an answer of a dchost server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What a caller may conclude.
    pub kind: FailureKind,
    /// The cause in words: `connection refused`, `name does not resolve: ...`.
    pub text: String,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Nobody listens there.
    Refused,
    /// The name doesn't resolve (yet).
    Unresolved,
    /// Nothing came back in time.
    TimedOut,
    /// What answers speaks gRPC, but is no dchost server.
    Foreign,
    /// Anything else: reset, closed, no HTTP/2.
    Broken,
}

impl Failure {
    /// The failure of a try that got no answer within `limit`.
    pub fn timed_out(limit: Duration) -> Self {
        Failure { kind: FailureKind::TimedOut, text: format!("no answer within {} s", limit.as_secs_f32()) }
    }
}

impl Failure {
    /// The same, said of a first call: where the connection was made, somebody listens there. A refused or silent one is
    /// told apart by its kind.
    pub fn listening(mut self) -> Self {
        if self.kind == FailureKind::Broken {
            self.text = format!("it listens, but does not answer as a dchost server ({})", self.text);
        }
        self
    }
}

/// Reads why a call failed; none where a dchost server answered, see [`answer`].
pub fn failure(status: &Status) -> Option<Failure> {
    if answer(status).is_some() {
        return None;
    }
    let chain: Vec<_> = std::iter::successors(status.source(), |&error| error.source()).collect();
    if chain.is_empty() && !made_up_by_transport(status.code()) {
        return Some(Failure {
            kind: FailureKind::Foreign,
            text: format!("what listens there is no dchost server ({}: {})", status.code(), status.message()),
        });
    }
    let kind = if let Some(io) = chain.iter().find_map(|error| error.downcast_ref::<io::Error>()) {
        match io.kind() {
            io::ErrorKind::ConnectionRefused => FailureKind::Refused,
            io::ErrorKind::TimedOut => FailureKind::TimedOut,
            // hyper's connector has no type for it, but says so first.
            _ if chain.iter().any(|error| error.to_string().starts_with("dns error")) => FailureKind::Unresolved,
            _ => FailureKind::Broken,
        }
    } else {
        FailureKind::Broken
    };
    let innermost = chain.last().map_or_else(|| status.message().to_owned(), |error| error.to_string());
    let text = match kind {
        FailureKind::Refused => "connection refused".to_owned(),
        FailureKind::Unresolved => format!("name does not resolve: {innermost}"),
        FailureKind::TimedOut => format!("timed out: {innermost}"),
        FailureKind::Foreign | FailureKind::Broken => format!("connection broken: {innermost}"),
    };
    Some(Failure { kind, text })
}

/// Codes that tonic gives to broken streams where it knows no cause.
const fn made_up_by_transport(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_checked() {
        for address in ["a:1", "127.0.0.1:2222", "[::1]:2222", "w-0.svc.cluster.local:2222"] {
            assert!(endpoint(address).is_ok(), "{address}");
        }
        for address in ["", "a", "a b:1", "a:1:2", "a:99999999", "a:1/b", "u@a:1", "a:1?b"] {
            let error = endpoint(address).expect_err("refused");
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn answer_is_no_failure() {
        assert_eq!(failure(&Error::new(ErrorCode::Unavailable, "stopping").into()), None);
        let foreign = failure(&Status::unimplemented("no such service")).expect("not ours");
        assert_eq!(foreign.kind, FailureKind::Foreign);
        assert_eq!(failure(&Status::internal("eof")).map(|failure| failure.kind), Some(FailureKind::Broken));
    }
}
