//! What goes out: control, repetitions, new packets of flows, get requests.

use super::bits::Bits;
use super::config::FETCHES;
use super::engine::Engine;
use super::fair::{SHORT_BYTES, shared_packets};
use super::flow::{Entry, NONE};
use super::memory::{Memory, OutOfRange, Side, Span};
use super::ops::{Action, Op, Ops, Request};
use super::packet::{Class, INLINE_BYTES, Kind, Packet, flag};

/// Bytes of ended operations after which an acknowledgement is asked for: the bandwidth-delay
/// product of a polled link.
const ACK_BYTES: usize = 16 << 10;

impl Engine {
    /// Link states first (they open ways), then acknowledgements.
    pub(super) fn send_control<M: Memory>(&mut self, side: Side, memory: &mut M) -> bool {
        let at = side as usize;
        let mut busy = false;
        for _ in 0..self.config.burst {
            if self.news[at].is_empty() && self.acks[at].is_empty() {
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
            } else if let Some(id) = self.acks[at].next_from(self.cursor[at]) {
                self.acks[at].set(id, false);
                self.send_ack(side, id, memory);
            }
        }
        busy
    }

    /// One packet after the other while the bubble rule allows, flows and gets in turn.
    pub(super) fn send_requests<M: Memory>(&mut self, side: Side, memory: &mut M) -> bool {
        let at = side as usize;
        let mut busy = false;
        for _ in 0..self.config.burst {
            let again = self.next_again(side);
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
            self.turn[at] = !self.turn[at];
            let long = match (again, flow, ask) {
                (Some(row), ..) => {
                    self.send_again(side, row, memory);
                    false
                }
                (None, Some(id), ask) if self.turn[at] || ask.is_none() => {
                    self.cursor[at] = (id + 1) % self.flows.len();
                    self.send_flow(side, id, memory)
                }
                (None, _, Some(id)) => {
                    self.ask_cursor[at] = (id + 1) % self.flows.len();
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

    /// The next flow that may send in this direction. While streams share it, long packets wait
    /// until few are under way, and short ones pass them.
    fn next_flow(&mut self, side: Side) -> Option<usize> {
        self.next_of(side, self.cursor[side as usize], |engine| &engine.ready, Engine::may_send)
    }

    /// The next queue of gets that may ask in this direction, in the same manner.
    fn next_ask(&mut self, side: Side) -> Option<usize> {
        if !self.gets.has_room() {
            return None;
        }
        self.next_of(side, self.ask_cursor[side as usize], |engine| &engine.asking, Engine::may_ask)
    }

    fn next_of(
        &mut self,
        side: Side,
        cursor: usize,
        set: impl Fn(&Engine) -> &[Bits; 2],
        may: impl Fn(&mut Engine, usize) -> bool,
    ) -> Option<usize> {
        let first = set(self)[side as usize].next_from(cursor)?;
        let mut id = first;
        loop {
            if may(self, id) {
                return Some(id);
            }
            id = set(self)[side as usize].next_from(id + 1)?;
            if id == first {
                return None;
            }
        }
    }

    fn may_send(&mut self, id: usize) -> bool {
        let flow = &self.flows[id];
        let Some(limit) = self.shared_limit((id / 2) as u16) else { return true };
        if flow.sent != flow.next {
            return true;
        }
        let may = |ops: &Ops, op: u32| is_within(ops.at(op), id % 2, flow.under_way(), limit);
        let mut round = flow.round;
        let found = round.turn_to(&mut self.ops, id % 2, may);
        self.flows[id].round = round;
        found.is_some()
    }

    fn may_ask(&mut self, id: usize) -> bool {
        let Some(limit) = self.shared_limit((id / 2) as u16) else { return true };
        let under_way = self.asks[id].under_way;
        let may = |ops: &Ops, op: u32| is_within(ops.at(op), id % 2, under_way, limit);
        self.asks[id].round.turn_to(&mut self.ops, id % 2, may).is_some()
    }

    /// Sends a reply if the rules allow; the caller has checked that they do.
    pub(super) fn inject<M: Memory>(&mut self, side: Side, packet: &Packet, memory: &mut M) {
        let carried = if packet.has(flag::BULK) { packet.len } else { 0 };
        self.stats.injected += 1;
        self.stats.injected_bytes += u64::from(carried);
        let line = packet.encode(self.config.crc);
        let class = packet.kind.class();
        self.ports[side as usize].post(class, line, true, memory, &mut self.stats);
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

    /// The length of a chunk of an operation.
    pub(super) fn chunk_len(&self, op: &Op, chunk: u32) -> usize {
        let size = op.piece as usize;
        size.min(op.len - chunk as usize * size)
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
        let flow = &mut self.inflows[id];
        flow.unreported = 0;
        packet.seq = flow.expected;
        if id % 2 == 1 {
            packet.flags |= flag::SECOND_FLOW;
        }
        if flow.gap {
            flow.gap = false;
            packet.flags |= flag::GAP;
        }
        if flow.refused {
            flow.refused = false;
            packet.flags |= flag::REFUSED;
        }
        self.stats.acks += 1;
        self.inject(side, &packet, memory);
    }

    /// Sends the next packet of a flow; says whether it is a long one.
    fn send_flow<M: Memory>(&mut self, side: Side, id: usize, memory: &mut M) -> bool {
        let flow = &self.flows[id];
        let seq = flow.sent;
        let repeated = seq != flow.next;
        let entry = if repeated { *self.entry(id, seq) } else { self.make_entry(id) };
        let op = *self.ops.at(entry.op);
        let mut packet = self.blank(Kind::Put, op.host);
        packet.seq = seq;
        packet.pe = op.pe;
        packet.segment = op.remote.segment as u8;
        if id % 2 == 1 {
            packet.flags |= flag::SECOND_FLOW;
        }
        self.fill(&mut packet, side, &op, &entry, memory);
        let flow = &mut self.flows[id];
        if flow.is_acknowledged() {
            flow.deadline = self.now + self.config.replay_ns.max(4 * flow.round_trip_ns);
        }
        flow.sent = seq.wrapping_add(1);
        if repeated {
            self.stats.replayed += 1;
        } else {
            flow.next = flow.sent;
            if flow.timed.is_none() {
                flow.timed = Some((seq, self.now));
            }
        }
        if self.wants_ack(id, seq, &op, &entry) {
            packet.flags |= flag::ACK_NOW;
            self.flows[id].asked = seq.wrapping_add(1);
        }
        self.inject(side, &packet, memory);
        self.refresh(id);
        packet.len as usize > SHORT_BYTES
    }

    /// Data or operands of an operation's packet; payload goes straight to the window.
    fn fill<M: Memory>(
        &mut self,
        packet: &mut Packet,
        side: Side,
        op: &Op,
        entry: &Entry,
        memory: &mut M,
    ) {
        if op.refused {
            packet.flags |= flag::REFUSED;
            return;
        }
        let size = self.chunk_bytes();
        let at = entry.chunk as usize * op.piece as usize;
        packet.offset = (op.remote.offset + at) as u64;
        packet.len = self.chunk_len(op, entry.chunk) as u32;
        let from = match op.action {
            Action::Put { source } => Span::Local(source + at as u64),
            Action::PutRetained { .. } => Span::Retained(entry.retained as usize * size),
            Action::PutInline { words } => {
                packet.words = words;
                return;
            }
            Action::Amo(amo) | Action::Fetch { amo, .. } => {
                packet.kind = Kind::Amo;
                packet.op = amo.op as u8 | amo.size << 4;
                packet.words = [amo.operand, amo.compare, 0];
                if let Action::Fetch { tag, .. } = op.action {
                    packet.tag = tag;
                    packet.flags |= flag::FETCH;
                }
                return;
            }
            Action::Get { .. } => unreachable!("gets have no place in a flow"),
        };
        let len = packet.len as usize;
        if len <= INLINE_BYTES {
            // The last piece of a longer put.
            let mut bytes = [0; INLINE_BYTES];
            let read = memory.read(from, &mut bytes[..len]);
            debug_assert!(read.is_ok(), "only symmetric ranges can be refused");
            packet.words = super::packet::words_of(&bytes);
            return;
        }
        packet.flags |= flag::BULK;
        if self.config.crc {
            packet.words[0] = u64::from(memory.checksum(from, len));
        }
        let sent = self.send_payload(side, Class::Request, from, len, memory);
        debug_assert!(sent.is_ok(), "only symmetric ranges can be refused");
    }

    /// Moves the payload of the next packet of a ring to where it belongs.
    pub(super) fn send_payload<M: Memory>(
        &mut self,
        side: Side,
        class: Class,
        from: Span,
        len: usize,
        memory: &mut M,
    ) -> Result<(), OutOfRange> {
        let port = &self.ports[side as usize];
        memory.send(from, side, port.payload_offset(class), len, port.seal(class))
    }

    /// Acknowledgements are asked for where someone may wait for them: at the end of what a stream
    /// has queued, at the end of a long put, and so often that what is outstanding never runs dry:
    ///
    /// - When half of it has gone unasked. Asking at the end alone would make a program with a
    ///   few operations outstanding stop and wait for each lot of them.
    /// - When ended operations hold [`ACK_BYTES`]: then the thread ends old and takes new ones in
    ///   small lots, while its window still has something to send.
    /// - Every quarter of the window, or of what may be under way at present, to keep that moving.
    fn wants_ack(&self, id: usize, seq: u32, op: &Op, entry: &Entry) -> bool {
        let flow = &self.flows[id];
        let last_queued = entry.last || (flow.sent == flow.next && flow.round.is_empty());
        let ends = entry.chunk + 1 == op.todo[id % 2].1;
        let unasked = seq.wrapping_add(1).wrapping_sub(flow.asked);
        let enough = unasked as usize * op.len >= ACK_BYTES;
        let owed = flow.queued + u64::from(flow.next.wrapping_sub(flow.una));
        let often = match self.shared_limit(op.host) {
            Some(limit) => {
                shared_packets(limit, op.piece as usize).div_ceil(2).min(self.config.window / 4)
            }
            None => self.config.window / 4,
        };
        let due = (owed / 2).min(u64::from(often));
        last_queued || (ends && (op.len > op.piece as usize || enough)) || u64::from(unasked) >= due
    }

    pub(super) fn entry(&mut self, id: usize, seq: u32) -> &mut Entry {
        let window = self.config.window;
        &mut self.entries[id * window as usize + (seq & (window - 1)) as usize]
    }

    fn make_entry(&mut self, id: usize) -> Entry {
        let flow = &mut self.flows[id];
        let index = flow.round.front().expect("a flow that is ready has a packet");
        let op = self.ops.at_mut(index);
        let (chunk, end) = op.todo[id % 2];
        op.todo[id % 2].0 += 1;
        let mut retained = NONE;
        if let Action::PutRetained { chunks } = &mut op.action {
            retained = *chunks;
            *chunks = self.retained.after(retained);
        }
        let last = flow.round.end_turn(&mut self.ops, id % 2, chunk + 1 == end);
        flow.queued -= 1;
        let next = flow.next;
        let entry = Entry { op: index, chunk, retained, last };
        *self.entry(id, next) = entry;
        entry
    }

    /// A get request or recall to be repeated in this direction.
    fn next_again(&self, side: Side) -> Option<usize> {
        if self.again.is_empty() {
            return None;
        }
        self.again.iter().find(|&row| {
            // Not outstanding any more: `send_again` drops the mark, on whichever side.
            self.request(row).is_none_or(|(_, request)| request.side == side)
        })
    }

    pub(super) fn request(&self, row: usize) -> Option<(u32, Request)> {
        let gets = self.gets.len();
        if row < gets { self.gets.row(row) } else { self.fetches.row(row - gets) }
    }

    fn send_again<M: Memory>(&mut self, side: Side, row: usize, memory: &mut M) {
        self.again.set(row, false);
        let Some((tag, request)) = self.request(row) else { return };
        self.stats.replayed += 1;
        if row < self.gets.len() {
            self.send_get(side, tag, &request, memory);
        } else {
            debug_assert!(row < self.gets.len() + FETCHES);
            let mut packet = self.blank(Kind::Recall, self.ops.at(request.op).host);
            packet.tag = tag;
            self.inject(side, &packet, memory);
        }
    }

    fn send_ask<M: Memory>(&mut self, side: Side, id: usize, memory: &mut M) {
        let asks = &mut self.asks[id];
        let Some(op) = asks.round.front() else { return };
        let (chunk, end) = self.ops.at(op).todo[id % 2];
        self.ops.at_mut(op).todo[id % 2].0 += 1;
        asks.round.end_turn(&mut self.ops, id % 2, chunk + 1 == end);
        asks.under_way += 1;
        self.refresh_asks(id);
        let deadline = self.now + self.config.replay_ns;
        let request =
            Request { op, chunk, queue: id as u32, side, since: self.now, deadline, repeats: 0 };
        let tag = self.gets.insert(request);
        self.send_get(side, tag, &request, memory);
    }

    fn send_get<M: Memory>(&mut self, side: Side, tag: u32, request: &Request, memory: &mut M) {
        let op = *self.ops.at(request.op);
        let mut packet = self.blank(Kind::Get, op.host);
        packet.tag = tag;
        packet.pe = op.pe;
        packet.segment = op.remote.segment as u8;
        packet.offset = op.remote.offset as u64 + u64::from(request.chunk) * u64::from(op.piece);
        packet.len = self.chunk_len(&op, request.chunk) as u32;
        self.inject(side, &packet, memory);
    }
}

/// Whether the next packet of an operation may go with so many packets under way: a short one, or
/// not more than `limit` bytes of them.
fn is_within(op: &Op, which: usize, under_way: u32, limit: usize) -> bool {
    let piece = op.piece as usize;
    let left = op.len.saturating_sub(op.todo[which].0 as usize * piece);
    left <= SHORT_BYTES || under_way < shared_packets(limit, piece)
}
