//! What a host's name stands for.

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::codegen::Service;

/// Answers with the addresses of a name, without blocking.
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Looks names up: anew at each try to connect, so that one that resolves late, or to another address than before, is found.
///
/// By default it is the system's resolver.
#[derive(Clone, Default)]
pub struct Resolver(Option<Arc<Lookup>>);

impl Resolver {
    /// A resolver of one's own, in place of the system's. `lookup` may not block.
    pub fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        Resolver(Some(Arc::new(lookup)))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Resolver(given)" } else { "Resolver(system)" })
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let given = self.0.as_ref().map(|lookup| lookup(name.as_str()));
        Box::pin(async move {
            // The port is the one that was listed, whatever stands here.
            let addresses: Vec<SocketAddr> = match given {
                Some(found) => found?.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect(),
                None => GaiResolver::new().call(name).await?.collect(),
            };
            Ok(addresses.into_iter())
        })
    }
}
