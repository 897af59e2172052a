// SPDX-License-Identifier: Apache-2.0
//! Which host each PE is on.

use crate::options::{Placement, Plan};

/// The hosts of a job.
pub struct Hosts {
    /// Host of each PE, as indices; all 0 on one real host.
    of_pe: Vec<usize>,
    count: usize,
    /// Whether the hosts are emulated on this machine.
    pub emulated: bool,
    /// Names of the machines: one, or that of each host.
    machines: Vec<String>,
}

impl Hosts {
    pub fn new(plan: &Plan) -> Hosts {
        if let Some(machines) = &plan.machines {
            return Hosts {
                of_pe: machines.of_pe.clone(),
                count: machines.names.len(),
                emulated: false,
                machines: machines.names.clone(),
            };
        }
        let (size, count) = (plan.size(), plan.hosts.unwrap_or(1));
        let host = |pe: usize| match plan.placement {
            // The first size % count hosts hold one PE more than the others.
            Placement::Block => {
                let (each, larger) = (size / count, size % count);
                if pe < larger * (each + 1) {
                    pe / (each + 1)
                } else {
                    larger + (pe - larger * (each + 1)) / each
                }
            }
            Placement::Cyclic => pe % count,
        };
        let own = nix::unistd::gethostname()
            .map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned());
        Hosts {
            of_pe: (0..size).map(host).collect(),
            count,
            emulated: plan.hosts.is_some(),
            machines: vec![own],
        }
    }

    /// PEs of an emulated host that is tied to others by links, which `pe` is on; else `pe` alone.
    pub fn unit_of(&self, pe: usize) -> Vec<usize> {
        match self.emulated && self.count > 1 {
            true => self.on(self.of(pe)),
            false => vec![pe],
        }
    }

    /// PEs of a host.
    pub fn on(&self, host: usize) -> Vec<usize> {
        (0..self.of_pe.len()).filter(|pe| self.of(*pe) == host).collect()
    }

    /// Host of `pe`.
    pub fn of(&self, pe: usize) -> usize {
        self.of_pe[pe]
    }

    /// Name of the machine that a host is.
    pub fn machine(&self, host: usize) -> &str {
        self.machines.get(host).unwrap_or(&self.machines[0])
    }

    /// The value of `PMI_process_mapping`: `(vector,(first host,hosts,PEs on each),...)`, read
    /// from the first PE on, and again from its beginning when it ends before the PEs do.
    pub fn mapping(&self) -> String {
        let period = (1..).find(|length| {
            let again = self.of_pe.iter().zip(self.of_pe.iter().skip(*length));
            again.into_iter().all(|(one, other)| one == other)
        });
        let length = if self.of_pe.is_sorted() { None } else { period };
        let turn = &self.of_pe[..length.unwrap_or(self.of_pe.len())];
        let mut blocks: Vec<(usize, usize, usize)> = vec![];
        for pes in turn.chunk_by(|one, other| one == other) {
            match blocks.last_mut() {
                Some((first, hosts, each)) if *each == pes.len() && *first + *hosts == pes[0] => {
                    *hosts += 1;
                }
                _ => blocks.push((pes[0], 1, pes.len())),
            }
        }
        let blocks: Vec<String> =
            blocks.iter().map(|(first, hosts, each)| format!("({first},{hosts},{each})")).collect();
        format!("(vector,{})", blocks.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Bind, Program, Remote};
    use tombolo_transports::ntb::port::emulated::FaultPlan;

    fn hosts(size: usize, hosts: Option<usize>, placement: Placement) -> Hosts {
        let program =
            Program { count: size, command: "a".into(), arguments: vec![], environment: vec![] };
        let programs = vec![program];
        Hosts::new(&Plan {
            programs,
            label: false,
            timeout: None,
            bind: Bind::None,
            hosts,
            placement,
            faults: FaultPlan::default(),
            machines: None,
            remote: Remote::default(),
            wish: Default::default(),
        })
    }

    /// Reads a mapping the way PMI clients do.
    fn read(mapping: &str, size: usize) -> Vec<usize> {
        let inner = mapping.strip_prefix("(vector,").unwrap().strip_suffix(')').unwrap();
        let blocks: Vec<Vec<usize>> = inner
            .split("),(")
            .map(|b| b.trim_matches(['(', ')']).split(',').map(|n| n.parse().unwrap()).collect())
            .collect();
        let turn = blocks.iter().flat_map(|block| {
            let (first, hosts, each) = (block[0], block[1], block[2]);
            (first..first + hosts).flat_map(move |host| std::iter::repeat_n(host, each))
        });
        turn.collect::<Vec<_>>().into_iter().cycle().take(size).collect()
    }

    #[test]
    fn the_mapping_tells_where_each_pe_is() {
        for placement in [Placement::Block, Placement::Cyclic] {
            for size in 1..12 {
                for count in 1..=size {
                    let hosts = hosts(size, Some(count), placement);
                    assert_eq!(read(&hosts.mapping(), size), hosts.of_pe, "{size} on {count}");
                    assert_eq!(hosts.of_pe.iter().max(), Some(&(count - 1)));
                }
            }
        }
    }

    #[test]
    fn the_mapping_holds_for_machines_with_any_numbers_of_pes() {
        for of_pe in [
            vec![0, 0, 0, 1],
            vec![0, 1, 0, 1],
            vec![0, 1, 2, 1, 2, 1],
            vec![0],
            vec![0, 0, 1, 1, 2],
        ] {
            let mut hosts = hosts(1, None, Placement::Block);
            hosts.of_pe = of_pe.clone();
            assert_eq!(read(&hosts.mapping(), of_pe.len()), of_pe);
        }
    }

    #[test]
    fn without_hosts_all_pes_are_on_one() {
        let hosts = hosts(5, None, Placement::Block);
        assert_eq!((hosts.mapping().as_str(), hosts.emulated), ("(vector,(0,1,5))", false));
    }
}
