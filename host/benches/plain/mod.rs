//! Plain servers of tonic with the settings of dchost's own, and channels with those of its clients: what benches compare with.
//!
//! In a folder, since a file here would be a bench.

use dchost::client::channel::connect;
use dchost::client::channel::resolver::Resolver;
use dchost::wire::transport::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use std::convert::Infallible;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;

/// Serves at the address that it returns.
pub(crate) async fn serve<S>(service: S) -> String
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: NamedService + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serving = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
    tokio::spawn(serving);
    address
}

pub(crate) fn channel(address: &str) -> Channel {
    connect::channel(address, &Resolver::default()).expect("the address is good")
}
