// SPDX-License-Identifier: Apache-2.0
//! How operations are handed to an engine.

use super::choose::packet_bytes;
use super::engine::Engine;
use super::fair::{QUICK_BYTES, shared_packet_bytes};
use super::flow::NONE;
use super::memory::{Memory, Side, Span};
use super::ops::{Action, Op};
use super::packet::{INLINE_BYTES, Spread, words_of};
use super::request::{AmoRequest, GetRequest, PutRequest, Target};
use tombolo_core::transport::Status;

/// Packets of an operation that is one packet of the first flow.
const ONCE: [(u32, u32); 2] = [(0, 1), (0, 0)];
/// The same of the second flow.
const SECOND_ONCE: [(u32, u32); 2] = [(0, 0), (0, 1)];
/// Shorter puts are not worth a second way, unless they fill a slot: a fence has to wait for what goes
/// that way.
const BALANCED_BYTES_MIN: usize = 2 << 10;

impl Engine {
    /// Copies local memory to another host.
    ///
    /// - `Pending`: accepted; `complete` follows. `Complete`: nothing to do. `Again`: a table is
    ///   full, poll first. `Failed`: the host is lost.
    /// - With `retain` the source may be reused on return. A put longer than the retained area
    ///   holds is never accepted with it: see [`retain_bytes_max`](Self::retain_bytes_max).
    pub fn put<M: Memory>(&mut self, put: &PutRequest, memory: &mut M) -> Status {
        self.put_data(put, None, memory)
    }

    /// As [`put`](Self::put), of data that are spread over blocks from the target on: no more than a packet
    /// holds, kept, and without a signal.
    pub fn put_blocks<M: Memory>(
        &mut self,
        put: &PutRequest,
        spread: Spread,
        memory: &mut M,
    ) -> Status {
        debug_assert!(put.retain && put.signal.is_none() && put.len <= self.chunk_bytes());
        self.put_data(put, Some(spread), memory)
    }

    #[inline]
    fn put_data<M: Memory>(
        &mut self,
        put: &PutRequest,
        spread: Option<Spread>,
        memory: &mut M,
    ) -> Status {
        let PutRequest { target, len, .. } = *put;
        if self.losses.is_lost(target.host) {
            return Status::Failed;
        }
        if len == 0 && put.signal.is_none() {
            return Status::Complete;
        }
        let packet_bytes = match spread {
            Some(_) => self.chunk_bytes(),
            None => self.packet_bytes(target.host, len, self.config.handling_bytes),
        };
        let packets = len.div_ceil(packet_bytes);
        // The form of blocks is told where short data would be.
        let is_inline = len <= INLINE_BYTES && spread.is_none();
        let keep = put.retain && !is_inline;
        self.note_stream(put.stream, len);
        if !self.ops.has_room(put.stream, 2) || (keep && !self.sender.has_room_to_keep(packets)) {
            return Status::Again;
        }
        let mut data = NONE;
        if len > 0 {
            let action = if is_inline {
                Action::PutInline { words: read_inline(put.source, len, memory) }
            } else if keep {
                Action::PutRetained {
                    chunks: self.sender.keep(put.source, len, packet_bytes, memory),
                }
            } else {
                Action::Put { source: put.source }
            };
            let token = if put.signal.is_none() { Some(put.token) } else { None };
            data = self.submit_put(put, action, token, packet_bytes);
            self.ops.at_mut(data).spread = spread;
        }
        if let Some(signal) = put.signal {
            // Behind the data in the same flow: applied after it, and completes after it.
            let second = data != NONE && self.ops.at(data).split.is_some();
            let flow = if second { SECOND_ONCE } else { ONCE };
            let target = Target { remote: signal.word, ..target };
            let action = Action::Amo(signal.amo());
            let signal = self.submit(Some(put.token), put.stream, action, target, 8, flow);
            if data != NONE {
                self.ops.at_mut(data).signal = signal;
            }
            if second {
                self.note_split(signal);
            }
        }
        Status::Pending
    }

    /// Copies memory of another host here. Results as for [`put`](Self::put).
    pub fn get(&mut self, get: &GetRequest) -> Status {
        self.get_data(get, None)
    }

    /// As [`get`](Self::get), of data that are gathered from blocks from the target on: no more than a packet holds.
    pub fn get_blocks(&mut self, get: &GetRequest, spread: Spread) -> Status {
        debug_assert!(get.len <= self.chunk_bytes());
        self.get_data(get, Some(spread))
    }

    #[inline]
    fn get_data(&mut self, get: &GetRequest, spread: Option<Spread>) -> Status {
        let GetRequest { target, len, .. } = *get;
        if self.losses.is_lost(target.host) {
            return Status::Failed;
        }
        if len == 0 {
            return Status::Complete;
        }
        self.note_stream(get.stream, len);
        if !self.ops.has_room(get.stream, 1) {
            return Status::Again;
        }
        // Each packet of it is asked for by a short one.
        let packet_bytes = match spread {
            Some(_) => self.chunk_bytes(),
            None => self.packet_bytes(target.host, len, self.config.handling_bytes * 3 / 2),
        };
        let packets = len.div_ceil(packet_bytes) as u32;
        let action = Action::Get { dest: get.dest };
        let mut op = self.op(Some(get.token), get.stream, action, target, len);
        let other = self.second_share(target.host, len, packets);
        op.packet_bytes = packet_bytes as u32;
        op.spread = spread;
        op.remaining = packets;
        op.todo = [(0, packets - other), (packets - other, packets)];
        let op = self.insert(op);
        for share in 0..if other > 0 { 2 } else { 1 } {
            let id = usize::from(target.host) * 2 + share;
            let Engine { fetcher, ops, topology, .. } = self;
            fetcher.enqueue(id, op, ops, || topology.side_of_flow(id));
        }
        Status::Pending
    }

    /// Changes a variable at another host atomically. Results as for [`put`](Self::put).
    pub fn amo(&mut self, request: &AmoRequest) -> Status {
        let AmoRequest { token, stream, target, amo, result } = *request;
        if self.losses.is_lost(target.host) {
            return Status::Failed;
        }
        self.note_stream(stream, usize::from(amo.size));
        if !self.ops.has_room(stream, 1) || (result.is_some() && !self.fetcher.has_room_for_amo()) {
            return Status::Again;
        }
        let len = usize::from(amo.size);
        let Some(result) = result else {
            self.submit(Some(token), stream, Action::Amo(amo), target, len, ONCE);
            return Status::Pending;
        };
        let tag = self.fetcher.await_amo(self.times());
        let action = Action::Fetch { amo, result, tag };
        let op = self.submit(Some(token), stream, action, target, len, ONCE);
        self.fetcher.name_amo(tag, op);
        // Answered twice: by the acknowledgement, which allows to forget it, and by the result.
        self.ops.at_mut(op).remaining = 2;
        Status::Pending
    }

    #[inline]
    fn note_stream(&mut self, stream: u32, len: usize) {
        if len <= QUICK_BYTES && self.ops.has_long_of_others(stream) {
            self.sharing.begin(self.now + self.config.share_ns);
        }
    }

    fn submit_put(
        &mut self,
        put: &PutRequest,
        action: Action,
        token: Option<u64>,
        packet_bytes: usize,
    ) -> u32 {
        let packets = put.len.div_ceil(packet_bytes) as u32;
        let host = put.target.host;
        let either_way = matches!(action, Action::Put { .. } | Action::PutRetained { .. })
            && self.sender.may_split(put.stream, host);
        let other = match (either_way, action) {
            (false, _) => 0,
            (true, _) if self.is_second_way_freer(host, put.len) => packets,
            // A signal follows in one flow.
            (true, Action::Put { .. }) if put.signal.is_none() => {
                self.second_share(host, put.len, packets)
            }
            (true, _) => 0,
        };
        let todo = [(0, packets - other), (packets - other, packets)];
        let op = self.submit(token, put.stream, action, put.target, put.len, todo);
        self.ops.at_mut(op).packet_bytes = packet_bytes as u32;
        if other > 0 {
            self.note_split(op);
        }
        op
    }

    /// An operation goes both ways, or the second way.
    fn note_split(&mut self, op: u32) {
        let op = self.ops.at_mut(op);
        op.split = Some(op.stream);
        self.sender.begin_split(op.stream, op.host);
    }

    fn submit(
        &mut self,
        token: Option<u64>,
        stream: u32,
        action: Action,
        target: Target,
        len: usize,
        todo: [(u32, u32); 2],
    ) -> u32 {
        let mut op = self.op(token, stream, action, target, len);
        op.todo = todo;
        op.remaining = todo[0].1 - todo[0].0 + todo[1].1 - todo[1].0;
        let op = self.insert(op);
        for (which, (from, to)) in todo.into_iter().enumerate() {
            if from < to {
                let id = usize::from(target.host) * 2 + which;
                let times = self.times();
                let Engine { sender, ops, topology, .. } = self;
                sender.enqueue(id, (op, to - from), ops, times, || topology.side_of_flow(id));
            }
        }
        op
    }

    fn insert(&mut self, op: Op) -> u32 {
        self.handed_in = true;
        self.ops.insert(op)
    }

    fn op(
        &self,
        token: Option<u64>,
        stream: u32,
        action: Action,
        target: Target,
        len: usize,
    ) -> Op {
        debug_assert!(target.host != self.me && target.host < self.hosts);
        Op {
            token,
            stream,
            action,
            host: target.host,
            pe: target.pe,
            remote: target.remote,
            len,
            spread: None,
            packet_bytes: self.chunk_bytes() as u32,
            remaining: 1,
            todo: [(0, 0); 2],
            next: [NONE; 2],
            round: [NONE; 2],
            last: [NONE; 2],
            refused: false,
            split: None,
            signal: NONE,
            queued: [0; 2],
        }
    }

    /// Packets of a large transfer that go the other way round: as many as arrive there in the time
    /// the others need, (n1 + h1) = (n0 + h0). None when the detour is more than one hop longer:
    /// then it takes more from the ring than it gives.
    fn second_share(&self, host: u16, len: usize, packets: u32) -> u32 {
        let Some(side) = self.topology.choose(host) else { return 0 };
        let other = side.opposite();
        if !self.config.split
            || len < self.config.split_bytes_min
            || !self.topology.reaches(other, host)
        {
            return 0;
        }
        let detour = self.topology.distance(other, host) - self.topology.distance(side, host);
        if detour <= 1 { packets.saturating_sub(u32::from(detour)) / 2 } else { 0 }
    }

    /// Whether a put as a whole had better go the other way round, which is no longer: of two ways that
    /// are equally long, as both are between two hosts, less is waiting on that one.
    fn is_second_way_freer(&self, host: u16, len: usize) -> bool {
        let least = BALANCED_BYTES_MIN.min(self.chunk_bytes());
        if !self.config.split || len < least || len >= self.config.split_bytes_min {
            return false;
        }
        let (right, left) = (Side::Right, Side::Left);
        let first = usize::from(host) * 2;
        self.sender.load(first) > self.sender.load(first + 1)
            && self.topology.distance(right, host) == self.topology.distance(left, host)
            && self.topology.reaches(right, host)
            && self.topology.reaches(left, host)
    }

    /// Payload bytes of the packets of a transfer. What is under way alone is cut up so that its copies
    /// overlap; with others under way they overlap each other, and long packets cost least.
    fn packet_bytes(&self, host: u16, len: usize, handling_bytes: u32) -> usize {
        let whole = self.chunk_bytes();
        let fits = |packet_bytes: usize| len.div_ceil(packet_bytes) <= self.config.retained_chunks;
        if self.sharing.is_on(self.now) {
            let packet_bytes = shared_packet_bytes(whole);
            return if fits(whole) && !fits(packet_bytes) { whole } else { packet_bytes };
        }
        if self.ops.outstanding() > 0 || handling_bytes == 0 {
            return whole;
        }
        let hops = self.way(host).map_or(1, |(_, hops)| hops);
        let packet_bytes = packet_bytes(len, hops, handling_bytes).min(whole);
        // All of it must fit the retained area if it is to be kept.
        if fits(packet_bytes) { packet_bytes } else { whole }
    }
}

fn read_inline<M: Memory>(source: u64, len: usize, memory: &mut M) -> [u64; 3] {
    let mut bytes = [0; INLINE_BYTES];
    let read = memory.read(Span::Local(source), &mut bytes[..len]);
    debug_assert!(read.is_ok(), "only symmetric ranges can be refused");
    words_of(&bytes)
}
