// SPDX-License-Identifier: Apache-2.0
//! The sending end of a lane: which operations have packets to send, which packets await their
//! acknowledgement, and the copies of sources that are kept meanwhile.

use super::bits::Bits;
use super::config::Config;
use super::fair::{SHORT_BYTES, shared_acks, shared_packets};
use super::flow::{Entry, NONE, SendFlow};
use super::memory::{Memory, Side, Span};
use super::ops::{Action, Op, Ops, Retained, STREAM_SLOTS, stream_slot};

/// Bytes of ended operations after which an acknowledgement is asked for: the bandwidth-delay
/// product of a polled link.
const ACK_BYTES: usize = 16 << 10;
/// Most doublings of the time between repetitions.
pub(super) const BACKOFF_MAX: u32 = 5;

/// Flows are numbered: host * 2, plus 1 for the second flow of the host.
#[derive(Clone, Debug, Hash)]
pub(super) struct Sender {
    /// Packets of a flow that may await acknowledgement; a power of two.
    window: u32,
    chunk_bytes: usize,
    flows: Vec<SendFlow>,
    /// `window` of them for each flow, by sequence number.
    entries: Vec<Entry>,
    /// Flows with something to send, by direction.
    ready: [Bits; 2],
    /// Where the search for the next flow begins, by direction.
    cursor: [usize; 2],
    retained: Retained,
    /// Puts outstanding that go both ways or the second way, by host and stream.
    splits: Vec<u16>,
    /// By the same: fenced since the first flow was quiet.
    fenced: Vec<bool>,
}

/// A packet that goes out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub seq: u32,
    pub entry: Entry,
    /// It was sent before.
    pub repeated: bool,
}

/// Whether packets of a flow are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lateness {
    /// Not late, or now to be sent again.
    Bearable,
    /// Repeated often and for long, without an answer.
    Hopeless,
}

impl Sender {
    pub(super) fn new(config: &Config, hosts: u16) -> Sender {
        let flows = usize::from(hosts) * 2;
        let nothing = Entry { op: NONE, packet: 0, retained: NONE, last: false };
        Sender {
            window: config.window,
            chunk_bytes: config.geometry.chunk_bytes(),
            flows: vec![SendFlow::new(); flows],
            entries: vec![nothing; flows * config.window as usize],
            ready: [Bits::new(flows), Bits::new(flows)],
            cursor: [0; 2],
            retained: Retained::new(config.retained_chunks),
            splits: vec![0; usize::from(hosts) * STREAM_SLOTS],
            fenced: vec![false; usize::from(hosts) * STREAM_SLOTS],
        }
    }

    /// Number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether a flow waits to send in this direction.
    #[inline]
    pub(super) fn has_ready(&self, side: Side) -> bool {
        !self.ready[side as usize].is_empty()
    }

    /// Whether something is to be sent for which there is no way.
    pub(super) fn lacks_way(&self) -> bool {
        self.flows.iter().any(|flow| flow.side.is_none() && !flow.is_quiet())
    }

    /// Whether what `stream` sends to `host` from now on follows what it has sent there.
    pub(super) fn fence(&mut self, stream: u32, host: u16) -> bool {
        let at = split_index(host, stream);
        let ordered = self.splits[at] == 0;
        if ordered && !self.flows[usize::from(host) * 2].is_quiet() {
            // What is under way one way must not be overtaken by a part of what comes the other way.
            self.fenced[at] = true;
        }
        ordered
    }

    /// Whether a put may go both ways: not as long as something before the last fence is under way.
    pub(super) fn may_split(&mut self, stream: u32, host: u16) -> bool {
        let at = split_index(host, stream);
        if self.fenced[at] && self.flows[usize::from(host) * 2].is_quiet() {
            self.fenced[at] = false;
        }
        !self.fenced[at]
    }

    /// A put goes both ways, or the second way.
    pub(super) fn begin_split(&mut self, stream: u32, host: u16) {
        self.splits[split_index(host, stream)] += 1;
    }

    /// It has ended.
    pub(super) fn end_split(&mut self, stream: u32, host: u16) {
        self.splits[split_index(host, stream)] -= 1;
    }

    /// Packets of a flow that are still to be made or await their acknowledgement.
    pub(super) fn load(&self, id: usize) -> u64 {
        let flow = &self.flows[id];
        flow.queued + u64::from(flow.under_way())
    }

    /// Whether so many chunks can be kept now.
    #[inline]
    pub(super) fn has_room_to_keep(&self, chunks: usize) -> bool {
        self.retained.room() >= chunks
    }

    /// Copies a source into the retained area for packets of `packet_bytes` bytes; gives the list of its
    /// chunks, first one first.
    pub(super) fn keep<M: Memory>(
        &mut self,
        source: u64,
        len: usize,
        packet_bytes: usize,
        memory: &mut M,
    ) -> u32 {
        let mut list = NONE;
        for index in (0..len.div_ceil(packet_bytes)).rev() {
            list = self.retained.take(list);
            let from = Span::Local(source + (index * packet_bytes) as u64);
            let to = Span::Retained(list as usize * self.chunk_bytes);
            let copied = memory.copy(from, to, packet_bytes.min(len - index * packet_bytes));
            debug_assert!(copied.is_ok(), "only symmetric ranges can be refused");
        }
        list
    }

    /// Gives back a list of chunks that were not sent.
    pub(super) fn give_back(&mut self, list: u32) {
        let mut chunk = list;
        while chunk != NONE {
            let after = self.retained.after(chunk);
            self.retained.give_back(chunk);
            chunk = after;
        }
    }

    /// Queues `packets` packets of an operation behind those of its stream. A flow with nothing
    /// under way takes the direction that `side` gives: nothing can be overtaken.
    pub(super) fn enqueue(
        &mut self,
        id: usize,
        (op, packets): (u32, u32),
        ops: &mut Ops,
        (now, replay_ns): (u64, u64),
        side: impl FnOnce() -> Option<Side>,
    ) {
        let flow = &mut self.flows[id];
        if flow.is_quiet() {
            flow.side = side();
            flow.deadline = now + replay_ns;
            flow.repeats = 0;
            flow.progress_at = now;
        }
        flow.round.push(ops, id % 2, op);
        self.refresh(id);
        self.flows[id].queued += u64::from(packets);
    }

    /// The next flow that may send in this direction. `limit` is how many bytes a flow may have under
    /// way while streams share it: long packets wait until few are, and short ones pass them.
    pub(super) fn next(
        &mut self,
        side: Side,
        ops: &mut Ops,
        limit: impl Fn(usize) -> Option<usize>,
    ) -> Option<usize> {
        let Sender { ready, flows, cursor, .. } = self;
        ready[side as usize].find_from(cursor[side as usize], |id| {
            let Some(limit) = limit(id) else { return true };
            let flow = &mut flows[id];
            if flow.sent != flow.next {
                return true;
            }
            let under_way = flow.under_way();
            let may = |ops: &Ops, op: u32| is_within(ops.at(op), id % 2, under_way, limit);
            flow.round.turn_to(ops, id % 2, may).is_some()
        })
    }

    /// The next packet of a flow that [`Sender::next`] has given.
    #[inline]
    pub(super) fn take(&mut self, side: Side, id: usize, ops: &mut Ops) -> Outgoing {
        self.cursor[side as usize] = (id + 1) % self.flows.len();
        let flow = &self.flows[id];
        let seq = flow.sent;
        let repeated = seq != flow.next;
        let entry = if repeated { *self.entry(id, seq) } else { self.make_entry(id, ops) };
        Outgoing { seq, entry, repeated }
    }

    /// The packet goes out now. Says whether it shall ask for an acknowledgement.
    #[inline]
    pub(super) fn note_sent(
        &mut self,
        id: usize,
        out: &Outgoing,
        op: &Op,
        limit: Option<usize>,
        (now, replay_ns): (u64, u64),
    ) -> bool {
        let flow = &mut self.flows[id];
        if flow.is_acknowledged() {
            flow.deadline = now + replay_ns.max(4 * flow.round_trip_ns);
        }
        flow.sent = out.seq.wrapping_add(1);
        if !out.repeated {
            flow.next = flow.sent;
            if flow.timed.is_none() {
                flow.timed = Some((out.seq, now));
            }
        }
        let asks = self.wants_ack(id, out, op, limit);
        if asks {
            self.flows[id].asked = out.seq.wrapping_add(1);
        }
        self.refresh(id);
        asks
    }

    /// How many more packets an acknowledgement of all below `seq` tells of; none if it is older
    /// than what is known, or of packets that were never sent.
    #[inline]
    pub(super) fn advance(&self, id: usize, seq: u32) -> Option<u32> {
        let flow = &self.flows[id];
        let advance = seq.wrapping_sub(flow.una);
        (advance <= flow.under_way()).then_some(advance)
    }

    /// Ends the wait for the oldest packet of a flow; gives what it was of.
    #[inline]
    pub(super) fn pop_acknowledged(&mut self, id: usize) -> Entry {
        let una = self.flows[id].una;
        let entry = *self.entry(id, una);
        self.flows[id].una = una.wrapping_add(1);
        if entry.retained != NONE {
            self.retained.give_back(entry.retained);
        }
        entry
    }

    /// Packets of a flow were acknowledged.
    #[inline]
    pub(super) fn note_progress(&mut self, id: usize, (now, replay_ns): (u64, u64)) {
        let flow = &mut self.flows[id];
        let una = flow.una;
        flow.sample(una, now);
        flow.repeats = 0;
        flow.progress_at = now;
        flow.deadline = now + replay_ns.max(4 * flow.round_trip_ns);
        if flow.sent.wrapping_sub(una) as i32 <= 0 {
            flow.sent = una;
        }
        self.refresh(id);
    }

    /// Whether an acknowledgement tells of packets after the last repetition began: a report of a gap
    /// before is answered by that repetition already.
    #[inline]
    pub(super) fn is_past_repetition(&mut self, id: usize) -> bool {
        let flow = &mut self.flows[id];
        let past = flow.una.wrapping_sub(flow.recover) as i32 >= 0;
        if past {
            flow.recover = flow.una;
        }
        past
    }

    /// Sends again what is not acknowledged; gives the first of it, none if nothing is on its way.
    pub(super) fn repeat(&mut self, id: usize) -> Option<Entry> {
        let flow = &mut self.flows[id];
        let una = flow.una;
        if una == flow.sent {
            return None;
        }
        flow.rewind();
        self.refresh(id);
        Some(*self.entry(id, una))
    }

    /// Looks at the time for which packets of a flow have not been acknowledged, and sends them again
    /// when it is too long.
    pub(super) fn repeat_late(&mut self, id: usize, now: u64, config: &Config) -> Lateness {
        let flow = &mut self.flows[id];
        if flow.is_acknowledged() || now < flow.deadline {
            return Lateness::Bearable;
        }
        let base = config.replay_ns;
        if flow.side.is_none() || flow.sent == flow.una {
            // No way, or no room so far: nothing is on the wire that could have been lost.
            flow.deadline = now + base;
            return Lateness::Bearable;
        }
        flow.repeats += 1;
        flow.deadline = now + (base.max(4 * flow.round_trip_ns) << flow.repeats.min(BACKOFF_MAX));
        let waited = now.saturating_sub(flow.progress_at);
        if flow.repeats > config.replays_max && waited >= config.silence_ns {
            return Lateness::Hopeless;
        }
        flow.rewind();
        self.refresh(id);
        Lateness::Bearable
    }

    /// Whether nothing of a flow awaits anything.
    pub(super) fn is_quiet(&self, id: usize) -> bool {
        self.flows[id].is_quiet()
    }

    /// The direction of a flow; none while there is no way.
    pub(super) fn side(&self, id: usize) -> Option<Side> {
        self.flows[id].side
    }

    /// Sends a flow another way, from the first packet that is not acknowledged. Says whether the way
    /// is another one.
    pub(super) fn reroute(&mut self, id: usize, side: Option<Side>, deadline: u64) -> bool {
        let flow = &mut self.flows[id];
        let changed = flow.side != side;
        flow.side = side;
        flow.deadline = deadline;
        flow.rewind();
        self.refresh(id);
        changed
    }

    /// Forgets all that a flow has to send or has sent.
    pub(super) fn forget(&mut self, id: usize) {
        while !self.flows[id].is_acknowledged() {
            self.pop_acknowledged(id);
        }
        self.flows[id].forget();
        self.refresh(id);
    }

    /// Updates whether a flow is among those that can send.
    #[inline]
    fn refresh(&mut self, id: usize) {
        let flow = &self.flows[id];
        let work = flow.has_work(self.window);
        for side in Side::BOTH {
            self.ready[side as usize].set(id, work && flow.side == Some(side));
        }
    }

    #[inline]
    fn entry(&mut self, id: usize, seq: u32) -> &mut Entry {
        let at = (seq & (self.window - 1)) as usize;
        &mut self.entries[id * self.window as usize + at]
    }

    #[inline]
    fn make_entry(&mut self, id: usize, ops: &mut Ops) -> Entry {
        let flow = &mut self.flows[id];
        let index = flow.round.front().expect("a flow that is ready has a packet");
        let op = ops.at_mut(index);
        let (packet, end) = op.todo[id % 2];
        op.todo[id % 2].0 += 1;
        let mut retained = NONE;
        if let Action::PutRetained { chunks } = &mut op.action {
            retained = *chunks;
            *chunks = self.retained.after(retained);
        }
        let last = flow.round.end_turn(ops, id % 2, packet + 1 == end);
        flow.queued -= 1;
        let next = flow.next;
        let entry = Entry { op: index, packet, retained, last };
        *self.entry(id, next) = entry;
        entry
    }

    /// Acknowledgements are asked for where someone may wait for them: at the end of what a stream
    /// has queued, at the end of a long put, and so often that what is outstanding never runs dry:
    ///
    /// - When half of it has gone unasked. Asking at the end alone would make a program with a
    ///   few operations outstanding stop and wait for each lot of them.
    /// - When ended operations hold [`ACK_BYTES`]: then the thread ends old and takes new ones in
    ///   small lots, while its window still has something to send.
    /// - Every quarter of the window, or of what may be under way at present, to keep that moving.
    #[inline]
    fn wants_ack(&self, id: usize, out: &Outgoing, op: &Op, limit: Option<usize>) -> bool {
        let Outgoing { seq, entry, .. } = out;
        let flow = &self.flows[id];
        let last_queued = entry.last || (flow.sent == flow.next && flow.round.is_empty());
        let ends = entry.packet + 1 == op.todo[id % 2].1;
        let unasked = seq.wrapping_add(1).wrapping_sub(flow.asked);
        let enough = unasked as usize * op.len >= ACK_BYTES;
        let owed = flow.queued + u64::from(flow.under_way());
        let often = match limit {
            Some(limit) => shared_acks(limit, op.packet_bytes as usize).min(self.window / 4),
            None => self.window / 4,
        };
        let due = (owed / 2).min(u64::from(often));
        last_queued
            || (ends && (op.len > op.packet_bytes as usize || enough))
            || u64::from(unasked) >= due
    }
}

/// Whether the next packet of an operation may go with so many packets under way: a short one, or
/// not more than `limit` bytes of them.
pub(super) fn is_within(op: &Op, which: usize, under_way: u32, limit: usize) -> bool {
    let packet_bytes = op.packet_bytes as usize;
    let left = op.len.saturating_sub(op.todo[which].0 as usize * packet_bytes);
    left <= SHORT_BYTES || under_way < shared_packets(limit, packet_bytes)
}

fn split_index(host: u16, stream: u32) -> usize {
    usize::from(host) * STREAM_SLOTS + stream_slot(stream)
}
