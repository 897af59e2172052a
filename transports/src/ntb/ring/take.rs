// SPDX-License-Identifier: Apache-2.0
//! What comes in: relaying, delivery, and the handlers of each kind of packet.

use tombolo_core::transport::{Amo, AmoOp};

use super::config::FETCHES;
use super::engine::Engine;
use super::fair::SHORT_BYTES;
use super::flow::NONE;
use super::layout::body_bytes;
use super::memory::{Completion, Location, Memory, OutOfRange, Side, Span};
use super::ops::{Action, row_of};
use super::packet::{
    Class, INLINE_BYTES, Kind, LineWords, Malformed, Packet, Spread, flag, words_of,
};
use super::port::Found;
use super::receiver::Standing;
use super::topology::LinkState;

impl Engine {
    /// Takes packets of one inbound ring until it is empty, its head must wait, or the burst ends.
    pub(super) fn take<M: Memory>(&mut self, side: Side, class: Class, memory: &mut M) -> bool {
        let mut busy = false;
        let mut awaited = false;
        for _ in 0..self.config.burst {
            let taken = match self.ports[side as usize].peek(class, memory) {
                Found::Nothing => break,
                Found::Bad(Malformed::Corrupt) => {
                    self.stats.corrupt += 1;
                    self.ports[side as usize].health.bad();
                    true
                }
                Found::Bad(Malformed::Unsealed) => {
                    self.stats.unsealed += 1;
                    self.ports[side as usize].health.bad();
                    true
                }
                Found::Bad(_) => {
                    self.stats.malformed += 1;
                    true
                }
                // Acknowledgements that are waited for do not wait for copies of what comes behind,
                // but one is enough for all short packets that have arrived.
                Found::Packet(packet, _) if awaited && packet.len as usize > SHORT_BYTES => break,
                Found::Packet(packet, _) if packet.dst == self.me => {
                    awaited |= packet.has(flag::ACK_NOW);
                    self.deliver(side, &packet, memory)
                }
                Found::Packet(packet, line) => self.relay(side, class, &packet, &line, memory),
            };
            if !taken {
                break;
            }
            self.ports[side as usize].consume(class);
            self.ports[side as usize].health.good();
            busy = true;
        }
        busy
    }

    /// Owes an acknowledgement, on the way that leads to the source.
    pub(super) fn owe_ack(&mut self, id: usize, arrived: Side) {
        let side = self.topology.choose((id / 2) as u16).unwrap_or(arrived);
        self.receiver.owe(id, side);
    }

    /// Passes a packet on: one copy from the inbound slot to the outbound window. False: no room.
    fn relay<M: Memory>(
        &mut self,
        side: Side,
        class: Class,
        packet: &Packet,
        line: &LineWords,
        memory: &mut M,
    ) -> bool {
        let out = side.opposite();
        if packet.src == self.me || packet.kind == Kind::LinkState {
            // It has been all the way round, or link states would skip a host.
            self.stats.malformed += 1;
            return true;
        }
        if !self.ports[out as usize].is_up() {
            // Holding it would fill the ring behind it. Its source repeats it another way.
            self.stats.transit_dropped += 1;
            return true;
        }
        if !self.ports[out as usize].may_forward(class, &mut self.stats) {
            return false;
        }
        if packet.has(flag::BULK) {
            let from = Span::Inbound(side, self.ports[side as usize].inbound_offset(class));
            let sent = self.send_body(out, class, from, packet.len as usize, memory);
            debug_assert!(sent.is_ok(), "only symmetric ranges can be refused");
            let sent = sent.unwrap_or_default();
            self.ports[side as usize].hold(class, sent);
            self.ports[out as usize].note_passing(packet.dst, packet.len as usize, sent);
            self.stats.relayed_bytes += u64::from(packet.len);
        }
        self.stats.relayed += 1;
        self.ports[out as usize].post(class, *line, packet.src, memory, &mut self.stats);
        true
    }

    /// Handles a packet for this host. False: it must wait where it is.
    fn deliver<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        if packet.src == self.me && packet.kind != Kind::LinkState {
            self.stats.malformed += 1;
            return true;
        }
        let taken = match packet.kind {
            Kind::Put => self.take_put(side, packet, memory),
            Kind::Amo => return self.take_amo(side, packet, memory),
            Kind::Get => return self.take_get(side, packet, memory),
            Kind::Recall => return self.take_recall(side, packet, memory),
            Kind::GetReply => self.take_get_reply(side, packet, memory),
            Kind::AmoReply => self.take_amo_reply(packet, memory),
            Kind::Ack => self.take_ack(packet, memory),
            Kind::LinkState => self.take_link_state(side, packet),
        };
        if taken {
            self.stats.delivered += 1;
        }
        true
    }

    fn take_put<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        if !self.is_next(side, packet) {
            return false;
        }
        if packet.has(flag::REFUSED) {
            self.applied(side, packet);
            return true;
        }
        let len = packet.len as usize;
        let to = Span::Symmetric(Location {
            pe: packet.pe,
            segment: packet.segment,
            offset: packet.offset,
        });
        let written = if packet.has(flag::BULK) {
            let at = self.ports[side as usize].inbound_offset(Class::Request);
            let from = Span::Inbound(side, at);
            if !self.payload_is_sound(side, packet, from, memory) {
                self.report_gap(side, packet);
                return false;
            }
            match packet.spread() {
                Some(spread) => spread_out(packet, from, to, spread, memory),
                None => unload(packet, from, to, memory),
            }
        } else {
            memory.write(to, &packet.inline_bytes()[..len])
        };
        self.stats.delivered_bytes += u64::from(packet.len);
        match written {
            Ok(()) => self.applied(side, packet),
            Err(_) => self.refuse(side, packet),
        }
        true
    }

    fn take_amo<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        let fetch = packet.has(flag::FETCH);
        // Room for the result is secured first: once applied there is no way back.
        let reply = if fetch { self.reply_side(side, packet.src) } else { None };
        if let Some(out) = reply
            && !self.may_reply(out)
        {
            return false;
        }
        if !self.is_next(side, packet) {
            return true;
        }
        let row = row_of(packet.whole_tag());
        let Some(amo) = decode_amo(packet).filter(|_| !fetch || row < FETCHES) else {
            self.stats.malformed += 1;
            return true;
        };
        let place = Location { pe: packet.pe, segment: packet.segment, offset: packet.offset };
        let Ok(old) = memory.amo(place, &amo) else {
            self.refuse(side, packet);
            return true;
        };
        self.stats.delivered += 1;
        self.applied(side, packet);
        if fetch {
            self.receiver.keep_result(packet.src, row, packet.whole_tag(), old);
            if let Some(out) = reply {
                self.send_result(out, packet, old, memory);
            }
        }
        true
    }

    fn take_recall<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        let row = row_of(packet.whole_tag());
        if row >= FETCHES {
            self.stats.malformed += 1;
            return true;
        }
        let result = self.receiver.result(packet.src, row, packet.whole_tag());
        // No way back, or an old recall that was long answered: nothing to do.
        if let (Some(out), Some(old)) = (self.reply_side(side, packet.src), result) {
            if !self.may_reply(out) {
                return false;
            }
            self.send_result(out, packet, old, memory);
        }
        true
    }

    fn take_get<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        let Some(out) = self.reply_side(side, packet.src) else {
            return true;
        };
        if !self.may_reply(out) {
            return false;
        }
        let len = packet.len as usize;
        let mut reply = self.blank(Kind::GetReply, packet.src);
        reply.set_tag(packet.whole_tag());
        reply.len = packet.len;
        let from = Span::Symmetric(Location {
            pe: packet.pe,
            segment: packet.segment,
            offset: packet.offset,
        });
        let from = match packet.spread() {
            // Where data are fixed.
            Some(spread) => {
                gather(len, from, Span::Retained(self.config.kept_bytes()), spread, memory)
            }
            None => Ok(from),
        };
        let read = from.and_then(|from| {
            if len > INLINE_BYTES {
                return self.serve(from, out, &mut reply, memory);
            }
            let mut bytes = [0; INLINE_BYTES];
            memory.read(from, &mut bytes[..len])?;
            reply.words = words_of(&bytes);
            Ok(())
        });
        if read.is_err() {
            self.stats.refused += 1;
            reply.flags = flag::REFUSED;
            reply.len = 0;
        }
        self.stats.delivered += 1;
        self.inject(out, &reply, memory);
        true
    }

    /// Copies data asked for into the window. Other PEs may be writing to it meanwhile, so with
    /// CRC the bytes are fixed in the retained area first, or sum and data could differ.
    fn serve<M: Memory>(
        &mut self,
        from: Span,
        out: Side,
        reply: &mut Packet,
        memory: &mut M,
    ) -> Result<(), OutOfRange> {
        if !self.config.crc || matches!(from, Span::Retained(_)) {
            return self.load_payload(reply, out, Class::Reply, from, memory).map(|_| ());
        }
        let fixed = Span::Retained(self.config.kept_bytes());
        memory.copy(from, fixed, reply.len as usize)?;
        self.load_payload(reply, out, Class::Reply, fixed, memory).map(|_| ())
    }

    fn take_get_reply<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) -> bool {
        let Some(request) = self.fetcher.get(packet.whole_tag()) else {
            self.stats.duplicates += 1;
            return false;
        };
        let op = *self.ops.at(request.op);
        let Action::Get { dest } = op.action else { unreachable!("get tags name gets") };
        let refused = packet.has(flag::REFUSED);
        if op.host != packet.src
            || (!refused && packet.len as usize != self.payload_len(&op, request.packet))
        {
            self.stats.malformed += 1;
            return false;
        }
        let to = Span::Local(dest + u64::from(request.packet) * u64::from(op.packet_bytes));
        let len = packet.len as usize;
        let landed = if refused {
            Ok(())
        } else if packet.has(flag::BULK) {
            let at = self.ports[side as usize].inbound_offset(Class::Reply);
            let from = Span::Inbound(side, at);
            if !self.payload_is_sound(side, packet, from, memory) {
                // Asked again at once rather than at the deadline.
                self.fetcher.get_again(packet.whole_tag());
                return false;
            }
            unload(packet, from, to, memory)
        } else {
            memory.write(to, &packet.inline_bytes()[..len])
        };
        debug_assert!(landed.is_ok(), "only symmetric ranges can be refused");
        self.stats.delivered_bytes += u64::from(packet.len);
        self.fetcher.end_get(packet.whole_tag(), &request);
        let op = self.ops.at_mut(request.op);
        op.refused |= refused;
        op.remaining -= 1;
        if op.remaining == 0 {
            self.finish(request.op, Completion::Done, memory);
        }
        true
    }

    fn take_amo_reply<M: Memory>(&mut self, packet: &Packet, memory: &mut M) -> bool {
        let Some(request) = self.fetcher.amo(packet.whole_tag()) else {
            self.stats.duplicates += 1;
            return false;
        };
        let op = self.ops.at_mut(request.op);
        let Action::Fetch { amo, result, .. } = op.action else {
            unreachable!("fetch tags name fetching AMOs")
        };
        if op.host != packet.src {
            self.stats.malformed += 1;
            return false;
        }
        let bytes = packet.inline_bytes();
        let landed = memory.write(Span::Local(result), &bytes[..usize::from(amo.size)]);
        debug_assert!(landed.is_ok(), "only symmetric ranges can be refused");
        // The result is enough for the program; the row stays until the flow has moved on.
        if let Some(token) = op.token.take() {
            memory.complete(token, Completion::Done);
        }
        op.remaining -= 1;
        if op.remaining == 0 {
            self.finish(request.op, Completion::Done, memory);
        }
        self.fetcher.end_amo(packet.whole_tag());
        true
    }

    fn take_ack<M: Memory>(&mut self, packet: &Packet, memory: &mut M) -> bool {
        let id = flow_of(packet);
        let Some(advance) = self.sender.advance(id, packet.seq) else {
            self.stats.duplicates += 1;
            return false;
        };
        self.acknowledge(id, advance, memory);
        let fresh = self.sender.is_past_repetition(id);
        if packet.has(flag::REFUSED) {
            if let Some(refused) = self.sender.repeat(id) {
                let signal = self.ops.at(refused.op).signal;
                self.ops.at_mut(refused.op).refused = true;
                if signal != NONE {
                    // No signal without its data.
                    self.ops.at_mut(signal).refused = true;
                }
            }
        } else if packet.has(flag::GAP) && fresh {
            self.sender.repeat(id);
        }
        true
    }

    fn acknowledge<M: Memory>(&mut self, id: usize, count: u32, memory: &mut M) {
        for _ in 0..count {
            let entry = self.sender.pop_acknowledged(id);
            let op = self.ops.at_mut(entry.op);
            op.remaining -= 1;
            if let (Action::Fetch { tag, .. }, true) = (op.action, op.refused) {
                // There will be no result.
                op.remaining = 0;
                self.fetcher.end_amo(tag);
            }
            if self.ops.at(entry.op).remaining == 0 {
                self.finish(entry.op, Completion::Done, memory);
            }
        }
        if count > 0 {
            self.sender.note_progress(id, self.times());
        }
    }

    fn take_link_state(&mut self, side: Side, packet: &Packet) -> bool {
        let origin = packet.src;
        if origin == self.me {
            return false;
        }
        let state = LinkState::from_word(packet.seq, packet.words[0]);
        if let Some(changed) = self.topology.learn(origin, state) {
            self.losses.note_alive(origin, self.now);
            self.news[side.opposite() as usize].set(usize::from(origin), true);
            if changed != [false; 2] {
                self.repair(origin, changed);
            }
        }
        true
    }

    /// Whether a sequenced packet is the next of its flow. Reports a gap before it, or that it was
    /// applied already, where the source needs to know.
    fn is_next(&mut self, side: Side, packet: &Packet) -> bool {
        let id = flow_of(packet);
        match self.receiver.standing(id, packet.seq) {
            Standing::Next => return true,
            Standing::Early => {
                self.stats.out_of_order += 1;
                self.report_gap(side, packet);
            }
            Standing::Applied => {
                // The acknowledgement was lost, or the packet came both ways.
                self.stats.duplicates += 1;
                if packet.has(flag::ACK_NOW) {
                    self.owe_ack(id, side);
                }
            }
        }
        false
    }

    fn applied(&mut self, side: Side, packet: &Packet) {
        let id = flow_of(packet);
        if self.receiver.note_applied(id, packet.has(flag::ACK_NOW)) {
            self.owe_ack(id, side);
        }
    }

    fn report_gap(&mut self, side: Side, packet: &Packet) {
        let id = flow_of(packet);
        if self.receiver.note_gap(id, packet.has(flag::ACK_NOW)) {
            self.owe_ack(id, side);
        }
    }

    /// An address that is not there. Not applied: the source is told until it sends the same
    /// number again with nothing in it, so that the news cannot be lost.
    fn refuse(&mut self, side: Side, packet: &Packet) {
        self.stats.refused += 1;
        let id = flow_of(packet);
        self.receiver.note_refused(id);
        self.owe_ack(id, side);
    }

    fn payload_is_sound<M: Memory>(
        &mut self,
        side: Side,
        packet: &Packet,
        from: Span,
        memory: &mut M,
    ) -> bool {
        let sound = !self.config.crc
            || u64::from(memory.checksum(from, body_bytes(packet.len as usize))) == packet.words[0];
        if !sound {
            self.stats.corrupt += 1;
            self.ports[side as usize].health.bad();
        }
        sound
    }

    /// Replies go back the way the request came, or round the other way if that is broken.
    fn reply_side(&self, arrived: Side, to: u16) -> Option<Side> {
        [arrived, arrived.opposite()]
            .into_iter()
            .find(|&side| self.ports[side as usize].is_up() && self.topology.reaches(side, to))
    }

    fn may_reply(&mut self, out: Side) -> bool {
        let port = &mut self.ports[out as usize];
        let may = port.may_inject(Class::Reply);
        if !may {
            port.starve(Class::Reply, &mut self.stats);
        }
        may
    }

    fn send_result<M: Memory>(&mut self, out: Side, packet: &Packet, old: u64, memory: &mut M) {
        let mut reply = self.blank(Kind::AmoReply, packet.src);
        reply.set_tag(packet.whole_tag());
        reply.len = 8;
        reply.words[0] = old;
        self.inject(out, &reply, memory);
    }
}

/// Moves a payload to its destination. The tail goes first: if it lies in the segment, so does all.
fn unload<M: Memory>(
    packet: &Packet,
    from: Span,
    to: Span,
    memory: &mut M,
) -> Result<(), OutOfRange> {
    let len = packet.len as usize;
    let body = body_bytes(len);
    memory.write(to.plus(body), &packet.words[2].to_le_bytes()[..len - body])?;
    memory.copy(from, to, body)
}

/// Moves a payload to the blocks that it belongs to. The last one goes first: if it lies in the segment, so do all.
fn spread_out<M: Memory>(
    packet: &Packet,
    from: Span,
    to: Span,
    spread: Spread,
    memory: &mut M,
) -> Result<(), OutOfRange> {
    let (len, count) = (spread.block(), packet.len as usize / spread.block());
    let body = body_bytes(packet.len as usize);
    let tail = packet.words[2].to_le_bytes();
    let mut write = |number: usize| {
        let (start, to) = (number * len, block(to, number, spread));
        let in_body = body.saturating_sub(start).min(len);
        if in_body < len {
            let from = start + in_body - body;
            memory.write(to.plus(in_body), &tail[from..from + len - in_body])?;
        }
        if in_body == 0 { Ok(()) } else { memory.copy(from.plus(start), to, in_body) }
    };
    let Some(last) = count.checked_sub(1) else { return Ok(()) };
    write(last)?;
    (0..last).try_for_each(write)
}

/// Brings `len` bytes of blocks together, and says where they are then: from `to` on.
fn gather<M: Memory>(
    len: usize,
    from: Span,
    to: Span,
    spread: Spread,
    memory: &mut M,
) -> Result<Span, OutOfRange> {
    let mut all = 0..len / spread.block();
    all.try_for_each(|number| {
        memory.copy(block(from, number, spread), to.plus(number * spread.block()), spread.block())
    })?;
    Ok(to)
}

/// Where a block is, of those that begin at `first`.
fn block(first: Span, number: usize, spread: Spread) -> Span {
    // A packet has fewer than 2^16 of them, and its strides have 48 bits.
    first.plus((number as u64 * spread.stride()) as usize)
}

fn decode_amo(packet: &Packet) -> Option<Amo> {
    let op = AmoOp::from_bits(u64::from(packet.op & 0xf))?;
    let size = packet.op >> 4;
    let [operand, compare, _] = packet.words;
    matches!(size, 4 | 8).then_some(Amo { op, size, operand, compare })
}

/// Number of the flow that a packet belongs to at the end it has come to.
fn flow_of(packet: &Packet) -> usize {
    usize::from(packet.src) * 2 + packet.flow()
}
