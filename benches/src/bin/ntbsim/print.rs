// SPDX-License-Identifier: Apache-2.0
//! A report for people.

use tombolo_transports::ntb::sim::Report;

pub fn report(report: &Report) {
    let link = &report.link;
    say!(
        "{} hosts, {} PEs each, {} lanes each; link Gen{} x{}, MPS {} (modelled)",
        report.hosts,
        report.pes_per_host,
        report.lanes,
        link.generation,
        link.width,
        link.mps_bytes
    );
    say!(
        "{:?} of {} bytes, {:?}, {} outstanding, seed {}",
        report.workload.operation,
        report.workload.size,
        report.workload.pattern,
        report.workload.depth,
        report.seed
    );
    say!();
    say!("completed     {}, failed {}", report.completed, report.failed);
    say!("time          {:.1} us", report.elapsed_ns as f64 / 1000.0);
    say!(
        "throughput    {:.3} GB/s, {:.0} operations/s",
        report.throughput_gbs,
        report.rate_per_second
    );
    if let (Some(ceiling), Some(share)) = (report.ceiling_gbs, report.of_ceiling) {
        say!("of ceiling    {:.1} % of {ceiling:.3} GB/s", share * 100.0);
    }
    let latency = &report.latency;
    say!(
        "latency ns    min {}, mean {}, p50 {}, p90 {}, p99 {}, max {}",
        latency.min_ns,
        latency.mean_ns,
        latency.p50_ns,
        latency.p90_ns,
        latency.p99_ns,
        latency.max_ns
    );
    let hop = &report.per_hop;
    say!(
        "per packet ns inject {:.0}, relay {:.0}, deliver {:.0}, store {:.0}, detect {:.0}, \
         CRC {:.0}, backed up {:.0}; queue {:.0}, wire {:.0}, propagation {:.0}",
        hop.inject_ns,
        hop.relay_ns,
        hop.deliver_ns,
        hop.store_ns,
        hop.detect_ns,
        hop.crc_ns,
        hop.backed_up_ns,
        hop.queue_ns,
        hop.wire_ns,
        hop.propagation_ns
    );
    let stats = &report.stats;
    say!(
        "credits       injection stalled {}, transit stalled {}, transit held {} polls",
        stats.stalled_injection,
        stats.stalled_transit,
        stats.held_transit
    );
    say!(
        "packets       injected {}, relayed {}, delivered {}, acknowledgements {}",
        stats.injected,
        stats.relayed,
        stats.delivered,
        stats.acks
    );
    say!(
        "repairs       replayed {}, duplicates {}, out of order {}, slots lost {}, \
         transit dropped {}, corrupt {}, rerouted {}",
        stats.replayed,
        stats.duplicates,
        stats.out_of_order,
        stats.slots_lost,
        stats.transit_dropped,
        stats.corrupt,
        stats.rerouted
    );
    say!();
    for link in &report.links {
        say!(
            "link {:>3} {:<5} {:5.1} % busy, {} payload bytes, {} TLPs",
            link.host,
            link.side,
            link.utilisation * 100.0,
            link.payload_bytes,
            link.tlps
        );
    }
    for event in &report.events {
        say!("{event}");
    }
}
