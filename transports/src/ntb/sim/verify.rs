// SPDX-License-Identifier: Apache-2.0
//! Whether a world makes sense at the start, and is right at the end.

use super::faults::Incident;
use super::program::WorkloadPlan;
use super::world::{SimError, Simulation, World};
use super::{Beside, Operation, Pattern};
use crate::ntb::ring::Side;

const MEMORY_BYTES_MAX: usize = 1 << 30;

impl World<'_> {
    pub(super) fn verify(&self) -> Result<(), SimError> {
        let wrong = |what: String| SimError::Wrong { seed: self.simulation.seed, what };
        for (number, expected) in self.expected.iter().enumerate() {
            let id = self.pe_id(number);
            if self.uncertain[number] || self.dead.iter().any(|&dead| dead) {
                continue;
            }
            let counted = self.plan.counters(id, &self.symmetric);
            if counted != *expected {
                return Err(wrong(format!(
                    "{id:?} counted {counted:?} additions and signals, {expected:?} were made"
                )));
            }
        }
        if self.plan.exact
            && let Some(what) = self.check_exactly()
        {
            return Err(wrong(what));
        }
        for &(to, from) in &self.puts {
            if !self.plan.check_put(to, from, &self.symmetric) {
                return Err(wrong(format!("what {from:?} put to {to:?} is not there")));
            }
        }
        Ok(())
    }

    pub(super) fn stuck(&self) -> SimError {
        let missing = self.pes.iter().map(|pe| pe.issued - pe.ended).sum();
        let mut detail = String::new();
        for lane in self.lanes.iter().filter(|lane| lane.engine.outstanding() > 0).take(4) {
            detail += &format!(
                "host {} lane {}: {} outstanding, links in use {:?}; ",
                lane.host,
                lane.index,
                lane.engine.outstanding(),
                Side::BOTH.map(|side| lane.engine.link_in_use(side)),
            );
        }
        let at_ns = self.lanes.iter().map(|lane| lane.free_ps).max().unwrap_or(0) / 1000;
        SimError::Stuck { at_ns, seed: self.simulation.seed, missing, detail }
    }
}

/// Refuses what cannot be simulated, in words.
pub(super) fn check(simulation: &Simulation, plan: &WorkloadPlan) -> Result<(), SimError> {
    let Simulation { hosts, pes, lanes: lanes_per_pe, workload, .. } = *simulation;
    let refuse = |what: String| Err(SimError::Argument(what));
    if hosts < 2 {
        return refuse(format!("a ring of {hosts} hosts: expected 2 or more"));
    }
    if pes == 0 || lanes_per_pe == 0 || u32::from(pes) * u32::from(lanes_per_pe) > 256 {
        return refuse(format!(
            "{pes} PEs with {lanes_per_pe} lanes each: expected 1 to 256 lanes a host"
        ));
    }
    if workload.size == 0 || workload.count == 0 || workload.depth == 0 {
        return refuse("size, count and depth must be at least 1".into());
    }
    for &(_, incident) in &simulation.faults.incidents {
        let (Incident::Link(which, _)
        | Incident::Die(which)
        | Incident::Corrupt(which, _)
        | Incident::Delay(which, _)) = incident;
        if which >= hosts {
            return refuse(format!("a fault names link or host {which}: there are {hosts}"));
        }
    }
    if let Pattern::Neighbour(hops) | Pattern::Pair(hops) = workload.pattern
        && (hops == 0 || hops >= hosts)
    {
        return refuse(format!("{hops} hops in a ring of {hosts}: expected 1 to {}", hosts - 1));
    }
    let moves = |beside: Beside| matches!(beside.operation, Operation::Put | Operation::Get);
    if simulation.beside.is_some_and(|beside| !moves(beside) || beside.size == 0) {
        return refuse("beside the workload there can be puts or gets of 1 byte or more".into());
    }
    if simulation.beside.is_some() && !matches!(workload.pattern, Pattern::Pair(_)) {
        return refuse("only a pair can move something beside its workload".into());
    }
    if simulation.faults.needs_crc() && !simulation.config.crc {
        return refuse("loss and corruption of single writes need the CRC: switch it on".into());
    }
    let all = usize::from(hosts) * usize::from(pes);
    let lanes = all * usize::from(lanes_per_pe);
    let region = simulation.config.geometry.region_bytes();
    // Of what is beyond all bounds already, the sum would overflow.
    let moved =
        workload.size.saturating_mul(workload.depth).max(simulation.beside.map_or(0, |it| it.size));
    let memory = if moved > MEMORY_BYTES_MAX {
        moved
    } else {
        let of_all = all.saturating_mul(plan.segment_bytes());
        of_all.saturating_add(lanes * (plan.local_bytes() + 2 * region))
    };
    if memory > MEMORY_BYTES_MAX {
        return refuse(format!(
            "the simulated hosts would need {} MiB of memory, at most {} are allowed: \
             choose a smaller --size, --depth or number of hosts",
            memory >> 20,
            MEMORY_BYTES_MAX >> 20
        ));
    }
    Ok(())
}
