// SPDX-License-Identifier: Apache-2.0
//! The ring against its targets, on the modelled link.

use tombolo_transports::ntb::sim::{
    Operation, Pattern, Report, Simulation, Writer, run, tlp_bytes,
};

use crate::base;

/// Un-overlapped cost per chunk and hop that the cut-through formula is taken with.
const CHUNK_COST_NS: f64 = 1_000.0;

/// Prints each target with what was reached; an error if one is missed.
pub fn check() -> Result<(), String> {
    let mut missed = 0;
    say!("modelled link: plx8749, Gen3 x8, MPS 256; one PE per host, polling");
    say!("{:<58} {:>10} {:>10}", "", "target", "reached");
    for writer in [Writer::Cpu, Writer::Dma] {
        say!("bulk data moved by {writer:?}");
        for (size, least) in [(64 << 10, 0.95), (1 << 20, 0.97)] {
            let reached = stream(writer, size, 1)?.of_ceiling.unwrap_or(0.0);
            let what = format!("put to the neighbour, {} KiB: share of the raw link", size >> 10);
            missed += line(&what, least, reached, reached >= least);
        }
        for hops in 1..=5 {
            let time = single(writer, 11, Pattern::Pair(hops), 1 << 20, 1)?;
            let ratio = time / cut_through_ns(writer, 1 << 20, hops);
            let what =
                format!("1 MiB over {hops} hops with acknowledgement: x cut-through formula");
            missed += line(&what, 1.15, ratio, ratio <= 1.15);
        }
        let one = stream(writer, 1 << 20, 1)?.throughput_gbs;
        let best = [2, 4, 8]
            .into_iter()
            .map(|threads| Ok(stream(writer, 1 << 20, threads)?.throughput_gbs))
            .collect::<Result<Vec<f64>, String>>()?
            .into_iter()
            .fold(one, f64::max);
        let share = one / best;
        missed += line("one service thread: share of the best count", 0.9, share, share >= 0.9);
        for size in [64, 4096, 1 << 20] {
            missed += growth(writer, size)?;
        }
    }
    if missed == 0 { Ok(()) } else { Err(format!("{missed} targets missed")) }
}

/// How the turn-around grows from 1 hop to 5, against what a hop adds by itself: its wire time for
/// the chunk that is not overlapped, propagation both ways, and two relays.
fn growth(writer: Writer, size: usize) -> Result<u32, String> {
    let first = single(writer, 11, Pattern::Pair(1), size, 1)?;
    let last = single(writer, 11, Pattern::Pair(5), size, 1)?;
    let added = (last - first) / 4.0;
    let chunk = size.min(8192) as u64;
    let case = base(2, Pattern::Pair(1), Operation::Put, writer);
    let tlp = tlp_bytes(&case.link, writer);
    let wire = case.link.wire_ps(chunk, tlp) as f64 / 1000.0;
    let back = case.link.wire_ps(64, 64) as f64 / 1000.0;
    let relay = 2.0 * CHUNK_COST_NS;
    let hop = wire + back + 2.0 * case.link.propagation_ns as f64 + relay;
    let what = format!("turn-around of {size} bytes: ns added per host, at most a hop's cost");
    Ok(line(&what, hop, added, added <= hop))
}

fn line(what: &str, target: f64, reached: f64, met: bool) -> u32 {
    let mark = if met { "" } else { "  MISSED" };
    say!("{what:<58} {target:>10.3} {reached:>10.3}{mark}");
    u32::from(!met)
}

/// A stream of puts to the neighbour over one link.
pub fn stream(writer: Writer, size: usize, lanes: u16) -> Result<Report, String> {
    let mut case = base(3, Pattern::Pair(1), Operation::Put, writer);
    case.lanes = lanes;
    case.workload.size = size;
    case.workload.count = (64 << 20) / size.max(64 << 10) as u64;
    case.workload.depth = 16;
    play(&case)
}

/// Mean time of puts with acknowledgement in a ring of `hosts`, one at a time.
pub fn single(
    writer: Writer,
    hosts: u16,
    pattern: Pattern,
    size: usize,
    lanes: u16,
) -> Result<f64, String> {
    let mut case = base(hosts, pattern, Operation::Put, writer);
    case.lanes = lanes;
    case.workload.size = size;
    case.workload.count = 20;
    case.workload.depth = 1;
    Ok(play(&case)?.latency.mean_ns as f64)
}

/// (S/c + h - 1)(c/B + o) at the best c: what pipelined chunks take over h hops.
pub fn cut_through_ns(writer: Writer, size: usize, hops: u16) -> f64 {
    let case = base(2, Pattern::Pair(1), Operation::Put, writer);
    let rate = case.link.raw_rate(tlp_bytes(&case.link, writer));
    let (size, hops) = (size as f64, f64::from(hops));
    if hops < 2.0 {
        return size / rate + CHUNK_COST_NS;
    }
    let chunk = (size * rate * CHUNK_COST_NS / (hops - 1.0)).sqrt().min(size);
    (size / chunk + hops - 1.0) * (chunk / rate + CHUNK_COST_NS)
}

pub fn play(case: &Simulation) -> Result<Report, String> {
    run(case).map_err(|error| error.to_string())
}
