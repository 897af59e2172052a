// SPDX-License-Identifier: Apache-2.0
//! The choice of chunk, slots and lanes against an exhaustive search in the simulator.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Serialize, Serializer};
use tombolo_transports::ntb::port::emulated::Profile;
use tombolo_transports::ntb::ring::choose::{Choice, Overrides, Resources, choose};
use tombolo_transports::ntb::ring::{Class, Config, Geometry};
use tombolo_transports::ntb::sim::{
    Faults, HostModel, Operation, Pattern, Simulation, Workload, Writer, costs, run,
};

/// Chosen settings shall reach so much of the best found.
const TARGET: f64 = 0.95;
/// What the search tries.
const CHUNKS: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16 << 10, 32 << 10, 64 << 10];
const SLOTS: [u32; 5] = [8, 16, 32, 64, 128];
/// The most that a lane of the search takes from a window.
const REGION_BYTES_MAX: usize = 5 << 20;

fn by_name<S: Serializer>(profile: &Profile, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(profile.name())
}

/// A ring to choose for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Setup {
    #[serde(serialize_with = "by_name")]
    profile: Profile,
    pub(crate) writer: Writer,
    hosts: u16,
    /// Bytes of the window that the PE's lanes share.
    window: usize,
    /// Processors of a PE.
    cores: usize,
}

/// What a ring is to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    pub(crate) pattern: Pattern,
    pub(crate) operation: Operation,
    pub(crate) size: usize,
    /// Operations outstanding; 1: the time of each counts.
    pub(crate) depth: usize,
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Settings {
    chunk: usize,
    slots: u32,
    lanes: u16,
}

/// What settings reach for a load, in bytes per nanosecond.
#[derive(Clone, Copy, Debug, Serialize)]
struct Reached {
    settings: Settings,
    gbs: f64,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: Load,
    best: Reached,
    chosen: Reached,
    ratio: f64,
    /// All that was tried, in the same order for every load of a setup.
    #[serde(skip)]
    tried: Vec<Reached>,
}

/// The part of the table for a ring.
#[derive(Clone, Debug, Serialize)]
struct Part {
    setup: Setup,
    why: String,
    lines: Vec<Row>,
    /// The settings with the best mean ratio over the loads, and that mean.
    compromise: (Settings, f64),
    /// Mean ratio of the chosen ones.
    mean: f64,
}

impl Part {
    fn new(setup: &Setup, choice: &Choice, lines: Vec<Row>) -> Part {
        let count = lines.len() as f64;
        let mean = |at: usize| {
            let ratios = lines.iter().map(|line| line.tried[at].gbs / line.best.gbs);
            (lines[0].tried[at].settings, ratios.sum::<f64>() / count)
        };
        let all = (0..lines[0].tried.len()).map(mean);
        let compromise = all.max_by(|a, b| a.1.total_cmp(&b.1)).expect("something was tried");
        let mean = lines.iter().map(|line| line.ratio).sum::<f64>() / count;
        Part { setup: *setup, why: choice.reason.clone(), lines, compromise, mean }
    }

    /// Whether the choice is close to the best that one choice for all loads can be.
    fn is_met(&self) -> bool {
        self.mean >= TARGET * self.compromise.1
    }
}

/// Searches and prints the table; an error if a choice is too far from the best.
pub fn tune(json: bool) -> Result<(), String> {
    let parts = search(&setups(), loads)?;
    if json {
        say!("{}", serde_json::to_string_pretty(&parts).map_err(|e| e.to_string())?);
    } else {
        parts.iter().for_each(print);
        let lines = || parts.iter().flat_map(|part| &part.lines);
        let close = lines().filter(|line| line.ratio >= TARGET).count();
        say!("\n{close} of {} loads within 5 % of the best found for each", lines().count());
        let usual = |part: &&Part| part.setup.window > 1 << 20 && part.setup.hosts < 16;
        let usual = || parts.iter().filter(usual).flat_map(|part| &part.lines);
        let close = usual().filter(|line| line.ratio >= TARGET).count();
        say!("{close} of {} of them with windows of 64 MiB and up to 7 hosts", usual().count());
    }
    match parts.iter().filter(|part| !part.is_met()).count() {
        0 => Ok(()),
        missed => Err(format!("{missed} of {} choices are not close to the best", parts.len())),
    }
}

/// From which the others differ in a few points.
const BASE: Setup =
    Setup { profile: Profile::Plx8749, writer: Writer::Cpu, hosts: 3, window: 64 << 20, cores: 1 };

pub(crate) fn setups() -> Vec<Setup> {
    let mut setups = Vec::new();
    for profile in [Profile::Plx8749, Profile::IntelGen3] {
        for writer in [Writer::Cpu, Writer::Dma] {
            for hosts in [2, 3, 7] {
                setups.push(Setup { profile, writer, hosts, ..BASE });
            }
        }
    }
    // Another Gen4 link is as the Gen3 link of twice the width: one of it is enough.
    setups.push(Setup { profile: Profile::Switchtec, hosts: 4, ..BASE });
    for writer in [Writer::Cpu, Writer::Dma] {
        setups.push(Setup { writer, hosts: 16, ..BASE });
        setups.push(Setup { writer, window: 128 << 10, ..BASE });
        setups.push(Setup { writer, cores: 3, ..BASE });
        setups.push(Setup { writer, cores: 3, hosts: 7, window: 1 << 20, ..BASE });
    }
    setups
}

/// All loads for a ring.
pub(crate) fn loads(setup: &Setup) -> Vec<Load> {
    let far = setup.hosts / 2;
    let mut loads = Vec::new();
    for size in [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for operation in [Operation::Put, Operation::Get] {
            let mut load = |pattern, depth| loads.push(Load { pattern, operation, size, depth });
            for hops in if far > 1 { vec![1, far] } else { vec![1] } {
                if size < 1 << 20 {
                    load(Pattern::Pair(hops), 16);
                }
                // On several lanes a transfer that is alone still uses one.
                if size >= 4 << 10 && setup.cores == 1 {
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

/// What all settings reach for the loads of the setups.
fn search(setups: &[Setup], loads: fn(&Setup) -> Vec<Load>) -> Result<Vec<Part>, String> {
    let choose = |setup: &Setup| chosen(setup, &HostModel::desktop(setup.writer));
    let choices = setups.iter().map(choose).collect::<Result<Vec<Choice>, String>>()?;
    let mut tasks = Vec::new();
    for (setup, choice) in setups.iter().zip(&choices) {
        tasks.extend(loads(setup).into_iter().map(|load| (setup, load, choice)));
    }
    let mut lines =
        in_parallel(&tasks, |(setup, load, choice)| line(setup, load, choice))?.into_iter();
    let part = |(setup, choice): (&Setup, &Choice)| {
        Part::new(setup, choice, lines.by_ref().take(loads(setup).len()).collect())
    };
    Ok(setups.iter().zip(&choices).map(part).collect())
}

/// The results of `work` in the order of the tasks.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    tasks: &[T],
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(tasks.iter().map(|_| None).collect::<Vec<_>>());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(at) else { return };
                    let result = work(task);
                    done.lock().expect("no worker panics")[at] = Some(result);
                }
            });
        }
    });
    let done = done.into_inner().expect("no worker panics");
    done.into_iter().map(|result| result.expect("every task was done")).collect()
}

/// What is chosen for hosts that cost as `host` does.
pub(crate) fn chosen(setup: &Setup, host: &HostModel) -> Result<Choice, String> {
    let link = setup.profile.link();
    let costs = costs(&link, host);
    let room = |lanes: usize| setup.window / lanes.next_power_of_two();
    let resources = Resources { hosts: setup.hosts, cores: setup.cores, room: &room };
    choose(&costs, &resources, Overrides::default()).map_err(|e| e.to_string())
}

fn line(setup: &Setup, load: &Load, choice: &Choice) -> Result<Row, String> {
    let run = |geometry: Geometry, lanes: u16, handling_bytes: u32| {
        let settings = Settings {
            chunk: geometry.chunk_bytes(),
            slots: geometry.slots(Class::Request),
            lanes,
        };
        let host = HostModel::desktop(setup.writer);
        let gbs = reached(setup, load, host, (geometry, lanes, handling_bytes))?;
        Ok::<Reached, String>(Reached { settings, gbs })
    };
    let chosen = run(choice.geometry, choice.lanes as u16, choice.handling_bytes)?;
    let mut best = chosen;
    let mut tried = Vec::new();
    let lanes_max = setup.cores.saturating_sub(1).max(1) as u16;
    for lanes in 1..=lanes_max {
        let room = setup.window / usize::from(lanes.next_power_of_two());
        for (chunk, slots) in CHUNKS.into_iter().flat_map(|c| SLOTS.map(|slots| (c, slots))) {
            let rings = [slots, slots, 2 * slots];
            let geometry = Geometry::new(chunk, rings).map_err(|e| e.to_string())?;
            if geometry.region_bytes() > room.min(REGION_BYTES_MAX) {
                continue;
            }
            let whole = run(geometry, lanes, 0)?;
            // With others outstanding, packets are whole anyway.
            let in_pieces = match load.depth {
                1 => run(geometry, lanes, choice.handling_bytes)?,
                _ => whole,
            };
            tried.push(in_pieces);
            for one in [whole, in_pieces] {
                if one.gbs > best.gbs {
                    best = one;
                }
            }
        }
    }
    let ratio = chosen.gbs / best.gbs;
    Ok(Row { load: *load, best, chosen, ratio, tried })
}

/// Bytes per nanosecond of a load on such hosts, with these rings, lanes and bytes by which
/// transfers are cut.
pub(crate) fn reached(
    setup: &Setup,
    load: &Load,
    host: HostModel,
    (geometry, lanes, handling_bytes): (Geometry, u16, u32),
) -> Result<f64, String> {
    let Load { pattern, operation, size, depth } = *load;
    let count = if depth == 1 { 6 } else { ((2 << 20) / size).clamp(24, 256) as u64 };
    let mut config = Config::simulated(geometry, false);
    config.handling_bytes = handling_bytes;
    let report = run(&Simulation {
        hosts: setup.hosts,
        pes: 1,
        lanes,
        config,
        link: setup.profile.link(),
        host,
        sleepers: false,
        workload: Workload { pattern, operation, size, count, depth },
        beside: None,
        faults: Faults::default(),
        exact: false,
        seed: 1,
        patience_ns: 200_000_000,
    })
    .map_err(|error| error.to_string())?;
    Ok(match depth {
        1 => size as f64 / report.latency.mean_ns as f64,
        _ => report.throughput_gbs,
    })
}

fn print(part: &Part) {
    let Setup { profile, writer, hosts, window, cores } = part.setup;
    let show = |s: Settings| format!("{}/{}/{}", s.chunk, s.slots, s.lanes);
    let chosen = part.lines[0].chosen.settings;
    let (compromise, most) = part.compromise;
    say!(
        "\n{}, {writer:?} copies, {hosts} hosts, window {} KiB, cores of a PE: {cores}",
        profile.name(),
        window >> 10
    );
    say!("chosen {}: {}", show(chosen), part.why);
    say!(
        "mean ratio {:.3}, the best that one setting has for all loads {most:.3} ({}){}",
        part.mean,
        show(compromise),
        if part.is_met() { "" } else { "  MISSED" }
    );
    say!("{:<32} {:>8} {:>8} {:>24} {:>6}", "GB/s", "chosen", "best", "chunk/slots/lanes", "ratio");
    for line in &part.lines {
        let Load { pattern, operation, size, depth } = line.load;
        let what = format!("{operation:?} {size} {}", name(pattern, depth));
        let mark = if line.ratio < TARGET { " <" } else { "" };
        say!(
            "{what:<32} {:>8.3} {:>8.3} {:>24} {:>6.3}{mark}",
            line.chosen.gbs,
            line.best.gbs,
            show(line.best.settings),
            line.ratio
        );
    }
}

pub(crate) fn name(pattern: Pattern, depth: usize) -> String {
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

    /// A part of the table that takes seconds. In a small window nothing suits all loads.
    #[test]
    fn choices_are_close_to_the_best_that_a_search_finds() {
        let setups = [
            Setup { hosts: 7, ..BASE },
            Setup { writer: Writer::Dma, hosts: 5, ..BASE },
            Setup { profile: Profile::IntelGen3, ..BASE },
            Setup { window: 128 << 10, ..BASE },
            Setup { cores: 3, ..BASE },
        ];
        let some = |setup: &Setup| {
            let mut all = loads(setup);
            all.retain(|load| matches!(load.size, 256 | 4096 | 65536));
            all
        };
        for part in search(&setups, some).unwrap() {
            assert!(part.is_met(), "{:?}: {} of {:?}", part.setup, part.mean, part.compromise);
            if part.setup.window > 1 << 20 {
                for line in part.lines {
                    let Row { load, best, chosen, .. } = line;
                    let shown = format!("{:?}, {load:?}: {chosen:?} of {best:?}", part.setup);
                    // Puts of 64 KiB from all to all go best in one packet, which suits nothing else.
                    let least = match load.pattern {
                        Pattern::Alltoall => 0.8,
                        _ => TARGET - 0.01,
                    };
                    assert!(line.ratio >= least, "{shown}");
                }
            }
        }
    }
}
