//! What a guest is given, beside the clock, random numbers and an output.

use std::net::IpAddr;
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
