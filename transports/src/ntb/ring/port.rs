// SPDX-License-Identifier: Apache-2.0
//! One end of a link: handshake, heartbeat, and the rings of the three classes with their credits.
//!
//! - The producer of a ring knows the consumer's index only from the credit line that the consumer
//!   writes into the producer's memory. Nothing is read across the link.
//! - An epoch is drawn each time a link comes up. Both sides say theirs and echo the other's in the
//!   hello line; a side uses the link once its own epoch has been echoed. Lines of another epoch
//!   are not seen at all, so a re-used region needs no clearing.
//! - Word by word: every index from the wire is checked against what it can be.

use super::config::{Config, Geometry, HOSTS_MAX};
use super::health::Health;
use super::layout::{CREDIT_OFFSET, HELLO_OFFSET, body_bytes};
use super::memory::{Event, Memory, Side, Transfer};
use super::packet::{Class, Limits, LineWords, Malformed, Packet, flag, line_crc};
use super::stats::Stats;
use std::collections::VecDeque;
use tombolo_core::wait::Reason;

const MAGIC: u64 = 0x4f4c_4f42_4d4f_5402;
/// Polls for which transit is held back; bounded, or all hosts could hold each other for ever.
const HOLD_MAX: u16 = 16;
/// Turns that local packets may save up while transit passes in bursts.
const TURNS_MAX: u32 = 8;
/// Most hosts of a ring in which a local packet has its turn after one of each host that passes. In longer ones
/// it lets as many pass as there are hosts: the simulator shows that they fill up, and lose a third of their
/// throughput, if more enters.
const FAIR_HOSTS: u16 = 16;

/// Who is behind a port and what was agreed.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Identity {
    pub me: u16,
    pub neighbour: u16,
    pub hosts: u16,
    pub lane: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// No link.
    Down,
    /// Link, but the neighbour has not echoed this epoch.
    Greeting,
    /// In use.
    Up,
    /// Link, but not used for a while because of its poor health.
    Resting,
}

/// A ring in the neighbour's memory.
#[derive(Clone, Debug, Default, Hash)]
struct Producer {
    head: u32,
    tail: u32,
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

/// A ring in this host's memory.
#[derive(Clone, Debug, Default, Hash)]
struct Consumer {
    next: u32,
    returned: u32,
    /// What the producer says it has written.
    announced: u32,
    /// Since when the next slot has been missing, or 0.
    missing_since: u64,
    /// Slots that were taken and are still read, by transfers to the other side: the oldest first. There
    /// is room for all slots.
    read: VecDeque<(u32, Transfer)>,
}

impl Consumer {
    /// The first slot that must not be written again yet.
    fn kept_from<M: Memory>(&mut self, out: Side, memory: &mut M) -> u32 {
        while let Some((_, transfer)) = self.read.front()
            && memory.has_left(out, *transfer)
        {
            self.read.pop_front();
        }
        self.read.front().map_or(self.next, |(slot, _)| *slot)
    }

    /// Starts anew with an empty ring. What is read still is.
    fn restart(&mut self) {
        (self.next, self.returned, self.announced, self.missing_since) = (0, 0, 0, 0);
        // Of whatever slot: nothing is written before all have been read.
        self.read.iter_mut().for_each(|(slot, _)| *slot = 0);
    }
}

/// Slots that the neighbour may miss: those of which all has been stored. What a DMA engine or the CPU will store
/// later is not lost, however long it takes.
#[derive(Clone, Debug, Default, Hash)]
struct Leaving {
    /// Heads of the rings, by class: all before has left.
    left: [u32; Class::COUNT],
    /// Heads of the rings some time ago, and the last that had to leave before them.
    seen: ([u32; Class::COUNT], Transfer),
    /// The last that is to leave.
    last: Transfer,
}

impl Leaving {
    /// What has left of rings with such heads.
    fn look<M: Memory>(
        &mut self,
        heads: [u32; Class::COUNT],
        side: Side,
        memory: &mut M,
    ) -> [u32; Class::COUNT] {
        if memory.has_left(side, self.last) {
            self.left = heads;
            self.seen = (heads, self.last);
        } else if memory.has_left(side, self.seen.1) {
            self.left = self.seen.0;
            self.seen = (heads, self.last);
        }
        self.left
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Port {
    side: Side,
    identity: Identity,
    geometry: Geometry,
    crc: bool,
    state: State,
    epoch: u32,
    peer_epoch: u32,
    hello_seen: u64,
    credit_seen: u64,
    credit_count: u32,
    producers: [Producer; Class::COUNT],
    consumers: [Consumer; Class::COUNT],
    leaving: Leaving,
    heard_at: u64,
    /// The latest stamp of the neighbour's clock, to be sent back.
    stamp: u32,
    /// Time of the last heartbeat, microseconds.
    now_us: u32,
    pub(super) health: Health,
    silent: bool,
    sleeping: bool,
    peer_sleeping: bool,
    rung: bool,
    flaps: u16,
}

/// What a look at the next slot of a ring found.
pub(super) enum Found {
    Nothing,
    Packet(Packet, LineWords),
    Bad(Malformed),
}

impl Port {
    pub(super) fn new(side: Side, identity: Identity, config: &Config) -> Port {
        Port {
            side,
            identity,
            geometry: config.geometry,
            crc: config.crc,
            state: State::Down,
            epoch: config.incarnation,
            peer_epoch: 0,
            hello_seen: 0,
            credit_seen: 0,
            credit_count: 0,
            producers: Default::default(),
            consumers: Class::ALL.map(|class| Consumer {
                read: VecDeque::with_capacity(config.geometry.slots(class) as usize),
                ..Consumer::default()
            }),
            leaving: Leaving::default(),
            heard_at: 0,
            stamp: 0,
            now_us: 0,
            health: Health::default(),
            silent: false,
            sleeping: false,
            peer_sleeping: false,
            rung: false,
            flaps: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Epochs of this side and of the neighbour.
    pub(super) fn epochs(&self) -> (u32, u32) {
        (self.epoch, self.peer_epoch)
    }

    pub(super) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    pub(super) fn is_resting(&self) -> bool {
        self.state == State::Resting
    }

    /// The neighbour has been silent, and still is.
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    pub(super) fn set_silent(&mut self) {
        self.silent = true;
    }

    /// Stops using the link until it is greeted again. The neighbour hears of a new epoch that is
    /// never confirmed, and stops using it too.
    pub(super) fn rest<M: Memory>(&mut self, now: u64, rest_ns: u64, memory: &mut M) {
        self.greet(now, memory);
        self.health.rest(now, rest_ns);
        self.state = State::Resting;
    }

    /// How often the link went out of use.
    pub(super) fn flaps(&self) -> u16 {
        self.flaps
    }

    /// When the neighbour was last heard.
    pub(super) fn heard_at(&self) -> u64 {
        self.heard_at
    }

    /// The link came up, or is suspected: greets under a new epoch.
    pub(super) fn greet<M: Memory>(&mut self, now: u64, memory: &mut M) {
        self.leave();
        self.state = State::Greeting;
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.hello_seen = 0;
        self.heard_at = now;
        self.write_hello(memory);
    }

    /// The link went down.
    pub(super) fn drop_link(&mut self) {
        self.leave();
        self.silent = false;
        self.state = State::Down;
    }

    /// Reads the hello and credit lines; returns whether anything was new.
    pub(super) fn listen<M: Memory>(
        &mut self,
        now: u64,
        slow_ns: u64,
        memory: &mut M,
        stats: &mut Stats,
    ) -> bool {
        if matches!(self.state, State::Down | State::Resting) {
            return false;
        }
        let mut news = false;
        let word = memory.load_word(self.side, HELLO_OFFSET + 8);
        if word != self.hello_seen {
            self.hello_seen = word;
            news = self.hear_hello(now, memory, stats);
        }
        if self.state == State::Up
            && let Some(word) = self.new_credits(memory)
        {
            self.credit_seen = word;
            news = true;
            self.hear_credits(now, slow_ns, memory, stats);
        }
        news
    }

    /// Whether the neighbour may have said something that [`Port::listen`] would take in.
    #[inline]
    pub(super) fn has_said<M: Memory>(&self, memory: &mut M) -> bool {
        let hello =
            |memory: &mut M| memory.load_word(self.side, HELLO_OFFSET + 8) != self.hello_seen;
        match self.state {
            State::Down | State::Resting => false,
            State::Greeting => hello(memory),
            State::Up => self.new_credits(memory).is_some() || hello(memory),
        }
    }

    /// What ends a credit line that was not read yet.
    #[inline]
    fn new_credits<M: Memory>(&self, memory: &mut M) -> Option<u64> {
        let word = memory.load_word(self.side, CREDIT_OFFSET + 56);
        (word != self.credit_seen && word as u32 == self.peer_epoch).then_some(word)
    }

    /// Whether the next slot of an inbound ring has been written, of a link in use.
    #[inline]
    pub(super) fn has_packet<M: Memory>(&self, class: Class, memory: &mut M) -> bool {
        if self.state != State::Up {
            return false;
        }
        let header = self.geometry.header_offset(class, self.consumers[class as usize].next);
        memory.load_word(self.side, header + 56) == self.inbound_seal(class)
    }

    /// What ends the next packet of an inbound ring, and its payload.
    #[inline]
    fn inbound_seal(&self, class: Class) -> u64 {
        word(self.peer_epoch, self.consumers[class as usize].next.wrapping_add(1))
    }

    /// Whether transfers to the other side still read slots that came in here.
    pub(super) fn is_read(&self) -> bool {
        self.consumers.iter().any(|consumer| !consumer.read.is_empty())
    }

    /// Repeats what the neighbour must know; called every heartbeat.
    pub(super) fn beat<M: Memory>(&mut self, now: u64, memory: &mut M) {
        self.now_us = micros(now);
        match self.state {
            State::Down | State::Resting => {}
            State::Greeting => self.write_hello(memory),
            State::Up => {
                // The hello may have been lost while the neighbour was not listening yet.
                self.write_hello(memory);
                self.write_credits(memory);
            }
        }
    }

    /// Tells the neighbour whether its packets need a doorbell.
    pub(super) fn set_sleeping<M: Memory>(&mut self, sleeping: bool, memory: &mut M) {
        if self.sleeping != sleeping {
            self.sleeping = sleeping;
            if self.is_up() {
                self.write_credits(memory);
            }
        }
    }

    /// Slots that may be written now.
    pub(super) fn free(&self, class: Class) -> u32 {
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
    pub(super) fn may_inject(&self, class: Class) -> bool {
        let half = self.geometry.slots(class) / 2 + 1;
        let needed = if self.is_hungry(class) { 2 } else { half.max(2) };
        self.is_up() && self.free(class) >= needed
    }

    /// Whether a packet in transit may take a slot now, the last one too. When a local packet has
    /// waited long and only one slot is free, transit is held back for a bounded number of polls.
    pub(super) fn may_forward(&mut self, class: Class, stats: &mut Stats) -> bool {
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

    /// Notes that an injection found no room.
    pub(super) fn starve(&mut self, class: Class, stats: &mut Stats) {
        stats.stalled_injection += 1;
        self.producers[class as usize].waiting = true;
    }

    /// Why a packet that is to enter the ring here waits, if it does.
    pub(super) fn held_up_by(&self, class: Class) -> Option<Reason> {
        let producer = &self.producers[class as usize];
        match producer.waiting && self.is_up() {
            true if producer.passed > 0 => Some(Reason::Relay),
            true => Some(Reason::Credit),
            false => None,
        }
    }

    /// Where the payload of the next packet goes.
    pub(super) fn payload_offset(&self, class: Class) -> usize {
        self.geometry.payload_offset(class, self.producers[class as usize].head)
    }

    /// What ends the payload of the next packet, as it ends the packet's header.
    pub(super) fn seal(&self, class: Class) -> u64 {
        word(self.epoch, self.producers[class as usize].head.wrapping_add(1))
    }

    /// Writes the header of a packet that enters the ring here, if `source` is this host, or that passes, and
    /// with it publishes the slot.
    pub(super) fn post<M: Memory>(
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

    /// Looks at the next slot of an inbound ring.
    #[inline]
    pub(super) fn peek<M: Memory>(&mut self, class: Class, memory: &mut M) -> Found {
        if !self.has_packet(class, memory) {
            return Found::Nothing;
        }
        let next = self.consumers[class as usize].next;
        let line = memory.load_line(self.side, self.geometry.header_offset(class, next));
        let limits = Limits {
            class,
            hosts: self.identity.hosts,
            lane: self.identity.lane,
            chunk_bytes: self.geometry.chunk_bytes(),
            crc: self.crc,
        };
        match Packet::decode(&line, &limits) {
            Ok(packet) if packet.has(flag::BULK) => {
                let seal = self.inbound_offset(class) + body_bytes(packet.len as usize);
                match memory.load_word(self.side, seal) == self.inbound_seal(class) {
                    true => Found::Packet(packet, line),
                    false => Found::Bad(Malformed::Unsealed),
                }
            }
            Ok(packet) => Found::Packet(packet, line),
            Err(why) => Found::Bad(why),
        }
    }

    /// Where the payload of the slot just looked at lies.
    pub(super) fn inbound_offset(&self, class: Class) -> usize {
        self.geometry.payload_offset(class, self.consumers[class as usize].next)
    }

    /// The slot just looked at is read by a transfer to the other side: it is not to be given back before
    /// that has ended.
    pub(super) fn hold(&mut self, class: Class, transfer: Transfer) {
        if transfer != Transfer::Done {
            let consumer = &mut self.consumers[class as usize];
            consumer.read.push_back((consumer.next, transfer));
        }
    }

    /// Gives the slot back.
    pub(super) fn consume(&mut self, class: Class) {
        let consumer = &mut self.consumers[class as usize];
        consumer.next = consumer.next.wrapping_add(1);
        consumer.missing_since = 0;
    }

    /// Writes credits back when a quarter of a ring is due: one line for many packets.
    #[inline]
    pub(super) fn return_credits<M: Memory>(&mut self, memory: &mut M, stats: &mut Stats) {
        let out = self.side.opposite();
        let due = Class::ALL.into_iter().any(|class| {
            let consumer = &mut self.consumers[class as usize];
            let owed = consumer.kept_from(out, memory).wrapping_sub(consumer.returned);
            owed > 0 && owed >= self.geometry.slots(class) / 4
        });
        if due && self.is_up() {
            self.write_credits(memory);
            self.wake(memory, stats);
        }
    }

    /// Passes over slots that were announced long ago and never arrived.
    pub(super) fn skip_lost<M: Memory>(
        &mut self,
        now: u64,
        after: u64,
        memory: &mut M,
        stats: &mut Stats,
    ) {
        for class in Class::ALL {
            let absent = matches!(self.peek(class, memory), Found::Nothing);
            let consumer = &mut self.consumers[class as usize];
            if !absent || consumer.announced.wrapping_sub(consumer.next) as i32 <= 0 {
                consumer.missing_since = 0;
            } else if consumer.missing_since == 0 {
                consumer.missing_since = now.max(1);
            } else if now.saturating_sub(consumer.missing_since) >= after {
                stats.slots_lost += 1;
                self.health.bad();
                self.consume(class);
            }
        }
    }

    fn is_hungry(&self, class: Class) -> bool {
        let producer = &self.producers[class as usize];
        producer.passed >= producer.sources.turn(self.identity.hosts)
    }

    fn leave(&mut self) {
        if self.state == State::Up {
            self.flaps = self.flaps.wrapping_add(1);
        }
        self.producers = Default::default();
        self.leaving = Leaving::default();
        self.consumers.iter_mut().for_each(Consumer::restart);
        self.peer_epoch = 0;
        self.stamp = 0;
        self.credit_seen = 0;
        self.peer_sleeping = false;
        self.rung = false;
    }

    fn hear_hello<M: Memory>(&mut self, now: u64, memory: &mut M, stats: &mut Stats) -> bool {
        let line = memory.load_line(self.side, HELLO_OFFSET);
        let (epoch, echo) = (line[1] as u32, (line[1] >> 32) as u32);
        if line[7] as u32 != line_crc(&line) || epoch == 0 {
            // Half written, or nothing yet. The neighbour repeats it.
            self.hello_seen = 0;
            return false;
        }
        let Identity { me, neighbour, hosts, lane } = self.identity;
        if line[0] != MAGIC
            || line[2] != identity_word(neighbour, me, hosts, lane, self.crc)
            || line[3] != self.geometry.digest()
        {
            stats.malformed += 1;
            memory.event(Event::Mismatch(self.side));
            return true;
        }
        self.heard_at = now;
        if epoch != self.peer_epoch {
            if self.state == State::Up {
                self.greet(now, memory);
                self.hello_seen = line[1];
            }
            self.peer_epoch = epoch;
            self.write_hello(memory);
        }
        if self.state == State::Greeting && echo == self.epoch {
            if !memory.is_idle(self.side) {
                // What is still to be written under another epoch would overwrite packets of this one.
                self.hello_seen = 0;
                return true;
            }
            self.state = State::Up;
            self.silent = false;
        }
        true
    }

    fn hear_credits<M: Memory>(
        &mut self,
        now: u64,
        slow_ns: u64,
        memory: &mut M,
        stats: &mut Stats,
    ) {
        let line = memory.load_line(self.side, CREDIT_OFFSET);
        if self.crc && (line[6] as u32) != credit_crc(&line) {
            stats.corrupt += 1;
            self.health.bad();
            return;
        }
        self.heard_at = now;
        let (stamp, echo) = (line[4] as u32, (line[4] >> 32) as u32);
        self.stamp = stamp;
        let took = micros(now).wrapping_sub(echo);
        // Of an echo from before the link came up, or of none, nothing is learned.
        if echo != 0 && took as i32 >= 0 {
            self.health.round_trip(u64::from(took) * 1000, slow_ns);
        }
        let consumed = [line[0] as u32, (line[0] >> 32) as u32, line[1] as u32];
        let produced = [line[2] as u32, (line[2] >> 32) as u32, line[3] as u32];
        let mut outstanding = false;
        for class in Class::ALL {
            let producer = &mut self.producers[class as usize];
            // Can only lie between what is known and what was written.
            if consumed[class as usize].wrapping_sub(producer.tail)
                <= producer.head.wrapping_sub(producer.tail)
            {
                producer.tail = consumed[class as usize];
            } else {
                stats.malformed += 1;
            }
            outstanding |= producer.tail != producer.head;
            let consumer = &mut self.consumers[class as usize];
            let ahead = produced[class as usize].wrapping_sub(consumer.next) as i32;
            if ahead <= self.geometry.slots(class) as i32 {
                consumer.announced = produced[class as usize];
            } else {
                stats.malformed += 1;
            }
        }
        self.peer_sleeping = (line[1] >> 32) & 1 == 1;
        self.rung = false;
        if self.peer_sleeping && outstanding {
            // It fell asleep while packets were on the way.
            self.wake(memory, stats);
        }
    }

    /// Rings a sleeper, once for each credit line in which it says that it sleeps.
    fn wake<M: Memory>(&mut self, memory: &mut M, stats: &mut Stats) {
        if self.peer_sleeping && !self.rung {
            self.rung = true;
            stats.doorbells += 1;
            memory.ring(self.side);
        }
    }

    fn write_hello<M: Memory>(&mut self, memory: &mut M) {
        let Identity { me, neighbour, hosts, lane } = self.identity;
        let out = self.side.opposite();
        let mut line = [0; 8];
        line[0] = MAGIC;
        // The neighbour writes from the first slot on once it hears its epoch: not as long as a slot is
        // read that it wrote under another one.
        self.consumers.iter_mut().for_each(|consumer| {
            consumer.kept_from(out, memory);
        });
        line[1] = word(self.epoch, if self.is_read() { 0 } else { self.peer_epoch });
        line[2] = identity_word(me, neighbour, hosts, lane, self.crc);
        line[3] = self.geometry.digest();
        line[7] = u64::from(line_crc(&line));
        memory.store_line(self.side, HELLO_OFFSET, &line);
    }

    fn write_credits<M: Memory>(&mut self, memory: &mut M) {
        let out = self.side.opposite();
        for consumer in &mut self.consumers {
            consumer.returned = consumer.kept_from(out, memory);
        }
        let consumed = |class: usize| self.consumers[class].returned;
        let heads = std::array::from_fn(|class| self.producers[class].head);
        let left = self.leaving.look(heads, self.side, memory);
        let mut line = [0; 8];
        line[0] = word(consumed(0), consumed(1));
        line[1] = word(consumed(2), u32::from(self.sleeping));
        line[2] = word(left[0], left[1]);
        line[3] = word(left[2], 0);
        line[4] = word(self.now_us, self.stamp);
        self.credit_count = self.credit_count.wrapping_add(1);
        line[7] = word(self.epoch, self.credit_count);
        if self.crc {
            line[6] = u64::from(credit_crc(&line));
        }
        memory.store_line(self.side, CREDIT_OFFSET, &line);
    }
}

/// Microseconds, wrapping, and never 0.
fn micros(now: u64) -> u32 {
    ((now / 1000) as u32).max(1)
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn identity_word(from: u16, to: u16, hosts: u16, lane: u8, crc: bool) -> u64 {
    u64::from(from)
        | u64::from(to) << 16
        | u64::from(hosts) << 32
        | u64::from(lane) << 48
        | u64::from(crc) << 56
}

fn credit_crc(line: &LineWords) -> u32 {
    let mut bare = *line;
    bare[6] = line[7];
    line_crc(&bare)
}
