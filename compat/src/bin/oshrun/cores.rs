// SPDX-License-Identifier: Apache-2.0
//! Binding PEs to processor cores.
//!
//! The default is not to bind: the scheduler moves PEs away from busy cores, a bound PE cannot
//! move. Bound jobs claim the cores they use, so that two of them never share one while another
//! idles. A claim is a socket in Linux's abstract namespace: the kernel drops it with the process.

use crate::options::Bind;
use crate::report;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Cores for the PEs of one job, held until dropped.
pub struct Cores {
    claimed: Vec<(CpuSet, UnixDatagram)>,
}

impl Cores {
    /// One core for each of `pes` PEs, or none for any of them.
    pub fn claim(bind: Bind, pes: usize) -> Cores {
        let claimed = match bind {
            Bind::None => vec![],
            Bind::Auto => claim(pes).unwrap_or_default(),
            Bind::Core => claim(pes).unwrap_or_else(|why| {
                report::line(format_args!("--bind core: {why}; the PEs are not bound"));
                vec![]
            }),
        };
        Cores { claimed }
    }

    /// The processors PE `pe` is to run on, if it is bound.
    pub fn of(&self, pe: usize) -> Option<CpuSet> {
        self.claimed.get(pe).map(|(set, _)| *set)
    }
}

fn claim(pes: usize) -> Result<Vec<(CpuSet, UnixDatagram)>, String> {
    let cores = usable_cores()?;
    // Counts the cgroup's quota as well: with less than a core's time for each PE, a PE that is
    // bound waits for its core while the group's share is spent elsewhere.
    let quota = std::thread::available_parallelism().map_or(usize::MAX, |count| count.get());
    let usable = cores.len().min(quota);
    if pes > usable {
        return Err(format!("{pes} PEs on {usable} usable cores"));
    }
    let free = cores.into_iter().filter_map(|(first, set)| {
        let name = format!("tombolo-core-{first}");
        let address = SocketAddr::from_abstract_name(name).ok()?;
        Some((set, UnixDatagram::bind_addr(&address).ok()?))
    });
    let claimed: Vec<_> = free.take(pes).collect();
    if claimed.len() < pes {
        return Err(format!("other bound jobs leave {} of the {usable} cores", claimed.len()));
    }
    Ok(claimed)
}

/// The processors this process may use, grouped by core and named by the core's first processor.
fn usable_cores() -> Result<BTreeMap<usize, CpuSet>, String> {
    let allowed =
        sched_getaffinity(Pid::from_raw(0)).map_err(|e| format!("reading the affinity: {e}"))?;
    let mut cores: BTreeMap<usize, CpuSet> = BTreeMap::new();
    for cpu in (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)) {
        let core = cores.entry(first_sibling(cpu).unwrap_or(cpu)).or_default();
        core.set(cpu).map_err(|e| format!("processor {cpu}: {e}"))?;
    }
    Ok(cores)
}

/// Lowest-numbered hardware thread of the core that `cpu` belongs to.
fn first_sibling(cpu: usize) -> Option<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).ok()?;
    list.split(['-', ',', '\n']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_in_use_are_not_claimed_twice() {
        let all = usable_cores().unwrap().len();
        let first = claim(1).unwrap();
        // Whatever other jobs hold, two claims of one core each never hold the same one.
        if let Ok(second) = claim(1) {
            let cpus = |set: &CpuSet| -> Vec<usize> {
                (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect()
            };
            assert!(cpus(&first[0].0).iter().all(|cpu| !cpus(&second[0].0).contains(cpu)));
        }
        assert!(claim(all + 1).unwrap_err().contains("usable cores"));
        assert!(claim(all).unwrap_err().contains("other bound jobs") || all == 0);
    }
}
