// SPDX-License-Identifier: Apache-2.0
//! What goes out: control, repetitions, new packets of flows, get requests.

use super::engine::{Engine, shared_limit};
use super::fair::SHORT_BYTES;
use super::fetcher::Repetition;
use super::flow::Entry;
use super::layout::body_bytes;
use super::memory::{Memory, OutOfRange, Side, Span, Transfer};
use super::ops::{Action, Op, Request};
use super::packet::{Class, INLINE_BYTES, Kind, Packet, flag};

impl Engine {
    /// Link states first (they open ways), then acknowledgements.
    pub(super) fn send_control<M: Memory>(&mut self, side: Side, memory: &mut M) -> bool {
        let at = side as usize;
        let mut busy = false;
        for _ in 0..self.config.burst {
            if self.news[at].is_empty() && !self.receiver.owes_any(side) {
                break;
            }
            if !self.ports[at].may_inject(Class::Control) {
                if self.ports[at].is_up() {
                    self.ports[at].starve(Class::Control, &mut self.stats);
                }
                break;
            }
            busy = true;
            if let Some(origin) = self.news[at].next_from(0) {
                self.news[at].set(origin, false);
                self.send_link_state(side, origin as u16, memory);
            } else if let Some(id) = self.receiver.next_owed(side) {
                self.send_ack(side, id, memory);
            }
        }
        busy
    }

    /// Sends what waits in this direction, as far as there is room; says whether anything was sent. Most
    /// polls find nothing.
    #[inline]
    pub(super) fn send_requests<M: Memory>(&mut self, side: Side, memory: &mut M) -> bool {
        self.has_waiting(side) && self.send_waiting(side, memory)
    }

    /// One packet after the other while the bubble rule allows, of flows and of gets alternately.
    fn send_waiting<M: Memory>(&mut self, side: Side, memory: &mut M) -> bool {
        let at = side as usize;
        let mut busy = false;
        for _ in 0..self.config.burst {
            let again = self.fetcher.next_again(side);
            let flow = self.next_flow(side);
            let ask = self.next_ask(side);
            if again.is_none() && flow.is_none() && ask.is_none() {
                break;
            }
            if !self.ports[at].may_inject(Class::Request) {
                if self.ports[at].is_up() {
                    self.ports[at].starve(Class::Request, &mut self.stats);
                }
                break;
            }
            busy = true;
            // Where a flow and a get wait, that of the flow: this only decides who goes first.
            let to = flow.or(ask).map(|id| (id / 2) as u16);
            if self.ports[at].lets_pass(to, memory) {
                // Nothing tells when they have left, so the next poll is to look.
                self.ports[at].starve(Class::Request, &mut self.stats);
                break;
            }
            self.flows_first[at] = !self.flows_first[at];
            let long = match (again, flow, ask) {
                (Some(row), ..) => {
                    self.send_again(side, row, memory);
                    false
                }
                (None, Some(id), ask) if self.flows_first[at] || ask.is_none() => {
                    self.send_flow(side, id, memory)
                }
                (None, _, Some(id)) => {
                    self.send_ask(side, id, memory);
                    false
                }
                _ => break,
            };
            if long && self.sharing.is_on(self.now) {
                // Others wait for what comes next: for the lane, or for an answer.
                break;
            }
        }
        busy
    }

    fn next_flow(&mut self, side: Side) -> Option<usize> {
        let Engine { sender, ops, sharing, topology, now, .. } = self;
        sender.next(side, ops, |id| shared_limit(sharing, topology, *now, (id / 2) as u16))
    }

    fn next_ask(&mut self, side: Side) -> Option<usize> {
        let Engine { fetcher, ops, sharing, topology, now, .. } = self;
        fetcher.next(side, ops, |id| shared_limit(sharing, topology, *now, (id / 2) as u16))
    }

    /// Sends a reply if the rules allow; the caller has checked that they do.
    pub(super) fn inject<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) {
        let carried = if packet.has(flag::BULK) { packet.len } else { 0 };
        self.stats.injected += 1;
        self.stats.injected_bytes += u64::from(carried);
        let line = packet.encode(self.config.crc);
        let class = packet.kind.class();
        self.ports[side as usize].post(class, line, self.me, memory, &mut self.stats);
    }

    /// A packet to `dst` with nothing in it.
    pub(super) fn blank(&self, kind: Kind, dst: u16) -> Packet {
        Packet {
            kind,
            flags: 0,
            src: self.me,
            dst,
            lane: self.lane,
            pe: 0,
            tag: 0,
            seq: 0,
            len: 0,
            offset: 0,
            segment: 0,
            op: 0,
            words: [0; 3],
        }
    }

    /// Payload bytes of a packet of an operation.
    pub(super) fn payload_len(&self, op: &Op, packet: u32) -> usize {
        let size = op.packet_bytes as usize;
        size.min(op.len - packet as usize * size)
    }

    fn send_link_state<M: Memory>(&mut self, side: Side, origin: u16, memory: &mut M) {
        let state = self.topology.state(origin);
        let mut packet = self.blank(Kind::LinkState, self.topology.step(self.me, side));
        packet.src = origin;
        packet.seq = state.seq;
        packet.words[0] = state.to_word();
        self.inject(side, &packet, memory);
    }

    fn send_ack<M: Memory>(&mut self, side: Side, id: usize, memory: &mut M) {
        let mut packet = self.blank(Kind::Ack, (id / 2) as u16);
        let answer = self.receiver.take_owed(side, id);
        packet.seq = answer.expected;
        if id % 2 == 1 {
            packet.flags |= flag::SECOND_FLOW;
        }
        if answer.gap {
            packet.flags |= flag::GAP;
        }
        if answer.refused {
            packet.flags |= flag::REFUSED;
        }
        self.stats.acks += 1;
        self.inject(side, &packet, memory);
    }

    /// Sends the next packet of a flow; says whether it is a long one.
    fn send_flow<M: Memory>(&mut self, side: Side, id: usize, memory: &mut M) -> bool {
        let out = self.sender.take(side, id, &mut self.ops);
        let op = self.ops.at(out.entry.op);
        let mut packet = self.blank(Kind::Put, op.host);
        packet.seq = out.seq;
        packet.pe = op.pe;
        packet.segment = op.remote.segment as u8;
        if id % 2 == 1 {
            packet.flags |= flag::SECOND_FLOW;
        }
        let transfer = self.fill(&mut packet, side, op, &out.entry, memory);
        self.stats.replayed += u64::from(out.repeated);
        let limit = self.shared_limit(op.host);
        let times = self.times();
        if self.sender.note_sent(id, &out, op, limit, times) {
            packet.flags |= flag::ACK_NOW;
        }
        if let Transfer::Queued(number) = transfer {
            self.ops.at_mut(out.entry.op).queued[side as usize] = number;
        }
        self.inject(side, &packet, memory);
        packet.len as usize > SHORT_BYTES
    }

    /// Data or operands of an operation's packet; payload goes straight to the window.
    fn fill<M: Memory>(
        &self,
        packet: &mut Packet,
        side: Side,
        op: &Op,
        entry: &Entry,
        memory: &mut M,
    ) -> Transfer {
        if op.refused {
            packet.flags |= flag::REFUSED;
            return Transfer::Done;
        }
        let size = self.chunk_bytes();
        let at = entry.packet as usize * op.packet_bytes as usize;
        packet.offset = (op.remote.offset + at) as u64;
        packet.len = self.payload_len(op, entry.packet) as u32;
        let from = match op.action {
            Action::Put { source } => Span::Local(source + at as u64),
            Action::PutRetained { .. } => Span::Retained(entry.retained as usize * size),
            Action::PutInline { words } => {
                packet.words = words;
                return Transfer::Done;
            }
            Action::Amo(amo) | Action::Fetch { amo, .. } => {
                packet.kind = Kind::Amo;
                packet.op = amo.op as u8 | amo.size << 4;
                packet.words = [amo.operand, amo.compare, 0];
                if let Action::Fetch { tag, .. } = op.action {
                    packet.set_tag(tag);
                    packet.flags |= flag::FETCH;
                }
                return Transfer::Done;
            }
            Action::Get { .. } => unreachable!("gets have no place in a flow"),
        };
        let len = packet.len as usize;
        if let Some(spread) = op.spread {
            packet.set_spread(spread);
        } else if len <= INLINE_BYTES {
            // The last packet of a longer put.
            let mut bytes = [0; INLINE_BYTES];
            let read = memory.read(from, &mut bytes[..len]);
            debug_assert!(read.is_ok(), "only symmetric ranges can be refused");
            packet.words = super::packet::words_of(&bytes);
            return Transfer::Done;
        }
        let sent = self.load_payload(packet, side, Class::Request, from, memory);
        debug_assert!(sent.is_ok(), "only symmetric ranges can be refused");
        sent.unwrap_or_default()
    }

    /// Moves a payload of `packet.len` bytes to where that of the next packet of a ring belongs, and what
    /// belongs to it into the header.
    pub(super) fn load_payload<M: Memory>(
        &self,
        packet: &mut Packet,
        side: Side,
        class: Class,
        from: Span,
        memory: &mut M,
    ) -> Result<Transfer, OutOfRange> {
        let len = packet.len as usize;
        let body = body_bytes(len);
        let mut tail = [0; 8];
        memory.read(from.plus(body), &mut tail[..len - body])?;
        packet.flags |= flag::BULK;
        packet.words[2] = u64::from_le_bytes(tail);
        if self.config.crc {
            packet.words[0] = u64::from(memory.checksum(from, body));
        }
        self.send_body(side, class, from, len, memory)
    }

    /// Moves all but the tail of a payload of `len` bytes, and seals it.
    pub(super) fn send_body<M: Memory>(
        &self,
        side: Side,
        class: Class,
        from: Span,
        len: usize,
        memory: &mut M,
    ) -> Result<Transfer, OutOfRange> {
        let port = &self.ports[side as usize];
        memory.send(from, side, port.payload_offset(class), body_bytes(len), port.seal(class))
    }

    fn send_again<M: Memory>(&mut self, side: Side, row: usize, memory: &mut M) {
        let Some(repetition) = self.fetcher.take_again(row) else { return };
        self.stats.replayed += 1;
        match repetition {
            Repetition::Get(tag, request) => self.send_get(side, tag, &request, memory),
            Repetition::Recall(tag, request) => {
                let mut packet = self.blank(Kind::Recall, self.ops.at(request.op).host);
                packet.set_tag(tag);
                self.inject(side, &packet, memory);
            }
        }
    }

    fn send_ask<M: Memory>(&mut self, side: Side, id: usize, memory: &mut M) {
        let times = self.times();
        if let Some((tag, request)) = self.fetcher.take(side, id, &mut self.ops, times) {
            self.send_get(side, tag, &request, memory);
        }
    }

    fn send_get<M: Memory>(&mut self, side: Side, tag: u64, request: &Request, memory: &mut M) {
        let op = self.ops.at(request.op);
        let mut packet = self.blank(Kind::Get, op.host);
        packet.set_tag(tag);
        packet.pe = op.pe;
        packet.segment = op.remote.segment as u8;
        packet.offset =
            op.remote.offset as u64 + u64::from(request.packet) * u64::from(op.packet_bytes);
        packet.len = self.payload_len(op, request.packet) as u32;
        if let Some(spread) = op.spread {
            packet.set_spread(spread);
        }
        self.inject(side, &packet, memory);
    }
}
