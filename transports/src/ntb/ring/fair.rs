// SPDX-License-Identifier: Apache-2.0
//! Fair queueing: operations of different streams take turns, packet by packet.
//!
//! Within a stream operations keep their order, which is all that `fence` and signals ask for;
//! nothing orders streams among each other. So a queue is a round of streams, each with its own
//! list of operations, and a short operation of one stream waits for one packet of each other
//! stream instead of for everything that others have queued before it.
//!
//! Taking turns is not enough, because an operation also waits for packets that were sent before it.
//! While quick operations of one stream meet long ones of another ([`Sharing`]), a flow therefore has no
//! more long packets under way than the links to the target carry in a round trip.

use super::flow::NONE;
use super::ops::Ops;

/// Packets of up to so many bytes are not held back while streams share a flow.
pub(super) const SHORT_BYTES: usize = 512;
/// Bytes under way for each hop while streams share a flow: about the bandwidth-delay product of a
/// polled Gen3 x8 link.
const SHARED_BYTES: usize = 9 << 10;
/// Bytes of a packet while streams share a lane: copies and relays of longer ones would hold up others
/// for longer.
const SHARED_PACKET_BYTES: usize = 3 << 10;
/// Acknowledgements that are asked for while so much is under way: with fewer of them the link would run
/// dry before the next one comes.
const SHARED_ACKS: u32 = 4;
/// Operations of up to so many bytes are meant to be quick: they are what long ones of other streams
/// make room for.
pub(super) const QUICK_BYTES: usize = 4 << 10;

/// Operations with packets still to be made. `which` says which of its links an operation is in by:
/// an operation may be in two queues.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Round {
    /// First operations of the streams, next one first.
    head: u32,
    tail: u32,
}

impl Round {
    pub(super) const EMPTY: Round = Round { head: NONE, tail: NONE };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The operation whose turn it is.
    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Puts an operation behind those of its stream.
    pub(super) fn push(&mut self, ops: &mut Ops, which: usize, op: u32) {
        let stream = ops.at(op).stream;
        let mut at = self.head;
        while at != NONE {
            let first = ops.at_mut(at);
            if first.stream == stream {
                let last = std::mem::replace(&mut first.last[which], op);
                ops.at_mut(last).next[which] = op;
                return;
            }
            at = first.round[which];
        }
        ops.at_mut(op).last[which] = op;
        self.append(ops, which, op);
    }

    /// Ends the turn of the operation in front, which has no packets left if it is `done`. Returns
    /// whether its stream has nothing more in this queue.
    pub(super) fn end_turn(&mut self, ops: &mut Ops, which: usize, done: bool) -> bool {
        let front = self.head;
        let op = ops.at(front);
        let next = if done { op.next[which] } else { front };
        if next == front && self.head == self.tail {
            return false;
        }
        let last = op.last[which];
        self.head = op.round[which];
        if self.head == NONE {
            self.tail = NONE;
        }
        if next == NONE {
            return true;
        }
        ops.at_mut(next).last[which] = last;
        self.append(ops, which, next);
        false
    }

    fn append(&mut self, ops: &mut Ops, which: usize, op: u32) {
        ops.at_mut(op).round[which] = NONE;
        if self.head == NONE {
            self.head = op;
        } else {
            ops.at_mut(self.tail).round[which] = op;
        }
        self.tail = op;
    }

    /// Gives the turn to the first operation that `may` go. None: the order is as it was.
    pub(super) fn turn_to(
        &mut self,
        ops: &mut Ops,
        which: usize,
        may: impl Fn(&Ops, u32) -> bool,
    ) -> Option<u32> {
        let first = self.front()?;
        loop {
            let front = self.head;
            if may(ops, front) {
                return Some(front);
            }
            self.end_turn(ops, which, false);
            if self.head == first {
                return None;
            }
        }
    }
}

/// Whether quick operations of one stream meet long ones of another in this lane at present.
///
/// Long ones alone only take turns: none of them is better off when all keep less under way. Nor
/// does it count that streams with quick ones alternate, as in every barrier.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Sharing {
    until: u64,
}

impl Sharing {
    /// A quick operation was handed in while long ones of other streams are outstanding.
    pub(super) fn begin(&mut self, until: u64) {
        self.until = until;
    }

    pub(super) fn is_on(&self, now: u64) -> bool {
        now < self.until
    }
}

/// Bytes that a flow over `hops` hops may have under way while streams share it.
pub(super) fn shared_bytes(hops: u16) -> usize {
    usize::from(hops.max(1)) * SHARED_BYTES
}

/// The same as packets of `packet_bytes` bytes.
pub(super) fn shared_packets(limit: usize, packet_bytes: usize) -> u32 {
    limit.div_ceil(packet_bytes) as u32 + 1
}

/// Packets after which an acknowledgement is asked for while streams share a flow.
pub(super) fn shared_acks(limit: usize, packet_bytes: usize) -> u32 {
    shared_packets(limit, packet_bytes).div_ceil(SHARED_ACKS)
}

/// Bytes of packets of operations that begin while streams share the lane: what others wait for.
pub(super) fn shared_packet_bytes(chunk_bytes: usize) -> usize {
    chunk_bytes.min(SHARED_PACKET_BYTES)
}
