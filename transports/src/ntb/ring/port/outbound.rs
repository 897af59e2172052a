// SPDX-License-Identifier: Apache-2.0
//! The rings in the neighbour's memory: who may enter them, and what has left.

use super::{Identity, Port, word};
use crate::ntb::ring::config::HOSTS_MAX;
use crate::ntb::ring::fair::QUICK_BYTES;
use crate::ntb::ring::memory::{Memory, Side, Transfer};
use crate::ntb::ring::packet::{Class, LineWords};
use crate::ntb::ring::stats::Stats;
use tombolo_core::wait::Reason;

/// Polls for which transit is held back; bounded, or all hosts could hold each other for ever.
const HOLD_MAX: u16 = 16;
/// Turns that local packets may save up while transit passes in bursts.
const TURNS_MAX: u32 = 8;
/// Most hosts of a ring in which a local packet has its turn after one of each host that passes. In longer ones
/// it lets as many pass as there are hosts: the simulator shows that they fill up, and lose a third of their
/// throughput, if more enters.
const FAIR_HOSTS: u16 = 16;

/// A ring in the neighbour's memory.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Producer {
    pub(super) head: u32,
    pub(super) tail: u32,
    /// A local packet found no room.
    waiting: bool,
    /// Packets in transit that have passed it since, less a turn for each that has entered.
    passed: u32,
    /// Whose packets pass.
    sources: Sources,
    /// Polls for which transit has been held back for it.
    held: u16,
}

/// The hosts whose packets pass a port, counted anew after as many packets as there are hosts.
#[derive(Clone, Debug, Default, Hash)]
struct Sources {
    /// Of the packets since the last count, and of those of the count before: a bit for each host.
    seen: [[u64; HOSTS_MAX as usize / 64]; 2],
    /// Packets since the last count.
    packets: u16,
    /// The last count; 0: there was none.
    count: u16,
}

impl Sources {
    /// A packet of `source` passes, in a ring of `hosts` hosts.
    fn note(&mut self, source: u16, hosts: u16) {
        let [recent, before] = &mut self.seen;
        recent[usize::from(source / 64)] |= 1 << (source % 64);
        self.packets += 1;
        if self.packets >= hosts {
            let both = recent.iter().zip(before.iter()).map(|(recent, before)| recent | before);
            self.count = both.map(|word| word.count_ones() as u16).sum();
            self.packets = 0;
            *before = std::mem::take(recent);
        }
    }

    /// After so many packets in transit it is a local one's turn.
    fn turn(&self, hosts: u16) -> u32 {
        let counted = self.count > 0 && hosts <= FAIR_HOSTS;
        u32::from(if counted { self.count } else { hosts })
    }
}

/// A short payload in transit that goes out.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Passing {
    /// The host that it is for.
    to: u16,
    /// What tells whether all of it has been stored: see [`Memory::has_left`].
    stored: Transfer,
}

/// Slots that the neighbour may miss: those of which all has been stored. What a DMA engine or the CPU will store
/// later is not lost, however long it takes.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Leaving {
    /// Heads of the rings, by class: all before has left, as of the last heartbeat.
    pub(super) left: [u32; Class::COUNT],
    /// Heads of the rings some time ago, and the last that had to leave before them.
    seen: ([u32; Class::COUNT], Transfer),
    /// The last that is to leave.
    last: Transfer,
}

impl Leaving {
    /// Whether the CPU has stored all packets when they were given to it.
    pub(super) fn has_left_at_once(&self) -> bool {
        self.last == Transfer::Done
    }

    /// Looks at what has left of rings with such heads.
    pub(super) fn look<M: Memory>(
        &mut self,
        heads: [u32; Class::COUNT],
        side: Side,
        memory: &mut M,
    ) {
        if memory.has_left(side, self.last) {
            self.left = heads;
            self.seen = (heads, self.last);
        } else if memory.has_left(side, self.seen.1) {
            self.left = self.seen.0;
            self.seen = (heads, self.last);
        }
    }
}

impl Port {
    /// Slots that may be written now.
    pub(in crate::ntb::ring) fn free(&self, class: Class) -> u32 {
        let producer = &self.producers[class as usize];
        self.geometry.slots(class) - producer.head.wrapping_sub(producer.tail)
    }

    /// Whether a packet may enter the ring here.
    ///
    /// - Bubble rule: another slot stays free, so that transit can always move somewhere.
    /// - One free slot in a whole ring prevents deadlock but moves one packet at a time. So half of
    ///   this ring must be free as a rule: injections never leave less than half a ring of bubbles.
    /// - After one packet of each host whose packets pass, a waiting packet may enter by the bubble
    ///   rule alone, so that all of these hosts and this one get the same of a link that is full. Where
    ///   all send over h links, packets of h - 1 hosts pass each port: such injections do not outrun
    ///   deliveries, and the ring does not fill up by them. In rings of many hosts more packets have to
    ///   pass it ([`FAIR_HOSTS`]).
    pub(in crate::ntb::ring) fn may_inject(&self, class: Class) -> bool {
        let half = self.geometry.slots(class) / 2 + 1;
        let needed = if self.is_hungry(class) { 2 } else { half.max(2) };
        self.is_up() && self.free(class) >= needed
    }

    /// Whether a packet in transit may take a slot now, the last one too. When a local packet has
    /// waited long and only one slot is free, transit is held back for a bounded number of polls.
    pub(in crate::ntb::ring) fn may_forward(&mut self, class: Class, stats: &mut Stats) -> bool {
        let free = self.free(class);
        let hungry = self.is_hungry(class);
        let producer = &mut self.producers[class as usize];
        if free == 0 {
            stats.stalled_transit += 1;
            return false;
        }
        if free == 1 && hungry && producer.held < HOLD_MAX {
            producer.held += 1;
            stats.held_transit += 1;
            return false;
        }
        producer.held = 0;
        true
    }

    /// Whether a request that is to enter the ring here, with data for host `to`, waits for short payloads in
    /// transit that are still to be stored: until it is its turn, as in a ring that is full. Otherwise all that this
    /// host has queued would be ahead of them, at each host on their way, and who is far from the target would get
    /// less than who is near. A DMA engine keeps one of them under way meanwhile, or the link would have nothing to
    /// do while it starts.
    ///
    /// Where the last two are for `to` as well, the link to that host stays busy whoever goes first. So none is left
    /// under way then, and twice as many pass before it is this host's turn: hosts that are farther from the target
    /// wait longer for their acknowledgements, and would get less than this one.
    pub(in crate::ntb::ring) fn lets_pass<M: Memory>(
        &self,
        to: Option<u16>,
        memory: &mut M,
    ) -> bool {
        let [last, before] = self.passing;
        let one_target = to == Some(last.to) && to == Some(before.to);
        let turns = if one_target { 2 } else { 1 };
        self.identity.hosts <= FAIR_HOSTS
            && !self.has_let_pass(Class::Request, turns)
            && (!memory.has_left(self.side, before.stored)
                || (one_target || memory.has_steps()) && !memory.has_left(self.side, last.stored))
    }

    /// Notes that a payload in transit goes out. Who sends long ones has others under way, and does not wait for one.
    pub(in crate::ntb::ring) fn note_passing(&mut self, to: u16, len: usize, stored: Transfer) {
        if len <= QUICK_BYTES && stored != Transfer::Done {
            self.passing = [Passing { to, stored }, self.passing[0]];
        }
    }

    /// Notes that an injection found no room.
    pub(in crate::ntb::ring) fn starve(&mut self, class: Class, stats: &mut Stats) {
        stats.stalled_injection += 1;
        self.producers[class as usize].waiting = true;
    }

    /// Why a packet that is to enter the ring here waits, if it does.
    pub(in crate::ntb::ring) fn held_up_by(&self, class: Class) -> Option<Reason> {
        let producer = &self.producers[class as usize];
        match producer.waiting && self.is_up() {
            true if producer.passed > 0 => Some(Reason::Relay),
            true => Some(Reason::Credit),
            false => None,
        }
    }

    /// How many packets have been put on the rings, by class.
    pub(super) fn heads(&self) -> [u32; Class::COUNT] {
        std::array::from_fn(|class| self.producers[class].head)
    }

    /// Where the payload of the next packet goes.
    pub(in crate::ntb::ring) fn payload_offset(&self, class: Class) -> usize {
        self.geometry.payload_offset(class, self.producers[class as usize].head)
    }

    /// What ends the payload of the next packet, as it ends the packet's header.
    pub(in crate::ntb::ring) fn seal(&self, class: Class) -> u64 {
        word(self.epoch, self.producers[class as usize].head.wrapping_add(1))
    }

    /// Writes the header of a packet that enters the ring here, if `source` is this host, or that passes, and
    /// with it publishes the slot.
    pub(in crate::ntb::ring) fn post<M: Memory>(
        &mut self,
        class: Class,
        mut line: LineWords,
        source: u16,
        memory: &mut M,
        stats: &mut Stats,
    ) {
        debug_assert!(self.is_up() && self.free(class) > 0);
        let Identity { me, hosts, .. } = self.identity;
        let producer = &mut self.producers[class as usize];
        let offset = self.geometry.header_offset(class, producer.head);
        producer.head = producer.head.wrapping_add(1);
        if source == me {
            producer.waiting = false;
            producer.passed = producer.passed.saturating_sub(producer.sources.turn(hosts));
        } else {
            producer.sources.note(source, hosts);
            if producer.waiting {
                let most = TURNS_MAX * producer.sources.turn(hosts);
                producer.passed = (producer.passed + 1).min(most);
            }
        }
        line[7] = word(self.epoch, producer.head);
        if let queued @ Transfer::Queued(_) = memory.store_header(self.side, offset, &line) {
            self.leaving.last = queued;
        }
        self.wake(memory, stats);
    }

    fn is_hungry(&self, class: Class) -> bool {
        self.has_let_pass(class, 1)
    }

    /// Whether as many packets as `turns` of a local one take have passed those that wait here.
    fn has_let_pass(&self, class: Class, turns: u32) -> bool {
        let producer = &self.producers[class as usize];
        producer.passed >= turns * producer.sources.turn(self.identity.hosts)
    }
}
