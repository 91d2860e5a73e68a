//! What a guest is given, beside the clock, random numbers and an output.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// A directory of the host that a guest may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirGrant {
    /// The directory.
    pub host: PathBuf,
    /// The path by which the guest sees it.
    pub guest: String,
    /// Whether the guest may only read.
    pub read_only: bool,
}

/// Addresses that a guest may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetGrant {
    /// Which machines.
    pub host: NetHost,
    /// Which port; none: every port.
    pub port: Option<u16>,
}

/// Machines, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetHost {
    /// One address.
    Address(IpAddr),
    /// All addresses that begin with the same bits.
    Network {
        /// One of them.
        address: IpAddr,
        /// How many bits they share.
        prefix_bits: u8,
    },
    /// Whatever a name resolves to, when the guest looks it up.
    Name(String),
}

impl NetGrant {
    /// Whether a connection to this address and port is granted by address; a name grants what it resolves to instead.
    pub(super) fn covers(&self, address: SocketAddr) -> bool {
        self.has_port(address.port()) && self.host.contains(address.ip())
    }

    /// Whether the grant is good for this port.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|granted| granted == port)
    }

    /// Whether the grant is for this name, written as [`lookup_name`] writes it.
    pub(super) fn is_for(&self, name: &str) -> bool {
        matches!(&self.host, NetHost::Name(granted) if lookup_name(granted) == name)
    }

    /// Whether the grant reaches this machine only.
    pub(super) fn is_loopback(&self) -> bool {
        match &self.host {
            NetHost::Address(address) => address.to_canonical().is_loopback(),
            NetHost::Network { address, prefix_bits } => match canonical_network(*address, *prefix_bits) {
                (IpAddr::V4(address), prefix_bits) => address.is_loopback() && prefix_bits >= 8,
                (IpAddr::V6(address), prefix_bits) => address.is_loopback() && prefix_bits == 128,
            },
            NetHost::Name(name) => lookup_name(name) == LOCALHOST,
        }
    }
}

impl NetHost {
    /// A network in its plain form: one of IPv4 addresses that is written as IPv6 ones becomes what it is.
    pub fn network(address: IpAddr, prefix_bits: u8) -> Self {
        let (address, prefix_bits) = canonical_network(address, prefix_bits);
        NetHost::Network { address, prefix_bits }
    }

    /// Whether an address is meant; never so for a name.
    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match *self {
            NetHost::Address(granted) => granted.to_canonical() == address,
            NetHost::Network { address: network, prefix_bits } => {
                let (network, prefix_bits) = canonical_network(network, prefix_bits);
                match (network, address) {
                    (IpAddr::V4(network), IpAddr::V4(address)) => {
                        let differing = u32::from(network) ^ u32::from(address);
                        differing.leading_zeros() >= u32::from(prefix_bits)
                    }
                    (IpAddr::V6(network), IpAddr::V6(address)) => {
                        let differing = u128::from(network) ^ u128::from(address);
                        differing.leading_zeros() >= u32::from(prefix_bits)
                    }
                    _ => false,
                }
            }
            NetHost::Name(_) => false,
        }
    }
}

/// The address and prefix length of a network, as those of IPv4 where all its addresses are IPv4 ones in IPv6.
fn canonical_network(address: IpAddr, prefix_bits: u8) -> (IpAddr, u8) {
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if prefix_bits >= 96 => (canonical, prefix_bits - 96),
        _ => (address, prefix_bits),
    }
}

/// The one name that may stand for loopback addresses.
pub(super) const LOCALHOST: &str = "localhost";

/// A name as it is compared: lowercase, without the final dot.
pub(super) fn lookup_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether an address is not one of the public network's machines: this host, its neighbours, a cloud's metadata service, or
/// an address that another one hides in.
///
/// Who controls a name controls what it resolves to, so that a granted name must not open these.
///
/// # Source
/// IANA's registries of special-purpose addresses, and of IPv6 address space: what is not listed as public is not.
pub(super) fn is_inner(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_inner_v4(address),
        IpAddr::V6(address) => {
            let segments = address.segments();
            let v4 = |high: u16, low: u16| {
                let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
                Ipv4Addr::new(a, b, c, d)
            };
            match segments {
                // NAT64's well-known prefix and 6to4: the IPv4 address counts.
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => is_inner_v4(v4(high, low)),
                // Of protocols, as Teredo and benchmarks.
                [0x2001, 0..=0x1ff, ..] => true,
                // Global unicast: public, but for what ISATAP tunnels to within a site.
                [0x2000..=0x3fff, _, _, _, 0 | 0x200, 0x5efe, high, low] => is_inner_v4(v4(high, low)),
                [0x2000..=0x3fff, ..] => false,
                // All else: unspecified, loopback, IPv4 addresses in the old (`::a.b.c.d`) and the translated form
                // (`::ffff:0:a.b.c.d`), NAT64's local prefix, discarded, of segment routing, unique local, link-local,
                // site-local, multicast, and what nobody has been given.
                _ => true,
            }
        }
    }
}

fn is_inner_v4(address: Ipv4Addr) -> bool {
    match address.octets() {
        // This network, private, loopback, reserved and multicast.
        [0 | 10 | 127 | 224..=255, ..] => true,
        // Shared between a provider's customers, link-local with metadata services, private, of protocols, of benchmarks.
        [100, second, ..] => second & 0xc0 == 64,
        [169, 254, ..] | [192, 168, ..] | [192, 0, 0, _] | [198, 18..=19, ..] => true,
        // Relays of 6to4, which nobody should reach any more.
        [192, 88, 99, _] => true,
        [172, second, ..] => second & 0xf0 == 16,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, prefix_bits: u8) -> NetHost {
        NetHost::Network { address: address.parse().unwrap(), prefix_bits }
    }

    #[test]
    fn a_network_holds_the_addresses_that_begin_alike() {
        for (host, address, holds) in [
            (network("10.1.2.3", 8), "10.255.0.1", true),
            (network("10.0.0.0", 8), "11.0.0.1", false),
            (network("10.0.0.0", 8), "::ffff:10.0.0.1", true),
            (network("10.0.0.0", 32), "10.0.0.1", false),
            (network("0.0.0.0", 0), "203.0.113.9", true),
            (network("0.0.0.0", 0), "2001:db8::1", false),
            (network("2001:db8::", 32), "2001:db8:ffff::1", true),
            (network("2001:db8::", 33), "2001:db8:ffff::1", false),
            (network("::", 0), "2001:db8::1", true),
            (network("::", 0), "10.0.0.1", false),
            (network("::ffff:10.0.0.0", 104), "10.9.9.9", true),
            (NetHost::Address("::ffff:127.0.0.1".parse().unwrap()), "127.0.0.1", true),
            (NetHost::Address("127.0.0.1".parse().unwrap()), "::ffff:127.0.0.1", true),
            (NetHost::Address("127.0.0.1".parse().unwrap()), "127.0.0.2", false),
            (NetHost::Name("127.0.0.1".to_owned()), "127.0.0.1", false),
        ] {
            assert_eq!(host.contains(address.parse().unwrap()), holds, "{host:?} and {address}");
        }
    }

    #[test]
    fn a_grant_is_for_its_port_only() {
        let host = NetHost::Address("192.0.2.1".parse().unwrap());
        let grant = NetGrant { host: host.clone(), port: Some(443) };
        assert!(grant.covers("192.0.2.1:443".parse().unwrap()));
        assert!(!grant.covers("192.0.2.1:80".parse().unwrap()));
        assert!(NetGrant { host, port: None }.covers("192.0.2.1:80".parse().unwrap()));
    }

    #[test]
    fn inner_addresses_are_known_in_every_form() {
        let inner = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "::10.0.0.1",
            "::8.8.8.8",
            "::ffff:0:127.0.0.1",
            "::ffff:0:10.0.0.1",
            "::ffff:0:8.8.8.8",
            "64:ff9b::10.0.0.1",
            "64:ff9b::100.64.0.1",
            "64:ff9b:0:1::808:808",
            "100::1",
            "192.88.99.1",
            "2001::1",
            "2001:2::1",
            "2001:20::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::1",
            "2002:c0a8:101::1",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:169.254.169.254",
            "4000::1",
            "5f00::1",
            "fe00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ];
        for text in inner {
            assert!(is_inner(text.parse().unwrap()), "{text} is taken for a public address");
        }
        for text in [
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "169.253.0.1",
            "203.0.113.1",
            "2001:db8::1",
            "2606:4700::1111",
            "2606:4700::5efe:1.1.1.1",
            "2001:200::1",
            "3fff:ffff::1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert!(!is_inner(text.parse().unwrap()), "{text} is taken for an inner address");
        }
    }
}
