//! Where a server listens.

use super::address::{self, Host};
use super::fault::Fault;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where a server listens, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On the socket that was handed over; it has this address.
    HandedOver(SocketAddr),
    /// On this address.
    Address(SocketAddr),
    /// On all interfaces.
    AllInterfaces {
        /// The port; 0: the system chooses.
        port: u16,
    },
}

impl Listen {
    /// The addresses to bind, best first. A later one is for systems without the address family of the one before: a
    /// port that is in use is in use on all of them.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match *self {
            Listen::HandedOver(address) | Listen::Address(address) => vec![address],
            Listen::AllInterfaces { port } => {
                vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
            }
        }
    }

    /// The port; 0: the system chooses.
    pub fn port(&self) -> u16 {
        match *self {
            Listen::HandedOver(address) | Listen::Address(address) => address.port(),
            Listen::AllInterfaces { port } => port,
        }
    }

    /// Whether only processes of the same machine reach it.
    pub fn is_loopback(&self) -> bool {
        match self {
            Listen::HandedOver(address) | Listen::Address(address) => address.ip().to_canonical().is_loopback(),
            Listen::AllInterfaces { .. } => false,
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::HandedOver(address) => write!(f, "{address} (socket handed over)"),
            Listen::Address(address) => write!(f, "{address}"),
            Listen::AllInterfaces { port } => write!(f, "port {port} on all interfaces"),
        }
    }
}

/// Where the server of an entry listens by itself. No name but `localhost` is looked at: the own name may not resolve
/// before the process is ready.
pub(super) fn of_entry(address: &address::Address) -> Listen {
    match address.loopback_ip() {
        Some(ip) => Listen::Address((ip, address.port).into()),
        None => Listen::AllInterfaces { port: address.port },
    }
}

/// Reads `--bind`: `IP`, `IP:PORT`, `[IPV6]:PORT`, also with `localhost`; the port defaults to the entry's.
///
/// # Errors
/// Any other name, and what is no address.
pub(super) fn bind(place: &str, text: &str, port: u16) -> Result<Listen, Fault> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(Listen::Address((ip, port).into()));
    }
    let parsed = if text == "localhost" { address::parse(&format!("localhost:{port}")) } else { address::parse(text) };
    match parsed {
        Ok(address::Address { host: Host::Ip(ip), port }) => Ok(Listen::Address((ip, port).into())),
        Ok(address) => match address.loopback_ip() {
            Some(ip) => Ok(Listen::Address((ip, address.port).into())),
            None => Err(Fault::new(
                place,
                format!("`{text}` is a name, and names are not resolved for listening"),
                "give an address of this machine, IP or IP:PORT; 0.0.0.0 and :: are all interfaces",
            )),
        },
        Err((what, _)) => Err(Fault::new(place, what, "give IP or IP:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_takes_addresses_and_fills_in_the_port() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("0.0.0.0", "0.0.0.0:7"),
            ("10.0.0.3:9", "10.0.0.3:9"),
            ("::", "[::]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
            ("localhost", "127.0.0.1:7"),
            ("localhost:9", "127.0.0.1:9"),
        ] {
            let listen = bind("`--bind`", text, 7).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!(listen.addresses(), [address.parse().expect("address")], "{text}");
        }
        for text in ["", "a", "a:1", "eth0", "1.2.3.4:x"] {
            assert!(bind("`--bind`", text, 7).is_err(), "{text}");
        }
    }

    #[test]
    fn entries_listen_on_loopback_only_where_they_are() {
        let listen = |text| of_entry(&address::parse(text).expect("address"));
        assert!(listen("localhost:5").is_loopback());
        assert!(listen("127.0.0.2:5").is_loopback());
        assert_eq!(listen("a:5"), Listen::AllInterfaces { port: 5 });
        assert_eq!(listen("10.0.0.1:5"), Listen::AllInterfaces { port: 5 });
    }
}
