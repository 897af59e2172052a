// SPDX-License-Identifier: Apache-2.0
//! One end of a link: handshake, heartbeat, and the rings of the three classes with their credits.
//!
//! - The producer of a ring knows the consumer's index only from the credit line that the consumer
//!   writes into the producer's memory. Nothing is read across the link.
//! - An epoch is drawn each time a link comes up. Both sides say theirs and echo the other's in the
//!   hello line; a side uses the link once its own epoch has been echoed. Lines of another epoch
//!   are not seen at all, so a re-used region needs no clearing.
//! - Nothing that was written under an epoch arrives behind packets of the next one. What the CPU stores arrives in order:
//!   posted writes of one requester, with a flush between. What a DMA engine has written has no order with that, and
//!   may be under way for any time after the engine is done. So the hello line says whether an engine is used
//!   ([`Memory::mark`]). If so, the epoch is not echoed before the engine's own word with that epoch, the mark, has been
//!   seen, which comes behind all that the engine wrote before.
//! - Word by word: every index from the wire is checked against what it can be. Credits that cannot be show that
//!   the ends count differently, for good: the link begins a new epoch.

mod inbound;
mod marks;
mod outbound;

pub(super) use inbound::Found;

use super::config::{Config, Geometry};
use super::health::Health;
use super::layout::{CREDIT_OFFSET, HELLO_OFFSET};
use super::memory::{Event, Memory, Side};
use super::packet::{Class, LineWords, line_crc};
use super::stats::Stats;
use inbound::Consumer;
use marks::Marks;
use outbound::{Leaving, Passing, Producer};

const MAGIC: u64 = 0x4f4c_4f42_4d4f_5403;

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
    /// What ends the credit line that was last found damaged.
    credit_damaged: u64,
    credit_count: u32,
    producers: [Producer; Class::COUNT],
    consumers: [Consumer; Class::COUNT],
    leaving: Leaving,
    marks: Marks,
    /// The last short payloads in transit that went out: the last one first.
    passing: [Passing; 2],
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
            credit_damaged: 0,
            credit_count: 0,
            producers: Default::default(),
            consumers: Class::ALL.map(|class| Consumer::new(config.geometry.slots(class))),
            leaving: Leaving::default(),
            marks: Marks::default(),
            passing: Default::default(),
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
        if word != self.hello_seen || self.has_awaited(memory) {
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
            State::Greeting => hello(memory) || self.has_awaited(memory),
            State::Up => self.new_credits(memory).is_some() || hello(memory),
        }
    }

    /// What ends a credit line that was not read yet.
    #[inline]
    fn new_credits<M: Memory>(&self, memory: &mut M) -> Option<u64> {
        let word = memory.load_word(self.side, CREDIT_OFFSET + 56);
        (word != self.credit_seen && word as u32 == self.peer_epoch).then_some(word)
    }

    /// Repeats what the neighbour must know; called every heartbeat.
    pub(super) fn beat<M: Memory>(&mut self, now: u64, memory: &mut M) {
        self.now_us = micros(now);
        match self.state {
            State::Down | State::Resting => {}
            State::Greeting => {
                self.write_hello(memory);
                if self.marks.awaits {
                    // The neighbour may have given its engine up: then it says something else.
                    self.hello_seen = 0;
                }
            }
            State::Up => {
                // The hello may have been lost while the neighbour was not listening yet.
                self.write_hello(memory);
                self.announce(memory);
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

    fn leave(&mut self) {
        if self.state == State::Up {
            self.flaps = self.flaps.wrapping_add(1);
        }
        self.producers = Default::default();
        self.leaving = Leaving::default();
        self.marks = Marks::default();
        self.passing = Default::default();
        self.consumers.iter_mut().for_each(Consumer::restart);
        self.peer_epoch = 0;
        self.stamp = 0;
        (self.credit_seen, self.credit_damaged) = (0, 0);
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
        let is_new = epoch != self.peer_epoch;
        if is_new && self.state == State::Up {
            self.greet(now, memory);
            self.hello_seen = line[1];
        }
        self.peer_epoch = epoch;
        let awaits = line[4] != 0 && !self.has_mark(0, memory);
        if std::mem::replace(&mut self.marks.awaits, awaits) != awaits || is_new {
            self.write_hello(memory);
        }
        if self.state == State::Greeting && echo == self.epoch && !awaits {
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
            if self.credit_damaged != line[7] {
                // The next line may have come while this one was read: it is looked at once more.
                (self.credit_damaged, self.credit_seen) = (line[7], 0);
                return;
            }
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
        self.marks.announced = (line[3] >> 32) as u32;
        let (mut outstanding, mut differs) = (false, false);
        for class in Class::ALL {
            let producer = &mut self.producers[class as usize];
            // Can only lie between what is known and what was written.
            if consumed[class as usize].wrapping_sub(producer.tail)
                <= producer.head.wrapping_sub(producer.tail)
            {
                producer.tail = consumed[class as usize];
            } else {
                (stats.malformed, differs) = (stats.malformed + 1, true);
            }
            outstanding |= producer.tail != producer.head;
            let consumer = &mut self.consumers[class as usize];
            let ahead = produced[class as usize].wrapping_sub(consumer.next) as i32;
            if ahead <= self.geometry.slots(class) as i32 {
                consumer.announced = produced[class as usize];
            } else {
                (stats.malformed, differs) = (stats.malformed + 1, true);
            }
        }
        if differs {
            // A header was taken for another one, as damage can make it: credits would be missing from now on.
            self.health.bad();
            return self.greet(now, memory);
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
        let waits = self.is_read() || self.marks.awaits;
        line[1] = word(self.epoch, if waits { 0 } else { self.peer_epoch });
        line[2] = identity_word(me, neighbour, hosts, lane, self.crc);
        line[3] = self.geometry.digest();
        line[4] = u64::from(self.mark_epoch(memory));
        line[7] = u64::from(line_crc(&line));
        memory.store_line(self.side, HELLO_OFFSET, &line);
    }

    fn write_credits<M: Memory>(&mut self, memory: &mut M) {
        let out = self.side.opposite();
        for consumer in &mut self.consumers {
            consumer.returned = consumer.kept_from(out, memory);
        }
        let consumed = |class: usize| self.consumers[class].returned;
        if self.leaving.has_left_at_once() {
            self.leaving.left = self.heads();
        }
        let left = self.leaving.left;
        let mut line = [0; 8];
        line[0] = word(consumed(0), consumed(1));
        line[1] = word(consumed(2), u32::from(self.sleeping));
        line[2] = word(left[0], left[1]);
        line[3] = word(left[2], self.marks.announces);
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
