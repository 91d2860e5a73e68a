//! Which addresses a guest may reach: what `--allow-net` lists, asked for each address that is really used.

use super::Denials;
use crate::runtime::grants::{LOCALHOST, NetGrant, is_inner};
use crate::text::shown;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use wasmtime_wasi::sockets::SocketAddrUse;

/// Addresses remembered for one name; a name of many machines is looked up again and again.
const ADDRESSES_MAX: usize = 256;

/// Name look-ups under way at once in one run: each has a thread until the system's resolver answers.
const LOOKUPS_MAX: usize = 8;

/// The network as one run may use it.
#[derive(Debug)]
pub(crate) struct Network {
    grants: Vec<NetGrant>,
    /// What granted names have resolved to, the newest last.
    resolved: Mutex<BTreeMap<String, VecDeque<IpAddr>>>,
    /// Look-ups that may begin.
    pub(super) lookups: Arc<Semaphore>,
    pub(super) denials: Arc<Denials>,
}

impl Network {
    /// A network of these grants; no grant is no network.
    pub(crate) fn new(grants: Vec<NetGrant>, denials: Arc<Denials>) -> Self {
        Network { grants, resolved: Mutex::default(), lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)), denials }
    }

    /// Whether a socket may do this with this address. Called for every use, after names were looked up.
    pub(super) fn allows(&self, address: SocketAddr, purpose: SocketAddrUse) -> bool {
        match purpose {
            SocketAddrUse::TcpConnect => self.reaches(address, "connect to"),
            SocketAddrUse::UdpSend => self.reaches(address, "send to"),
            // Somebody else sent it: dropped without a word, or strangers could fill the log.
            SocketAddrUse::UdpReceive => self.is_granted(address),
            // What the system does by itself before it connects. An explicit bind is refused before it comes here.
            SocketAddrUse::TcpBind => address.ip().is_unspecified() && address.port() == 0,
            SocketAddrUse::UdpBind => self.binds_udp(address),
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => false,
        }
    }

    /// Whether a UDP socket may have this address: some port of a client. WASI 0.2 sends from bound sockets only.
    fn binds_udp(&self, address: SocketAddr) -> bool {
        let is_clients =
            address.port() == 0 && (address.ip().is_unspecified() || address.ip().to_canonical().is_loopback());
        if is_clients && !self.grants.is_empty() {
            return true;
        }
        self.denials.tell(if is_clients {
            "the guest asked for a UDP socket, but no network is granted; give `--allow-net HOST:PORT` for each machine that it \
             may talk to"
                .to_owned()
        } else {
            serving("UDP", address)
        });
        false
    }

    /// The address that a UDP socket gets: of loopback, where nothing else is granted, instead of every interface's.
    pub(super) fn udp_address(&self, asked: SocketAddr) -> SocketAddr {
        if !asked.ip().is_unspecified() || asked.port() != 0 || !self.grants.iter().all(NetGrant::is_loopback) {
            return asked;
        }
        let loopback = match asked.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        SocketAddr::new(loopback, asked.port())
    }

    /// Tells that a guest wanted to be called.
    pub(super) fn refuse_serving(&self, address: SocketAddr) {
        self.denials.tell(serving("TCP", address));
    }

    /// As [`is_granted`](Self::is_granted), and tells where it isn't.
    fn reaches(&self, address: SocketAddr, what: &str) -> bool {
        let granted = self.is_granted(address);
        if !granted {
            self.denials.tell(self.denial(address, what));
        }
        granted
    }

    /// Whether an address is listed, or is what a listed name has resolved to.
    fn is_granted(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.grants.iter().any(|grant| grant.covers(address))
            || self.names_of(ip).iter().any(|name| {
                may_open(name, ip)
                    && self.grants.iter().any(|grant| grant.is_for(name) && grant.has_port(address.port()))
            })
    }

    /// The names that this address was found under.
    fn names_of(&self, ip: IpAddr) -> Vec<String> {
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        resolved.iter().filter(|(_, found)| found.contains(&ip)).map(|(name, _)| name.clone()).collect()
    }

    /// Why an address isn't granted, and how it would be.
    fn denial(&self, address: SocketAddr, what: &str) -> String {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let address = SocketAddr::new(ip, port);
        match self.names_of(ip).first() {
            None => format!(
                "the guest asked to {what} `{address}`, which is not granted; give `--allow-net {address}` to allow it"
            ),
            Some(name) if !may_open(name, ip) => format!(
                "the guest asked to {what} `{address}`, to which the name `{name}` resolves; an inner address is not opened by \
                 a granted name; give `--allow-net {address}` to allow it"
            ),
            Some(name) => format!(
                "the guest asked to {what} `{address}` ({name}), which is not granted; give `--allow-net {name}:{port}` to \
                 allow it"
            ),
        }
    }

    /// Whether a name, as [`lookup_name`](crate::runtime::grants::lookup_name) writes it, may be looked up; tells if not.
    pub(super) fn looks_up(&self, name: &str) -> bool {
        let granted = self.grants.iter().any(|grant| grant.is_for(name));
        if !granted {
            let shown = shown(name);
            self.denials.tell(if is_odd(name) {
                format!(
                    "the guest asked for the addresses of `{shown}`, which is neither a name nor an address in its usual form"
                )
            } else {
                format!(
                    "the guest asked for the addresses of `{shown}`, which is not granted; give `--allow-net {shown}:PORT` to \
                     allow it"
                )
            });
        }
        granted
    }

    /// Remembers what a granted name has resolved to.
    pub(super) fn remember(&self, name: &str, addresses: &[IpAddr]) {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let known = resolved.entry(name.to_owned()).or_default();
        for address in addresses {
            known.retain(|other| other != address);
            known.push_back(address.to_canonical());
            if known.len() > ADDRESSES_MAX {
                known.pop_front();
            }
        }
    }
}

/// Whether a granted name may open an address that it resolves to.
fn may_open(name: &str, ip: IpAddr) -> bool {
    !is_inner(ip) || (name == LOCALHOST && ip.is_loopback())
}

/// Whether a name is one that `--allow-net` doesn't read: no letters, or part of an address in a form of C libraries.
fn is_odd(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.is_empty()
        || last.starts_with(|first: char| first.is_ascii_digit())
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn serving(protocol: &str, address: SocketAddr) -> String {
    format!("the guest asked to bind {protocol} `{address}`; guests connect and don't serve, which no flag changes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::grants::NetHost;

    fn network(grants: &[(&str, Option<u16>)]) -> Network {
        let grants = grants.iter().map(|&(host, port)| {
            let host = match host.parse() {
                Ok(address) => NetHost::Address(address),
                Err(_) => NetHost::Name(host.to_owned()),
            };
            NetGrant { host, port }
        });
        Network::new(grants.collect(), Arc::default())
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_is_reached_without_a_grant() {
        let network = network(&[]);
        for text in ["127.0.0.1:80", "[::1]:80", "203.0.113.1:443", "169.254.169.254:80"] {
            assert!(!network.allows(address(text), SocketAddrUse::TcpConnect), "{text}");
            assert!(!network.allows(address(text), SocketAddrUse::UdpSend), "{text}");
            assert!(!network.allows(address(text), SocketAddrUse::UdpReceive), "{text}");
            assert!(!network.allows(address(text), SocketAddrUse::UdpBind), "{text}");
        }
        assert!(!network.allows(address("0.0.0.0:0"), SocketAddrUse::UdpBind));
        assert!(!network.looks_up("localhost"));
    }

    #[test]
    fn nobody_listens_whatever_is_granted() {
        let network = network(&[("127.0.0.1", None), ("0.0.0.0", None), ("localhost", None)]);
        for text in ["0.0.0.0:0", "127.0.0.1:0", "127.0.0.1:8080", "[::]:0"] {
            assert!(!network.allows(address(text), SocketAddrUse::TcpListen), "{text}");
            assert!(!network.allows(address(text), SocketAddrUse::TcpAccept), "{text}");
        }
        for text in ["0.0.0.0:53", "127.0.0.1:53", "192.0.2.1:0"] {
            assert!(!network.allows(address(text), SocketAddrUse::UdpBind), "{text}");
            assert!(!network.allows(address(text), SocketAddrUse::TcpBind), "{text}");
        }
    }

    #[test]
    fn a_name_opens_what_it_resolved_to_at_its_port() {
        let network = network(&[("db.example.com", Some(5432))]);
        assert!(network.looks_up("db.example.com") && !network.looks_up("other.example.com"));
        let (of_name, other) = (address("203.0.113.7:5432"), address("203.0.113.8:5432"));
        assert!(!network.allows(of_name, SocketAddrUse::TcpConnect), "not before it is looked up");
        network.remember("db.example.com", &[of_name.ip()]);
        assert!(network.allows(of_name, SocketAddrUse::TcpConnect));
        assert!(network.allows(address("[::ffff:203.0.113.7]:5432"), SocketAddrUse::TcpConnect));
        assert!(!network.allows(other, SocketAddrUse::TcpConnect));
        assert!(!network.allows(address("203.0.113.7:22"), SocketAddrUse::TcpConnect));
        network.remember("db.example.com", &[other.ip()]);
        assert!(network.allows(of_name, SocketAddrUse::TcpConnect), "an earlier answer stays good");
        assert!(network.allows(other, SocketAddrUse::TcpConnect));
    }

    #[test]
    fn a_name_that_turns_inwards_opens_nothing() {
        let inner = ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1", "fd00::1", "64:ff9b::7f00:1"];
        let network = network(&[("rebound.example.com", None)]);
        for text in inner {
            let ip: IpAddr = text.parse().unwrap();
            network.remember("rebound.example.com", &[ip]);
            let address = SocketAddr::new(ip, 80);
            assert!(!network.allows(address, SocketAddrUse::TcpConnect), "{text}");
            let denial = network.denial(address, "connect to");
            assert!(denial.contains(&format!("`--allow-net {address}`")), "{denial}");
        }
    }

    #[test]
    fn an_inner_address_is_opened_when_it_is_listed_itself() {
        let network = network(&[("db.internal", Some(5432)), ("10.0.0.5", Some(5432))]);
        network.remember("db.internal", &["10.0.0.5".parse().unwrap(), "10.0.0.6".parse().unwrap()]);
        assert!(network.allows(address("10.0.0.5:5432"), SocketAddrUse::TcpConnect));
        assert!(!network.allows(address("10.0.0.6:5432"), SocketAddrUse::TcpConnect));
    }

    #[test]
    fn localhost_is_loopback_and_nothing_else() {
        let network = network(&[("localhost", Some(80))]);
        network.remember("localhost", &["127.0.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap()]);
        assert!(network.allows(address("127.0.0.1:80"), SocketAddrUse::TcpConnect));
        assert!(!network.allows(address("127.0.0.1:81"), SocketAddrUse::TcpConnect));
        assert!(!network.allows(address("10.0.0.1:80"), SocketAddrUse::TcpConnect), "a hosts file may say anything");
    }

    #[test]
    fn udp_stays_on_loopback_where_only_that_is_granted() {
        let any = address("0.0.0.0:0");
        assert_eq!(network(&[("127.0.0.1", None)]).udp_address(any), address("127.0.0.1:0"));
        assert_eq!(network(&[("localhost", None)]).udp_address(address("[::]:0")), address("[::1]:0"));
        let port = address("0.0.0.0:53");
        assert_eq!(network(&[("127.0.0.1", None)]).udp_address(port), port, "it is refused as it was asked for");
        assert_eq!(network(&[("127.0.0.1", None), ("203.0.113.1", None)]).udp_address(any), any);
    }

    #[test]
    fn a_denial_names_the_flag_that_helps() {
        let network = network(&[("example.com", Some(443)), ("localhost", Some(80))]);
        network.remember("example.com", &["203.0.113.7".parse().unwrap()]);
        network.remember("localhost", &["127.0.0.2".parse().unwrap()]);
        for (text, flag) in [
            ("127.0.0.1:80", "`--allow-net 127.0.0.1:80`"),
            ("[::1]:80", "`--allow-net [::1]:80`"),
            ("[::ffff:127.0.0.1]:80", "`--allow-net 127.0.0.1:80`"),
            ("203.0.113.7:80", "`--allow-net example.com:80`"),
            ("127.0.0.2:81", "`--allow-net localhost:81`"),
        ] {
            let denial = network.denial(address(text), "connect to");
            assert!(denial.contains(flag), "{denial}");
        }
    }

    #[test]
    fn names_that_no_flag_reads_are_known() {
        for name in ["", "127.1", "0x7f.1", "2130706433", "a.0x7f", "a b", "a.", "\u{1b}[2J", "b\u{fc}cher.example"] {
            assert!(is_odd(name), "{name:?}");
        }
        for name in ["localhost", "db.example.com", "a-1.b_2.c3"] {
            assert!(!is_odd(name), "{name:?}");
        }
    }

    #[test]
    fn what_is_remembered_of_a_name_is_bounded() {
        let network = network(&[("example.com", None)]);
        for index in 0..1000_u32 {
            network.remember("example.com", &[Ipv4Addr::from(0xcb00_7100 + index).into()]);
        }
        assert_eq!(network.resolved.lock().unwrap()["example.com"].len(), ADDRESSES_MAX);
    }
}
