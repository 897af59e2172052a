// SPDX-License-Identifier: Apache-2.0
//! The receiving end of a lane: the next number of each flow, the acknowledgements that are owed, and
//! the results of fetching AMOs, which their sources may ask for again.

use super::bits::Bits;
use super::config::{Config, FETCHES};
use super::flow::ReceiveFlow;
use super::memory::Side;

/// Flows are numbered as those of the sending end are, by their source.
#[derive(Clone, Debug, Hash)]
pub(super) struct Receiver {
    flows: Vec<ReceiveFlow>,
    /// Acknowledgements owed, by direction and flow.
    owed: [Bits; 2],
    /// Where the search for the next one begins, by direction: who was answered last has its turn last.
    cursor: [usize; 2],
    /// Packets after which one is owed unasked.
    unasked_max: u32,
    /// Tags and values, by source host and row of the tag.
    results: Vec<(u64, u64)>,
}

/// Where a numbered packet stands in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The next one.
    Next,
    /// One before it is missing.
    Early,
    /// It was applied before.
    Applied,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// All below it were applied.
    pub expected: u32,
    pub gap: bool,
    pub refused: bool,
}

impl Receiver {
    pub(super) fn new(config: &Config, hosts: u16) -> Receiver {
        let flows = usize::from(hosts) * 2;
        Receiver {
            flows: vec![ReceiveFlow::default(); flows],
            owed: [Bits::new(flows), Bits::new(flows)],
            cursor: [0; 2],
            unasked_max: config.window / 4,
            results: vec![(0, 0); usize::from(hosts) * FETCHES],
        }
    }

    #[inline]
    pub(super) fn standing(&self, id: usize, seq: u32) -> Standing {
        match seq.wrapping_sub(self.flows[id].expected) as i32 {
            0 => Standing::Next,
            1.. => Standing::Early,
            _ => Standing::Applied,
        }
    }

    /// The next packet was applied. Says whether an acknowledgement is due, which it is at once if the
    /// packet `asks`.
    #[inline]
    pub(super) fn note_applied(&mut self, id: usize, asks: bool) -> bool {
        let flow = &mut self.flows[id];
        flow.expected = flow.expected.wrapping_add(1);
        flow.gap = false;
        flow.gap_reported = false;
        // What was refused has come another time, and with another address.
        flow.refused = false;
        flow.unreported += 1;
        asks || flow.unreported >= self.unasked_max
    }

    /// The next packet is missing. Says whether that shall be reported: once, and again when the end of
    /// a repetition, which `asks`, has not filled the gap.
    pub(super) fn note_gap(&mut self, id: usize, asks: bool) -> bool {
        let flow = &mut self.flows[id];
        let reports = !flow.gap_reported || asks;
        flow.gap_reported = true;
        flow.gap |= reports;
        reports
    }

    /// The address of the next packet is not there.
    pub(super) fn note_refused(&mut self, id: usize) {
        self.flows[id].refused = true;
    }

    /// Flows with packets that no acknowledgement has told of.
    pub(super) fn has_unreported(&self, id: usize) -> bool {
        self.flows[id].unreported > 0
    }

    /// Owes an acknowledgement, to be sent to `side` alone.
    #[inline]
    pub(super) fn owe(&mut self, id: usize, side: Side) {
        self.owed[side as usize].set(id, true);
        self.owed[side.opposite() as usize].set(id, false);
    }

    #[inline]
    pub(super) fn owes(&self, id: usize, side: Side) -> bool {
        self.owed[side as usize].contains(id)
    }

    #[inline]
    pub(super) fn owes_any(&self, side: Side) -> bool {
        !self.owed[side as usize].is_empty()
    }

    /// The next flow that is owed an acknowledgement in this direction.
    pub(super) fn next_owed(&self, side: Side) -> Option<usize> {
        self.owed[side as usize].next_from(self.cursor[side as usize])
    }

    /// What the acknowledgement of a flow says, which is owed no more.
    pub(super) fn take_owed(&mut self, side: Side, id: usize) -> Answer {
        self.owed[side as usize].set(id, false);
        self.cursor[side as usize] = id + 1;
        let flow = &mut self.flows[id];
        flow.unreported = 0;
        Answer {
            expected: flow.expected,
            gap: std::mem::take(&mut flow.gap),
            refused: std::mem::take(&mut flow.refused),
        }
    }

    /// Keeps the result of an AMO until its source uses the row again.
    pub(super) fn keep_result(&mut self, source: u16, row: usize, tag: u64, old: u64) {
        self.results[usize::from(source) * FETCHES + row] = (tag, old);
    }

    /// The result that was kept for a tag, none if the row holds a later one.
    pub(super) fn result(&self, source: u16, row: usize, tag: u64) -> Option<u64> {
        let (known, old) = self.results[usize::from(source) * FETCHES + row];
        (known == tag).then_some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::ring::Geometry;

    /// A packet whose address was damaged is refused, and comes again before the acknowledgement has left.
    #[test]
    fn a_packet_behind_one_that_was_refused_is_not_blamed() {
        let geometry = Geometry::new(64, [4, 4, 4]).unwrap();
        let mut receiver = Receiver::new(&Config::simulated(geometry, false), 2);
        receiver.note_refused(2);
        receiver.owe(2, Side::Left);
        receiver.note_applied(2, true);
        let answer = receiver.take_owed(Side::Left, 2);
        assert_eq!((answer.expected, answer.refused), (1, false));
        receiver.note_refused(2);
        assert!(receiver.take_owed(Side::Left, 2).refused);
    }
}
