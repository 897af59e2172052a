// SPDX-License-Identifier: Apache-2.0
//! Micro-benchmarks of the channels between this PE and one other.
//!
//! Points are taken in tiers, see [`plan`]: a coarse view of every channel; finer sizes, among them a
//! second set to judge the model by; once more what looks disturbed; sizes where curves bend. When the
//! time is up, what is missing is missing: the policy stays with the default there.

use crate::class::Class;
use crate::data::{
    Batches, Buffer, CACHED, Curve, Engine, Key, Measurements, Operation, Rejected, SERVICE,
    STREAMING,
};
use crate::{carriers, either, stripes};
use std::time::{Duration, Instant};
use tombolo_core::config::Reuse;
use tombolo_core::load::{Load, Loads};
use tombolo_core::route::Either;
use tombolo_core::transport::{Carrier, Endpoint, SegmentKind};
use tombolo_core::{Context, ContextOptions, World};

mod batch;
mod clock;
pub mod meeting;
pub mod plan;
mod scratch;
mod way;

use plan::Task;
pub use plan::{CHECKS, HUGE, LADDER};
pub use scratch::{Scratch, room};
use way::{Buffers, Lost, Way, WayKind};

/// Memory on each side that operations on buffers that are used once go through in turn, where the program is
/// said to have such: few last-level caches hold both sides. Elsewhere they go through [`HUGE`] bytes.
pub const COLD_AREA: usize = 32 << 20;

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
pub struct Probed {
    /// The times.
    pub measured: Measurements,
    /// An operation never completed and may still write to the buffers: they must not be reused.
    pub stuck: bool,
    /// What touching memory for buffers that are used once took, beside the time for measuring.
    pub warming: Duration,
}

/// Measures every channel between this PE and `target`, which stands for `class`. The target takes
/// no part; its scratch memory is overwritten.
pub fn run(
    world: &World,
    class: Class,
    target: usize,
    scratch: &mut Scratch,
    effort: Effort,
) -> Probed {
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
        engines: Vec::new(),
        batches: Batches::default(),
        lost: Vec::new(),
        warmed: None,
        cold_at: 0,
    };
    prober.expect_carriers();
    let room = scratch.capacity() as u64;
    let once = world.config().tune_hint.mention(Reuse::Cold);
    let once = once && !effort.coarse && class != Class::Own && class.hops() == 0;
    if once {
        prober.warm(scratch);
    }
    let warming = prober.warmed.unwrap_or_default();
    let (now, deadline) = (Instant::now(), effort.deadline + warming);
    let part = |tenths| now + deadline.saturating_duration_since(now) * tenths / 10;
    // What the same processor does for two transports takes as long as one after the other.
    let several = prober.endpoints().len() > 1 && world.processors() > 1;
    let several = several && !effort.coarse && class.hops() > 0;
    let before = if several { 7 } else { 8 };
    // Neighbours alone are reached in several ways by one transport.
    let neighbours = class == Class::Hops(1) && !effort.coarse;
    let decisive = part(if neighbours { before - 1 } else { before });
    prober.work_off(&plan::decisive(class, room, effort.coarse, once), scratch, decisive);
    if neighbours && prober.measure_carriers(scratch, part(before)) {
        // What was measured before was carried otherwise. The better time counts.
        prober.work_off(&plan::carried_otherwise(room), scratch, part(before + 1));
    }
    if several {
        // What is measured before may have taken longer than it was to.
        let tenth = deadline.saturating_duration_since(now) / 10;
        prober.measure_pairs(scratch, part(8).max(Instant::now() + tenth).min(deadline));
    }
    prober.look_again(scratch, part(9));
    if !effort.coarse && class != Class::Own {
        let bends = plan::bends(&prober.in_order().curves);
        prober.work_off(&bends, scratch, part(9));
        prober.look_again(scratch, deadline);
        prober.work_off(&plan::besides(room), scratch, deadline);
    }
    let stuck = prober.lost.iter().any(|(_, lost)| *lost == Lost::Stuck);
    if stuck {
        // The transport may still write to the context's counters.
        let outcome = prober.outcome();
        std::mem::forget(context);
        return Probed { stuck, warming, ..outcome };
    }
    Probed { warming, ..prober.outcome() }
}

/// Every way to the target. Self needs no transport but mapped memory.
fn ways(world: &World, target: usize) -> Vec<Way<'_>> {
    let heap = world.ptr(world.heap().base(), target);
    // A PE's own static data are memory like its heap. They are not read as a whole: with
    // AddressSanitizer, the gaps between variables must not be touched.
    let data = world
        .static_data()
        .filter(|_| target != world.pe())
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
        let kind = WayKind::Endpoint { endpoint, index, carrier: None };
        ways.push(Way { name: transport.name().to_owned(), kind });
    }
    let amo = world.routes().peers[target].amo[SegmentKind::Heap as usize];
    if amo == tombolo_core::route::Channel::Service {
        ways.push(Way { name: SERVICE.to_owned(), kind: WayKind::Service });
    }
    ways
}

/// An endpoint: its name, its data path and the index of its transport.
type End<'a> = (String, &'a dyn Endpoint, usize);

struct Prober<'a> {
    ways: Vec<Way<'a>>,
    world: &'a World,
    context: &'a Context,
    class: Class,
    target: usize,
    curves: Vec<Curve>,
    engines: Vec<Engine>,
    batches: Batches,
    lost: Vec<(String, Lost)>,
    /// How long touching the whole area for cold buffers took, which is not what is to be timed; none before that.
    warmed: Option<Duration>,
    /// Where in that area the next operation is to be: what was used last is still in the caches.
    cold_at: usize,
}

impl<'a> Prober<'a> {
    fn work_off(&mut self, tasks: &[Task], scratch: &mut Scratch, deadline: Instant) {
        for (index, task) in tasks.iter().enumerate() {
            let now = Instant::now();
            if now >= deadline {
                return;
            }
            // Small sizes leave most of their share to large ones, which need several shares.
            let share = (deadline - now) * 4 / ((tasks.len() - index) as u32).max(4);
            self.measure(task, scratch, now + share);
        }
    }

    /// Measures what looks disturbed until nothing does, or it stays that way.
    fn look_again(&mut self, scratch: &mut Scratch, deadline: Instant) {
        for _ in 0..plan::LOOKS_MAX {
            let doubtful = plan::doubtful(&self.in_order().curves);
            if doubtful.is_empty() {
                return;
            }
            self.work_off(&doubtful, scratch, deadline);
        }
    }

    /// Endpoints that have not been lost.
    fn endpoints(&self) -> Vec<End<'a>> {
        let usable =
            self.ways.iter().filter(|way| !self.lost.iter().any(|(name, _)| *name == way.name));
        usable
            .filter_map(|way| match way.kind {
                WayKind::Endpoint { endpoint, index, .. } => {
                    Some((way.name.clone(), endpoint, index))
                }
                _ => None,
            })
            .collect()
    }

    /// Has puts carried as if nothing had been measured: an earlier choice is none for what is measured now.
    fn expect_carriers(&self) {
        for (_, endpoint, _) in self.endpoints() {
            let choice = endpoint.carrier_choice();
            if !choice.is_empty() {
                endpoint.set_carriers(carriers::expected(choice.engine));
            }
        }
    }

    /// Measures each carrier of puts of the transports that have several, and has the better ones taken from then on.
    /// Whether some are not those that were taken before.
    fn measure_carriers(&mut self, scratch: &mut Scratch, deadline: Instant) -> bool {
        let mut changed = false;
        for (transport, endpoint, index) in self.endpoints() {
            let choice = endpoint.carrier_choice();
            if choice.is_empty() {
                continue;
            }
            let engine = choice.engine.map(|engine| Engine {
                class: self.class,
                transport: transport.clone(),
                expected: u64::try_from(engine.expected).unwrap_or(u64::MAX),
                is_free: engine.is_free,
            });
            self.engines.extend(engine);
            let whole = self.ways.len();
            self.ways.extend(Carrier::ALL.map(|carrier| {
                let kind = WayKind::Endpoint { endpoint, index, carrier: Some(carrier) };
                Way { name: carriers::name(&transport, carrier), kind }
            }));
            let named = |operation| {
                let rivals = carriers::rivals(&choice, operation).into_iter();
                rivals.map(|carrier| carriers::name(&transport, carrier)).collect()
            };
            let most = endpoint.capabilities(SegmentKind::Heap).put_max;
            let tasks = plan::carried(scratch.capacity() as u64, most as u64, named);
            let left = deadline.saturating_duration_since(Instant::now());
            self.work_off(&tasks, scratch, Instant::now() + left / 2);
            let again = plan::carried_again(&self.in_order().curves, tasks);
            self.work_off(&again, scratch, deadline);
            self.ways.truncate(whole);
            // What is lost by one carrier is lost by the transport.
            let lost = self.lost.iter().find(|(name, _)| carriers::parts(name).is_some());
            let lost = lost.map(|(_, lost)| (transport.clone(), *lost));
            self.lost.extend(lost);
            let expected = carriers::expected(choice.engine);
            let chosen = carriers::choose(&self.in_order(), self.class, &transport);
            let chosen = chosen.unwrap_or(expected);
            endpoint.set_carriers(chosen);
            changed |= chosen != expected;
        }
        changed
    }

    /// Measures pairs of transports where they may be faster than each alone: both at the same time, of which the
    /// slower one's part is issued first, since the other one may be the processor's own stores; and series of puts of
    /// which each takes either.
    fn measure_pairs(&mut self, scratch: &mut Scratch, deadline: Instant) {
        let (measured, ends) = (self.in_order(), self.endpoints());
        let room = scratch.capacity() as u64;
        let mut found = Vec::new();
        for (place, one) in ends.iter().enumerate() {
            for other in &ends[place + 1..] {
                let first =
                    |operation, both| stripes::first(&measured, self.class, operation, both);
                let slower = first(Operation::Put, [&one.0, &other.0]) < 128;
                let [a, b] = if slower { [one, other] } else { [other, one] };
                let names = [a.0.as_str(), b.0.as_str()];
                let open = |operation| stripes::is_open(&measured, self.class, operation, names);
                if open(Operation::Put) || open(Operation::Get) {
                    let parts = [(a.1, a.2), (b.1, b.2)];
                    let first = [Operation::Put, Operation::Get].map(|op| first(op, names));
                    let kind = WayKind::Striped { parts, first };
                    let name = stripes::name(names[0], names[1]);
                    let tasks = plan::striped(room, &name);
                    found.push((Way { name, kind }, tasks));
                }
                if open(Operation::Put) {
                    found.push(self.either(&measured, [b, a], room));
                }
            }
        }
        for (way, tasks) in found {
            let name = way.name.clone();
            self.ways.push(way);
            self.work_off(&tasks, scratch, deadline);
            // More threads work for it than for one transport, so that a lucky time tells little.
            let seen = |curve: &Curve| curve.points.iter().all(|point| point.batches > 1);
            self.curves.retain(|curve| curve.key.channel != name || seen(curve));
        }
    }

    /// The channel of either of two transports, the faster one first, and what it is judged by.
    fn either(
        &self,
        measured: &Measurements,
        [a, b]: [&End<'a>; 2],
        room: u64,
    ) -> (Way<'a>, Vec<Task>) {
        let names = [a.0.as_str(), b.0.as_str()];
        let expected = Either {
            transports: [a.2 as u8, b.2 as u8],
            ns_per_kib: either::ns_per_kib(measured, self.class, Operation::Put, names),
        };
        let loads = Loads::new(self.world.transports().iter().map(|_| Load::default()).collect());
        let kind = WayKind::Either { parts: [(a.1, a.2), (b.1, b.2)], expected, loads };
        let name = either::name(names[0], names[1]);
        let tasks = plan::either(room, [names[0], names[1], &name]);
        (Way { name, kind }, tasks)
    }

    /// What was measured so far.
    fn in_order(&self) -> Measurements {
        let (curves, engines) = (self.curves.clone(), self.engines.clone());
        let mut measured = Measurements { curves, engines, ..Measurements::default() };
        measured.put_in_order();
        measured
    }

    /// Touches all of the memory for buffers that are used once: page faults are not what is to be timed.
    fn warm(&mut self, scratch: &mut Scratch) {
        const PIECE: usize = 4096;
        let begun = Instant::now();
        for (buffer, operation) in
            [(Buffer::Cold, Operation::Put), (Buffer::ColdPrivate, Operation::Get)]
        {
            let can = |way: &&Way| way.can(self.world, operation, buffer, PIECE as u64);
            let Some(way) = self.ways.iter().find(can) else { continue };
            let Some(buffers) = Buffers::of(self.world, scratch, buffer, PIECE) else { continue };
            for round in 0..buffers.places() {
                let at = (self.world, self.context, self.target);
                let _ = way.perform(at, operation, &buffers, round);
            }
        }
        self.warmed = Some(begun.elapsed());
    }

    fn measure(&mut self, task: &Task, scratch: &mut Scratch, until: Instant) {
        if task.buffer.is_cold() && self.warmed.is_none() {
            self.warm(scratch);
        }
        for index in 0..self.ways.len() {
            let way = &self.ways[index];
            if task.channel.as_ref().is_some_and(|name| *name != way.name)
                || self.lost.iter().any(|(name, _)| *name == way.name)
                || !way.can(self.world, task.operation, task.buffer, task.bytes)
            {
                continue;
            }
            let Some(buffers) = Buffers::of(self.world, scratch, task.buffer, task.bytes as usize)
            else {
                continue;
            };
            let buffers = buffers.starting_at(self.cold_at);
            way.prepare();
            let mut rounds = 0;
            let issue = |round| {
                rounds = round + 1;
                let at = (self.world, self.context, self.target);
                way.perform(at, task.operation, &buffers, round)
            };
            // Carriers have tasks of their own.
            let alone = task.operation.compares_carriers();
            let left = if alone { 1 } else { (self.ways.len() - index) as u32 };
            let share = until.saturating_duration_since(Instant::now()) / left;
            let timed = batch::time(task.bytes, share, issue);
            if task.buffer.is_cold() {
                self.cold_at = buffers.shift(rounds);
            }
            match timed {
                Ok(batch::Timed { mut point, discarded }) => {
                    self.batches.taken += u64::from(point.batches) + u64::from(discarded);
                    self.batches.discarded += u64::from(discarded);
                    point.ns /= way::operations(task.operation) as f32;
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

    fn outcome(self) -> Probed {
        let mut measured = Measurements {
            curves: self.curves.clone(),
            engines: self.engines.clone(),
            batches: self.batches,
            ..Measurements::default()
        };
        // A channel that failed once is no candidate at any size.
        measured.curves.retain(|c| !self.lost.iter().any(|(name, _)| *name == c.key.channel));
        measured.rejected = self
            .lost
            .iter()
            .map(|(channel, lost)| Rejected {
                class: self.class,
                channel: channel.clone(),
                why: lost.to_string(),
                failed: true,
            })
            .collect();
        for (index, transport) in self.world.transports().iter().enumerate() {
            if self.world.endpoint(index, self.target).is_none() {
                let why = self.world.why_unreachable(self.target).of(transport.name());
                measured.rejected.push(Rejected {
                    class: self.class,
                    channel: transport.name().to_owned(),
                    why: why.unwrap_or("it does not reach them").to_owned(),
                    failed: false,
                });
            }
        }
        measured.put_in_order();
        measured.curves.iter_mut().for_each(|curve| plan::drop_disturbed(curve, &self.curves));
        measured.curves.retain(|c| !c.points.is_empty());
        Probed { measured, ..Probed::default() }
    }
}
