// SPDX-License-Identifier: Apache-2.0
//! Network interfaces of this host, which of them people mean, and which networks the hosts of a job share.

use crate::transport::Job;
use ipnet::IpNet;
use nix::ifaddrs::InterfaceAddress;
use nix::net::if_::InterfaceFlags;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::path::Path;

/// An address of an interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Bits of the address that are those of its network; all where the system does not tell.
    pub prefix: u8,
}

impl Interface {
    /// Those that are up, in the order in which they are to be tried: those of a wire or radio before bridges of
    /// virtual machines and containers, IP version 4 before 6, the faster first.
    pub fn all() -> Vec<Interface> {
        let Ok(all) = nix::ifaddrs::getifaddrs() else { return vec![] };
        let is_up = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        let up = all.filter(|one| one.flags.contains(is_up));
        let mut found: Vec<Interface> = up
            .filter_map(|one| {
                let address = address_of(&one)?;
                let prefix = prefix_of(&one).unwrap_or(if address.is_ipv4() { 32 } else { 128 });
                Some(Interface { address, prefix, name: one.interface_name })
            })
            .collect();
        // To ask what the system knows of an interface takes a while, and most hosts have one only.
        let mut leading = found.iter().filter(|one| one.leads_elsewhere()).map(|one| &one.name);
        let first = leading.next();
        let are_several = leading.any(|name| Some(name) != first);
        found.sort_by_cached_key(|one| {
            let known = are_several.then(|| known_of(&Path::new("/sys/class/net").join(&one.name)));
            let (is_bridge, speed) = known.unwrap_or_default();
            (is_bridge, one.address.is_ipv6(), Reverse(speed))
        });
        found
    }

    /// Whether other hosts may be reached by it.
    fn leads_elsewhere(&self) -> bool {
        !self.address.is_loopback() && !is_link_local(self.address)
    }
}

/// Whether an interface is a bridge, and its speed in Mb/s; 0 if it has none or does not tell.
fn known_of(interface: &Path) -> (bool, u32) {
    let speed = std::fs::read_to_string(interface.join("speed")).ok();
    let speed = speed.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    (interface.join("bridge").exists(), speed)
}

/// The networks by which other hosts may be reached, as the addresses of this host in them: no more than `most`,
/// those to be tried first.
pub fn networks(most: usize) -> Vec<IpNet> {
    let all = Interface::all().into_iter().filter(Interface::leads_elsewhere);
    let mut networks: Vec<IpNet> =
        all.filter_map(|one| IpNet::new(one.address, one.prefix).ok()).collect();
    networks.truncate(most);
    networks
}

/// Addresses of this host in networks that all hosts of the job are in, in the order in which the first host has
/// these. An address that several hosts have, as bridges of containers do, leads to none of them.
pub fn shared_by_all(job: &Job<'_>) -> Vec<IpAddr> {
    let first_of_hosts = job.localities.iter().filter(|place| place.local_index == 0);
    let hosts: Vec<&[IpNet]> = first_of_hosts.map(|place| &*place.networks).collect();
    let is_alone = |one: &IpNet| {
        hosts.iter().filter(|host| host.iter().any(|other| other.addr() == one.addr())).count() == 1
    };
    let within = |host: &[IpNet], network: &IpNet| {
        host.iter().find(|one| one.trunc() == *network && is_alone(one)).map(IpNet::addr)
    };
    let Some(here) = job.localities.get(job.pe).map(|place| place.host_index as usize) else {
        return vec![];
    };
    let mut shared = vec![];
    for network in hosts.first().into_iter().copied().flatten().map(IpNet::trunc) {
        let of_hosts: Option<Vec<IpAddr>> =
            hosts.iter().map(|host| within(host, &network)).collect();
        let own = of_hosts.and_then(|addresses| addresses.get(here).copied());
        shared.extend(own.filter(|own| !shared.contains(own)));
    }
    shared
}

fn address_of(one: &InterfaceAddress) -> Option<IpAddr> {
    let address = one.address?;
    let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
}

fn prefix_of(one: &InterfaceAddress) -> Option<u8> {
    let mask = one.netmask?;
    let v4 = mask.as_sockaddr_in().map(|mask| mask.ip().to_bits().leading_ones());
    let bits = v4.or_else(|| mask.as_sockaddr_in6().map(|mask| mask.ip().to_bits().leading_ones()));
    bits.map(|bits| bits as u8)
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
    match interface.parse::<IpNet>() {
        Ok(network) => network.contains(&address),
        Err(_) => interface.parse() == Ok(address) || addresses_of(interface).contains(&address),
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
    use crate::config::Config;
    use crate::transport::Locality;

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

    /// Hosts with these networks; each but the first has a second PE.
    fn job(hosts: &[&[&str]]) -> Vec<Locality> {
        let networks = |list: &[&str]| list.iter().map(|one| one.parse().unwrap()).collect();
        let place = |host: usize, local_index| {
            let networks = if local_index == 0 { networks(hosts[host]) } else { vec![] };
            Locality { networks, local_index, ..Locality::alone_on(host as u32) }
        };
        let firsts = (0..hosts.len()).map(|host| place(host, 0));
        firsts.chain((1..hosts.len()).map(|host| place(host, 1))).collect()
    }

    fn shared(hosts: &[&[&str]]) -> Vec<Vec<String>> {
        let config = Config::from_environment(Default::default()).unwrap();
        let localities = job(hosts);
        let of = |pe| {
            let addresses =
                shared_by_all(&Job { pe, localities: &localities, config: &config, meeting: None });
            addresses.iter().map(IpAddr::to_string).collect()
        };
        (0..localities.len()).map(of).collect()
    }

    #[test]
    fn hosts_agree_on_a_network_that_all_are_in() {
        // The first host has an interface that the others have not, and they have theirs in another order.
        let hosts: [&[&str]; 3] = [
            &["192.168.1.7/24", "10.0.0.1/24", "fd00::1/64"],
            &["fd00::2/64", "10.0.0.2/24", "192.168.2.7/24"],
            &["10.0.0.3/24", "10.0.1.3/24", "fd00::3/64"],
        ];
        let second = vec!["10.0.0.2", "fd00::2"];
        let third = vec!["10.0.0.3", "fd00::3"];
        let expected = [vec!["10.0.0.1", "fd00::1"], second.clone(), third.clone(), second, third];
        assert_eq!(shared(&hosts), expected);
    }

    #[test]
    fn a_network_is_shared_only_with_an_address_of_its_own_on_each_host() {
        // Bridges of containers, masks that differ, and hosts that are reached through routers.
        let bridges = shared(&[&["172.17.0.1/16", "10.0.0.1/8"], &["172.17.0.1/16", "10.0.0.2/8"]]);
        assert_eq!(bridges, [["10.0.0.1"], ["10.0.0.2"], ["10.0.0.2"]]);
        let none: [Vec<String>; 3] = [const { vec![] }; 3];
        assert_eq!(shared(&[&["10.0.0.1/8"], &["10.0.0.2/16"]]), none);
        assert_eq!(shared(&[&["10.128.0.2/32"], &["10.128.0.3/32"]]), none);
        assert_eq!(shared(&[&[], &["10.0.0.2/16"]]), none);
    }

    #[test]
    fn what_the_system_knows_of_an_interface_is_read() {
        let root = std::env::temp_dir().join(format!("tombolo-interface-{}", std::process::id()));
        std::fs::create_dir_all(root.join("bridge")).unwrap();
        for (text, speed) in [("25000\n", 25_000), ("-1\n", 0), ("", 0)] {
            std::fs::write(root.join("speed"), text).unwrap();
            assert_eq!(known_of(&root), (true, speed));
        }
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(known_of(&root), (false, 0));
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let here = |one: &Interface| {
            one.name == "lo" && one.address == IpAddr::from([127, 0, 0, 1]) && one.prefix == 8
        };
        assert!(Interface::all().iter().any(here));
        assert!(networks(usize::MAX).iter().all(|network| !network.addr().is_loopback()));
    }
}
