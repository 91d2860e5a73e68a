//! Addresses of cluster entries: what dchost can dial and listen on.

use super::fault::Fault;
use crate::cluster::Task;
use crate::text::shown;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest host name, and the longest label of one (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A well-formed `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The host.
    pub(super) host: Host,
    /// The port; 0: the system chooses.
    pub(super) port: u16,
}

/// The host of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    /// An IP address.
    Ip(IpAddr),
    /// A name, in lower case and without a final dot.
    Name(String),
}

impl Address {
    /// Whether only processes of the same machine reach it.
    pub(super) fn is_loopback(&self) -> bool {
        self.loopback_ip().is_some()
    }

    /// The loopback address to listen on, where this is one. `localhost` is 127.0.0.1; no name is resolved.
    pub(super) fn loopback_ip(&self) -> Option<IpAddr> {
        match &self.host {
            Host::Ip(ip) if ip.is_loopback() => Some(*ip),
            Host::Ip(_) => None,
            Host::Name(name) => {
                (name == "localhost" || name.ends_with(".localhost")).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
            }
        }
    }

    /// What two addresses of the same endpoint share.
    fn endpoint(&self) -> (Host, u16) {
        (self.loopback_ip().map_or_else(|| self.host.clone(), Host::Ip), self.port)
    }
}

/// Parses `host:port`: a name, an IPv4 address, or an IPv6 address in brackets.
///
/// # Errors
/// What is wrong, and how to mend it.
pub(super) fn parse(text: &str) -> Result<Address, (String, &'static str)> {
    let err = |what: String, mend| Err((format!("address `{}` {what}", shown(text)), mend));
    if text.is_empty() {
        return Err(("the address is empty".to_owned(), "give HOST:PORT, or leave the task out of the list"));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return err(format!("begins with a scheme, `{scheme}://`"), "give HOST:PORT; --rpc-layer adds the prefix");
    }
    if text.contains('@') {
        return err("holds user information, `@`".to_owned(), "give HOST:PORT without a login name");
    }
    if text.contains(',') {
        return err("holds a comma".to_owned(), "write several tasks as a JSON list");
    }
    if let Some(odd) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-:[]".contains(*c))) {
        return err(format!("holds the character `{}`", shown(&odd.to_string())), "give HOST:PORT in ASCII");
    }
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((ip, port)) = rest.split_once(']') else {
            return err("has no closing bracket".to_owned(), "write [IPV6]:PORT");
        };
        let Ok(ip) = ip.parse::<Ipv6Addr>() else {
            return err(format!("has no IPv6 address in its brackets, but `{ip}`"), "write [IPV6]:PORT");
        };
        (Host::Ip(ip.into()), port.strip_prefix(':'))
    } else {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if host.contains(':') {
            return err("is a bare IPv6 address or has several colons".to_owned(), "write [IPV6]:PORT");
        }
        match host_name(host) {
            Ok(host) => (host, port),
            Err((what, mend)) => return err(what, mend),
        }
    };
    let Some(port) = port else {
        return err("has no port".to_owned(), "give HOST:PORT, as in `host:2222`");
    };
    match port.parse::<u16>() {
        Ok(port) => Ok(Address { host, port }),
        Err(_) => err(format!("has the port `{port}`, which is no number from 0 to 65535"), "give HOST:PORT"),
    }
}

fn host_name(host: &str) -> Result<Host, (String, &'static str)> {
    if host.is_empty() {
        return Err(("has no host".to_owned(), "give HOST:PORT"));
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let last = name.rsplit('.').next().unwrap_or(name);
    if last.bytes().all(|b| b.is_ascii_digit()) && !last.is_empty() {
        // A name can't end in a number, so this is meant to be an IPv4 address.
        return match host.parse::<Ipv4Addr>() {
            Ok(ip) => Ok(Host::Ip(ip.into())),
            Err(_) if name != host && name.parse::<Ipv4Addr>().is_ok() => {
                Err((format!("has a stray dot after `{name}`"), "remove the dot"))
            }
            Err(_) => Err((format!("has a host `{host}` that is no IPv4 address"), "give four numbers from 0 to 255")),
        };
    }
    if name.split('.').any(str::is_empty) {
        return Err(("has a stray dot".to_owned(), "remove the dot"));
    }
    if name.contains(['[', ']']) {
        return Err(("has a bracket out of place".to_owned(), "brackets are for IPv6: [IPV6]:PORT"));
    }
    if name.len() > HOST_BYTES_MAX || name.split('.').any(|label| label.len() > LABEL_BYTES_MAX) {
        return Err((
            format!(
                "has a host or a part of it that is longer than names may be ({HOST_BYTES_MAX}, {LABEL_BYTES_MAX})"
            ),
            "give the host's name",
        ));
    }
    Ok(Host::Name(name.to_ascii_lowercase()))
}

/// Checks the addresses of a cluster against each other: duplicates, loopback mixed with other hosts, port 0.
///
/// `place` is where the cluster stands; `tasks_count` counts malformed entries too.
pub(super) fn check_together(place: &str, addresses: &[(Task, Address)], tasks_count: usize, faults: &mut Vec<Fault>) {
    let mut endpoints: BTreeMap<_, Vec<&(Task, Address)>> = BTreeMap::new();
    for entry in addresses.iter().filter(|(_, address)| address.port != 0) {
        endpoints.entry(entry.1.endpoint()).or_default().push(entry);
    }
    for same in endpoints.into_values().filter(|same| same.len() > 1) {
        let tasks: Vec<_> = same.iter().map(|(task, _)| format!("`{task}`")).collect();
        faults.push(Fault::new(
            format!("{place}, {}", tasks.join(" and ")),
            format!("have the same address, `{}`", text(&same[0].1)),
            "give each task its own port",
        ));
    }
    if tasks_count < 2 {
        return;
    }
    for (task, address) in addresses {
        let entry = format!("{place}, `{task}`");
        if address.port == 0 {
            let what = "has port 0, which the system would choose: its peers could not find it";
            faults.push(Fault::new(entry, what, "give a fixed port"));
        } else if matches!(address.host, Host::Ip(ip) if ip.is_unspecified()) {
            let what = format!("has the address `{}`, which peers can't dial", text(address));
            faults.push(Fault::new(entry, what, "list the task's host; --bind says where to listen"));
        }
    }
    let (here, elsewhere): (Vec<_>, Vec<_>) = addresses.iter().partition(|(_, address)| address.is_loopback());
    if !here.is_empty() && !elsewhere.is_empty() {
        let list = |entries: &[&(Task, Address)]| {
            entries
                .iter()
                .map(|(task, address)| format!("`{task}` at `{}`", text(address)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        faults.push(Fault::new(
            place,
            format!(
                "loopback addresses ({}) are mixed with other hosts ({}), which would reach themselves there",
                list(&here),
                list(&elsewhere)
            ),
            "list each task under an address that every other task can dial",
        ));
    }
}

fn text(address: &Address) -> String {
    match &address.host {
        Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{}", address.port),
        Host::Ip(ip) => format!("{ip}:{}", address.port),
        Host::Name(name) => format!("{name}:{}", address.port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses_parse() {
        for (text, loopback) in [
            ("a:2222", false),
            ("a.example.:2223", false),
            ("my_host-1.ns.svc:1", false),
            ("10.0.0.1:65535", false),
            ("[fe80::1]:22", false),
            ("localhost:0", true),
            ("LOCALHOST:1", true),
            ("127.0.0.9:1", true),
            ("[::1]:1", true),
        ] {
            let address = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(address.is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn bad_addresses_say_why() {
        for (text, why) in [
            ("", "empty"),
            ("a", "no port"),
            ("a:", "port ``"),
            ("a:65536", "65536"),
            ("a:+1", "`+`"),
            ("a:x", "`x`"),
            (":2222", "no host"),
            ("me@a:8080", "`@`"),
            ("grpc://a:1", "scheme"),
            ("10.0.0.232.:2223", "stray dot"),
            ("a..b:1", "stray dot"),
            (".a:1", "stray dot"),
            ("10.0.0:1", "no IPv4"),
            ("10.0.0.256:1", "no IPv4"),
            ("fe80::1:2222", "bare IPv6"),
            ("::1", "bare IPv6"),
            ("[::1:2222", "closing bracket"),
            ("[a]:2222", "no IPv6"),
            ("[::1]2222", "no port"),
            ("a b:1", "` `"),
            ("a\u{1b}:1", "character"),
            ("a:1,b:2", "comma"),
        ] {
            let (what, _) = parse(text).expect_err(text);
            assert!(what.contains(why), "{text}: {what}");
            assert!(!what.contains('\u{1b}'));
        }
    }
}
