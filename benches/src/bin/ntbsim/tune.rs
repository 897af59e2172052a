//! The choice of chunk, slots and lanes against an exhaustive search in the simulator.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tombolo_transports::ntb::ring::choose::{Choice, Place, Settled, choose};
use tombolo_transports::ntb::ring::{Class, Config, Geometry};
use tombolo_transports::ntb::sim::{
    Faults, HostModel, Operation, Pattern, Simulation, Workload, Writer, costs, run,
};

use crate::profile;

/// Chosen settings shall reach so much of the best found.
const TARGET: f64 = 0.95;
/// What the search tries.
const CHUNKS: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16 << 10, 32 << 10, 64 << 10];
const SLOTS: [u32; 5] = [8, 16, 32, 64, 128];
/// The most that a lane of the search takes from a window.
const REGION_BYTES_MAX: usize = 5 << 20;

/// A ring to choose for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Setup {
    profile: &'static str,
    writer: Writer,
    hosts: u16,
    /// Bytes of the window that the PE's lanes share.
    window: usize,
    /// Processors of a PE.
    cores: usize,
}

/// What a ring is to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Load {
    pattern: Pattern,
    operation: Operation,
    size: usize,
    /// Operations outstanding; 1: the time of each counts.
    depth: usize,
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Settings {
    chunk: usize,
    slots: u32,
    lanes: u16,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, Serialize)]
struct Line {
    setup: Setup,
    load: Load,
    best: Settings,
    best_gbs: f64,
    chosen: Settings,
    chosen_gbs: f64,
    ratio: f64,
}

/// Searches and prints the table; an error if a choice is too far from the best.
pub fn tune(json: bool) -> Result<(), String> {
    let lines = search(&setups(), loads)?;
    let worst = lines.iter().map(|line| line.ratio).fold(f64::MAX, f64::min);
    if json {
        println!("{}", serde_json::to_string_pretty(&lines).map_err(|e| e.to_string())?);
    } else {
        print(&lines);
        println!("\nworst ratio {worst:.3}, target {TARGET}");
    }
    match lines.iter().filter(|line| line.ratio < TARGET).count() {
        0 => Ok(()),
        missed => Err(format!("{missed} of {} choices below {TARGET}", lines.len())),
    }
}

fn setups() -> Vec<Setup> {
    let base =
        Setup { profile: "plx8749", writer: Writer::Cpu, hosts: 3, window: 64 << 20, cores: 1 };
    let mut setups = Vec::new();
    for profile in ["plx8749", "intel-gen3"] {
        for writer in [Writer::Cpu, Writer::Dma] {
            for hosts in [2, 3, 7] {
                setups.push(Setup { profile, writer, hosts, ..base });
            }
        }
    }
    // Another Gen4 link is as the Gen3 link of twice the width: one of it is enough.
    setups.push(Setup { profile: "switchtec", hosts: 4, ..base });
    for writer in [Writer::Cpu, Writer::Dma] {
        setups.push(Setup { writer, hosts: 16, ..base });
        setups.push(Setup { writer, window: 128 << 10, ..base });
        setups.push(Setup { writer, cores: 3, ..base });
        setups.push(Setup { writer, cores: 3, hosts: 7, window: 1 << 20, ..base });
    }
    setups
}

/// All loads for a ring.
fn loads(setup: &Setup) -> Vec<Load> {
    let far = setup.hosts / 2;
    let mut loads = Vec::new();
    for size in [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for operation in [Operation::Put, Operation::Get] {
            let mut load = |pattern, depth| loads.push(Load { pattern, operation, size, depth });
            for hops in if far > 1 { vec![1, far] } else { vec![1] } {
                if size < 1 << 20 {
                    load(Pattern::Pair(hops), 16);
                }
                if size >= 4 << 10 {
                    load(Pattern::Pair(hops), 1);
                }
            }
            // More would take gigabytes of simulated memory, or show nothing new.
            if operation == Operation::Put && size <= 64 << 10 {
                load(Pattern::Neighbour(1), 16);
                load(Pattern::Alltoall, 16);
            }
        }
    }
    loads
}

/// The best settings for every load of every setup, and what the choice for the setup reaches.
fn search(setups: &[Setup], loads: fn(&Setup) -> Vec<Load>) -> Result<Vec<Line>, String> {
    let mut tasks = Vec::new();
    for setup in setups {
        let choice = chosen(setup)?;
        tasks.extend(loads(setup).into_iter().map(|load| (*setup, load, choice.clone())));
    }
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![None; tasks.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((setup, load, choice)) = tasks.get(at) else { return };
                    let line = line(setup, load, choice);
                    found.lock().expect("no searcher panics")[at] = Some(line);
                }
            });
        }
    });
    let found = found.into_inner().expect("no searcher panics");
    found.into_iter().map(|line| line.expect("all were searched")).collect()
}

fn chosen(setup: &Setup) -> Result<Choice, String> {
    let link = profile(setup.profile)?.link();
    let costs = costs(&link, &HostModel::desktop(setup.writer));
    let room = |lanes: usize| setup.window / lanes.next_power_of_two();
    let place = Place { hosts: setup.hosts, cores: setup.cores, room: &room };
    choose(&costs, &place, Settled::default()).map_err(|e| e.to_string())
}

fn line(setup: &Setup, load: &Load, choice: &Choice) -> Result<Line, String> {
    let chosen_gbs = reached(setup, load, choice.geometry, choice.lanes as u16, choice)?;
    let chosen = Settings {
        chunk: choice.geometry.chunk_bytes(),
        slots: choice.geometry.slots(Class::Request),
        lanes: choice.lanes as u16,
    };
    let mut best = (chosen, chosen_gbs);
    let lanes_max = setup.cores.saturating_sub(1).max(1) as u16;
    for lanes in 1..=lanes_max {
        let room = setup.window / usize::from(lanes.next_power_of_two());
        for chunk in CHUNKS {
            for slots in SLOTS {
                let rings = [slots, slots, 2 * slots];
                let geometry = Geometry::new(chunk, rings).map_err(|e| e.to_string())?;
                // Whole packets and pieces: the search shall find the better.
                for handling_bytes in [0, choice.handling_bytes] {
                    if geometry.region_bytes() > room.min(REGION_BYTES_MAX)
                        || (handling_bytes > 0 && load.depth > 1)
                    {
                        continue;
                    }
                    let tried = Choice { handling_bytes, ..choice.clone() };
                    let gbs = reached(setup, load, geometry, lanes, &tried)?;
                    if gbs > best.1 {
                        best = (Settings { chunk, slots, lanes }, gbs);
                    }
                }
            }
        }
    }
    let ((best, best_gbs), ratio) = (best, chosen_gbs / best.1);
    Ok(Line { setup: *setup, load: *load, best, best_gbs, chosen, chosen_gbs, ratio })
}

/// Bytes per nanosecond of a load with these settings.
fn reached(
    setup: &Setup,
    load: &Load,
    geometry: Geometry,
    lanes: u16,
    choice: &Choice,
) -> Result<f64, String> {
    let Load { pattern, operation, size, depth } = *load;
    let count = if depth == 1 { 6 } else { ((2 << 20) / size).clamp(24, 256) as u64 };
    let mut config = Config::simulated(geometry, false);
    config.handling_bytes = choice.handling_bytes;
    let report = run(&Simulation {
        hosts: setup.hosts,
        pes: 1,
        threads: lanes,
        config,
        link: profile(setup.profile)?.link(),
        host: HostModel::desktop(setup.writer),
        sleepers: false,
        workload: Workload { pattern, operation, size, count, depth },
        faults: Faults::default(),
        seed: 1,
        patience_ns: 200_000_000,
    })
    .map_err(|error| error.to_string())?;
    Ok(match depth {
        1 => size as f64 / report.latency.mean_ns as f64,
        _ => report.throughput_gbs,
    })
}

fn print(lines: &[Line]) {
    let mut before = None;
    for line in lines {
        let Setup { profile, writer, hosts, window, cores } = line.setup;
        if before != Some(line.setup) {
            before = Some(line.setup);
            let Settings { chunk, slots, lanes } = line.chosen;
            println!(
                "\n{profile}, {writer:?} copies, {hosts} hosts, window {} KiB, cores of a PE: \
                 {cores}\nchosen: chunks of {chunk} bytes, {slots} slots, lanes: {lanes}\n\
                 {:<32} {:>9} {:>24} {:>8} {:>6}",
                window >> 10,
                "",
                "chosen",
                "best: chunk/slots/lanes",
                "",
                "ratio"
            );
        }
        let Load { pattern, operation, size, depth } = line.load;
        let what = format!("{operation:?} {size} {}", name(pattern, depth));
        let best = format!("{}/{}/{}", line.best.chunk, line.best.slots, line.best.lanes);
        let mark = if line.ratio < TARGET { "  MISSED" } else { "" };
        println!(
            "{what:<32} {:>9.3} {best:>24} {:>8.3} {:>6.3}{mark}",
            line.chosen_gbs, line.best_gbs, line.ratio
        );
    }
}

fn name(pattern: Pattern, depth: usize) -> String {
    match (pattern, depth) {
        (Pattern::Pair(hops), 1) => format!("alone, hops: {hops}"),
        (Pattern::Pair(hops), _) => format!("stream, hops: {hops}"),
        (Pattern::Neighbour(_), _) => "all to neighbour".into(),
        (Pattern::Alltoall, _) => "all to all".into(),
        (Pattern::Uniform, _) => "uniform".into(),
        (Pattern::Hotspot, _) => "hot spot".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of the table that takes seconds.
    #[test]
    fn choices_are_close_to_the_best_that_a_search_finds() {
        let base =
            Setup { profile: "plx8749", writer: Writer::Cpu, hosts: 3, window: 64 << 20, cores: 1 };
        let setups = [
            Setup { hosts: 7, ..base },
            Setup { writer: Writer::Dma, hosts: 5, ..base },
            Setup { profile: "intel-gen3", ..base },
            Setup { window: 128 << 10, ..base },
            Setup { cores: 3, ..base },
        ];
        let some = |setup: &Setup| {
            let mut all = loads(setup);
            all.retain(|load| matches!(load.size, 4096 | 65536));
            all
        };
        for line in search(&setups, some).unwrap() {
            assert!(line.ratio >= TARGET, "{line:?}");
        }
    }
}
