//! Which host each PE is on.

use crate::options::{Placement, Plan};

/// The hosts of a job.
pub struct Hosts {
    /// Host of each PE, as indices; all 0 on one real host.
    of_pe: Vec<usize>,
    count: usize,
    placement: Placement,
    /// Whether the hosts are emulated on this machine.
    pub emulated: bool,
}

impl Hosts {
    pub fn new(plan: &Plan) -> Hosts {
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
        Hosts {
            of_pe: (0..size).map(host).collect(),
            count,
            placement: plan.placement,
            emulated: plan.hosts.is_some(),
        }
    }

    /// PEs of a host that is tied to others by links, which `pe` is on; else `pe` alone.
    pub fn unit_of(&self, pe: usize) -> Vec<usize> {
        match self.count {
            1 => vec![pe],
            _ => (0..self.of_pe.len()).filter(|other| self.of(*other) == self.of(pe)).collect(),
        }
    }

    /// Host of `pe`.
    pub fn of(&self, pe: usize) -> usize {
        self.of_pe[pe]
    }

    /// The value of `PMI_process_mapping`: `(vector,(first host,hosts,PEs on each),...)`, read
    /// from the first PE on.
    pub fn mapping(&self) -> String {
        if self.placement == Placement::Cyclic {
            return format!("(vector,(0,{},1))", self.count);
        }
        let (each, larger) = (self.of_pe.len() / self.count, self.of_pe.len() % self.count);
        match larger {
            0 => format!("(vector,(0,{},{each}))", self.count),
            _ => format!(
                "(vector,(0,{larger},{}),({larger},{},{each}))",
                each + 1,
                self.count - larger
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Bind, Program};
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
    fn without_hosts_all_pes_are_on_one() {
        let hosts = hosts(5, None, Placement::Block);
        assert_eq!((hosts.mapping().as_str(), hosts.emulated), ("(vector,(0,1,5))", false));
    }
}
