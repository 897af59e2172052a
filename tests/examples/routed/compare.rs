// SPDX-License-Identifier: Apache-2.0
//! The comparison: by class, operation, buffer type and size.

use crate::reader::Readers;
use crate::timing::in_turns;
use crate::way::{Case, Read, Way, operations};
use tombolo_core::World;
use tombolo_core::transport::{AmoOp, Remote, SegmentKind};
use tombolo_selector::Tuning;
use tombolo_selector::class::Class;
use tombolo_selector::data::{Buffer, Operation};

const LARGEST: usize = 16 << 20;
const SLACK: usize = 4096;
/// Below the first, the clock makes up much of what is measured. Below the second, what a call costs
/// before it reaches its channel, a few nanoseconds, is more than the target allows.
const LIMITS_NS: [f64; 2] = [20.0, 200.0];
/// What the routed operation may take, relative to the best channel.
const TARGET: f64 = 1.05;

/// What is compared.
const OPERATIONS: [Operation; 5] =
    [Operation::Put, Operation::Blocking, Operation::Pipeline, Operation::Get, Operation::Amo];

/// Where PEs of processes have static data; those of threads share theirs, and do not use it.
struct Area(std::cell::UnsafeCell<[u8; LARGEST + SLACK]>);
// SAFETY: only its address is used, for operations on mapped memory.
unsafe impl Sync for Area {}
static STATIC: Area = Area(std::cell::UnsafeCell::new([0; LARGEST + SLACK]));

/// What is compared on one PE.
pub struct Comparison<'a> {
    world: &'a World,
    ring: Option<&'a World>,
    cached_max: usize,
    targets: Vec<(Class, usize)>,
    readers: Readers<'a>,
    there: *mut u8,
    here: *mut u8,
    /// The same on the ring without windows.
    ring_there: *mut u8,
}

/// The times of one size: of the best channel, and of the routed operation relative to it and to
/// cached copies (0 where there are none).
struct Seen {
    best: f64,
    ratio: f64,
    to_cached: f64,
}

impl Seen {
    fn misses(&self) -> bool {
        self.best >= LIMITS_NS[0] && self.ratio > TARGET
    }
}

/// The worst of what was seen.
struct Worst {
    ratio: f64,
    at: String,
}

impl<'a> Comparison<'a> {
    /// Takes symmetric memory: every PE makes this call.
    pub fn new(world: &'a World, ring: Option<&'a World>, tuning: &Tuning) -> Comparison<'a> {
        let heap = world.heap();
        let (there, here) =
            (heap.allocate(LARGEST + SLACK, 4096), heap.allocate(LARGEST + SLACK, 4096));
        // Nobody else uses the other ring's heap: the same place is free on all its PEs.
        let ring_there =
            ring.map_or(std::ptr::null_mut(), |ring| ring.heap().allocate(LARGEST + SLACK, 4096));
        let mut targets: Vec<(Class, usize)> = Vec::new();
        for pe in 0..world.n_pes() {
            let class = tuning.class_of(pe);
            if !targets.iter().any(|(known, _)| *known == class) {
                targets.push((class, pe));
            }
        }
        targets.sort_unstable();
        let mapped = |pe, kind| {
            let base = world.base(kind);
            !base.is_null() && !world.ptr(base, pe).is_null()
        };
        let cached_max = tuning.routes().cached_max(mapped);
        let readers = Readers::new(world);
        Comparison { world, ring, cached_max, targets, readers, there, here, ring_there }
    }

    /// Measures and prints the groups whose names have all `words`.
    pub fn run(&self, words: &[String]) {
        let mut private = vec![1u8; LARGEST + SLACK];
        println!("class operation buffer bytes routed_ns, then channel=ns, routed/best");
        let mut worst = LIMITS_NS.map(|_| Worst::none());
        let (mut plain, mut missed, mut count) = (Worst::none(), 0, 0);
        for (class, pe) in self.targets.iter().copied() {
            for (operation, buffer, read) in self.groups(class, pe) {
                let then = if read { "-and-read" } else { "" };
                let name = format!("{class} {operation}{then} {buffer}");
                if words.iter().any(|word| !name.split(' ').any(|part| part == word)) {
                    continue;
                }
                let mut group = Worst::none();
                for bytes in sizes(operation) {
                    let case = self.case(operation, buffer, pe, bytes, private.as_mut_ptr());
                    let case = if read { self.then_read(case) } else { case };
                    let seen = self.measure(&name, &case);
                    count += 1;
                    missed += usize::from(seen.misses());
                    group.see(seen.ratio, LIMITS_NS[0], &seen, &name, bytes);
                    plain.see(seen.to_cached, LIMITS_NS[1], &seen, &name, bytes);
                    for (worst, limit) in worst.iter_mut().zip(LIMITS_NS) {
                        worst.see(seen.ratio, limit, &seen, &name, bytes);
                    }
                }
                self.readers.rest(pe);
                println!("{name}: at worst {group}\n");
            }
        }
        self.readers.end();
        println!("{missed} of {count} sizes take more than {TARGET} times the best channel");
        for (worst, limit) in worst.iter().zip(LIMITS_NS) {
            println!("where that takes {limit} ns or more: {worst}");
        }
        println!("relative to plain mapped copies of {} ns or more: {plain}", LIMITS_NS[1]);
    }

    /// What is compared towards a class: operation, buffer type, whether the result is read.
    fn groups(&self, class: Class, pe: usize) -> Vec<(Operation, Buffer, bool)> {
        let mut groups = Vec::new();
        for operation in OPERATIONS {
            for buffer in [Buffer::Heap, Buffer::Static, Buffer::Private, Buffer::Unaligned] {
                let here_tells = matches!(buffer, Buffer::Private | Buffer::Unaligned);
                let alike = operation == Operation::Amo && here_tells
                    // Mapped memory is copied in place: as single puts.
                    || operation == Operation::Blocking && class.hops() == 0;
                let absent = buffer == Buffer::Static && self.world.static_data().is_none();
                if !alike && !absent {
                    groups.push((operation, buffer, false));
                }
            }
        }
        if self.readers.reach(pe) {
            groups.push((Operation::Put, Buffer::Heap, true));
        }
        groups.push((Operation::Get, Buffer::Heap, true));
        groups
    }

    /// On a PE that does not measure: reads what is put here when PE 0 asks for it.
    pub fn attend(&self) {
        self.readers.attend(self.there);
    }

    fn then_read<'b>(&'b self, case: Case<'b>) -> Case<'b> {
        let read = match case.operation {
            Operation::Get => Read::Initiator,
            _ => Read::Target(&self.readers),
        };
        Case { read, ..case }
    }

    fn case(
        &self,
        operation: Operation,
        buffer: Buffer,
        pe: usize,
        bytes: usize,
        private: *mut u8,
    ) -> Case<'_> {
        let (there, here) = match buffer {
            Buffer::Static => (STATIC.0.get().cast(), private),
            Buffer::Private => (self.there, private),
            Buffer::Unaligned => (self.there.wrapping_add(3), private.wrapping_add(1)),
            Buffer::Heap | Buffer::Cold => (self.there, self.here),
        };
        Case { operation, pe, bytes, there, here, read: Read::Nobody }
    }

    /// Prints one size.
    fn measure(&self, name: &str, case: &Case<'_>) -> Seen {
        let ways = self.ways(case);
        let mut times = in_turns(ways.len(), |way| ways[way].1.perform(case));
        times.iter_mut().for_each(|time| *time /= operations(case.operation) as f64);
        let (routed, single) = (times[0], &times[1..]);
        let best = single.iter().copied().fold(f64::INFINITY, f64::min);
        let cached = ways[1..].iter().position(|(name, _)| *name == "cached");
        let to_cached = cached.map_or(0.0, |at| routed / single[at]);
        let seen = Seen { best, ratio: routed / best, to_cached };
        let by: Vec<String> =
            ways[1..].iter().zip(single).map(|((name, _), ns)| format!("{name}={ns:.0}")).collect();
        let mark = if seen.misses() { " *" } else { "" };
        println!("{name} {} {routed:.1} {} {:.3}{mark}", case.bytes, by.join(" "), seen.ratio);
        seen
    }

    /// The routed operation first, then every channel by itself.
    fn ways(&self, case: &Case<'_>) -> Vec<(&'static str, Way<'a>)> {
        let world = self.world;
        let mut ways = vec![("routed", Way::Routed { world, cached_max: self.cached_max })];
        let at = world.ptr(case.there, case.pe);
        if !at.is_null() {
            ways.push(("cached", Way::Mapped { at, streaming: false }));
            if case.operation != Operation::Amo {
                ways.push(("streaming", Way::Mapped { at, streaming: true }));
            }
        }
        let Some(remote) = world.locate(case.there) else { return ways };
        let names = |name: &str| match name {
            "ntb" => ["zero-copy", "bounced"],
            "cma" => ["cma", ""],
            other => panic!("no name for the ways of {other}"),
        };
        self.endpoints(&mut ways, world, remote, case, names);
        // Windows are for stores: other operations take the ring in both jobs.
        let stores = !matches!(case.operation, Operation::Get | Operation::Amo);
        if let Some(ring) = self.ring.filter(|_| at.is_null() && stores) {
            let base = self.ring_there as usize - ring.heap().base() as usize;
            let shift = case.there as usize - self.there as usize;
            let remote = Remote { segment: SegmentKind::Heap, offset: base + shift };
            self.endpoints(&mut ways, ring, remote, case, |_| ["ring-zero-copy", "ring-bounced"]);
        }
        ways
    }

    fn endpoints(
        &self,
        ways: &mut Vec<(&'static str, Way<'a>)>,
        world: &'a World,
        remote: Remote,
        case: &Case<'_>,
        names: impl Fn(&str) -> [&'static str; 2],
    ) {
        for (index, transport) in world.transports().iter().enumerate() {
            let Some(endpoint) = world.endpoint(index, case.pe) else { continue };
            let can = endpoint.capabilities(remote.segment);
            let able = match case.operation {
                Operation::Get => can.get,
                Operation::Amo => can.amos.has(AmoOp::Add, 8),
                _ => can.put,
            };
            if !able || endpoint.mapped(remote.segment).is_some() {
                continue;
            }
            let [zero_copy, bounced] = names(transport.name());
            let way = |bounced| Way::Endpoint { world, endpoint, index, remote, bounced };
            ways.push((zero_copy, way(false)));
            // Only a blocking put may have its source copied first.
            let blocking = matches!(case.operation, Operation::Put | Operation::Blocking);
            if blocking && !bounced.is_empty() {
                ways.push((bounced, way(true)));
            }
        }
    }
}

/// Powers of two, and the sizes half-way between the larger ones.
fn sizes(operation: Operation) -> Vec<usize> {
    match operation {
        Operation::Amo => vec![8],
        Operation::Pipeline => (3..=20).map(|shift| 1 << shift).collect(),
        Operation::Blocking | Operation::ZeroCopy => (10..=23).map(|shift| 1 << shift).collect(),
        _ => (3..=24)
            .flat_map(|shift| {
                let between = (shift > 12 && shift < 24).then_some(3usize << (shift - 1));
                std::iter::once(1usize << shift).chain(between)
            })
            .collect(),
    }
}

impl Worst {
    fn none() -> Worst {
        Worst { ratio: 0.0, at: String::new() }
    }

    /// Takes note of a ratio if the best channel takes `limit` nanoseconds or more.
    fn see(&mut self, ratio: f64, limit: f64, seen: &Seen, name: &str, bytes: usize) {
        if seen.best >= limit && ratio > self.ratio {
            *self = Worst { ratio, at: format!("{name} {bytes}") };
        }
    }
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at.as_str() {
            "" => f.write_str("nothing was measured"),
            at => write!(f, "{:.3} times ({at})", self.ratio),
        }
    }
}
