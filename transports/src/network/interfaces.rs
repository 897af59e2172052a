// SPDX-License-Identifier: Apache-2.0
//! Network interfaces of this host, and which of them people mean.

use nix::ifaddrs::InterfaceAddress;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;
use std::path::Path;

/// An address of an interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// The address.
    pub address: IpAddr,
}

impl Interface {
    /// Those that are up, in the order in which they are to be tried: those of a wire or radio before bridges of
    /// virtual machines and containers, IP version 4 before 6.
    pub fn all() -> Vec<Interface> {
        let Ok(all) = nix::ifaddrs::getifaddrs() else { return vec![] };
        let is_up = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        let up = all.filter(|one| one.flags.contains(is_up));
        let mut found: Vec<Interface> = up
            .filter_map(|one| {
                Some(Interface { address: address_of(&one)?, name: one.interface_name })
            })
            .collect();
        let is_bridge = |name: &str| Path::new("/sys/class/net").join(name).join("bridge").exists();
        found.sort_by_key(|one| (is_bridge(&one.name), one.address.is_ipv6()));
        found
    }
}

fn address_of(one: &InterfaceAddress) -> Option<IpAddr> {
    let address = one.address?;
    let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
}

/// Whether an address means something on one link only.
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether an address, of the interface called `name`, is on `interface`: the name of one, an address of it, or a
/// subnet.
pub fn is_on(name: &str, address: Option<IpAddr>, interface: &str) -> bool {
    if name == interface {
        return true;
    }
    let Some(address) = address else { return false };
    match interface.split_once('/') {
        Some((net, bits)) => match (net.parse(), bits.parse()) {
            (Ok(net), Ok(bits)) => within(address, net, bits),
            _ => false,
        },
        None => interface.parse() == Ok(address) || addresses_of(interface).contains(&address),
    }
}

/// Whether `address` is in the subnet `net`/`bits`.
fn within(address: IpAddr, net: IpAddr, bits: u32) -> bool {
    let same =
        |a: u128, b: u128, width: u32| bits == 0 || bits <= width && (a ^ b) >> (width - bits) == 0;
    match (address, net) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

/// The addresses of an interface of this host.
fn addresses_of(interface: &str) -> Vec<IpAddr> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return vec![] };
    all.filter(|one| one.interface_name == interface).filter_map(|one| address_of(&one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_a_name_an_address_or_a_subnet() {
        let address = "10.99.0.7".parse().ok();
        for (interface, fits) in [
            ("eth0", true),
            ("eth1", false),
            ("10.99.0.7", true),
            ("10.99.0.8", false),
            ("10.99.0.0/24", true),
            ("10.98.0.0/15", true),
            ("10.98.0.0/16", false),
            ("0.0.0.0/0", true),
            ("10.99.0.0/33", false),
            ("fd00::/8", false),
            ("nonsense/x", false),
        ] {
            assert_eq!(is_on("eth0", address, interface), fits, "{interface}");
        }
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let here = |one: &Interface| one.name == "lo" && one.address.is_loopback();
        assert!(Interface::all().iter().any(here));
    }
}
