// SPDX-License-Identifier: Apache-2.0
//! Ordered, acknowledged sequences of packets between two hosts.
//!
//! - Between two hosts (of one lane) there are two flows: the first carries everything that has an
//!   order, the second the other half of split puts, and whole puts where both ways are equally long
//!   and the first has more to carry.
//! - A flow is pinned to a direction until it is quiet; only a broken way moves it, and then it is
//!   repeated from the first packet that was not acknowledged.
//! - The receiver applies exactly the next sequence number and nothing else. That one number per
//!   flow is all the memory that exactly-once needs.

use super::fair::Round;
use super::memory::Side;

/// No operation, no slot.
pub(super) const NONE: u32 = u32::MAX;

/// What was sent under a sequence number, enough to send it again.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Entry {
    pub op: u32,
    pub packet: u32,
    /// Chunk of the retained area, or `NONE`: the source itself is stable.
    pub retained: u32,
    /// Its stream had nothing more to send when it was made: someone may wait for it.
    pub last: bool,
}

/// Sending end. Sequence numbers: `una <= sent <= next <= una + window`, wrapping.
#[derive(Clone, Debug, Hash)]
pub(super) struct SendFlow {
    /// First not acknowledged.
    pub una: u32,
    /// Next to put on the wire; below `next` while repeating.
    pub sent: u32,
    /// Next that is free.
    pub next: u32,
    /// After the last that asked for an acknowledgement.
    pub asked: u32,
    /// Packets still to be made for the operations in the queue.
    pub queued: u64,
    /// Where it goes; none while there is no way.
    pub side: Option<Side>,
    /// Operations that have packets still to be made.
    pub round: Round,
    /// When to repeat if nothing is acknowledged by then.
    pub deadline: u64,
    /// Repetitions without progress.
    pub repeats: u32,
    /// When something was acknowledged last, or waited for first.
    pub progress_at: u64,
    /// No repetition on a gap report before this is acknowledged.
    pub recover: u32,
    /// Round trips: the number being timed, since when, and the smoothed result.
    pub timed: Option<(u32, u64)>,
    pub round_trip_ns: u64,
}

impl SendFlow {
    pub(super) fn new() -> SendFlow {
        SendFlow {
            una: 0,
            sent: 0,
            next: 0,
            asked: 0,
            queued: 0,
            side: None,
            round: Round::EMPTY,
            deadline: 0,
            repeats: 0,
            progress_at: 0,
            recover: 0,
            timed: None,
            round_trip_ns: 0,
        }
    }

    /// Nothing awaits acknowledgement.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.una == self.next
    }

    /// Nothing awaits anything.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_acknowledged() && self.round.is_empty()
    }

    /// Whether a packet could go out, given room on the ring.
    pub(super) fn has_work(&self, window: u32) -> bool {
        self.sent != self.next || (!self.round.is_empty() && self.under_way() < window)
    }

    /// Packets that await acknowledgement.
    pub(super) fn under_way(&self) -> u32 {
        self.next.wrapping_sub(self.una)
    }

    /// Starts again from the first that was not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.sent = self.una;
        self.asked = self.una;
        self.recover = self.next;
        self.timed = None;
    }

    /// Has nothing to send any more. What was sent has been given up before.
    pub(super) fn forget(&mut self) {
        self.sent = self.next;
        self.queued = 0;
        self.round = Round::EMPTY;
    }

    /// Takes a round trip into the average.
    pub(super) fn sample(&mut self, acknowledged: u32, now: u64) {
        if let Some((seq, since)) = self.timed
            && acknowledged.wrapping_sub(seq) as i32 > 0
        {
            let took = now.saturating_sub(since);
            self.round_trip_ns = match self.round_trip_ns {
                0 => took,
                known => known - known / 8 + took / 8,
            };
            self.timed = None;
        }
    }
}

/// Parts of gets from one host that are still to be asked for, by one of two ways.
#[derive(Clone, Debug, Hash)]
pub(super) struct RequestQueue {
    /// Where requests go; none while there is no way.
    pub side: Option<Side>,
    pub round: Round,
    /// Requests that await their reply.
    pub under_way: u32,
}

impl RequestQueue {
    pub(super) fn new() -> RequestQueue {
        RequestQueue { side: None, round: Round::EMPTY, under_way: 0 }
    }
}

/// Receiving end.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ReceiveFlow {
    /// The only sequence number that is applied.
    pub expected: u32,
    /// Applied since the last acknowledgement.
    pub unreported: u32,
    /// A gap has been seen and the acknowledgement shall say so.
    pub gap: bool,
    /// A gap at `expected` has been reported: once is enough.
    pub gap_reported: bool,
    /// The packet at `expected` has been refused and the acknowledgement shall say so.
    pub refused: bool,
}
