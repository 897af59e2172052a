//! Micro-benchmarks of the channels between this PE and one other.
//!
//! Points are taken in tiers: first a coarse view of every channel, then finer sizes, then a second
//! set of sizes to judge the model by. When the time is up, what is missing is missing: the policy
//! stays with the default there.

use crate::class::Class;
use crate::data::{
    Buffer, CACHED, Curve, Key, Measurements, Operation, Rejected, SERVICE, STREAMING,
};
use std::time::Instant;
use tombolo_core::transport::SegmentKind;
use tombolo_core::{Context, ContextOptions, World};

mod batch;
mod scratch;
mod way;

pub use scratch::Scratch;
use way::{Buffers, Lost, Way, WayKind};

/// Sizes measured for the model; denser where copies change their ways: a few words, a few lines,
/// the sizes of the inner caches.
pub const LADDER: &[u64] = &[
    8, 16, 32, 64, 120, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072,
    262_144, 524_288, 786_432, 1_048_576, 1_572_864, 2_097_152, 3_145_728, 4_194_304, 8_388_608,
];

/// Sizes measured to judge the model.
pub const CHECKS: &[u64] =
    &[24, 96, 192, 640, 3072, 12_288, 49_152, 196_608, 655_360, 917_504, 2_621_440];

/// Sizes of the first, coarse tier.
const COARSE: &[u64] = &[8, 1024, 16384, 131_072, 1_048_576];

/// Sizes that are measured last, because they take longest.
const LARGE: &[u64] = &[1_572_864, 2_097_152, 3_145_728, 4_194_304];

/// A size at which the caches of a core no longer help: the copies on mapped memory have to prove
/// themselves here. Other channels are not measured at it, it takes long.
pub const HUGE: u64 = 8_388_608;

/// Sizes for buffers that were not used a moment ago; below, the caches hold all that matters.
const COLD: &[u64] = &[65536, 262_144, 1_048_576, 2_097_152];

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// When to stop.
    pub deadline: Instant,
    /// PEs outnumber processors: others run in between, so only the coarse tier says anything.
    pub coarse: bool,
}

/// What came of measuring one pair.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The times.
    pub measured: Measurements,
    /// An operation never completed and may still write to the buffers: they must not be reused.
    pub stuck: bool,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug)]
struct Task {
    operation: Operation,
    buffer: Buffer,
    bytes: u64,
    check: bool,
}

/// Measures every channel between this PE and `target`, which stands for `class`. The target takes
/// no part; its scratch memory is overwritten.
pub fn run(
    world: &World,
    class: Class,
    target: usize,
    scratch: &mut Scratch,
    effort: Effort,
) -> Outcome {
    let context = world.new_context(
        world.team().clone(),
        ContextOptions { private: true, ..ContextOptions::default() },
    );
    let mut prober = Prober {
        ways: ways(world, target),
        world,
        context: &context,
        class,
        target,
        curves: Vec::new(),
        lost: Vec::new(),
        warmed: false,
    };
    let (first, rest) = tasks(class, scratch.capacity() as u64, effort.coarse);
    let now = Instant::now();
    let most = effort.deadline.saturating_duration_since(now) * 9 / 10;
    prober.work_off(&first, scratch, now + most);
    let doubtful = prober.doubtful();
    prober.work_off(&doubtful, scratch, effort.deadline);
    prober.work_off(&rest, scratch, effort.deadline);
    let stuck = prober.lost.iter().any(|(_, lost)| *lost == Lost::Stuck);
    if stuck {
        // The transport may still write to the context's counters.
        let outcome = prober.outcome();
        std::mem::forget(context);
        return Outcome { stuck, ..outcome };
    }
    prober.outcome()
}

/// What to measure, most telling first: what decides, and what is good to know besides.
fn tasks(class: Class, room: u64, coarse: bool) -> (Vec<Task>, Vec<Task>) {
    let mut tasks = Vec::new();
    let add = |tasks: &mut Vec<Task>, operations: &[Operation], buffer, sizes: &[u64], check| {
        for &bytes in sizes.iter().filter(|bytes| **bytes <= room) {
            tasks.extend(operations.iter().map(|&operation| Task {
                operation,
                buffer,
                bytes,
                check,
            }));
        }
    };
    const BOTH: &[Operation] = &[Operation::Put, Operation::Get];
    let rest: Vec<u64> = LADDER
        .iter()
        .copied()
        .filter(|n| !COARSE.contains(n) && !LARGE.contains(n) && *n != HUGE)
        .collect();
    add(&mut tasks, &[Operation::Amo], Buffer::Heap, &[8], false);
    add(&mut tasks, BOTH, Buffer::Heap, COARSE, false);
    add(&mut tasks, BOTH, Buffer::Private, COARSE, false);
    add(&mut tasks, &[Operation::Get], Buffer::Static, COARSE, false);
    if coarse {
        return (tasks, Vec::new());
    }
    add(&mut tasks, BOTH, Buffer::Heap, &rest, false);
    if class != Class::Own {
        add(&mut tasks, BOTH, Buffer::Heap, &[HUGE], false);
    }
    add(&mut tasks, BOTH, Buffer::Heap, LARGE, false);
    if class == Class::Own {
        return (tasks, Vec::new());
    }
    add(&mut tasks, BOTH, Buffer::Heap, CHECKS, true);
    add(&mut tasks, BOTH, Buffer::Private, &rest, false);
    let mut besides = Vec::new();
    add(&mut besides, &[Operation::Pipeline], Buffer::Heap, &[8, 1024, 16384, 131_072], false);
    add(&mut besides, BOTH, Buffer::Unaligned, COARSE, false);
    add(&mut besides, BOTH, Buffer::Cold, COLD, false);
    (tasks, besides)
}

/// Every way to the target. Self needs no transport but mapped memory.
fn ways(world: &World, target: usize) -> Vec<Way<'_>> {
    let heap = world.ptr(world.heap().base(), target);
    let data = world
        .static_data()
        .map_or(std::ptr::null_mut(), |data| world.ptr(data.base().cast_const(), target));
    let mut ways = Vec::new();
    if !heap.is_null() {
        for (name, streaming) in [(CACHED, false), (STREAMING, true)] {
            let kind = WayKind::Mapped { bases: [heap, data], streaming };
            ways.push(Way { name: name.to_owned(), kind });
        }
    }
    if target == world.pe() {
        return ways;
    }
    for (index, transport) in world.transports().iter().enumerate() {
        let Some(endpoint) = world.endpoint(index, target) else { continue };
        // Where memory is mapped, an endpoint that only offers the mapping is the same channel.
        if !heap.is_null() && endpoint.mapped(SegmentKind::Heap).is_some() {
            continue;
        }
        let kind = WayKind::Endpoint { endpoint, index };
        ways.push(Way { name: transport.name().to_owned(), kind });
    }
    let amo = world.routes().peers[target].amo[SegmentKind::Heap as usize];
    if amo == tombolo_core::route::Channel::Service {
        ways.push(Way { name: SERVICE.to_owned(), kind: WayKind::Service });
    }
    ways
}

struct Prober<'a> {
    ways: Vec<Way<'a>>,
    world: &'a World,
    context: &'a Context,
    class: Class,
    target: usize,
    curves: Vec<Curve>,
    lost: Vec<(String, Lost)>,
    /// Whether the whole area for cold buffers has been touched.
    warmed: bool,
}

impl Prober<'_> {
    fn work_off(&mut self, tasks: &[Task], scratch: &mut Scratch, deadline: Instant) {
        for (index, task) in tasks.iter().enumerate() {
            let now = Instant::now();
            if now >= deadline {
                return;
            }
            // Small sizes leave most of their share to large ones, which need several shares.
            let share = (deadline - now) * 4 / ((tasks.len() - index) as u32).max(4);
            self.measure(*task, scratch, now + share);
        }
    }

    /// Sizes that took clearly longer than larger ones, as happens while the other side has yet to
    /// wake up. They are measured once more, and the better time counts.
    fn doubtful(&self) -> Vec<Task> {
        const CLEARLY: f32 = 1.15;
        let mut measured = Measurements { curves: self.curves.clone(), rejected: Vec::new() };
        measured.put_in_order();
        let mut tasks = Vec::new();
        for Curve { key, points, .. } in &measured.curves {
            let mut least = f32::INFINITY;
            for point in points.iter().rev() {
                if point.ns > least * CLEARLY {
                    let (operation, buffer, bytes) = (key.operation, key.buffer, point.bytes);
                    tasks.push(Task { operation, buffer, bytes, check: false });
                }
                least = least.min(point.ns);
            }
        }
        tasks
    }

    fn measure(&mut self, task: Task, scratch: &mut Scratch, until: Instant) {
        for index in 0..self.ways.len() {
            let way = &self.ways[index];
            if self.lost.iter().any(|(name, _)| *name == way.name)
                || !way.can(self.world, task.operation, task.buffer, task.bytes)
            {
                continue;
            }
            let Some(buffers) = Buffers::of(self.world, scratch, task.buffer, task.bytes as usize)
            else {
                continue;
            };
            if task.buffer == Buffer::Cold && !self.warmed {
                // Page faults are not what is to be timed.
                self.warmed = true;
                let at = (self.world, self.context, self.target);
                for round in 0..buffers.places() {
                    let _ = way.perform(at, Operation::Put, &buffers, round);
                }
            }
            let issue = |round| {
                let at = (self.world, self.context, self.target);
                way.perform(at, task.operation, &buffers, round)
            };
            let left = (self.ways.len() - index) as u32;
            let share = until.saturating_duration_since(Instant::now()) / left;
            match batch::time(task.bytes, share, issue) {
                Ok(mut point) => {
                    if task.operation == Operation::Pipeline {
                        point.ns /= way::PIPELINE as f32;
                    }
                    let key = Key {
                        class: self.class,
                        operation: task.operation,
                        buffer: task.buffer,
                        channel: way.name.clone(),
                    };
                    let (points, checks) =
                        if task.check { (vec![], vec![point]) } else { (vec![point], vec![]) };
                    self.curves.push(Curve { key, points, checks });
                }
                Err(lost) => self.lost.push((way.name.clone(), lost)),
            }
        }
    }

    fn outcome(self) -> Outcome {
        let mut measured = Measurements { curves: self.curves, rejected: Vec::new() };
        // A channel that failed once is no candidate at any size.
        measured.curves.retain(|c| !self.lost.iter().any(|(name, _)| *name == c.key.channel));
        measured.rejected = self
            .lost
            .iter()
            .map(|(channel, lost)| Rejected {
                class: self.class,
                channel: channel.clone(),
                why: lost.to_string(),
            })
            .collect();
        for (index, transport) in self.world.transports().iter().enumerate() {
            if self.world.endpoint(index, self.target).is_none() {
                measured.rejected.push(Rejected {
                    class: self.class,
                    channel: transport.name().to_owned(),
                    why: self.world.why_unreachable(self.target).to_owned(),
                });
            }
        }
        measured.put_in_order();
        measured.curves.retain(|c| !c.points.is_empty());
        Outcome { measured, stuck: false }
    }
}
