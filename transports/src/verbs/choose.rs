// SPDX-License-Identifier: Apache-2.0
//! Which device, port and address are used: the rules, without the devices.

use super::sys::{self, Gid};
use std::net::{IpAddr, Ipv6Addr};

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// How packets with it look on the wire.
    pub kind: GidKind,
}

/// How packets look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, and RoCE version 1.
    V1,
    /// RoCE version 2: UDP.
    V2,
    /// The kernel does not say.
    Unknown,
}

impl GidKind {
    /// From the text that the kernel has for it.
    pub fn of(text: Option<&str>) -> GidKind {
        match text.map(str::trim) {
            Some("RoCE v2") => GidKind::V2,
            Some(text) if text.contains("v1") => GidKind::V1,
            _ => GidKind::Unknown,
        }
    }
}

/// The address in a GID of a RoCE port.
pub fn address(gid: &Gid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(*gid)).to_canonical()
}

/// The best entry for a RoCE port: one with an address of those in `shared`, networks that all hosts of the job
/// are in, if there is one. Addresses of the loop-back interface lead to this machine alone.
pub fn best_gid(entries: &[GidEntry], one_machine: bool, shared: &[IpAddr]) -> Option<GidEntry> {
    let rank = |entry: &&GidEntry| {
        let kind = match entry.kind {
            GidKind::V2 => 0,
            GidKind::Unknown => 1,
            GidKind::V1 => 2,
        };
        let reach = match address(&entry.gid) {
            IpAddr::V4(address) if address.is_link_local() => 2,
            IpAddr::V4(_) => 0,
            IpAddr::V6(address) if address.is_unicast_link_local() => 3,
            IpAddr::V6(_) => 1,
        };
        (kind, place_in(shared, entry), reach, entry.index)
    };
    let is_usable = |entry: &&GidEntry| {
        let address = address(&entry.gid);
        !address.is_unspecified() && (one_machine || !address.is_loopback())
    };
    entries.iter().filter(is_usable).min_by_key(rank).copied()
}

/// Where the address of an entry is among those in `shared`; behind all if it is not.
fn place_in(shared: &[IpAddr], entry: &GidEntry) -> usize {
    let address = address(&entry.gid);
    shared.iter().position(|one| *one == address).unwrap_or(shared.len())
}

/// The order in which ports are to be tried: cards first, and of RoCE ports those in a network that all hosts of
/// the job are in, so that all hosts take ports that reach each other. InfiniBand has networks of its own.
pub fn precedence(
    is_software: bool,
    link: u8,
    entry: &GidEntry,
    shared: &[IpAddr],
) -> (bool, usize) {
    let place = if link == sys::LINK_INFINIBAND { 0 } else { place_in(shared, entry) };
    (is_software, place)
}

/// What is to be known of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Its number, from 1.
    pub number: u32,
    /// It has a link.
    pub is_active: bool,
    /// `sys::LINK_INFINIBAND` or `sys::LINK_ETHERNET`.
    pub link: u8,
}

/// What is to be known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// As `ibv_devices` lists it.
    pub name: String,
    /// No card: the kernel does its work.
    pub is_software: bool,
    /// The kernel of the target copies what arrives, byte by byte at the end, so words may arrive in parts.
    pub is_copied: bool,
    /// `ibv_device.transport_type`.
    pub transport: i32,
    /// Why it cannot be opened, or its ports.
    pub ports: Result<Vec<PortState>, String>,
}

/// Device and port of each of those that settings name, separated by commas; a list of one goes for all.
pub fn wishes(devices: &str, ports: &str) -> Result<Vec<(String, Option<u32>)>, String> {
    let split =
        |list: &str| -> Vec<String> { list.split(',').map(|one| one.trim().to_owned()).collect() };
    let (devices, ports) = (split(devices), split(ports));
    let count = devices.len().max(ports.len());
    if [&devices, &ports].iter().any(|list| list.len() > 1 && list.len() < count) {
        return Err("SHMEM_VERBS_DEVICE and SHMEM_VERBS_PORT are lists of different lengths".into());
    }
    let wish = |at: usize| {
        let device = devices.get(at).unwrap_or(&devices[0]).clone();
        let port = match ports.get(at).unwrap_or(&ports[0]).as_str() {
            "" => None,
            number => Some(number.parse().map_err(|_| {
                format!("SHMEM_VERBS_PORT: '{number}' is not the number of a port")
            })?),
        };
        Ok((device, port))
    };
    (0..count).map(wish).collect()
}

/// Devices and ports that may be used, by their places in the list. An error if there is none.
pub fn candidates(
    devices: &[DeviceState],
    device: &str,
    port: Option<u32>,
) -> Result<Vec<(usize, u32)>, String> {
    if devices.is_empty() {
        return Err("libibverbs is there, but there is no RDMA device".into());
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    if !device.is_empty() && !names.contains(&device) {
        return Err(format!("there is no RDMA device {device}; there are {}", names.join(", ")));
    }
    let (mut found, mut unfit) = (vec![], vec![]);
    let wanted = |one: &&(usize, &DeviceState)| device.is_empty() || one.1.name == device;
    for &(index, one) in devices.iter().enumerate().collect::<Vec<_>>().iter().filter(wanted) {
        match ports_of(one, port) {
            Ok(ports) => found.extend(ports.into_iter().map(|port| (index, port))),
            Err(why) => unfit.push(format!("{}: {why}", one.name)),
        }
    }
    if found.is_empty() {
        return Err(format!("no RDMA device can be used: {}", unfit.join("; ")));
    }
    Ok(found)
}

fn ports_of(device: &DeviceState, wanted: Option<u32>) -> Result<Vec<u32>, String> {
    match device.transport {
        sys::TRANSPORT_IB => {}
        sys::TRANSPORT_IWARP => {
            return Err("it is an iWARP card, which this transport does not drive".into());
        }
        _ => return Err("it has no reliable connections".into()),
    }
    let ports = device.ports.as_ref().map_err(Clone::clone)?;
    let fits = |port: &&PortState| wanted.is_none_or(|wanted| port.number == wanted);
    let chosen: Vec<&PortState> = ports.iter().filter(fits).collect();
    if let (Some(wanted), true) = (wanted, chosen.is_empty()) {
        return Err(format!("it has no port {wanted}"));
    }
    let active = chosen.into_iter().filter(|port| {
        port.is_active && matches!(port.link, sys::LINK_INFINIBAND | sys::LINK_ETHERNET)
    });
    let active: Vec<u32> = active.map(|port| port.number).collect();
    match (active.is_empty(), wanted) {
        (false, _) => Ok(active),
        (true, Some(port)) => Err(format!("port {port} has no link")),
        (true, None) => Err("no port has a link".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        GidEntry { index, gid: address.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    #[test]
    fn the_kernels_words_for_kinds_are_known() {
        let words = [Some("RoCE v2\n"), Some("IB/RoCE v1\n"), Some("?"), None];
        let kinds = [GidKind::V2, GidKind::V1, GidKind::Unknown, GidKind::Unknown];
        assert_eq!(words.map(GidKind::of), kinds);
    }

    #[test]
    fn version_2_over_ipv4_is_preferred_and_loop_back_leads_nowhere_else() {
        let entries = [
            entry(0, "fe80::5054:ff:fe00:1", GidKind::V1),
            entry(1, "fe80::5054:ff:fe00:1", GidKind::V2),
            entry(2, "::ffff:10.9.0.1", GidKind::V1),
            entry(3, "::ffff:10.9.0.1", GidKind::V2),
            entry(4, "2001:db8::1", GidKind::V2),
            entry(5, "::", GidKind::V2),
        ];
        let best = |entries: &[GidEntry]| best_gid(entries, false, &[]).map(|entry| entry.index);
        assert_eq!(best(&entries), Some(3));
        assert_eq!(best(&[entries[0], entries[1], entries[4]]), Some(4));
        assert_eq!(best(&[entries[0], entries[1]]), Some(1));
        assert_eq!(best(&entries[..1]), Some(0));
        assert_eq!(best(&entries[5..]), None);
        let local = [entry(0, "::ffff:127.0.0.1", GidKind::V2)];
        assert_eq!(best(&local), None);
        assert_eq!(best_gid(&local, true, &[]), Some(local[0]));
        assert_eq!(address(&entries[3].gid).to_string(), "10.9.0.1");
        assert_eq!(address(&entries[4].gid).to_string(), "2001:db8::1");
    }

    #[test]
    fn addresses_in_a_network_of_all_hosts_are_preferred() {
        let entries = [
            entry(0, "fe80::1", GidKind::V2),
            entry(1, "::ffff:10.9.0.1", GidKind::V2),
            entry(2, "::ffff:10.9.1.1", GidKind::V1),
            entry(3, "::ffff:10.9.1.1", GidKind::V2),
            entry(4, "2001:db8::1", GidKind::V2),
        ];
        let best = |shared: &[&str]| {
            let shared: Vec<IpAddr> = shared.iter().map(|one| one.parse().unwrap()).collect();
            best_gid(&entries, false, &shared).map(|entry| entry.index)
        };
        assert_eq!(best(&["10.9.1.1"]), Some(3));
        assert_eq!(best(&["2001:db8::1", "10.9.1.1"]), Some(4));
        assert_eq!(best(&["10.9.2.1"]), Some(1));
        assert_eq!(best(&[]), Some(1));
    }

    #[test]
    fn cards_come_first_and_then_networks_of_all_hosts() {
        let shared = ["10.9.1.1".parse().unwrap(), "10.9.0.1".parse().unwrap()];
        let gids = ["::ffff:10.9.0.1", "::ffff:10.9.1.1", "::ffff:10.9.2.1", "fe80::1"];
        let [late, soon, alone, infiniband] = gids.map(|gid| entry(0, gid, GidKind::V2));
        let ethernet = sys::LINK_ETHERNET;
        let mut ports = [
            ("software", true, ethernet, soon),
            ("alone", false, ethernet, alone),
            ("late", false, ethernet, late),
            ("InfiniBand", false, sys::LINK_INFINIBAND, infiniband),
            ("soon", false, ethernet, soon),
        ];
        ports.sort_by_key(|(_, software, link, gid)| precedence(*software, *link, gid, &shared));
        let order = ports.map(|(name, ..)| name);
        assert_eq!(order, ["InfiniBand", "soon", "late", "alone", "software"]);
    }

    fn device(name: &str, is_software: bool, ports: &[(bool, u8)]) -> DeviceState {
        let port = |(index, (is_active, link)): (usize, &(bool, u8))| PortState {
            number: index as u32 + 1,
            is_active: *is_active,
            link: *link,
        };
        let ports = Ok(ports.iter().enumerate().map(port).collect());
        let transport = sys::TRANSPORT_IB;
        DeviceState { name: name.into(), is_software, is_copied: is_software, transport, ports }
    }

    #[test]
    fn several_are_named_by_lists_of_which_one_goes_for_all() {
        let told = |devices, ports| wishes(devices, ports).unwrap();
        let wish = |device: &str, port| (device.to_owned(), port);
        assert_eq!(told("", ""), [wish("", None)]);
        assert_eq!(told("a, b", "2"), [wish("a", Some(2)), wish("b", Some(2))]);
        assert_eq!(told("a", "1,2"), [wish("a", Some(1)), wish("a", Some(2))]);
        assert_eq!(told("a,b", "1,"), [wish("a", Some(1)), wish("b", None)]);
        assert!(wishes("a,b,c", "1,2").unwrap_err().contains("different lengths"));
        assert!(wishes("", "one").unwrap_err().contains("'one' is not"));
    }

    #[test]
    fn ports_have_a_link_and_settings_decide() {
        let devices = [
            device("rxe0", true, &[(true, sys::LINK_ETHERNET)]),
            device("mlx5_0", false, &[(false, sys::LINK_ETHERNET), (true, sys::LINK_ETHERNET)]),
            device("mlx5_1", false, &[(true, sys::LINK_INFINIBAND)]),
        ];
        let all = vec![(0, 1), (1, 2), (2, 1)];
        assert_eq!(candidates(&devices, "", None), Ok(all));
        assert_eq!(candidates(&devices, "rxe0", None), Ok(vec![(0, 1)]));
        assert_eq!(candidates(&devices, "", Some(2)), Ok(vec![(1, 2)]));
        let why = |name, port| candidates(&devices, name, port).unwrap_err();
        assert!(why("mlx5_0", Some(1)).contains("port 1 has no link"));
        assert!(why("mlx5_1", Some(3)).contains("it has no port 3"));
        assert!(why("eth0", None).contains("there are rxe0, mlx5_0, mlx5_1"));
    }

    #[test]
    fn what_cannot_be_used_is_told_with_its_reason() {
        let none = candidates(&[], "", None).unwrap_err();
        assert_eq!(none, "libibverbs is there, but there is no RDMA device");
        let mut iwarp = device("cxgb4_0", false, &[(true, sys::LINK_ETHERNET)]);
        iwarp.transport = sys::TRANSPORT_IWARP;
        let mut closed = device("mlx4_0", false, &[]);
        closed.ports = Err("ibv_open_device: Permission denied".into());
        let down = device("rxe0", true, &[(false, sys::LINK_ETHERNET)]);
        let told = candidates(&[iwarp, closed, down], "", None).unwrap_err();
        for words in ["cxgb4_0: it is an iWARP card", "Permission denied", "rxe0: no port has a"] {
            assert!(told.contains(words), "{told}");
        }
    }
}
