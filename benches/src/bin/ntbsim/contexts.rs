// SPDX-License-Identifier: Apache-2.0
//! Small operations of one context while another one moves 8 MiB after 8 MiB to the same PE, with the settings
//! that a program would get.

use tombolo_transports::ntb::ring::Config;
use tombolo_transports::ntb::sim::{Beside, Operation, Pattern, Report, Writer};

use crate::base;
use crate::load::{CORES, settings};
use crate::targets::play;

const HOSTS: u16 = 8;
const SMALL: usize = 8;
const LARGE: usize = 8 << 20;
/// Beside large operations a small one takes at most so many times as long as alone.
const TIMES_MAX: u64 = 3;

/// Prints what each small operation takes alone and beside each large one; an error if the median of
/// one is more than [`TIMES_MAX`] times that alone.
pub fn check() -> Result<(), String> {
    let mut missed = 0;
    say!("modelled link: plx8749; 8-byte operations of one context, each waited for, while");
    say!("another one has 8 MiB outstanding; all times in ns");
    say!(
        "{:<6} {:>5} {:<4} {:>4}  {:<8} {:>7} {:>9} {:>6} {:>9} {:>9}  {:>9}",
        "writer",
        "cores",
        "op",
        "hops",
        "beside",
        "alone",
        "median",
        "times",
        "p99",
        "most",
        "8 MiB GB/s"
    );
    for (writer, cores) in
        [Writer::Cpu, Writer::Dma].into_iter().flat_map(|writer| CORES.map(|cores| (writer, cores)))
    {
        for hops in [1, 3] {
            for small in [Operation::Put, Operation::Get, Operation::Amo] {
                let alone = play_with(writer, cores, hops, small, None)?.latency;
                for large in [Operation::Put, Operation::Get] {
                    let report = play_with(writer, cores, hops, small, Some(large))?;
                    let times = report.latency;
                    let met = times.p50_ns <= TIMES_MAX * alone.p50_ns;
                    missed += u32::from(!met);
                    say!(
                        "{:<6} {cores:>5} {:<4} {:>4}  {:<8} {:>7} {:>9} {:>6.2} {:>9} {:>9}  {:>9.2}{}",
                        format!("{writer:?}"),
                        name(small),
                        hops,
                        format!("8 MiB {}", name(large)),
                        alone.p50_ns,
                        times.p50_ns,
                        times.p50_ns as f64 / alone.p50_ns as f64,
                        times.p99_ns,
                        times.max_ns,
                        report.beside_gbs,
                        if met { "" } else { "  MISSED" },
                    );
                }
            }
        }
    }
    if missed == 0 { Ok(()) } else { Err(format!("{missed} targets missed")) }
}

fn play_with(
    writer: Writer,
    cores: usize,
    hops: u16,
    small: Operation,
    large: Option<Operation>,
) -> Result<Report, String> {
    let choice = settings(HOSTS, writer, cores)?;
    let mut case = base(HOSTS, Pattern::Pair(hops), small, writer);
    case.config = Config::simulated(choice.geometry, false);
    case.config.handling_bytes = choice.handling_bytes;
    case.config.split = false;
    case.lanes = choice.lanes as u16;
    case.workload.size = SMALL;
    case.workload.count = 8000;
    case.workload.depth = 1;
    case.beside = large.map(|operation| Beside { operation, size: LARGE });
    play(&case)
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Put => "put",
        Operation::Get => "get",
        Operation::Amo => "amo",
        Operation::Mixed => "all",
    }
}
