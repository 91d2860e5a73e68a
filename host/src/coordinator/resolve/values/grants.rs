//! What a guest is granted, and how each grant is written.

use super::{ValueError, digits};
use crate::runtime::{DirGrant, NetGrant, NetHost};
use crate::text::shown;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// A variable of the guest's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvGrant {
    /// Its name.
    pub name: String,
    /// Its value; none: the value in this process's environment.
    pub value: Option<String>,
}

impl fmt::Display for DirGrant {
    /// Writes the grant as `--dir` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}{}", self.host.display(), self.guest, if self.read_only { ":ro" } else { "" })
    }
}

impl fmt::Display for NetGrant {
    /// Writes the grant as `--allow-net` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => write!(f, "{}:*", self.host),
        }
    }
}

impl fmt::Display for NetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            NetHost::Address(address) => write!(f, "{address}"),
            NetHost::Network { address: address @ IpAddr::V6(_), prefix_bits } => {
                write!(f, "[{address}]/{prefix_bits}")
            }
            NetHost::Network { address, prefix_bits } => write!(f, "{address}/{prefix_bits}"),
            NetHost::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for EnvGrant {
    /// Writes the name only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// Reads `HOST[::GUEST][:ro]`; without GUEST the guest sees the directory under HOST's path.
///
/// # Errors
/// An empty HOST or GUEST.
pub fn dir_grant(text: &str) -> Result<DirGrant, ValueError> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (host, guest) = rest.split_once("::").unwrap_or((rest, rest));
    // A misspelt `:ro` must not become a grant to write.
    if let Some((_, suffix)) = guest.rsplit_once(':') {
        let suffix = shown(suffix);
        let message = format!("`{}` ends in `:{suffix}`, only `:ro` may follow the guest's path", shown(text));
        return Err(ValueError(message));
    }
    if host.is_empty() || guest.is_empty() {
        return Err(ValueError(format!("`{text}` lacks a directory, write HOST, HOST::GUEST or HOST::GUEST:ro")));
    }
    Ok(DirGrant { host: PathBuf::from(host), guest: guest.to_owned(), read_only })
}

/// Reads `NAME[=VALUE]`.
///
/// # Errors
/// An empty NAME.
pub fn env_grant(text: &str) -> Result<EnvGrant, ValueError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() || text.contains('\0') {
        return Err(ValueError(format!("`{}` lacks a name, write NAME or NAME=VALUE", shown(text))));
    }
    Ok(EnvGrant { name: name.to_owned(), value })
}

/// Reads `HOST:PORT`: a name, an address, or a network such as `10.0.0.0/8`; IPv6 in brackets; `*` for every port.
///
/// # Errors
/// No port, an unreadable address, a prefix longer than the address, an address that is none of a network but a machine's
/// within it (`10.0.0.1/8`), a name that is no DNS name.
///
/// IPv4 addresses and networks that are written as IPv6 ones are read as what they are: `[::ffff:10.0.0.0]/104` is `10.0.0.0/8`.
pub fn net_grant(text: &str) -> Result<NetGrant, ValueError> {
    let refuse = |what: &str| {
        ValueError(format!(
            "`{}` {what}, write HOST:PORT as in `db.example.com:5432`, `10.0.0.0/8:443`, `[::1]:80` or `10.1.2.3:*`",
            shown(text)
        ))
    };
    let (host, port) = text.trim().rsplit_once(':').ok_or_else(|| refuse("lacks a port"))?;
    let port = match port {
        "*" => None,
        port => match digits(port) {
            Some(port) if port > 0_u16 => Some(port),
            _ => return Err(refuse("has no port from 1 to 65535")),
        },
    };
    let (host, prefix) = match host.split_once('/') {
        Some((host, prefix)) => (host, Some(prefix)),
        None => (host, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bracketed {
        Some(address) => Some(IpAddr::V6(address.parse().map_err(|_| refuse("has no IPv6 address in its brackets"))?)),
        None => host.parse().ok().map(IpAddr::V4),
    };
    let host = match (address, prefix) {
        (Some(address), None) => NetHost::Address(address.to_canonical()),
        (Some(address), Some(prefix)) => {
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            let prefix_bits = digits(prefix).filter(|&bits: &u8| bits <= bits_max);
            let prefix_bits = prefix_bits.ok_or_else(|| {
                refuse(&format!("has a prefix length of `{}`, which is no number from 0 to {bits_max}", shown(prefix)))
            })?;
            // Whoever writes a machine's address may mean only that one, and would open the network.
            let first = first_of_network(address, prefix_bits);
            if first != address {
                let network = NetHost::Network { address: first, prefix_bits };
                let machine = NetHost::Address(address);
                return Err(refuse(&format!(
                    "is the address of a machine: its network is `{network}`, itself `{machine}`"
                )));
            }
            NetHost::network(address, prefix_bits)
        }
        (None, None) if is_dns_name(host) => NetHost::Name(host.to_ascii_lowercase()),
        (None, Some(_)) => return Err(refuse("has a prefix length without an address")),
        (None, None) => return Err(refuse("names no machine")),
    };
    Ok(NetGrant { host, port })
}

/// The lowest address of a network, which is how networks are written.
fn first_of_network(address: IpAddr, prefix_bits: u8) -> IpAddr {
    // A shift by all bits there are would be none.
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_bits)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

/// Whether a text may be looked up; one that is all digits and dots would be an address written oddly.
fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253 && name.split('.').all(label) && !last.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_grants_name_machines_and_ports() {
        for text in
            ["db.example.com:5432", "10.0.0.0/8:443", "10.1.2.3:*", "[::1]:80", "[fd00::]/8:1", "localhost:65535"]
        {
            assert_eq!(net_grant(text).unwrap_or_else(|error| panic!("{error}")).to_string(), text);
        }
        assert_eq!(net_grant(" Db.Example:1 ").unwrap().host, NetHost::Name("db.example".to_owned()));
        for text in [
            "",
            "db",
            "db:",
            "db:0",
            "db:65536",
            ":80",
            "*:80",
            "::1:80",
            "[::1]",
            "[1.2.3.4]:80",
            "10.0.0.0/33:80",
            "[::]/129:1",
            "db/8:80",
            "10.0.0:80",
            "256.1.1.1:80",
            "127.1:80",
            "a:+80",
            "a:-0",
            "a: 80",
            "a:0x50",
            "10.0.0.0/+8:80",
            "10.0.0.0/ 8:80",
            "10.0.0.0/:80",
            "10.0.0.0/256:80",
            "10.0.0.0/8/8:80",
            "10.0.0.1/8:80",
            "10.0.0.0/0:80",
            "10.1.2.3/31:*",
            "[::1]/127:80",
            "[2001:db8::1]/32:80",
            "[::ffff:10.0.0.1]/104:80",
            "[::ffff:0.0.0.0]/95:80",
            "[fe80::1%eth0]:80",
            "010.0.0.1:80",
            "a..b:80",
            "a b:80",
            "http://a:80",
            "a\u{1b}:80",
        ] {
            assert!(net_grant(text).is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn ipv4_written_as_ipv6_is_read_as_ipv4() {
        for (text, plain) in [
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("[::ffff:a00:1]:80", "10.0.0.1:80"),
            ("[::ffff:10.0.0.0]/104:*", "10.0.0.0/8:*"),
            ("[::ffff:10.0.0.1]/128:*", "10.0.0.1/32:*"),
            ("[::ffff:0:0]/96:80", "0.0.0.0/0:80"),
            // These hold the addresses above only by their form: no IPv4 address is in them.
            ("[::]/0:80", "[::]/0:80"),
            ("[::]/80:80", "[::]/80:80"),
        ] {
            let grant = net_grant(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(grant.to_string(), plain);
            assert_eq!(net_grant(plain), Ok(grant));
        }
    }

    #[test]
    fn a_machine_with_a_prefix_length_is_told_both_things_it_may_mean() {
        for (text, network, machine) in [
            ("10.0.0.1/8:80", "`10.0.0.0/8`", "`10.0.0.1`"),
            ("192.168.1.7/31:80", "`192.168.1.6/31`", "`192.168.1.7`"),
            ("10.0.0.1/0:80", "`0.0.0.0/0`", "`10.0.0.1`"),
            ("[2001:db8::1]/32:80", "`[2001:db8::]/32`", "`[2001:db8::1]`"),
            ("[::1]/0:80", "`[::]/0`", "`[::1]`"),
        ] {
            let refusal = net_grant(text).expect_err(text).to_string();
            assert!(refusal.contains(network) && refusal.contains(machine), "{refusal}");
        }
    }

    #[test]
    fn directories_follow_the_wasmtime_spelling() {
        let grant = |host: &str, guest: &str, read_only| DirGrant { host: host.into(), guest: guest.into(), read_only };
        assert_eq!(dir_grant("data"), Ok(grant("data", "data", false)));
        assert_eq!(dir_grant("data:ro"), Ok(grant("data", "data", true)));
        assert_eq!(dir_grant("a/b::/data:ro"), Ok(grant("a/b", "/data", true)));
        // Not a grant to write below another path.
        for text in ["/tmp::/a:rox", "/tmp::/a:RO", "data::d:rw", "data:rw"] {
            assert!(dir_grant(text).is_err(), "{text}");
        }
        assert_eq!(dir_grant("C:x::/data"), Ok(grant("C:x", "/data", false)), "the host's path may hold one");
        assert!(dir_grant("").is_err() && dir_grant("a::").is_err() && dir_grant("::/b").is_err());
    }
}
