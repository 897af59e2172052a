//! Locality classes: pairs of PEs between which an operation is expected to cost the same.
//!
//! One pair per class is measured, not all pairs. A class follows from data that every PE has
//! after one exchange, so all PEs put a pair into the same class, whichever end asks.

use std::fmt;
use std::str::FromStr;
use tombolo_core::transport::{Locality, hops, hosts};

/// How far apart two PEs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A PE and itself.
    Own,
    /// Same host, last-level cache shared.
    Cache,
    /// Same host and NUMA node, other cache.
    Node,
    /// Same host, other NUMA node.
    FarNode,
    /// Same host; the PEs are not bound closely enough to say more.
    Host,
    /// Other host, this many hops away on the ring of hosts.
    Ring(u32),
}

/// Where on its host a PE may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First processor of the last-level cache that all its processors share; -1 if they do not.
    pub cache: i32,
    /// The NUMA node that holds all its processors; -1 if there is more than one.
    pub node: i32,
}

impl Class {
    /// The class of the pair `a`, `b`; the same for `b`, `a`.
    pub fn of(localities: &[Locality], places: &[Place], a: usize, b: usize) -> Class {
        let (at, bt) = (&localities[a], &localities[b]);
        if a == b {
            return Class::Own;
        }
        if at.host != bt.host {
            return Class::Ring(hops(at.host_index, bt.host_index, hosts(localities)));
        }
        let (a, b) = (places[a], places[b]);
        if a.cache >= 0 && a.cache == b.cache {
            Class::Cache
        } else if a.node < 0 || b.node < 0 {
            Class::Host
        } else if a.node != b.node {
            Class::FarNode
        } else if a.cache >= 0 && b.cache >= 0 {
            Class::Node
        } else {
            Class::Host
        }
    }

    /// Hosts that lie on the way, the last one included; 0 on one host.
    pub fn hops(self) -> u32 {
        if let Class::Ring(hops) = self { hops } else { 0 }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Own => f.write_str("self"),
            Class::Cache => f.write_str("cache"),
            Class::Node => f.write_str("node"),
            Class::FarNode => f.write_str("far-node"),
            Class::Host => f.write_str("host"),
            Class::Ring(hops) => write!(f, "ring-{hops}"),
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Class, String> {
        match text {
            "self" => Ok(Class::Own),
            "cache" => Ok(Class::Cache),
            "node" => Ok(Class::Node),
            "far-node" => Ok(Class::FarNode),
            "host" => Ok(Class::Host),
            _ => text
                .strip_prefix("ring-")
                .and_then(|hops| hops.parse().ok())
                .filter(|hops| *hops > 0)
                .map(Class::Ring)
                .ok_or_else(|| format!("'{text}' is no locality class")),
        }
    }
}

/// One pair of PEs per class: `(class, initiator, target)`, in class order. The pair with the
/// lowest initiator, then the lowest target, stands for its class.
pub fn representatives(localities: &[Locality], places: &[Place]) -> Vec<(Class, usize, usize)> {
    let mut found: Vec<(Class, usize, usize)> = Vec::new();
    for a in 0..localities.len() {
        for b in a..localities.len() {
            let class = Class::of(localities, places, a, b);
            if !found.iter().any(|(known, ..)| *known == class) {
                found.push((class, a, b));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Where this process may run, as far as its affinity mask and `/sys` tell.
pub fn here() -> Place {
    let cpus = my_cpus();
    let Some(&first) = cpus.first() else { return Place { cache: -1, node: -1 } };
    let holds_mine = |list: &str| {
        let list = parse_cpu_list(list);
        cpus.iter().all(|cpu| list.binary_search(cpu).is_ok()).then(|| list[0] as i32)
    };
    let caches = format!("/sys/devices/system/cpu/cpu{first}/cache");
    let read = |path: String| std::fs::read_to_string(path).ok();
    // Indices rise with the level: the last one is the last-level cache.
    let last = (0..8).take_while(|i| read(format!("{caches}/index{i}/level")).is_some()).last();
    let cache = last
        .and_then(|i| read(format!("{caches}/index{i}/shared_cpu_list")))
        .and_then(|list| holds_mine(&list))
        .unwrap_or(-1);
    let node = (0..64)
        .map_while(|node| {
            Some((node, read(format!("/sys/devices/system/node/node{node}/cpulist"))?))
        })
        .find_map(|(node, list)| holds_mine(&list).map(|_| node));
    Place { cache, node: node.unwrap_or(-1) }
}

fn my_cpus() -> Vec<usize> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// The processors of a list such as `0-3,8`, in rising order; what cannot be read is left out.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    let mut cpus: Vec<usize> = text
        .trim()
        .split(',')
        .filter_map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            Some(low.parse().ok()?..=high.parse().ok()?)
        })
        .flatten()
        .collect();
    cpus.sort_unstable();
    cpus
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// PEs of the given hosts.
    pub(crate) fn on_hosts(hosts: &[u32]) -> Vec<Locality> {
        let locality = |(pe, host): (usize, &u32)| Locality {
            host: u64::from(*host),
            host_index: *host,
            local_index: hosts[..pe].iter().filter(|h| *h == host).count() as u32,
            host_name: format!("h{host}"),
            pid: 1,
        };
        hosts.iter().enumerate().map(locality).collect()
    }

    proptest! {
        #[test]
        fn both_ends_of_a_pair_see_the_same_class(
            hosts in proptest::collection::vec((0u32..5, -1i32..3, -1i32..2), 1..12)
        ) {
            let places: Vec<Place> =
                hosts.iter().map(|(_, cache, node)| Place { cache: *cache, node: *node }).collect();
            let hosts: Vec<u32> = hosts.iter().map(|(host, ..)| *host).collect();
            let all = on_hosts(&hosts);
            for a in 0..all.len() {
                for b in 0..all.len() {
                    let class = Class::of(&all, &places, a, b);
                    prop_assert_eq!(class, Class::of(&all, &places, b, a));
                    prop_assert_eq!(class.to_string().parse::<Class>(), Ok(class));
                    let found = representatives(&all, &places);
                    prop_assert_eq!(found.iter().filter(|(c, ..)| *c == class).count(), 1);
                }
            }
        }
    }

    #[test]
    fn ring_distance_takes_the_shorter_way() {
        let all = on_hosts(&[0, 1, 2, 3, 4]);
        let places = [Place { cache: -1, node: -1 }; 5];
        let to = |pe| Class::of(&all, &places, 0, pe);
        assert_eq!([to(1), to(2), to(3), to(4)].map(Class::hops), [1, 2, 2, 1]);
    }

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_cpu_list("").is_empty());
    }
}
