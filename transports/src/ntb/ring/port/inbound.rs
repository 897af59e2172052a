// SPDX-License-Identifier: Apache-2.0
//! The rings in this host's memory: what has come in, and which slots go back to the neighbour.

use super::{Port, State, word};
use crate::ntb::ring::layout::body_bytes;
use crate::ntb::ring::memory::{Memory, Side, Transfer};
use crate::ntb::ring::packet::{Class, Limits, LineWords, Malformed, Packet, flag};
use crate::ntb::ring::stats::Stats;
use std::collections::VecDeque;

/// A ring in this host's memory.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Consumer {
    pub(super) next: u32,
    pub(super) returned: u32,
    /// What the producer says it has written.
    pub(super) announced: u32,
    /// Since when the next slot has been missing, or 0.
    missing_since: u64,
    /// Slots that were taken and are still read, by transfers to the other side: the oldest first. There
    /// is room for all slots.
    read: VecDeque<(u32, Transfer)>,
}

impl Consumer {
    /// Of an empty ring with so many slots.
    pub(super) fn new(slots: u32) -> Consumer {
        Consumer { read: VecDeque::with_capacity(slots as usize), ..Consumer::default() }
    }

    /// The first slot that must not be written again yet.
    pub(super) fn kept_from<M: Memory>(&mut self, out: Side, memory: &mut M) -> u32 {
        while let Some((_, transfer)) = self.read.front()
            && memory.has_left(out, *transfer)
        {
            self.read.pop_front();
        }
        self.read.front().map_or(self.next, |(slot, _)| *slot)
    }

    /// Starts anew with an empty ring. What is read still is.
    pub(super) fn restart(&mut self) {
        (self.next, self.returned, self.announced, self.missing_since) = (0, 0, 0, 0);
        // Of whatever slot: nothing is written before all have been read.
        self.read.iter_mut().for_each(|(slot, _)| *slot = 0);
    }
}

/// What a look at the next slot of a ring found.
pub(in crate::ntb::ring) enum Found {
    Nothing,
    Packet(Packet, LineWords),
    Bad(Malformed),
}

impl Port {
    /// Whether the next slot of an inbound ring has been written, of a link in use.
    #[inline]
    pub(in crate::ntb::ring) fn has_packet<M: Memory>(&self, class: Class, memory: &mut M) -> bool {
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
    pub(in crate::ntb::ring) fn is_read(&self) -> bool {
        self.consumers.iter().any(|consumer| !consumer.read.is_empty())
    }

    /// Looks at the next slot of an inbound ring.
    #[inline]
    pub(in crate::ntb::ring) fn peek<M: Memory>(&mut self, class: Class, memory: &mut M) -> Found {
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
    pub(in crate::ntb::ring) fn inbound_offset(&self, class: Class) -> usize {
        self.geometry.payload_offset(class, self.consumers[class as usize].next)
    }

    /// The slot just looked at is read by a transfer to the other side: it is not to be given back before
    /// that has ended.
    pub(in crate::ntb::ring) fn hold(&mut self, class: Class, transfer: Transfer) {
        if transfer != Transfer::Done {
            let consumer = &mut self.consumers[class as usize];
            consumer.read.push_back((consumer.next, transfer));
        }
    }

    /// Gives the slot back.
    pub(in crate::ntb::ring) fn consume(&mut self, class: Class) {
        let consumer = &mut self.consumers[class as usize];
        consumer.next = consumer.next.wrapping_add(1);
        consumer.missing_since = 0;
    }

    /// Writes credits back when a quarter of a ring is due: one line for many packets.
    #[inline]
    pub(in crate::ntb::ring) fn return_credits<M: Memory>(
        &mut self,
        memory: &mut M,
        stats: &mut Stats,
    ) {
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
    pub(in crate::ntb::ring) fn skip_lost<M: Memory>(
        &mut self,
        now: u64,
        after: u64,
        memory: &mut M,
        stats: &mut Stats,
    ) {
        let counts = self.is_up() && self.has_announced(memory);
        for class in Class::ALL {
            let absent = counts && matches!(self.peek(class, memory), Found::Nothing);
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
}
