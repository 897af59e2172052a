// SPDX-License-Identifier: Apache-2.0
//! Locality classes: pairs of PEs between which an operation is expected to cost the same.
//!
//! One pair per class is measured, not all pairs. A class follows from data that every PE has
//! after one exchange, so all PEs put a pair into the same class, whichever end asks.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use tombolo_core::config::{Bytes, Value};
use tombolo_core::transport::Distance;

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
    Hops(u32),
    /// Other host, behind a network.
    Network,
}

/// Where on its host a PE may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// First processor of the last-level cache that all its processors share; -1 if they do not.
    pub cache: i32,
    /// The NUMA node that holds all its processors; -1 if there is more than one.
    pub node: i32,
}

impl Class {
    /// The class of two PEs at a distance that run at `a` and `b`; the same for `b`, `a`.
    pub fn of(distance: Distance, a: Binding, b: Binding) -> Class {
        match distance {
            Distance::Myself => return Class::Own,
            Distance::Hops(hops) => return Class::Hops(hops),
            Distance::Network => return Class::Network,
            Distance::Host => {}
        }
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

    /// Links on the way, a network counting as one; 0 on one host.
    pub fn hops(self) -> u32 {
        match self {
            Class::Hops(hops) => hops,
            Class::Network => 1,
            _ => 0,
        }
    }

    /// The class whose model stands for this one, at any number of hops.
    pub fn modelled(self) -> Class {
        if let Class::Hops(_) = self { Class::Hops(1) } else { self }
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
            Class::Hops(hops) => write!(f, "ring-{hops}"),
            Class::Network => f.write_str("network"),
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
            "network" => Ok(Class::Network),
            _ => text
                .strip_prefix("ring-")
                .and_then(|hops| hops.parse().ok())
                .filter(|hops| *hops > 0)
                .map(Class::Hops)
                .ok_or_else(|| format!("'{text}' is no locality class")),
        }
    }
}

/// One pair of PEs per class: `(class, initiator, target)`, in class order. The pair with the
/// lowest initiator, then the lowest target, stands for its class.
///
/// PEs of which `alike` says the same are in the same class to any third PE. Of these only the first
/// two are looked at: looking at all pairs takes long where there are hundreds of PEs.
pub fn representatives<K: Eq + Hash>(
    n_pes: usize,
    alike: impl Fn(usize) -> K,
    class: impl Fn(usize, usize) -> Class,
) -> Vec<(Class, usize, usize)> {
    let mut seen: HashMap<K, u32> = HashMap::new();
    let is_needed = |pe: &usize| {
        let count = seen.entry(alike(*pe)).or_default();
        *count += 1;
        *count <= 2
    };
    let pes: Vec<usize> = (0..n_pes).filter(is_needed).collect();
    let mut found: Vec<(Class, usize, usize)> = Vec::new();
    for (at, &a) in pes.iter().enumerate() {
        for &b in &pes[at..] {
            let class = class(a, b);
            if !found.iter().any(|(known, ..)| *known == class) {
                found.push((class, a, b));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Bytes of the last-level cache for each processor that shares it, where this process may run; 0 if
/// `/sys` does not tell.
pub fn cache_share() -> u64 {
    let Some(&cpu) = my_cpus().first() else { return 0 };
    let read = |index: u32, what: &str| {
        std::fs::read_to_string(format!(
            "/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{what}"
        ))
        .ok()
    };
    let Some(last) = (0..8).rev().find(|index| read(*index, "level").is_some()) else { return 0 };
    let size =
        read(last, "size").and_then(|text| Bytes::parse(&text).ok()).map_or(0, |size| size.0);
    let sharers = read(last, "shared_cpu_list").map_or(0, |list| parse_cpu_list(&list).len());
    size / sharers.max(1) as u64
}

/// Where this process may run, as far as its affinity mask and `/sys` tell.
pub fn here() -> Binding {
    let cpus = my_cpus();
    let Some(&first) = cpus.first() else { return Binding { cache: -1, node: -1 } };
    let holds_mine = |list: &str| {
        let list = parse_cpu_list(list);
        cpus.iter().all(|cpu| list.binary_search(cpu).is_ok()).then(|| list[0] as i32)
    };
    let caches = format!("/sys/devices/system/cpu/cpu{first}/cache");
    let read = |path: String| std::fs::read_to_string(path).ok();
    // Indices rise with the level: the last one is the last-level cache.
    let last = (0..8).rev().find_map(|i| read(format!("{caches}/index{i}/shared_cpu_list")));
    let cache = last.and_then(|list| holds_mine(&list)).unwrap_or(-1);
    let node = (0..64)
        .map_while(|node| {
            Some((node, read(format!("/sys/devices/system/node/node{node}/cpulist"))?))
        })
        .find_map(|(node, list)| holds_mine(&list).map(|_| node));
    Binding { cache, node: node.unwrap_or(-1) }
}

fn my_cpus() -> Vec<usize> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

/// The processors of a list such as `0-3,8`, in rising order; what cannot be read is left out.
pub fn parse_cpu_list(text: &str) -> Vec<usize> {
    let mut cpus: Vec<usize> = text
        .trim()
        .split(',')
        .filter_map(|part| {
            let part = part.trim();
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            Some(low.parse().ok()?..=high.parse().ok()?)
        })
        .flatten()
        .collect();
    cpus.sort_unstable();
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ends_of_a_pair_see_the_same_class(
            hosts in proptest::collection::vec((0u32..5, -1i32..3, -1i32..2), 1..12)
        ) {
            let place = |pe: usize| Binding { cache: hosts[pe].1, node: hosts[pe].2 };
            let distance = |a: usize, b: usize| match hosts[a].0.abs_diff(hosts[b].0) {
                _ if a == b => Distance::Myself,
                0 => Distance::Host,
                4 => Distance::Network,
                hops => Distance::Hops(hops),
            };
            let class = |a, b| Class::of(distance(a, b), place(a), place(b));
            let found = representatives(hosts.len(), |pe| hosts[pe], class);
            prop_assert_eq!(&found, &representatives(hosts.len(), |pe| pe, class));
            for a in 0..hosts.len() {
                for b in 0..hosts.len() {
                    let class = class(a, b);
                    prop_assert_eq!(class, Class::of(distance(b, a), place(b), place(a)));
                    prop_assert_eq!(class.to_string().parse::<Class>(), Ok(class));
                    prop_assert_eq!(found.iter().filter(|(c, ..)| *c == class).count(), 1);
                }
            }
        }
    }

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("9-9,0-2, 7,x"), [0, 1, 2, 7, 9]);
        assert!(parse_cpu_list("").is_empty());
    }
}
