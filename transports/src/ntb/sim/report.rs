// SPDX-License-Identifier: Apache-2.0
//! What a run has shown. All figures are modelled.

use serde::Serialize;

use super::Pattern;
use super::model::{LinkModel, Writer, tlp_bytes};
use super::program::Workload;
use super::world::{Simulation, World};
use crate::ntb::ring::{Event, Side, Stats};

/// Distribution of the time from handing an operation in to its completion, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Shortest.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Half are shorter.
    pub p50_ns: u64,
    /// Nine in ten are shorter.
    pub p90_ns: u64,
    /// 99 in 100 are shorter.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// Sending host.
    pub host: u16,
    /// "right" or "left".
    pub side: &'static str,
    /// Share of the time the wire was busy, set-up included.
    pub utilisation: f64,
    /// Payload bytes, header lines and control included.
    pub payload_bytes: u64,
    /// With TLP headers.
    pub wire_bytes: u64,
    /// TLPs.
    pub tlps: u64,
}

/// Mean time per packet and hop, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Breakdown {
    /// CPU: payload into the first window.
    pub inject_ns: f64,
    /// CPU: payload from slot to window, for relayed packets.
    pub relay_ns: f64,
    /// CPU: payload to its destination.
    pub deliver_ns: f64,
    /// CPU: header and control lines.
    pub store_ns: f64,
    /// CPU: finding and taking in lines, idle looks included.
    pub detect_ns: f64,
    /// CPU: CRC.
    pub crc_ns: f64,
    /// CPU: stalled because posted writes backed up.
    pub backed_up_ns: f64,
    /// Behind other writes.
    pub queue_ns: f64,
    /// On the wire.
    pub wire_ns: f64,
    /// Under way.
    pub propagation_ns: f64,
}

/// A run's results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Hosts of the ring.
    pub hosts: u16,
    /// PEs of each.
    pub pes_per_host: u16,
    /// Lanes of each PE.
    pub lanes: u16,
    /// What was done.
    pub workload: Workload,
    /// Seed.
    pub seed: u64,
    /// Links.
    pub link: LinkModel,
    /// Who moves bulk data.
    pub writer: Writer,
    /// Virtual time from the first operation to the last completion.
    pub elapsed_ns: u64,
    /// Operations that completed.
    pub completed: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Payload moved beside the workload in that time, in bytes per nanosecond (GB/s).
    pub beside_gbs: f64,
    /// Payload of the completed ones, in bytes per nanosecond (GB/s), over the whole ring.
    pub throughput_gbs: f64,
    /// Operations per second.
    pub rate_per_second: f64,
    /// What the raw links could carry of this pattern; none for AMOs and mixtures.
    pub ceiling_gbs: Option<f64>,
    /// Throughput as a share of it.
    pub of_ceiling: Option<f64>,
    /// The least that a PE had done when the first one ended, as a share of the mean.
    pub slowest_of_mean: f64,
    /// Latency of the completed ones.
    pub latency: Latency,
    /// Counters of all engines.
    pub stats: Stats,
    /// Where the time of a packet goes.
    pub per_hop: Breakdown,
    /// Writes lost in the cables.
    pub writes_lost: u64,
    /// Writes changed in the cables.
    pub writes_corrupted: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// All directions of all links.
    pub links: Vec<LinkUse>,
    /// What the engines reported after the start: time, host, event.
    pub events: Vec<String>,
}

impl Report {
    pub(super) fn new(simulation: &Simulation, world: &World<'_>) -> Report {
        let start_ps = world.start_ps.unwrap_or(0);
        let elapsed_ns = (world.end_ps.saturating_sub(start_ps) / 1000).max(1);
        let mut stats = Stats::default();
        for lane in &world.lanes {
            stats.add(lane.engine.stats());
        }
        let completed = world.latencies_ps.len() as u64;
        let bytes = completed * simulation.workload.size as u64;
        let throughput_gbs = bytes as f64 / elapsed_ns as f64;
        let ceiling_gbs = ceiling(simulation);
        Report {
            hosts: simulation.hosts,
            pes_per_host: simulation.pes,
            lanes: simulation.lanes,
            workload: simulation.workload,
            seed: simulation.seed,
            link: simulation.link,
            writer: simulation.host.writer,
            elapsed_ns,
            completed,
            failed: world.failed,
            beside_gbs: world.beside_bytes as f64 / elapsed_ns as f64,
            throughput_gbs,
            rate_per_second: completed as f64 * 1e9 / elapsed_ns as f64,
            ceiling_gbs,
            of_ceiling: ceiling_gbs.map(|ceiling| throughput_gbs / ceiling),
            slowest_of_mean: world.slowest_of_mean.unwrap_or(1.0),
            latency: latency(&world.latencies_ps),
            per_hop: breakdown(world, &stats),
            stats,
            writes_lost: world.network.lost,
            writes_corrupted: world.network.corrupted,
            doorbells: world.network.doorbells,
            links: links(simulation, world),
            events: world
                .events
                .iter()
                .filter(|(at_ns, ..)| at_ns * 1000 >= start_ps)
                .map(|&(at_ns, host, event)| {
                    let since = at_ns - start_ps / 1000;
                    format!("{since} ns: host {host}: {}", words(event))
                })
                .collect(),
        }
    }
}

/// What a raw link carries in TLPs of the writer's size, times the links that the pattern can use
/// at once, shared by the links each operation passes.
fn ceiling(simulation: &Simulation) -> Option<f64> {
    let Simulation { hosts, workload, link, host, .. } = simulation;
    if !matches!(workload.operation, super::Operation::Put | super::Operation::Get) {
        return None;
    }
    let raw = link.raw_rate(tlp_bytes(link, host.writer));
    let hosts = f64::from(*hosts);
    let both = if simulation.config.split { 2.0 } else { 1.0 };
    Some(match workload.pattern {
        Pattern::Pair(_) => raw * both,
        Pattern::Neighbour(hops) => {
            let shorter = f64::from(hops.min(simulation.hosts - hops));
            raw * hosts * both / shorter
        }
        Pattern::Alltoall | Pattern::Uniform => {
            let hops: u32 = (1..simulation.hosts)
                .map(|steps| u32::from(steps.min(simulation.hosts - steps)))
                .sum();
            raw * 2.0 * hosts * (hosts - 1.0) / f64::from(hops)
        }
        Pattern::Hotspot => raw * 2.0,
    })
}

fn latency(times_ps: &[u64]) -> Latency {
    if times_ps.is_empty() {
        return Latency::default();
    }
    let mut sorted = times_ps.to_vec();
    sorted.sort_unstable();
    let at = |share: f64| {
        let index = (share * sorted.len() as f64).ceil() as usize;
        sorted[index.clamp(1, sorted.len()) - 1] / 1000
    };
    let total: u128 = sorted.iter().map(|&time| u128::from(time)).sum();
    Latency {
        min_ns: sorted[0] / 1000,
        mean_ns: (total / sorted.len() as u128 / 1000) as u64,
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        max_ns: sorted[sorted.len() - 1] / 1000,
    }
}

fn breakdown(world: &World<'_>, stats: &Stats) -> Breakdown {
    let hops = (stats.injected + stats.relayed).max(1);
    let per = |total_ps: u64, count: u64| total_ps as f64 / 1000.0 / count.max(1) as f64;
    let (cpu, time) = (&world.cpu, &world.network.time);
    Breakdown {
        inject_ns: per(cpu.inject_ps, stats.injected),
        relay_ns: per(cpu.relay_ps, stats.relayed),
        deliver_ns: per(cpu.deliver_ps, stats.delivered),
        store_ns: per(cpu.store_ps, hops),
        detect_ns: per(cpu.detect_ps, hops),
        crc_ns: per(cpu.crc_ps, hops),
        backed_up_ns: per(cpu.backed_up_ps, hops),
        queue_ns: per(time.queue_ps, hops),
        wire_ns: per(time.wire_ps, hops),
        propagation_ns: per(time.propagation_ps, hops),
    }
}

fn links(simulation: &Simulation, world: &World<'_>) -> Vec<LinkUse> {
    let mut links = Vec::new();
    for host in 0..simulation.hosts {
        for (side, name) in [(Side::Right, "right"), (Side::Left, "left")] {
            let direction = world.network.direction(host, side);
            links.push(LinkUse {
                host,
                side: name,
                utilisation: direction.busy_ps as f64 / world.end_ps.max(1) as f64,
                payload_bytes: direction.payload_bytes,
                wire_bytes: direction.wire_bytes,
                tlps: direction.tlps,
            });
        }
    }
    links
}

fn words(event: Event) -> String {
    let name = |side: Side| if side == Side::Right { "right" } else { "left" };
    match event {
        Event::LinkUp(side) => format!("link on the {} is in use", name(side)),
        Event::LinkDown(side) => format!("link on the {} is down", name(side)),
        Event::Resting(side) => format!("link on the {} is in poor health", name(side)),
        Event::Silent(side) => format!("the neighbour on the {} is silent", name(side)),
        Event::Mismatch(side) => {
            format!("the neighbour on the {} was set up differently", name(side))
        }
        Event::Lost { first, count: 1 } => format!("host {first} is dead or cut off"),
        Event::Lost { first, count } => {
            format!("the ring is split: {count} hosts from {first} on cannot be reached")
        }
        Event::GaveUp(host) => format!("host {host} does not take operations"),
    }
}
