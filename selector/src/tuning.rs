// SPDX-License-Identifier: Apache-2.0
//! The outcome of tuning: what is known, what was decided, and this PE's routes.

use crate::cache::{self, Saved};
use crate::class::{Binding, Class};
use crate::data::{Buffer, CACHED, Measurements, Operation, SERVICE, STREAMING};
use crate::force::{self, Effect, Rule};
use crate::model::Model;
use crate::policy::{self, Decision, Reuse, Step};
use crate::report;
use crate::{carriers, either, stripes};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tombolo_core::World;
use tombolo_core::cost::Costs;
use tombolo_core::route::{Channel, Either, PeerRoutes, Routes, STEPS_MAX, Steps, Stripes};
use tombolo_core::transport::{Capabilities, Carriers, SegmentKind};
use tombolo_core::world::peers;

mod predict;

/// Where the measurements come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `SHMEM_TUNE=off`: there are none.
    Off,
    /// A job of one PE: there is nothing to choose.
    Alone,
    /// The heap has no room to measure in.
    NoRoom,
    /// They were made just now.
    Measured,
    /// An earlier job on this machine.
    Cache(PathBuf),
    /// A saved table.
    File(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Off => f.write_str("nothing was measured: SHMEM_TUNE is off"),
            Origin::Alone => f.write_str("nothing was measured: there is only one PE"),
            Origin::NoRoom => {
                f.write_str("nothing was measured: the symmetric heap has no room for it")
            }
            Origin::Measured => f.write_str("measured at start"),
            Origin::Cache(path) => write!(f, "measured by an earlier job, from {}", path.display()),
            Origin::File(path) => write!(f, "replayed from {}", path.display()),
        }
    }
}

/// What is known and decided. The same on all PEs, save for [`Tuning::routes`] and
/// [`Tuning::class_of`], which are this PE's view.
#[derive(Clone, Debug)]
pub struct Tuning {
    origin: Origin,
    /// None without a job.
    took: Option<Duration>,
    machine: String,
    measured: Measurements,
    /// What they were before they were corrected, if they were.
    uncorrected: Option<Measurements>,
    /// Fitted when somebody asks: starting a program does not need it.
    model: OnceLock<Model>,
    reuse: Reuse,
    preference: Vec<String>,
    decisions: Vec<Decision>,
    /// Whether contexts may have hints of their own.
    hinted: bool,
    /// What was decided for contexts whose hint differs from `reuse`; nothing where none have one.
    exceptions: Vec<Decision>,
    rules: Vec<Rule>,
    /// What each rule does to the routes of this PE.
    effects: Vec<Effect>,
    /// Class of every PE, seen from this one.
    classes: Vec<Class>,
    routes: Routes,
}

impl Tuning {
    pub(crate) fn new(
        world: &World,
        origin: Origin,
        machine: String,
        measured: Measurements,
        rules: Vec<Rule>,
        (places, costs): (Vec<Binding>, Costs),
        took: Duration,
    ) -> Tuning {
        let me = world.pe();
        let class = |pe| Class::of(world.distance(me, pe), places[me], places[pe]);
        let mut tuning = Tuning {
            origin,
            took: Some(took),
            machine,
            model: OnceLock::new(),
            measured,
            uncorrected: None,
            reuse: world.config().tune_hint.all,
            hinted: world.config().tune_hint.contexts.is_some(),
            exceptions: Vec::new(),
            preference: world.transports().iter().map(|t| t.name().to_owned()).collect(),
            decisions: Vec::new(),
            rules,
            effects: Vec::new(),
            classes: (0..world.n_pes()).map(class).collect(),
            routes: Routes {
                peers: Vec::new(),
                hinted: Default::default(),
                costs: Arc::new(costs),
            },
        };
        tuning.decide(world);
        tuning
    }

    /// A tuning without a job, to be explained.
    pub fn without_job(
        origin: Origin,
        machine: String,
        measured: Measurements,
        preference: &[&str],
    ) -> Tuning {
        Tuning {
            origin,
            took: None,
            machine,
            model: OnceLock::new(),
            decisions: policy::decide(&measured, preference, Reuse::Hot),
            measured,
            uncorrected: None,
            reuse: Reuse::Hot,
            hinted: false,
            exceptions: Vec::new(),
            preference: preference.iter().map(|name| (*name).to_owned()).collect(),
            rules: Vec::new(),
            effects: Vec::new(),
            classes: Vec::new(),
            routes: Routes { peers: Vec::new(), hinted: Default::default(), costs: Arc::default() },
        }
    }

    /// Puts the routes into force on this PE, see [`World::set_routes`], and the carriers of puts to neighbours.
    pub fn apply(&self, world: &World) {
        world.set_routes(self.routes.clone());
        for (index, transport) in self.preference.iter().enumerate() {
            let class = Class::Hops(1);
            let chosen = carriers::choose(&self.measured, class, transport);
            let measured = carriers::engine(&self.measured, class, transport).is_some();
            let neighbours = (0..world.n_pes()).filter(|pe| self.classes[*pe] == class);
            for endpoint in neighbours.filter_map(|pe| world.endpoint(index, pe)) {
                let choice = endpoint.carrier_choice();
                if chosen.is_none() && choice.is_empty() {
                    // Its window may not be open yet: the model goes on deciding.
                    continue;
                }
                // The pair that was measured may lack an engine that another one has.
                let usual = carriers::expected(choice.engine);
                let chosen = chosen.unwrap_or(usual);
                let engine = if measured { chosen.engine } else { usual.engine };
                endpoint.set_carriers(Carriers { engine, ..chosen });
            }
        }
    }

    /// The routes of this PE.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Decides again for another use of buffers; call [`Tuning::apply`] afterwards. Concerns this PE
    /// alone: whether copies bypass its caches is nobody else's business.
    pub fn set_reuse(&mut self, world: &World, reuse: Reuse) {
        self.reuse = reuse;
        self.decide(world);
    }

    /// How buffers are used, as far as was said.
    pub fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// Decides for contexts with hints of their own, too; call [`Tuning::apply`] afterwards. False if that was
    /// done before.
    pub fn hint_contexts(&mut self, world: &World) -> bool {
        if !self.hinted {
            self.hinted = true;
            self.decide(world);
            return true;
        }
        false
    }

    /// Decides again for the hints of another tuning of this PE; call [`Tuning::apply`] afterwards.
    pub fn keep_hints_of(&mut self, world: &World, before: &Tuning) {
        if (self.reuse, self.hinted) != (before.reuse, before.hinted) {
            (self.reuse, self.hinted) = (before.reuse, before.hinted);
            self.decide(world);
        }
    }

    /// Whether contexts may have hints of their own.
    pub fn hints_contexts(&self) -> bool {
        self.hinted
    }

    /// Replaces the measurements of this PE and decides again; call [`Tuning::apply`] afterwards.
    pub(crate) fn correct(&mut self, world: &World, measured: Measurements) {
        let before = std::mem::replace(&mut self.measured, measured);
        self.uncorrected.get_or_insert(before);
        self.model = OnceLock::new();
        self.decide(world);
    }

    /// Takes all corrections back and decides again; call [`Tuning::apply`] afterwards. False if there were none.
    pub(crate) fn take_back(&mut self, world: &World) -> bool {
        let Some(before) = self.uncorrected.take() else { return false };
        self.measured = before;
        self.model = OnceLock::new();
        self.decide(world);
        true
    }

    /// Where the measurements come from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// How long tuning took on this PE; none without a job.
    pub fn took(&self) -> Option<Duration> {
        self.took
    }

    /// The machine that was measured, in words.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// What was measured.
    pub fn measured(&self) -> &Measurements {
        &self.measured
    }

    /// The model of it.
    pub fn model(&self) -> &Model {
        self.model.get_or_init(|| Model::fit(&self.measured))
    }

    /// What was decided, before forced rules.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Forced rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What each of them does to the routes of this PE.
    pub(crate) fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// The class of a PE, seen from this one.
    pub fn class_of(&self, pe: usize) -> Class {
        self.classes[pe]
    }

    /// The decision on an operation; static data without measurements of its own goes like the heap.
    pub fn decision(
        &self,
        class: Class,
        operation: Operation,
        remote: Buffer,
    ) -> Option<&Decision> {
        decision(&self.decisions, class, operation, remote)
    }

    /// As [`Tuning::decision`], for operations on the buffers that a measurement was made on: used once, or again.
    /// Where nothing says that buffers are used so, as for all others.
    pub fn decision_on(
        &self,
        class: Class,
        operation: Operation,
        buffer: Buffer,
    ) -> Option<&Decision> {
        let remote = if buffer == Buffer::Static { buffer } else { Buffer::Heap };
        let as_others = buffer.is_cold() == (self.reuse == Reuse::Cold);
        let decisions = if as_others || !self.hinted { &self.decisions } else { &self.exceptions };
        decision(decisions, class, operation, remote)
    }

    /// Saves everything for `SHMEM_TUNE=PATH`.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        cache::store(path, &Saved::new(&self.machine, self.measured.clone()))
    }

    fn decide(&mut self, world: &World) {
        let preference: Vec<&str> = self.preference.iter().map(String::as_str).collect();
        let decided = |reuse| policy::decide(&self.measured, &preference, reuse);
        let decisions = decided(self.reuse);
        let other = if self.reuse == Reuse::Hot { Reuse::Cold } else { Reuse::Hot };
        let exceptions = if self.hinted { decided(other) } else { Vec::new() };
        let mut effects = vec![Effect::Nothing; self.rules.len()];
        self.routes.peers = self.routes_by(world, &decisions, &mut effects);
        self.routes.hinted = Default::default();
        if self.hinted {
            let peers = self.routes_by(world, &exceptions, &mut effects);
            if peers != self.routes.peers {
                self.routes.hinted[other as usize] = peers;
            }
        }
        (self.decisions, self.exceptions, self.effects) = (decisions, exceptions, effects);
    }

    /// Routes to all PEs that follow from decisions and rules.
    fn routes_by(
        &self,
        world: &World,
        decisions: &[Decision],
        effects: &mut [Effect],
    ) -> Vec<PeerRoutes> {
        let mut peers: Vec<PeerRoutes> = Vec::with_capacity(world.n_pes());
        for pe in 0..world.n_pes() {
            // Most PEs are reached as the one before: deciding again takes much longer.
            let routes = match pe.checked_sub(1).filter(|before| self.are_alike(world, *before, pe))
            {
                Some(before) => peers[before],
                None => self.peer_routes(world, pe, decisions, effects),
            };
            peers.push(routes);
        }
        peers
    }

    /// Whether the routes to both PEs follow from the same.
    fn are_alike(&self, world: &World, a: usize, b: usize) -> bool {
        let mapped = |pe: usize| Peer::mapped_at(world, pe);
        ![a, b].contains(&world.pe())
            && self.classes[a] == self.classes[b]
            && world.peers().are_alike(a, b)
            && mapped(a) == mapped(b)
    }

    fn peer_routes(
        &self,
        world: &World,
        pe: usize,
        decisions: &[Decision],
        effects: &mut [Effect],
    ) -> PeerRoutes {
        let peer = Peer::of(self, world, pe);
        let mut routes = peer.default_routes();
        for segment in SegmentKind::ALL {
            let (index, class) = (segment as usize, self.classes[pe]);
            for operation in [Operation::Put, Operation::Get] {
                let base = match operation {
                    Operation::Put => &mut routes.put[index],
                    _ => &mut routes.get[index],
                };
                let place = (class, operation, segment);
                let mut decision = starting_point(decisions, &peer, place, base);
                for (rule, effect) in self.rules.iter().zip(effects.iter_mut()) {
                    if rule.concerns(decision.class, operation, remote(segment))
                        && peer.channel(&rule.channel, segment, operation).is_some()
                    {
                        *effect = force::overlay(&mut decision, rule).max(*effect);
                    }
                }
                *base = peer.compile(&decision.steps, segment, operation, base);
            }
            routes.zero_copy[index] = self.zero_copy(&peer, class, segment, &routes.put[index]);
            // Atomics on a variable stay in one domain: mapped memory is always taken where it is.
            if peer.mapped(segment) || pe == world.pe() {
                continue;
            }
            let chosen = decision(decisions, class, Operation::Amo, remote(segment));
            // Where nothing but a table asks for it, the target may have no service thread.
            let by_service = peer.default_routes().amo[index] == Channel::Service;
            let mut name = chosen
                .map(|decision| decision.channel(8))
                .filter(|name| by_service || *name != SERVICE);
            for (rule, effect) in self.rules.iter().zip(effects.iter_mut()) {
                // A transport named for everything does not claim atomics it cannot do.
                if rule.operation == Some(Operation::Amo)
                    && rule.concerns(class, Operation::Amo, remote(segment))
                    && peer.channel(&rule.channel, segment, Operation::Amo).is_some()
                {
                    *effect = Effect::AsAsked.max(*effect);
                    name = Some(&rule.channel);
                }
            }
            if let Some(channel) = name.and_then(|n| peer.channel(n, segment, Operation::Amo)) {
                routes.amo[index] = channel;
            }
        }
        routes
    }

    /// Bytes from which blocking puts are carried without a copy of their source, whichever of the
    /// routes' transports they take.
    fn zero_copy(&self, peer: &Peer<'_>, class: Class, segment: SegmentKind, put: &Steps) -> usize {
        let from = |channel: &Channel| match channel {
            Channel::Endpoint(index) | Channel::Either(Either { transports: [index, _], .. }) => {
                let name = &self.preference[usize::from(*index)];
                let from = policy::zero_copy(&self.measured, class, name);
                from.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            _ => 0,
        };
        let most = |channel: &Channel| match channel {
            Channel::Endpoint(index) | Channel::Either(Either { transports: [index, _], .. }) => {
                peer.can(usize::from(*index), segment).inline_max
            }
            _ => usize::MAX,
        };
        let chosen = put.channels.iter().map(from).max().filter(|bytes| *bytes > 0);
        let allowed = put.channels.iter().map(most).min().unwrap_or(usize::MAX);
        chosen.unwrap_or(usize::MAX).min(allowed.saturating_add(1))
    }
}

/// The decision on an operation; static data without measurements of its own goes like the heap.
fn decision(
    decisions: &[Decision],
    class: Class,
    operation: Operation,
    remote: Buffer,
) -> Option<&Decision> {
    let find = |remote| {
        decisions.iter().find(|d| (d.class, d.operation, d.remote) == (class, operation, remote))
    };
    find(remote).or_else(|| find(Buffer::Heap))
}

/// The decision for a peer, or what the default amounts to. Where memory is mapped, a decision among other
/// channels alone tells nothing: it was made where that memory was not.
fn starting_point(
    decisions: &[Decision],
    peer: &Peer<'_>,
    (class, operation, segment): (Class, Operation, SegmentKind),
    base: &Steps,
) -> Decision {
    let remote = remote(segment);
    let tells = |decision: &&Decision| !peer.mapped(segment) || decision.default == CACHED;
    let of = |remote| decision(decisions, class, operation, remote).filter(tells);
    of(remote).or_else(|| of(Buffer::Heap)).cloned().unwrap_or_else(|| {
        let steps: Vec<Step> = (0..STEPS_MAX)
            .map(|i| Step { limit: base.limits[i] as u64, channel: peer.name(base.channels[i]) })
            .collect();
        let end = steps.iter().position(|s| s.limit == u64::MAX).unwrap_or(STEPS_MAX - 1);
        Decision {
            class,
            operation,
            remote,
            default: steps[0].channel.clone(),
            steps: steps[..=end].to_vec(),
        }
    })
}

fn remote(segment: SegmentKind) -> Buffer {
    match segment {
        SegmentKind::Heap => Buffer::Heap,
        SegmentKind::Static => Buffer::Static,
    }
}

/// Capabilities towards one PE: what may be routed to at all.
struct Peer<'a> {
    measured: &'a Measurements,
    class: Class,
    ways: Vec<Option<&'a peers::Peer>>,
    names: &'a [String],
    mapped: [bool; 2],
}

impl<'a> Peer<'a> {
    fn of(tuning: &'a Tuning, world: &'a World, pe: usize) -> Peer<'a> {
        Peer {
            measured: &tuning.measured,
            class: tuning.classes[pe],
            ways: world.peers().of(pe),
            names: &tuning.preference,
            mapped: Peer::mapped_at(world, pe),
        }
    }

    /// By segment, whether that of a PE is mapped.
    fn mapped_at(world: &World, pe: usize) -> [bool; 2] {
        let heap = !world.ptr(world.heap().base().cast_const(), pe).is_null();
        let data = world
            .static_data()
            .is_some_and(|data| !world.ptr(data.base().cast_const(), pe).is_null());
        [heap, data]
    }

    fn mapped(&self, segment: SegmentKind) -> bool {
        self.mapped[segment as usize]
    }

    fn can(&self, index: usize, segment: SegmentKind) -> Capabilities {
        self.ways[index].map_or(Capabilities::NONE, |way| *way.can(segment))
    }

    fn default_routes(&self) -> PeerRoutes {
        Routes::default_for(&self.ways, |segment| self.mapped(segment))
    }

    /// The channel of a name, if it can do the operation on the segment.
    fn channel(&self, name: &str, segment: SegmentKind, operation: Operation) -> Option<Channel> {
        match name {
            CACHED => return self.mapped(segment).then_some(Channel::Cached),
            STREAMING => return self.mapped(segment).then_some(Channel::Streaming),
            SERVICE => {
                let default = self.default_routes().amo[segment as usize];
                let reached = default != Channel::Unreachable;
                return (operation == Operation::Amo && reached).then_some(Channel::Service);
            }
            _ => {}
        }
        let position = |name: &str| self.names.iter().position(|known| known == name);
        let parts = stripes::transports(name);
        if let Some(both) = parts.or_else(|| either::transports(name)) {
            let [first, second] = both.map(position);
            let indices = [first?, second?];
            let able = |index: usize| {
                let can = self.can(index, segment);
                match operation {
                    Operation::Put => can.put && can.put_align <= 1,
                    Operation::Get => can.get && can.get_align <= 1,
                    _ => false,
                }
            };
            indices.into_iter().all(able).then_some(())?;
            let transports = indices.map(|index| index as u8);
            if parts.is_none() {
                let ns_per_kib = either::ns_per_kib(self.measured, self.class, operation, both);
                return Some(Channel::Either(Either { transports, ns_per_kib }));
            }
            let first = stripes::first(self.measured, self.class, operation, both);
            return Some(Channel::Striped(Stripes { transports, first }));
        }
        let index = position(name)?;
        let can = self.can(index, segment);
        let able = match operation {
            Operation::Put
            | Operation::Pipeline
            | Operation::Blocking
            | Operation::ZeroCopy
            | Operation::PutRead
            | Operation::Carried
            | Operation::CarriedBlocking
            | Operation::Meeting
            | Operation::MetPut
            | Operation::BothPut
            | Operation::Handed => can.put,
            Operation::Get | Operation::GetRead | Operation::MetGet | Operation::BothGet => can.get,
            Operation::Amo => !can.amos.is_empty(),
        };
        able.then_some(Channel::Endpoint(index as u8))
    }

    fn name(&self, channel: Channel) -> String {
        report::name(channel, |index| &self.names[index]).into_owned()
    }

    /// Steps for the data path; a channel that cannot serve leaves its sizes to the default.
    fn compile(
        &self,
        steps: &[Step],
        segment: SegmentKind,
        operation: Operation,
        default: &Steps,
    ) -> Steps {
        let mut compiled = *default;
        let last = steps.len().min(STEPS_MAX) - 1;
        for i in 0..STEPS_MAX {
            let step = &steps[i.min(last)];
            let limit = usize::try_from(step.limit).unwrap_or(usize::MAX);
            compiled.limits[i] = if i >= last { usize::MAX } else { limit };
            compiled.channels[i] = self
                .channel(&step.channel, segment, operation)
                .unwrap_or_else(|| default.choose(limit));
        }
        compiled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Curve, Key, Point};

    #[test]
    fn what_was_decided_without_mapped_memory_is_not_taken_where_it_is_mapped() {
        let class = Class::Cache;
        let curve = |buffer, channel: &str| {
            let key = Key { class, operation: Operation::Get, buffer, channel: channel.to_owned() };
            let point = |bytes| Point { bytes, ns: bytes as f32, spread: 0.0, batches: 7 };
            Curve { key, points: [8, 1 << 20].map(point).to_vec(), checks: vec![] }
        };
        let curves = vec![curve(Buffer::Heap, CACHED), curve(Buffer::Static, "cma")];
        let measured = Measurements { curves, ..Measurements::default() };
        let decisions = policy::decide(&measured, &["cma"], Reuse::Hot);
        let names = ["cma".to_owned()];
        let channel = |segment, mapped| {
            let ways = vec![None];
            let peer = Peer { measured: &measured, class, ways, names: &names, mapped };
            let base = Steps::always(Channel::Endpoint(0));
            let place = (class, Operation::Get, segment);
            starting_point(&decisions, &peer, place, &base).channel(4096).to_owned()
        };
        assert_eq!(channel(SegmentKind::Static, [true, false]), "cma");
        assert_eq!(channel(SegmentKind::Static, [true, true]), CACHED);
        assert_eq!(channel(SegmentKind::Heap, [true, true]), CACHED);
    }
}
