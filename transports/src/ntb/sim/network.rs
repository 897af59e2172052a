// SPDX-License-Identifier: Apache-2.0
//! Cables under virtual time: posted writes in order, at the model's rate, subject to faults.

use std::collections::VecDeque;

use super::faults::Faults;
use super::model::{LinkModel, TLP_OVERHEAD_BYTES};
use super::random::Random;
use crate::ntb::ring::Side;

/// A write on its way, or a doorbell (no bytes).
#[derive(Debug)]
pub struct PostedWrite {
    /// When it takes effect.
    pub at_ps: u64,
    /// Who receives it.
    pub host: u16,
    /// Through which of its ports.
    pub side: Side,
    /// In whose region.
    pub lane: usize,
    /// Where.
    pub offset: usize,
    /// What.
    pub bytes: Vec<u8>,
    cable: u16,
    generation: u32,
}

/// Stretches of time that are remembered as taken: more than lanes write at the same time.
const STRETCHES: usize = 64;
/// So much later what an engine has posted arrives at most, as a rule and now and then: longer than a link takes to begin
/// anew, and than a packet may be missing.
const ENGINE_LATE_PS: [u64; 2] = [4_000_000, 2_000_000_000];

/// When a direction of a link is in use. A lane's thread is carried on for a while before another one is, so
/// writes are not posted in the order of their times: one takes what earlier ones have left free.
#[derive(Clone, Debug, Default)]
struct Wire {
    /// Begin and end, in order, without touching each other.
    taken: VecDeque<(u64, u64)>,
    /// Nothing is free before.
    closed_ps: u64,
}

impl Wire {
    /// Takes the first `need_ps` that are free from `from_ps` on, and all until `least_ps`: when they begin and
    /// end.
    fn take(&mut self, from_ps: u64, need_ps: u64, least_ps: u64) -> (u64, u64) {
        let from_ps = from_ps.max(self.closed_ps);
        let (mut start, mut at, mut need) = (None, from_ps, need_ps);
        for &(begin, end) in self.taken.iter().filter(|(_, end)| *end > from_ps) {
            let free = begin.saturating_sub(at);
            if free > 0 {
                start = start.or(Some(at));
            }
            if free >= need {
                break;
            }
            (need, at) = (need - free, end);
        }
        let (start, end) = (start.unwrap_or(at), (at + need).max(least_ps));
        let (mut first, mut last) = (start, end);
        self.taken.retain(|(begin, end)| {
            let apart = *end < first || *begin > last;
            if !apart {
                (first, last) = (first.min(*begin), last.max(*end));
            }
            apart
        });
        let place = self.taken.partition_point(|(begin, _)| *begin < first);
        self.taken.insert(place, (first, last));
        if self.taken.len() > STRETCHES {
            self.closed_ps = self.taken.pop_front().map_or(0, |(_, end)| end);
        }
        (start, end)
    }

    /// When it is free for good.
    fn free_ps(&self) -> u64 {
        self.taken.back().map_or(self.closed_ps, |(_, end)| *end)
    }
}

/// What a direction of a link has carried.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    wire: Wire,
    /// By lane, and by who writes: when what it has written has left. It stays in order.
    left_ps: Vec<[u64; 2]>,
    /// The same: when it arrives.
    arrived_ps: Vec<[u64; 2]>,
    /// Time the wire was in use.
    pub busy_ps: u64,
    /// Payload bytes.
    pub payload_bytes: u64,
    /// Bytes with TLP headers.
    pub wire_bytes: u64,
    /// TLPs.
    pub tlps: u64,
}

/// Time spent by all packets of a run, for the per-hop breakdown.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireTime {
    /// On the wire.
    pub wire_ps: u64,
    /// Behind other writes.
    pub queue_ps: u64,
    /// Under way.
    pub propagation_ps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cable {
    physical: bool,
    /// Whether the two ends' software has enabled the link: left end, right end.
    enabled: [bool; 2],
    /// Raised when the link is lost: what was under way is gone.
    generation: u32,
    /// Writes of a million that are changed.
    corrupt_ppm: u32,
    /// By so much longer writes are under way.
    delay_ns: u64,
}

/// All cables.
#[derive(Debug)]
pub struct Network {
    model: LinkModel,
    hosts: u16,
    cables: Vec<Cable>,
    directions: Vec<[Direction; 2]>,
    faults: Faults,
    random: Random,
    /// Writes that the scheduler has not taken yet.
    pub outbox: Vec<PostedWrite>,
    /// For the report.
    pub time: WireTime,
    /// Writes that vanished.
    pub lost: u64,
    /// Writes that were changed.
    pub corrupted: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}

/// Who writes, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Sender.
    pub host: u16,
    /// Its port.
    pub side: Side,
    /// Its lane, and the receiver's.
    pub lane: usize,
    /// First byte handed to the bridge.
    pub from_ps: u64,
    /// Last byte handed to the bridge.
    pub until_ps: u64,
    /// TLP payload.
    pub tlp_bytes: u64,
    /// A DMA engine writes, which has no order with the CPU.
    pub by_engine: bool,
}

impl Network {
    /// Cables with no link yet.
    pub fn new(model: LinkModel, hosts: u16, faults: Faults, random: Random) -> Network {
        let down = Cable {
            physical: false,
            enabled: [false; 2],
            generation: 0,
            corrupt_ppm: 0,
            delay_ns: 0,
        };
        Network {
            model,
            hosts,
            cables: vec![down; usize::from(hosts)],
            directions: vec![Default::default(); usize::from(hosts)],
            faults,
            random,
            outbox: Vec::new(),
            time: WireTime::default(),
            lost: 0,
            corrupted: 0,
            doorbells: 0,
        }
    }

    /// What a port has sent.
    pub fn direction(&self, host: u16, side: Side) -> &Direction {
        &self.directions[usize::from(host)][side as usize]
    }

    /// The two ends of a cable: right port of the first, left port of the second.
    pub fn ends(&self, cable: u16) -> [(u16, Side); 2] {
        [(cable, Side::Right), ((cable + 1) % self.hosts, Side::Left)]
    }

    /// Whether a cable has a link.
    pub fn is_up(&self, cable: u16) -> bool {
        self.cables[usize::from(cable)].physical
    }

    /// The link state register of a port.
    pub fn link_register(&self, host: u16, side: Side) -> bool {
        self.is_up(self.cable(host, side))
    }

    /// Takes the link away or gives it back. What is under way is lost, and nothing passes before
    /// both ends have enabled the link again.
    pub fn set_physical(&mut self, cable: u16, up: bool) {
        let cable = &mut self.cables[usize::from(cable)];
        if cable.physical && !up {
            cable.generation += 1;
            cable.enabled = [false; 2];
        }
        cable.physical = up;
    }

    /// From now on a cable changes so many writes of a million.
    pub fn spoil(&mut self, cable: u16, ppm: u32) {
        self.cables[usize::from(cable)].corrupt_ppm = ppm;
    }

    /// From now on writes are under way longer on a cable.
    pub fn delay(&mut self, cable: u16, by_ns: u64) {
        self.cables[usize::from(cable)].delay_ns = by_ns;
    }

    /// Software at a port has seen the link and enabled it.
    pub fn enable(&mut self, host: u16, side: Side) {
        let cable = usize::from(self.cable(host, side));
        self.cables[cable].enabled[side as usize] = self.cables[cable].physical;
    }

    /// Posts a write; gives the time at which its last byte has left.
    pub fn write(&mut self, writing: Writing, offset: usize, bytes: &[u8]) -> u64 {
        let Writing { host, side, lane, from_ps, until_ps, tlp_bytes, by_engine } = writing;
        let who = usize::from(by_engine);
        let payload = bytes.len() as u64;
        let wire_ps = self.model.wire_ps(payload, tlp_bytes);
        let last_tlp_ps = self.model.wire_ps(payload.min(tlp_bytes), tlp_bytes);
        let held_ps =
            if self.random.chance(self.faults.delay.0) { self.faults.delay.1 * 1000 } else { 0 };
        let direction = &mut self.directions[usize::from(host)][side as usize];
        if direction.left_ps.len() <= lane {
            direction.left_ps.resize(lane + 1, [0; 2]);
            direction.arrived_ps.resize(lane + 1, [0; 2]);
        }
        let left_ps = &mut direction.left_ps[lane][who];
        let ready_ps = from_ps.max(*left_ps) + held_ps;
        let (start, end) = direction.wire.take(ready_ps, wire_ps, until_ps + last_tlp_ps);
        *left_ps = end;
        let tlps = payload.div_ceil(tlp_bytes);
        direction.busy_ps += wire_ps;
        direction.payload_bytes += payload;
        direction.wire_bytes += payload + tlps * TLP_OVERHEAD_BYTES;
        direction.tlps += tlps;
        self.time.queue_ps += start - from_ps;
        self.time.wire_ps += end - start;
        self.time.propagation_ps += self.model.propagation_ns * 1000;
        let at_ps = end + self.model.propagation_ns * 1000;
        let piece = |at_ps: u64, from: usize, len: usize| PostedWrite {
            at_ps,
            host: 0,
            side,
            lane,
            offset: offset + from,
            bytes: bytes[from..from + len].to_vec(),
            cable: 0,
            generation: 0,
        };
        if !self.faults.rough {
            self.post(host, side, piece(at_ps, 0, bytes.len()));
            return end;
        }
        let direction = &mut self.directions[usize::from(host)][side as usize];
        let arrived = &mut direction.arrived_ps[lane][who];
        let begins = (start + self.model.propagation_ns * 1000).max(*arrived + 1);
        // What an engine has posted may be held up on its own way.
        let most = ENGINE_LATE_PS[usize::from(by_engine && self.random.below(256) == 0)];
        let held = if by_engine { self.random.below(most) } else { 0 };
        let ends = at_ps.max(begins) + held;
        *arrived = ends;
        let tlp = tlp_bytes as usize;
        let mut places: Vec<usize> = (0..bytes.len()).step_by(tlp).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        // The seal of what an engine writes comes last.
        if by_engine && let Some(last) = places.iter().position(|at| at + tlp >= bytes.len()) {
            let end = places.len() - 1;
            places.swap(last, end);
        }
        let count = places.len() as u64;
        for (number, from) in places.into_iter().enumerate() {
            let at_ps = begins + (ends - begins) * (number as u64 + 1) / count;
            self.post(host, side, piece(at_ps, from, tlp.min(bytes.len() - from)));
        }
        end
    }

    /// Whether writes are as rough as ports allow.
    pub fn is_rough(&self) -> bool {
        self.faults.rough
    }

    /// Rings a doorbell behind what was written before.
    pub fn ring(&mut self, host: u16, side: Side, lane: usize, now_ps: u64, after_ps: u64) {
        self.doorbells += 1;
        if self.faults.rough && self.random.below(4) == 0 {
            // An event that is lost because another one is pending.
            return;
        }
        let free_ps = self.directions[usize::from(host)][side as usize].wire.free_ps();
        let at_ps = now_ps.max(free_ps) + self.model.propagation_ns * 1000 + after_ps;
        self.post(
            host,
            side,
            PostedWrite {
                at_ps,
                host: 0,
                side,
                lane,
                offset: 0,
                bytes: Vec::new(),
                cable: 0,
                generation: 0,
            },
        );
    }

    /// Whether a write that was under way arrives.
    pub fn arrives(&self, post: &PostedWrite) -> bool {
        self.cables[usize::from(post.cable)].generation == post.generation
    }

    fn post(&mut self, host: u16, side: Side, mut post: PostedWrite) {
        post.cable = self.cable(host, side);
        let cable = self.cables[usize::from(post.cable)];
        let passes = cable.physical && cable.enabled == [true; 2];
        if !passes || self.random.chance(self.faults.loss) {
            self.lost += 1;
            return;
        }
        post.at_ps += cable.delay_ns * 1000;
        let corrupt = self.faults.corrupt.max(f64::from(cable.corrupt_ppm) / 1e6);
        if !post.bytes.is_empty() && self.random.chance(corrupt) {
            self.corrupted += 1;
            let bit = self.random.below(post.bytes.len() as u64 * 8) as usize;
            post.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        post.generation = cable.generation;
        let far = self.ends(post.cable)[if side == Side::Right { 1 } else { 0 }];
        (post.host, post.side) = far;
        self.outbox.push(post);
    }

    fn cable(&self, host: u16, side: Side) -> u16 {
        match side {
            Side::Right => host,
            Side::Left => (host + self.hosts - 1) % self.hosts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_is_taken_where_it_is_free_and_by_one_at_a_time() {
        let mut wire = Wire::default();
        assert_eq!(wire.take(100, 50, 0), (100, 150));
        assert_eq!(wire.take(300, 50, 0), (300, 350));
        assert_eq!(wire.take(0, 20, 0), (0, 20), "before others");
        assert_eq!(wire.take(120, 200, 0), (150, 400), "between and behind them");
        assert_eq!(wire.take(110, 10, 500), (400, 500), "as long as it is handed over");
        assert_eq!(wire.free_ps(), 500);
        assert_eq!(wire.taken, [(0, 20), (100, 500)]);
    }

    #[test]
    fn what_is_long_ago_is_forgotten_as_taken() {
        let mut wire = Wire::default();
        for at in 0..=STRETCHES as u64 {
            assert_eq!(wire.take(at * 100, 10, 0), (at * 100, at * 100 + 10));
        }
        assert_eq!(wire.take(0, 10, 0), (10, 20));
    }
}
