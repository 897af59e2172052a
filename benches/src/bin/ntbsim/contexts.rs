// SPDX-License-Identifier: Apache-2.0
//! Small operations of one context while another one moves 8 MiB after 8 MiB to the same PE.

use tombolo_transports::ntb::sim::{Beside, Operation, Pattern, Report, Writer, tlp_bytes};

use crate::base;
use crate::targets::play;

const SMALL: usize = 8;
const LARGE: usize = 8 << 20;

/// Prints what each small operation takes alone and beside each large one; an error if the median of
/// one is more than three times that alone and the wire time of two packets.
pub fn check() -> Result<(), String> {
    let mut missed = 0;
    println!("modelled link: plx8749; 8-byte operations of one context, each waited for, while");
    println!("another one has 8 MiB outstanding; all times in ns");
    println!(
        "{:<6} {:<4} {:>4}  {:<8} {:>7} {:>9} {:>9} {:>9} {:>9}  {:>9}",
        "writer", "op", "hops", "beside", "alone", "median", "p99", "most", "allowed", "8 MiB GB/s"
    );
    for writer in [Writer::Cpu, Writer::Dma] {
        for hops in [1, 3] {
            for small in [Operation::Put, Operation::Get, Operation::Amo] {
                let alone = play_with(writer, hops, small, None)?.latency;
                for large in [Operation::Put, Operation::Get] {
                    let report = play_with(writer, hops, small, Some(large))?;
                    let most = 3 * alone.p50_ns + 2 * packet_ns(writer);
                    let times = report.latency;
                    let met = times.p50_ns <= most;
                    missed += u32::from(!met);
                    println!(
                        "{:<6} {:<4} {:>4}  {:<8} {:>7} {:>9} {:>9} {:>9} {:>9}  {:>9.2}{}",
                        format!("{writer:?}"),
                        name(small),
                        hops,
                        format!("8 MiB {}", name(large)),
                        alone.p50_ns,
                        times.p50_ns,
                        times.p99_ns,
                        times.max_ns,
                        most,
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
    hops: u16,
    small: Operation,
    large: Option<Operation>,
) -> Result<Report, String> {
    let mut case = base(7, Pattern::Pair(hops), small, writer);
    case.workload.size = SMALL;
    case.workload.count = 8000;
    case.workload.depth = 1;
    case.beside = large.map(|operation| Beside { operation, size: LARGE });
    play(&case)
}

/// A full packet on the wire.
fn packet_ns(writer: Writer) -> u64 {
    let case = base(2, Pattern::Pair(1), Operation::Put, writer);
    let bytes = case.config.geometry.chunk_bytes() as u64;
    case.link.wire_ps(bytes, tlp_bytes(&case.link, writer)) / 1000
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Put => "put",
        Operation::Get => "get",
        Operation::Amo => "amo",
        Operation::Mixed => "all",
    }
}
