// SPDX-License-Identifier: Apache-2.0
//! The ring when everybody sends, with the settings that a program would get.

use tombolo_transports::ntb::ring::Config;
use tombolo_transports::ntb::ring::choose::{Choice, Overrides, Resources, choose};
use tombolo_transports::ntb::sim::{HostModel, Operation, Pattern, Report, Writer, costs};

use crate::base;
use crate::targets::play;

/// Bytes of each window.
const WINDOW: usize = 64 << 20;
/// Operations outstanding of the rows that do not name a number.
const DEPTH: usize = 16;
/// Processors of a PE: its program and one lane share one, or four lanes have one each.
pub const CORES: [usize; 2] = [1, 5];
/// The least progress of a PE while all are busy, as a share of the mean.
const FAIR: f64 = 0.7;
/// With more operations outstanding, throughput stays above this share of the best.
const STABLE: f64 = 0.9;

/// A row of the table.
struct Row {
    what: &'static str,
    hosts: u16,
    pattern: Pattern,
    size: usize,
    /// Share of the ceiling that is wanted: of the CPU, and of DMA.
    goals: [f64; 2],
}

const ROWS: [Row; 8] = [
    row("to the neighbour, 4 KiB", 8, Pattern::Neighbour(1), 4 << 10, [0.90, 0.95]),
    row("to the neighbour, 64 KiB", 8, Pattern::Neighbour(1), 64 << 10, [0.90, 0.95]),
    row("to the neighbour, 1 MiB", 8, Pattern::Neighbour(1), 1 << 20, [0.90, 0.95]),
    row("all-to-all, 64 KiB", 8, Pattern::Alltoall, 64 << 10, [0.75, 0.93]),
    row("two hosts, one sends, 64 KiB", 2, Pattern::Pair(1), 64 << 10, [0.95, 0.95]),
    row("two hosts, one sends, 1 MiB", 2, Pattern::Pair(1), 1 << 20, [0.95, 0.95]),
    row("two hosts, both send, 64 KiB", 2, Pattern::Neighbour(1), 64 << 10, [0.95, 0.95]),
    row("two hosts, both send, 1 MiB", 2, Pattern::Neighbour(1), 1 << 20, [0.95, 0.95]),
];

const fn row(
    what: &'static str,
    hosts: u16,
    pattern: Pattern,
    size: usize,
    goals: [f64; 2],
) -> Row {
    Row { what, hosts, pattern, size, goals }
}

/// Prints what is reached of each goal. Nothing fails: some goals are beyond what a single processor
/// of the model can copy.
pub fn show() -> Result<(), String> {
    say!("modelled link: plx8749, Gen3 x8, MPS 256; one PE per host, polling; share of what");
    say!("the raw links carry, with chunk, slots and lanes as chosen by the program");
    for cores in CORES {
        for writer in [Writer::Cpu, Writer::Dma] {
            say!("\nbulk data moved by {writer:?}, processors of a PE: {cores}");
            say!(
                "{:<32} {:>5} {:>6} {:>6} {:>7} {:>7} {:>8}",
                "",
                "hosts",
                "chunk",
                "lanes",
                "goal",
                "reached",
                "GB/s"
            );
            for row in &ROWS {
                let goal = row.goals[usize::from(writer == Writer::Dma)];
                print(row, goal, &settings(row.hosts, writer, cores)?, writer)?;
            }
        }
    }
    fairness()
}

fn print(row: &Row, goal: f64, choice: &Choice, writer: Writer) -> Result<(), String> {
    let bytes = if row.hosts == 2 { 32 << 20 } else { 8 << 20 };
    let report = load(row.hosts, row.pattern, row.size, DEPTH, bytes, choice, writer)?;
    let reached = report.of_ceiling.unwrap_or(0.0);
    say!(
        "{:<32} {:>5} {:>6} {:>6} {goal:>7.2} {reached:>7.3} {:>8.2}{}",
        row.what,
        row.hosts,
        choice.geometry.chunk_bytes(),
        choice.lanes,
        report.throughput_gbs,
        if reached < goal { "  below" } else { "" },
    );
    Ok(())
}

/// Whether random targets and a single one are fair to all PEs, and stay fast with more outstanding.
fn fairness() -> Result<(), String> {
    say!("\nslowest PE as a share of the mean while all are busy (goal {FAIR}), and throughput");
    say!("with more 4 KiB puts outstanding; 8 hosts");
    say!("{:<24} {:>6} {:>8} {:>8}", "", "depth", "slowest", "GB/s");
    for writer in [Writer::Cpu, Writer::Dma] {
        let choice = settings(8, writer, CORES[0])?;
        for (name, pattern) in [("uniform", Pattern::Uniform), ("hot spot", Pattern::Hotspot)] {
            let mut best = 0.0_f64;
            for depth in [4, 16, 64, 256] {
                let report = load(8, pattern, 4 << 10, depth, 8 << 20, &choice, writer)?;
                best = best.max(report.throughput_gbs);
                let fair = report.slowest_of_mean;
                let stable = report.throughput_gbs >= STABLE * best;
                let mark = match (fair >= FAIR, stable) {
                    (true, true) => "",
                    (false, _) => "  unfair",
                    (true, false) => "  slower",
                };
                let what = format!("{name}, {writer:?}");
                let gbs = report.throughput_gbs;
                say!("{what:<24} {depth:>6} {fair:>8.3} {gbs:>8.2}{mark}");
            }
        }
    }
    Ok(())
}

/// What a program would choose on the link of the tables.
pub fn settings(hosts: u16, writer: Writer, cores: usize) -> Result<Choice, String> {
    let link = base(hosts, Pattern::Pair(1), Operation::Put, writer).link;
    let costs = costs(&link, &HostModel::desktop(writer));
    let room = |lanes: usize| WINDOW / lanes.next_power_of_two();
    let resources = Resources { hosts, cores, room: &room };
    choose(&costs, &resources, Overrides::default()).map_err(|error| error.to_string())
}

fn load(
    hosts: u16,
    pattern: Pattern,
    size: usize,
    depth: usize,
    bytes: usize,
    choice: &Choice,
    writer: Writer,
) -> Result<Report, String> {
    let mut case = base(hosts, pattern, Operation::Put, writer);
    case.config = Config::simulated(choice.geometry, false);
    case.config.handling_bytes = choice.handling_bytes;
    // The ceiling counts both ways to a host where both may be used. In longer rings the other way to
    // a neighbour is a detour that is never taken.
    case.config.split = hosts == 2;
    case.lanes = choice.lanes as u16;
    case.workload.size = size;
    case.workload.depth = depth;
    case.workload.count = (bytes / size).max(2 * depth) as u64;
    play(&case)
}
