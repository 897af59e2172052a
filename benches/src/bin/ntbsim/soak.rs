// SPDX-License-Identifier: Apache-2.0
//! Thousands of seeds.

use clap::Args;
use tombolo_transports::ntb::ring::{Config, Geometry};
use tombolo_transports::ntb::sim::{Faults, Operation, Pattern, Simulation, Workload, Writer, run};

use crate::base;

const FAULTS: [&str; 9] = [
    "flap 400us",
    "loss 0.002",
    "corrupt 0.002",
    "delay 0.01 20us",
    "flap 700us; loss 0.0005; corrupt 0.0005; delay 0.001 10us",
    "rough; flap 400us; stall 1ms",
    "rough; stall 9ms; flap 900us",
    "rough; corrupt 0.001; loss 0.001; delay 0.01 20us; stall 400us",
    "rough; host 1 die at 300us; flap 900us",
];

/// What to soak.
#[derive(Args)]
pub struct Soak {
    /// Seeds to run; each with one number of hosts from 2 to the largest in turn.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Largest number of hosts.
    #[arg(long, default_value_t = 64)]
    hosts_max: u16,
    /// Largest number of hosts of the runs with faults.
    #[arg(long, default_value_t = 12)]
    faulty_hosts_max: u16,
}

impl Soak {
    /// Runs all; every failure names the seed and the world.
    pub fn run(&self) -> Result<(), String> {
        if self.hosts_max < 2 || self.faulty_hosts_max < 2 {
            return Err("a ring needs at least 2 hosts".into());
        }
        let (mut operations, mut replayed, mut duplicates, mut stalls) = (0, 0, 0, 0);
        let end = self.from.checked_add(self.seeds).ok_or("there are no seeds above 2^64")?;
        for seed in self.from..end {
            for simulation in [self.tight(seed), self.faulty(seed)] {
                let describe = |why: String| {
                    format!(
                        "seed {seed}, {} hosts, {:?}, faults {:?}: {why}",
                        simulation.hosts, simulation.workload.pattern, simulation.faults
                    )
                };
                let report = run(&simulation).map_err(|error| describe(error.to_string()))?;
                let dies = !simulation.faults.incidents.is_empty();
                if report.failed > 0 && !dies {
                    return Err(describe(format!("{} operations failed", report.failed)));
                }
                operations += report.completed;
                replayed += report.stats.replayed;
                duplicates += report.stats.duplicates;
                stalls += report.stats.stalled_injection + report.stats.stalled_transit;
            }
        }
        say!(
            "{} seeds, 2 to {} hosts: {operations} operations completed with the right contents \
             and counts, none stuck or failed; {stalls} polls without credit, {replayed} packets \
             replayed, {duplicates} duplicates suppressed",
            self.seeds,
            self.hosts_max
        );
        Ok(())
    }

    /// Two-slot rings of one line, everybody to everybody, no faults.
    fn tight(&self, seed: u64) -> Simulation {
        let hosts = 2 + (seed % u64::from(self.hosts_max - 1)) as u16;
        let pattern = [Pattern::Alltoall, Pattern::Uniform, Pattern::Hotspot][seed as usize % 3];
        let mut tight = base(hosts, pattern, Operation::Mixed, writer(seed));
        let geometry = Geometry::new(64, [2, 2, 2]).expect("two slots are the least");
        tight.config = Config { window: 16, ..Config::simulated(geometry, false) };
        let count = u64::from(hosts).max(8) + 4;
        tight.workload =
            Workload { pattern, operation: Operation::Mixed, size: 200, count, depth: 8 };
        tight.seed = seed;
        tight
    }

    fn faulty(&self, seed: u64) -> Simulation {
        let hosts = 2 + (seed % u64::from(self.faulty_hosts_max - 1)) as u16;
        // Puts with signals go one way; puts alone may go both, or the other one as a whole.
        let operation = if seed.is_multiple_of(3) { Operation::Put } else { Operation::Mixed };
        let mut faulty = base(hosts, Pattern::Alltoall, operation, writer(seed));
        let faults: Faults =
            FAULTS[seed as usize % FAULTS.len()].parse().expect("the list is well formed");
        let geometry = Geometry::new(1024, [8, 8, 32]).expect("these rings are sound");
        faulty.config = Config::simulated(geometry, true);
        faulty.config.crc = faults.needs_crc();
        faulty.config.split = seed.is_multiple_of(2);
        faulty.config.split_bytes_min = if seed.is_multiple_of(4) { 2048 } else { 8192 };
        faulty.faults = faults;
        faulty.exact = true;
        faulty.workload.size = 3000;
        faulty.workload.count = 80;
        faulty.seed = seed;
        faulty
    }
}

/// Who moves payload: processors and DMA engines by turns, each with all numbers of hosts.
fn writer(seed: u64) -> Writer {
    if (seed / 2).is_multiple_of(2) { Writer::Cpu } else { Writer::Dma }
}
