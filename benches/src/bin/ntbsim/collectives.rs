// SPDX-License-Identifier: Apache-2.0
//! The library's collectives on simulated hosts, against what the links would allow.
//!
//! Each host has one PE, which is a thread with a world of its own and calls what a program calls; only
//! links, processors and time are modelled. Reductions take the time of combining elements; copies
//! that a PE makes within its own memory take none.

use std::sync::{Arc, Mutex};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use tombolo_collectives::table::{self, Trial};
use tombolo_collectives::{Operator, Reducer, barrier_all, reducer, sync_all};
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Threads;
use tombolo_core::config::{Bytes, Environment};
use tombolo_core::cost::{Costs, HOPS, SIZES, Times};
use tombolo_core::ops::Mode;
use tombolo_core::route::Routes;
use tombolo_core::wait::{Patience, Reason, Waiting};
use tombolo_core::{Config as Settings, Setup, World};
use tombolo_transports::ntb::ring::Config;
use tombolo_transports::ntb::sim::live::{LiveRing, LiveSetup, spend_ns};
use tombolo_transports::ntb::sim::{HostModel, LinkModel, Writer, tlp_bytes};

use crate::load::settings;
use crate::profile;

const ROUTINE: &str = "ntbsim collectives";
/// Share of what the links carry that is wanted, from this size on.
const GOAL: (usize, f64) = (1 << 20, 0.85);
/// Processors of a PE.
const PROCESSORS: u32 = 5;
/// Bytes that a core combines in a nanosecond: two are read and one is written for each. Sums of long integers in the last
/// cache were measured at 28 (benches/record/2026-11-30-reductions-by-vectors.md).
const COMBINE_RATE: f64 = 20.0;

/// What is run.
#[derive(Args)]
pub struct Collectives {
    /// Numbers of hosts, 2 to 64.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8],
        value_parser = clap::value_parser!(u16).range(2..=64))]
    hosts: Vec<u16>,
    /// The longest call, in bytes.
    #[arg(long, default_value_t = 4 << 20,
        value_parser = RangedU64ValueParser::<usize>::new().range(8..=4 << 20))]
    most: usize,
    /// Also shows what each algorithm takes, not only that which the library chooses.
    #[arg(long)]
    all: bool,
    /// Only these operations.
    #[arg(long, value_delimiter = ',', value_parser = OPERATIONS, default_values_t = OPERATIONS.map(String::from))]
    operations: Vec<String>,
    /// Algorithms to run instead of those that the library chooses, with a row for each: of every
    /// operation those that it has.
    #[arg(long, value_delimiter = ',', conflicts_with = "all")]
    algorithms: Vec<String>,
    /// Link: plx8749 (Gen3 x8), intel-gen3 (x16) or switchtec (Gen4 x8).
    #[arg(long, default_value = "plx8749")]
    profile: String,
}

/// An operation and the bytes that are named in the table.
#[derive(Clone, Copy)]
struct Case {
    operation: &'static str,
    bytes: usize,
}

const fn case(operation: &'static str, bytes: usize) -> Case {
    Case { operation, bytes }
}

const OPERATIONS: [&str; 5] = ["sync", "broadcast", "reduce", "fcollect", "alltoall"];

const CASES: [Case; 29] = [
    case("sync", 0),
    case("broadcast", 8),
    case("broadcast", 4 << 10),
    case("broadcast", 16 << 10),
    case("broadcast", 64 << 10),
    case("broadcast", 256 << 10),
    case("broadcast", 1 << 20),
    case("broadcast", 4 << 20),
    case("reduce", 8),
    case("reduce", 4 << 10),
    case("reduce", 16 << 10),
    case("reduce", 64 << 10),
    case("reduce", 256 << 10),
    case("reduce", 1 << 20),
    case("reduce", 4 << 20),
    case("fcollect", 8),
    case("fcollect", 4 << 10),
    case("fcollect", 16 << 10),
    case("fcollect", 64 << 10),
    case("fcollect", 256 << 10),
    case("fcollect", 1 << 20),
    case("fcollect", 4 << 20),
    case("alltoall", 8),
    case("alltoall", 4 << 10),
    case("alltoall", 16 << 10),
    case("alltoall", 64 << 10),
    case("alltoall", 256 << 10),
    case("alltoall", 1 << 20),
    case("alltoall", 4 << 20),
];

impl Case {
    /// Bytes of a member's call: those of `fcollect` and `alltoall` name the blocks of all members, but for
    /// the shortest.
    fn len(&self, hosts: u16) -> usize {
        match self.operation {
            "fcollect" | "alltoall" if self.bytes > 8 => self.bytes / usize::from(hosts) / 8 * 8,
            _ => self.bytes,
        }
    }

    /// The least time in nanoseconds by what the links carry, both ways round, at the rate given.
    fn wire_ns(&self, hosts: u16, rate: f64) -> f64 {
        let (n, len) = (f64::from(hosts), self.len(hosts) as f64);
        let bytes = match self.operation {
            // All of it has to come to every host, over both of its links.
            "broadcast" => len / 2.0,
            // A host sends and receives all but a share twice, half of it each way.
            "reduce" => len * (n - 1.0) / n,
            "fcollect" => len * (n - 1.0) / 2.0,
            // Half of the sum of all distances goes each way, over as many links as there are hosts.
            "alltoall" => len * (n * n / 4.0).floor() / 2.0,
            _ => 0.0,
        };
        bytes / rate
    }
}

/// A row of the table.
struct Row {
    case: Case,
    taken: &'static str,
    /// By algorithm, in nanoseconds.
    times: Vec<(&'static str, f64)>,
}

/// A sum that takes as long as the model says.
struct TimedSum;

impl Operator<i64> for TimedSum {
    const EXACT: bool = true;

    fn apply(left: i64, right: i64) -> i64 {
        spend_ns(8.0 / COMBINE_RATE);
        left.wrapping_add(right)
    }
}

fn timed_sum() -> Reducer {
    reducer::<TimedSum, i64>()
}

impl Collectives {
    /// Prints times and shares.
    pub fn show(&self) -> Result<(), String> {
        self.check()?;
        let link = profile(&self.profile)?.link();
        say!(
            "modelled link: {}; one PE per host, polling; chunk, slots and lanes as",
            self.profile
        );
        say!("chosen by the program for 5 processors of a PE; bulk data moved by DMA");
        say!(
            "latency: a word to the farthest host; links: the time by what these carry, both ways"
        );
        say!("round; share: links / time, and (links + latency) / time");
        let mut missed = 0;
        for hosts in &self.hosts {
            let (latency_ns, rows) = self.run(*hosts, link)?;
            say!("\n{hosts} hosts, latency {:.2} us", latency_ns / 1000.0);
            say!(
                "{:<10} {:>8}  {:<14} {:>10} {:>10} {:>6} {:>6}  fastest",
                "",
                "bytes",
                "taken",
                "us",
                "links",
                "share",
                "share"
            );
            for row in rows {
                missed += u32::from(self.print(*hosts, link, latency_ns, &row));
            }
        }
        match missed {
            0 => Ok(()),
            _ => Err(format!("{missed} calls of {} MiB or more below {}", GOAL.0 >> 20, GOAL.1)),
        }
    }

    /// Whether some operation has each of the algorithms asked for; the error lists what there is.
    fn check(&self) -> Result<(), String> {
        let all = table::listing();
        let names = |operation: &str| -> Vec<&str> {
            all.iter().filter(|row| row.operation == operation).map(|row| row.name).collect()
        };
        let known = |name: &str| self.operations.iter().any(|o| names(o).contains(&name));
        let Some(unknown) = self.algorithms.iter().find(|name| !known(name)) else { return Ok(()) };
        let choices = self.operations.iter().map(|o| format!("{o}: {}", names(o).join(", ")));
        let choices = choices.collect::<Vec<_>>().join("; ");
        Err(format!(
            "'{unknown}' is not an algorithm of what is to be run; expected one of {choices}"
        ))
    }

    fn wants(&self, case: &Case) -> bool {
        case.bytes <= self.most && self.operations.iter().any(|name| name == case.operation)
    }

    /// Runs all cases on so many hosts: the latency to the farthest host, and the rows.
    fn run(&self, hosts: u16, link: LinkModel) -> Result<(f64, Vec<Row>), String> {
        let choice = settings(hosts, Writer::Dma, PROCESSORS as usize)?;
        let mut config = Config::simulated(choice.geometry, false);
        config.handling_bytes = choice.handling_bytes;
        config.split = hosts == 2;
        let host = HostModel::desktop(Writer::Dma);
        let lanes = choice.lanes as u16;
        let ring = LiveRing::new(LiveSetup { hosts, lanes, config, link, host, seed: 1 });
        let ring = ring.map_err(|error| error.to_string())?;
        let results = Mutex::new((0.0, Vec::new()));
        let n = usize::from(hosts);
        let board = Arc::new(Board::create(n).map_err(|error| error.to_string())?);
        std::thread::scope(|scope| {
            for (pe, bootstrap) in Threads::job(n).into_iter().enumerate() {
                let (ring, board, results) = (&ring, board.clone(), &results);
                scope.spawn(move || {
                    let environment: Environment =
                        [("TOMBOLO_HOST", pe.to_string())].into_iter().collect();
                    let mut config =
                        Settings::from_environment(environment).expect("sound settings");
                    config.symmetric_size = Bytes((2 * self.most + (16 << 20)) as u64);
                    let world = World::start(Setup {
                        bootstrap: Arc::new(bootstrap),
                        board,
                        config,
                        transports: vec![ring.transport(pe)],
                        share_statics: false,
                        several_threads: false,
                    });
                    let mut world = world.expect("a world of threads starts");
                    world.wait_by(Patience::UNENDING);
                    ring.enter(pe);
                    let member = Member::new(ring, &world, self.most);
                    let measured = member.measure(&link, self);
                    ring.leave(pe);
                    if pe == 0 {
                        *results.lock().expect("nobody panics with it") = measured;
                    }
                    world.stop().expect("a world of threads stops");
                });
            }
        });
        results.into_inner().map_err(|error| error.to_string())
    }

    /// Prints a row; true if it misses the goal.
    fn print(&self, hosts: u16, link: LinkModel, latency_ns: f64, row: &Row) -> bool {
        if row.times.is_empty() {
            let Case { operation, bytes } = row.case;
            say!("{operation:<10} {bytes:>8}  {:<14} does not apply", row.taken);
            return false;
        }
        let time =
            |name| row.times.iter().find(|(other, _)| *other == name).map_or(f64::NAN, |t| t.1);
        let (took, rate) = (time(row.taken), link.raw_rate(tlp_bytes(&link, Writer::Dma)));
        let wire = row.case.wire_ns(hosts, rate);
        let share = wire / took;
        let missed = row.case.bytes >= GOAL.0 && share < GOAL.1;
        let fastest = row.times.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        say!(
            "{:<10} {:>8}  {:<14} {:>10.2} {:>10.2} {share:>6.3} {:>6.3}  {}{}",
            row.case.operation,
            row.case.bytes,
            row.taken,
            took / 1000.0,
            wire / 1000.0,
            (wire + latency_ns) / took,
            fastest.map_or(String::new(), |(name, t)| format!("{name} {:.2}", took / t)),
            if missed { "  below" } else { "" },
        );
        if self.all {
            let of = |(name, t): &(&str, f64)| format!("{name} {:.2}", t / 1000.0);
            say!("{:>21}{}", "", row.times.iter().map(of).collect::<Vec<_>>().join(", "));
        }
        missed
    }
}

/// What a PE works with.
struct Member<'a> {
    ring: &'a LiveRing,
    world: &'a World,
    source: *mut u8,
    dest: *mut u8,
    /// A time by PE, at all PEs.
    words: *mut u64,
}

impl<'a> Member<'a> {
    fn new(ring: &'a LiveRing, world: &'a World, most: usize) -> Member<'a> {
        let array = |bytes: usize| {
            let place = world.heap().allocate(bytes, 4096);
            assert!(!place.is_null(), "room for {bytes} bytes");
            place
        };
        let (source, dest) = (array(most), array(most));
        Member { ring, world, source, dest, words: array(8 * world.n_pes().max(HOPS)).cast() }
    }

    fn measure(&self, link: &LinkModel, wanted: &Collectives) -> (f64, Vec<Row>) {
        let n = self.world.n_pes();
        let latency = |hops: usize| self.latency_ns(hops.min(n / 2));
        let hops: [f64; HOPS] = std::array::from_fn(|index| latency(index + 1));
        let farthest = latency(n / 2);
        let costs = costs(link, hops);
        self.world.set_routes(Routes { costs: costs.into(), ..self.world.routes().clone() });
        let mut rows = Vec::new();
        let listing = table::listing();
        for case in CASES.into_iter().filter(|case| wanted.wants(case)) {
            let len = case.len(n as u16);
            let names = listing.iter().filter(|row| row.operation == case.operation);
            let names = names.map(|row| row.name);
            if !wanted.algorithms.is_empty() {
                for taken in names.filter(|name| wanted.algorithms.iter().any(|a| a == name)) {
                    let times = self.time(case, taken, len).map(|time| (taken, time));
                    rows.push(Row { case, taken, times: times.into_iter().collect() });
                }
                continue;
            }
            let taken = table::taken(self.world, self.world.team(), case.operation, len);
            let taken = taken.expect("some algorithm applies");
            let names = names.filter(|name| wanted.all || *name == taken);
            let times = names.filter_map(|name| Some((name, self.time(case, name, len)?)));
            rows.push(Row { case, taken, times: times.collect() });
        }
        (farthest, rows)
    }

    /// All begin when nothing is under way any more, not even an acknowledgement: the time.
    fn begin(&self) -> f64 {
        spend_ns(2e5);
        self.ring.align(self.world.pe());
        self.ring.now_ns(self.world.pe())
    }

    /// One way of a word over so many links.
    fn latency_ns(&self, hops: usize) -> f64 {
        let (world, me) = (self.world, self.world.pe());
        // SAFETY: a word of this PE's array, used by nobody else now.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(self.words) };
        word.store(0, std::sync::atomic::Ordering::Relaxed);
        let begun = self.begin();
        if me == 0 {
            let one = 1u64;
            let (dest, source) = (self.words.cast(), (&raw const one).cast());
            // SAFETY: a word of each.
            unsafe {
                world.put(world.context(), dest, source, 8, hops, Mode::Blocking, ROUTINE);
            }
        }
        if me == hops {
            let waiting = Waiting { routine: ROUTINE, argument: 0, reason: Reason::Variable };
            world.wait(waiting, || word.load(std::sync::atomic::Ordering::Acquire) == 1);
        }
        let took = self.ring.now_ns(me) - begun;
        self.share(took)[hops]
    }

    /// What each PE says.
    fn share(&self, mine: f64) -> Vec<f64> {
        let (world, me) = (self.world, self.world.pe());
        self.ring.align(me);
        let bits = mine.to_bits();
        for pe in 0..world.n_pes() {
            let (dest, source) = (self.words.wrapping_add(me), (&raw const bits).cast());
            // SAFETY: a word of each.
            unsafe {
                world.put(world.context(), dest.cast(), source, 8, pe, Mode::Blocking, ROUTINE);
            }
        }
        barrier_all(world, ROUTINE);
        // SAFETY: a word of each PE, which nobody writes now.
        let all = unsafe { std::slice::from_raw_parts(self.words, world.n_pes()) };
        let all = all.iter().map(|bits| f64::from_bits(*bits)).collect();
        sync_all(world, ROUTINE);
        all
    }

    /// From the moment at which all begin to that at which the last one has returned, of the second call;
    /// none if the algorithm does not apply.
    fn time(&self, case: Case, algorithm: &'static str, size: usize) -> Option<f64> {
        let (world, me) = (self.world, self.world.pe());
        let Case { operation, .. } = case;
        let mut took = 0.0;
        for _ in 0..2 {
            self.fill(case.bytes.max(8 * world.n_pes()));
            let (dest, source, reducer) = (self.dest, self.source, timed_sum());
            let trial = Trial { operation, algorithm, dest, source, size, reducer };
            let begun = self.begin();
            // SAFETY: arrays of all PEs, with room for what is named.
            if !unsafe { table::carry_out(world, world.team(), &trial, ROUTINE) } {
                return None;
            }
            took = self.ring.now_ns(me) - begun;
            self.verify(case, algorithm, size);
            sync_all(world, ROUTINE);
        }
        Some(self.share(took).into_iter().fold(0.0, f64::max))
    }

    /// The value of an element of the source of a PE.
    fn value(pe: usize, index: usize) -> i64 {
        (pe * 1_000_003 + index * 7) as i64
    }

    /// Puts what is to be sent into the source, and something else into the dest.
    fn fill(&self, bytes: usize) {
        // SAFETY: this PE's arrays, which nobody else uses now.
        unsafe {
            let source = std::slice::from_raw_parts_mut(self.source.cast::<i64>(), bytes / 8);
            let me = self.world.pe();
            source.iter_mut().enumerate().for_each(|(index, v)| *v = Member::value(me, index));
            self.dest.write_bytes(0xee, bytes);
        }
    }

    /// Looks at every element of the result.
    fn verify(&self, Case { operation, .. }: Case, algorithm: &str, size: usize) {
        let (n, me, each) = (self.world.n_pes(), self.world.pe(), size / 8);
        let all = match operation {
            "fcollect" | "alltoall" => n * each,
            "sync" => 0,
            _ => each,
        };
        // SAFETY: this PE's array, which nobody writes now.
        let dest = unsafe { std::slice::from_raw_parts(self.dest.cast::<i64>(), all) };
        let pes = (n * (n - 1) / 2 * 1_000_003) as i64;
        for (index, found) in dest.iter().enumerate() {
            let expected = match operation {
                "broadcast" => Member::value(0, index),
                "reduce" => pes + (n * index * 7) as i64,
                "fcollect" => Member::value(index / each, index % each),
                _ => Member::value(index / each, me * each + index % each),
            };
            assert_eq!(*found, expected, "{operation}:{algorithm}, {size} bytes, element {index}");
        }
    }
}

/// What the model says of single operations.
fn costs(link: &LinkModel, hops: [f64; HOPS]) -> Costs {
    let host = HostModel::desktop(Writer::Dma);
    let rate = link.raw_rate(tlp_bytes(link, Writer::Dma));
    let submit = host.submit_ps as f64 / 1000.0;
    let put = SIZES.map(|size| (submit + size as f64 / rate) as u32);
    let copies = SIZES.map(|size| (size as f64 / host.copy_rate) as u32 + 1);
    let times = |latency: f64| Times {
        put,
        get: SIZES.map(|size| (2.0 * latency + size as f64 / rate) as u32),
        latency: latency as u32,
        completion: (2.0 * latency) as u32,
    };
    let here = Times { put: copies, get: copies, ..Costs::default().host };
    Costs { host: here, hops: hops.map(times), processors: PROCESSORS, ..Costs::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tombolo_transports::ntb::port::emulated::Profile;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        collectives: Collectives,
    }

    fn asked(words: &[&str]) -> Result<Collectives, String> {
        let line = Line::try_parse_from([&["collectives"], words].concat());
        line.map(|line| line.collectives).map_err(|error| error.to_string())
    }

    #[test]
    fn names_that_do_not_exist_are_refused_with_a_list() {
        let why = asked(&["--operations", "redduce"]).err().expect("no such operation");
        assert!(why.contains("sync, broadcast, reduce, fcollect, alltoall"), "{why}");
        let words = ["--operations", "reduce,fcollect", "--algorithms", "ring,put"];
        assert_eq!(asked(&words).expect("well formed").check(), Ok(()));
        let words = ["--operations", "reduce", "--algorithms", "ring,put"];
        let why = asked(&words).expect("well formed").check().unwrap_err();
        assert!(
            why.starts_with("'put' is not an algorithm of what is to be run; expected one of"),
            "{why}"
        );
        assert!(why.contains("reduce: publish, share, exchange"), "{why}");
    }

    #[test]
    fn only_what_is_asked_for_is_run() {
        let wanted = asked(&["--operations", "reduce", "--most", "65536"]).expect("well formed");
        let cases: Vec<(&str, usize)> = CASES
            .iter()
            .filter(|case| wanted.wants(case))
            .map(|case| (case.operation, case.bytes))
            .collect();
        let sizes = [8, 4 << 10, 16 << 10, 64 << 10];
        assert_eq!(cases, sizes.map(|bytes| ("reduce", bytes)));
        assert!(CASES.iter().all(|case| OPERATIONS.contains(&case.operation)));
    }

    #[test]
    fn two_hosts_exchange_words_and_do_not_wait_for_puts_of_them() {
        let words = ["--operations", "fcollect,alltoall", "--most", "8"];
        let link = Profile::Plx8749.link();
        let (_, rows) = asked(&words).expect("well formed").run(2, link).expect("runs");
        let taken = rows.iter().map(|row| (row.case.operation, row.taken)).collect::<Vec<_>>();
        assert_eq!(taken, [("fcollect", "exchange"), ("alltoall", "exchange")]);
    }

    #[test]
    fn two_hosts_with_processors_for_both_links_use_both() {
        let words = ["--operations", "broadcast,fcollect,alltoall", "--most", "1048576"];
        let link = Profile::Plx8749.link();
        let (_, rows) = asked(&words).expect("well formed").run(2, link).expect("runs");
        let rate = link.raw_rate(tlp_bytes(&link, Writer::Dma));
        for row in rows.iter().filter(|row| row.case.bytes == 1 << 20) {
            let share = row.case.wire_ns(2, rate) / row.times[0].1;
            assert!(share > GOAL.1, "{} by {}: {share:.3}", row.case.operation, row.taken);
        }
    }
}
