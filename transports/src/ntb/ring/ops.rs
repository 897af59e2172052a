// SPDX-License-Identifier: Apache-2.0
//! Operations outstanding, request tags, and the chunks kept for puts whose source is reused.
//!
//! All tables are sized at the start; submitting takes a row or is refused.

use tombolo_core::transport::{Amo, Remote};

use super::fair::QUICK_BYTES;
use super::flow::NONE;
use super::memory::Side;
use super::packet::Spread;

/// Streams are told apart for `fence` and for room in tables by this many low bits of their number;
/// sharing costs time, never order.
pub(super) const STREAM_SLOTS: usize = 64;

/// A stream's place in tables by stream.
pub(super) fn stream_slot(stream: u32) -> usize {
    stream as usize % STREAM_SLOTS
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A put from a stable buffer.
    Put { source: u64 },
    /// A put from the retained area; the chunks form a list from here.
    PutRetained { chunks: u32 },
    /// A put whose data travel in the header.
    PutInline { words: [u64; 3] },
    /// An AMO without result, or a signal.
    Amo(Amo),
    /// An AMO with a result.
    Fetch { amo: Amo, result: u64, tag: u64 },
    /// A get.
    Get { dest: u64 },
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// The submitter's name for it; none where another operation stands for it (put with signal).
    pub token: Option<u64>,
    pub stream: u32,
    pub action: Action,
    pub host: u16,
    pub pe: u8,
    pub remote: Remote,
    pub len: usize,
    /// The blocks that the data belong to, of an operation of one packet.
    pub spread: Option<Spread>,
    /// Payload bytes of each of its packets but the last.
    pub packet_bytes: u32,
    /// Packets that are not answered yet.
    pub remaining: u32,
    /// Packets still to be made, by flow.
    pub todo: [(u32, u32); 2],
    /// Links of the queues of two flows or shares: the next of the stream, and in the first of a
    /// stream the first of the next one, and the last of the stream.
    pub next: [u32; 2],
    pub round: [u32; 2],
    pub last: [u32; 2],
    /// Set when the target refused a part of it.
    pub refused: bool,
    /// The stream of a put that goes both ways, or the second way.
    pub split: Option<u32>,
    /// The signal that follows this put, or `NONE`.
    pub signal: u32,
    /// By side: what was queued last of it ([`Transfer::Queued`](super::memory::Transfer)), or 0.
    pub queued: [u64; 2],
}

impl std::hash::Hash for Op {
    fn hash<S: std::hash::Hasher>(&self, state: &mut S) {
        (
            self.token,
            self.host,
            self.pe,
            self.remote.offset,
            self.len,
            self.spread,
            self.packet_bytes,
        )
            .hash(state);
        (self.remaining, self.todo, self.refused, self.split, self.signal).hash(state);
        (self.stream, self.next, self.round, self.last).hash(state);
        std::mem::discriminant(&self.action).hash(state);
        if let Action::Fetch { tag, .. } = self.action {
            tag.hash(state);
        }
    }
}

/// Rows of fixed number with a free list.
#[derive(Clone, Debug, Hash)]
pub(super) struct Ops {
    rows: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Rows in use by stream, as far as streams are told apart.
    of_stream: [u16; STREAM_SLOTS],
    /// Rows of long operations by stream, and of all streams.
    long_of_stream: [u16; STREAM_SLOTS],
    long: u16,
}

impl Ops {
    pub(super) fn new(count: usize) -> Ops {
        Ops {
            rows: vec![None; count],
            free: (0..count as u32).rev().collect(),
            of_stream: [0; STREAM_SLOTS],
            long_of_stream: [0; STREAM_SLOTS],
            long: 0,
        }
    }

    /// Whether a stream may take so many rows: one that has many leaves some to the others.
    pub(super) fn has_room(&self, stream: u32, count: usize) -> bool {
        let many = self.rows.len() / 8;
        let greedy = usize::from(self.of_stream[stream_slot(stream)]) > many;
        self.free.len() >= count + if greedy { many } else { 0 }
    }

    /// Whether an operation of that name is outstanding.
    pub(super) fn has(&self, token: u64) -> bool {
        self.rows.iter().flatten().any(|op| op.token == Some(token))
    }

    pub(super) fn outstanding(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Whether long operations of other streams are outstanding.
    #[inline]
    pub(super) fn has_long_of_others(&self, stream: u32) -> bool {
        self.long > self.long_of_stream[stream_slot(stream)]
    }

    /// Takes a row; the caller has checked `room`.
    pub(super) fn insert(&mut self, op: Op) -> u32 {
        let index = self.free.pop().expect("room was checked");
        let slot = stream_slot(op.stream);
        let long = u16::from(op.len > QUICK_BYTES);
        self.of_stream[slot] += 1;
        self.long_of_stream[slot] += long;
        self.long += long;
        self.rows[index as usize] = Some(op);
        index
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(op) = self.rows[index as usize].take() {
            let slot = stream_slot(op.stream);
            let long = u16::from(op.len > QUICK_BYTES);
            self.of_stream[slot] -= 1;
            self.long_of_stream[slot] -= long;
            self.long -= long;
            self.free.push(index);
        }
    }

    pub(super) fn at(&self, index: u32) -> &Op {
        self.rows[index as usize].as_ref().expect("queues hold live operations only")
    }

    pub(super) fn at_mut(&mut self, index: u32) -> &mut Op {
        self.rows[index as usize].as_mut().expect("queues hold live operations only")
    }

    /// The operations to `host`, for giving up a host.
    pub(super) fn to(&self, host: u16) -> impl Iterator<Item = (u32, &Op)> {
        let ops = self.rows.iter().enumerate();
        let ops = ops.filter_map(|(index, row)| Some((index as u32, row.as_ref()?)));
        ops.filter(move |(_, op)| op.host == host)
    }
}

/// A request that awaits its reply.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Request {
    pub op: u32,
    pub packet: u32,
    /// Queue that a get request came from: host * 2 + share.
    pub queue: u32,
    /// Direction it was sent in.
    pub side: Side,
    /// When it was made.
    pub since: u64,
    /// When to ask again.
    pub deadline: u64,
    pub repeats: u32,
}

/// All that a generation of a tag can be.
const GENERATIONS: u64 = u64::MAX >> 16;

/// Requests by tag. A tag is (generation, row): a late reply to an earlier request finds another
/// generation and is dropped.
///
/// A reply may be as late as can be. Repetitions have a request answered more than once, and of two hosts side by side
/// that are stopped, the one holds a reply of the other for as long as they are: only hosts that run begin a link
/// anew, with which its slots are forgotten. Meanwhile a row may be used millions of times, by requests to other hosts
/// or the other way round. So a generation has 48 bits: a row that is used every 100 nanoseconds has all of them after
/// 300 days.
#[derive(Clone, Debug, Hash)]
pub(super) struct Tags {
    rows: Vec<(u64, Option<Request>)>,
    free: Vec<u16>,
}

impl Tags {
    pub(super) fn new(count: usize) -> Tags {
        let count = count.min(usize::from(u16::MAX));
        Tags { rows: vec![(0, None); count], free: (0..count as u16).rev().collect() }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no request is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.rows.len()
    }

    /// Takes a tag; the caller has checked `has_room`.
    pub(super) fn insert(&mut self, request: Request) -> u64 {
        let row = self.free.pop().expect("room was checked");
        let (generation, place) = &mut self.rows[usize::from(row)];
        *generation = (*generation + 1) & GENERATIONS;
        *place = Some(request);
        *generation << 16 | u64::from(row)
    }

    /// The request a tag from the wire names, if it is outstanding.
    pub(super) fn find(&self, tag: u64) -> Option<Request> {
        let (generation, request) = self.rows.get(row_of(tag))?;
        if *generation == tag >> 16 { *request } else { None }
    }

    pub(super) fn row(&self, row: usize) -> Option<(u64, Request)> {
        let (generation, request) = self.rows[row];
        request.map(|request| (generation << 16 | row as u64, request))
    }

    pub(super) fn row_mut(&mut self, row: usize) -> Option<&mut Request> {
        self.rows[row].1.as_mut()
    }

    /// Forgets a request. One that has the row of an earlier one stays: a peer that refuses what it has answered
    /// ends no other request.
    pub(super) fn remove(&mut self, tag: u64) {
        let row = row_of(tag);
        if self.find(tag).is_some() {
            self.rows[row].1 = None;
            self.free.push(row as u16);
        }
    }
}

/// The row that a tag names.
pub(super) fn row_of(tag: u64) -> usize {
    (tag & 0xffff) as usize
}

/// Chunks of the retained area: a free list, and lists that belong to operations.
#[derive(Clone, Debug, Hash)]
pub(super) struct Retained {
    links: Vec<u32>,
    free: u32,
    room: u32,
}

impl Retained {
    pub(super) fn new(count: usize) -> Retained {
        let mut links: Vec<u32> = (1..=count as u32).collect();
        if let Some(last) = links.last_mut() {
            *last = NONE;
        }
        Retained { links, free: if count == 0 { NONE } else { 0 }, room: count as u32 }
    }

    pub(super) fn room(&self) -> usize {
        self.room as usize
    }

    /// Takes one and puts it before `list`.
    pub(super) fn take(&mut self, list: u32) -> u32 {
        let chunk = self.free;
        self.free = self.links[chunk as usize];
        self.links[chunk as usize] = list;
        self.room -= 1;
        chunk
    }

    pub(super) fn after(&self, chunk: u32) -> u32 {
        self.links[chunk as usize]
    }

    pub(super) fn give_back(&mut self, chunk: u32) {
        self.links[chunk as usize] = self.free;
        self.free = chunk;
        self.room += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let (since, deadline, repeats) = (0, 0, 0);
        Request { op: 0, packet: 0, queue: 0, side: Side::Right, since, deadline, repeats }
    }

    #[test]
    fn no_tag_comes_again_however_often_a_row_is_used() {
        let mut tags = Tags::new(1);
        let old = tags.insert(request());
        tags.remove(old);
        for _ in 0..1 << 17 {
            let new = tags.insert(request());
            assert!(tags.find(old).is_none());
            tags.remove(new);
        }
    }

    #[test]
    fn a_tag_that_was_forgotten_ends_no_later_request() {
        let request = request();
        let mut tags = Tags::new(2);
        let old = tags.insert(request);
        tags.remove(old);
        let new = tags.insert(request);
        assert_eq!(row_of(old), row_of(new), "the same row");
        tags.remove(old);
        assert!(tags.find(new).is_some() && tags.find(old).is_none());
        tags.remove(new);
        assert!(tags.is_empty());
    }
}
