//! Ports that stay a test's own.

use anyhow::{Context, Result, bail};
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A port of loopback that the system gives to nobody else until this is dropped.
///
/// A socket that is bound and doesn't listen holds it: who connects there is refused, unless somebody who knows the number
/// listens. So a task's port is safe before it starts, while it is started anew, and where it never is.
#[derive(Debug)]
pub struct Port {
    _holder: Socket,
    address: SocketAddr,
}

impl Port {
    /// Takes a free one.
    ///
    /// # Errors
    /// There is none.
    pub fn new() -> Result<Self> {
        let holder = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = holder.local_addr().context("ask for the bound port")?;
        let address = address.as_socket().context("it is an internet address")?;
        Ok(Port { _holder: holder, address })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens there.
    ///
    /// # Errors
    /// Somebody listens already.
    pub fn listen(&self) -> Result<TcpListener> {
        listen_at(self.address)
    }

    /// Listens on the same number at another address of loopback.
    ///
    /// # Errors
    /// Somebody listens already, or this machine has no such address.
    pub fn listen_at(&self, ip: Ipv4Addr) -> Result<TcpListener> {
        listen_at(SocketAddr::from((ip, self.number())))
    }

    /// Leaves every try to connect without an answer, as a firewall does that drops what comes, until the result is dropped.
    ///
    /// # Errors
    /// Somebody listens, or the system answers all the same.
    pub fn filter(&self) -> Result<Filtered> {
        /// More than the system lets wait where the least was asked for.
        const WAITING_MAX: usize = 64;
        let socket = bound(self.address)?;
        socket.listen(0).with_context(|| format!("listen on {}", self.address))?;
        let mut waiting = Vec::new();
        // Who finds the queue full gets no answer.
        while waiting.len() < WAITING_MAX {
            match TcpStream::connect_timeout(&self.address, Duration::from_millis(300)) {
                Ok(stream) => waiting.push(stream),
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Ok(Filtered { _socket: socket, _waiting: waiting });
                }
                Err(error) => return Err(error).context("fill the queue of connections"),
            }
        }
        bail!("{WAITING_MAX} connections wait on {} and the next is answered", self.address)
    }
}

/// What [`Port::filter`] holds.
#[derive(Debug)]
pub struct Filtered {
    _socket: Socket,
    _waiting: Vec<TcpStream>,
}

fn listen_at(address: SocketAddr) -> Result<TcpListener> {
    let socket = bound(address)?;
    socket.listen(1024).with_context(|| format!("listen on {address}"))?;
    Ok(socket.into())
}

/// A socket that may share its address with others, as all that servers bind may, as long as one listens at most.
fn bound(address: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("make a socket")?;
    socket.set_reuse_address(true).context("let it share its address")?;
    socket.bind(&address.into()).with_context(|| format!("bind {address}"))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_listening;

    #[test]
    fn a_port_is_given_to_nobody_else_and_may_be_listened_on_again_and_again() {
        let port = Port::new().expect("there is a free port");
        let others: Vec<Port> = (0..200).map(|_| Port::new().expect("there is a free port")).collect();
        assert!(others.iter().all(|other| other.number() != port.number()));
        for _ in 0..3 {
            assert!(!is_listening(port.number()), "refused");
            let listener = port.listen().expect("nobody listens");
            assert!(is_listening(port.number()));
            assert!(port.listen().is_err(), "somebody listens");
            drop(listener);
        }
    }
}
