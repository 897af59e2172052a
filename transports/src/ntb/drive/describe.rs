// SPDX-License-Identifier: Apache-2.0
//! What people are told about the ports and the ring of a job: the lines of `SHMEM_INFO` and
//! `oshinfo`.

use super::Running;
use super::direct::DirectPeer;
use super::links::name;
use super::setup::Opened;
use crate::ntb::ring::{Side, Stats};
use std::sync::Arc;
use tombolo_core::transport::SegmentKind;

/// About the host: its place in the ring, what its ports have, the state of its links. The two
/// ports of a host have the same windows and doorbells, or the ring does not start.
pub fn host(opened: &Opened) -> Vec<String> {
    let mut lines = vec![opened.describe()];
    lines.extend(opened.describe_plan());
    let [right, _] = &opened.hardware.ports;
    lines.extend(right.capabilities().describe());
    for side in Side::BOTH {
        let (port, side_name) = (&opened.hardware.ports[side as usize], name(side));
        lines.push(format!("{side_name}: {}", port.describe()));
        if port.is_absent() {
            continue;
        }
        let link = port.link_state();
        let epochs = opened.lanes.first().and_then(|lane| lane.link_epochs(side));
        let epochs = epochs.map_or("not in use".into(), |(here, there)| {
            format!("epoch {here:#010x} here, {there:#010x} there")
        });
        lines.push(format!(
            "{side_name}: link {} {} x{}, payload {} B, generation {}, {epochs}",
            if link.up { "up," } else { "down, last" },
            link.speed,
            link.width,
            link.max_payload,
            link.generation
        ));
        let counters = port.counters().to_string();
        let counters = if counters.is_empty() { "all zero" } else { &counters };
        lines.push(format!("{side_name}: counters {counters}"));
    }
    lines
}

/// About this PE: its lanes, what it opens to its neighbours and reaches of theirs, its packets.
pub fn own(opened: &Opened, running: Option<&Running>) -> Vec<String> {
    let mut lines = vec![opened.describe_lanes()];
    lines.extend(opened.describe_engines());
    let present = |side: &Side| !opened.hardware.ports[*side as usize].is_absent();
    let in_use = Side::BOTH.into_iter().filter(present).map(|side| {
        let count = opened.lanes.iter().filter(|lane| lane.link_in_use(side)).count();
        format!("{} {count} of {}", name(side), opened.lanes.len())
    });
    let in_use: Vec<String> = in_use.collect();
    lines.push(format!("lanes in use: {}", in_use.join(", ")));
    if let Some(running) = running {
        let open = |peer: &&Arc<DirectPeer>| peer.is_open(SegmentKind::Heap);
        lines.push(format!(
            "direct windows: {} of {} neighbouring PEs; open to them: {}",
            running.direct.iter().filter(open).count(),
            running.direct.len(),
            opened.describe_openings()
        ));
        // Of one neighbour: others differ where an engine leads to them alone.
        lines.extend(running.direct.first().map(|peer| {
            format!("carriers: {}", peer.carriers().describe(opened.arrives_at_once()))
        }));
        if !running.arrivals.is_empty() {
            let counts = running.arrivals.iter().map(|arrivals| arrivals.counts());
            let (puts, questions) = counts.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            lines.push(format!("arrival: {puts} direct puts in {questions} questions"));
        }
    }
    let mut total = Stats::default();
    for lane in &opened.lanes {
        total.add(&lane.stats().0);
    }
    let Stats { injected, delivered, relayed, replayed, duplicates, .. } = total;
    let Stats { malformed, corrupt, unsealed, .. } = total;
    let (stalled, rung) = (total.stalled_injection + total.stalled_transit, total.doorbells);
    lines.push(format!(
        "ring: packets injected {injected}, delivered {delivered}, relayed {relayed}, replayed \
         {replayed}, duplicate {duplicates}, malformed {malformed}, corrupt {corrupt}, \
         without payload {unsealed}; polls without credit {stalled}; doorbells rung {rung}"
    ));
    lines
}
