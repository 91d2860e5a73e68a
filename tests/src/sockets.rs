//! What `ss` would show of a process: its sockets that the kernel lists, since they have an address.

use anyhow::{Context, Result};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Tables of the kernel, and what is in them.
const TABLES: [(&str, &str); 4] = [("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")];

/// The kernel's number of a connection that stands.
const ESTABLISHED: u8 = 1;

/// The kernel's number of a socket that waits for connections.
const LISTEN: u8 = 10;

/// A socket that is bound, listens or is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Its own address.
    pub local: SocketAddr,
    /// The other side's; unspecified where there is none.
    pub remote: SocketAddr,
    state: u8,
    inode: u64,
}

impl Socket {
    /// Whether it waits for connections.
    pub fn is_listening(&self) -> bool {
        self.state == LISTEN
    }

    /// Whether it has another side.
    pub fn is_connected(&self) -> bool {
        self.state == ESTABLISHED
    }
}

/// The sockets of a process, in no order.
///
/// # Errors
/// The process has gone, or its descriptors can't be read.
pub(crate) fn of_process(pid: u32) -> Result<Vec<Socket>> {
    let inodes: Vec<u64> = fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("list the descriptors of process {pid}"))?
        // A descriptor may be closed meanwhile.
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|target| target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect();
    let mut sockets = listed(pid)?;
    sockets.retain(|socket| inodes.contains(&socket.inode));
    Ok(sockets)
}

/// Whether a socket, by its inode, waits for connections.
///
/// # Errors
/// The kernel's tables can't be read.
pub(crate) fn is_listening(inode: u64) -> Result<bool> {
    Ok(listed(std::process::id())?.iter().any(|socket| socket.inode == inode && socket.is_listening()))
}

/// All sockets of the network that a process is in.
fn listed(pid: u32) -> Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for (table, protocol) in TABLES {
        // A machine without IPv6 has two tables less.
        let text = match fs::read_to_string(format!("/proc/{pid}/net/{table}")) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && table.ends_with('6') => continue,
            Err(error) => return Err(error).with_context(|| format!("read the table `{table}` of process {pid}")),
        };
        for line in text.lines().skip(1) {
            let socket = parse(protocol, line).with_context(|| format!("read `{line}` of the table `{table}`"))?;
            sockets.push(socket);
        }
    }
    Ok(sockets)
}

/// A row: slot, local, remote, state, queues, timer, retransmissions, user, timeout, inode.
fn parse(protocol: &'static str, line: &str) -> Option<Socket> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    Some(Socket {
        protocol,
        local: address(columns.get(1)?)?,
        remote: address(columns.get(2)?)?,
        state: u8::from_str_radix(columns.get(3)?, 16).ok()?,
        inode: columns.get(9)?.parse().ok()?,
    })
}

/// An address of a table: words of four bytes, each as this machine stores it, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(words.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = if words.len() == 8 {
        IpAddr::V4(Ipv4Addr::from(word(0)?))
    } else {
        let mut bytes = [0; 16];
        for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
            part.copy_from_slice(&word(8 * index)?);
        }
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn every_kind_of_socket_is_seen_with_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let at = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(at).expect("it listens");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let seen = of_process(std::process::id()).expect("it is this process");
        let find = |local| seen.iter().filter(move |socket| socket.local == local).collect::<Vec<_>>();
        assert!(find(at).iter().any(|socket| socket.is_listening() && socket.protocol == "tcp"));
        let client_at = client.local_addr().expect("it is connected");
        assert!(find(client_at).iter().any(|socket| socket.is_connected() && socket.remote == at));
        let udp = find(udp.local_addr().expect("it is bound"));
        assert!(matches!(udp.as_slice(), [socket] if socket.protocol == "udp" && !socket.is_connected()));
        assert_eq!(
            address("00000000000000000000000001000000:1F90"),
            Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 8080)).filter(|_| cfg!(target_endian = "little"))
        );
    }
}
