// SPDX-License-Identifier: Apache-2.0
//! What tells of the writes of a DMA engine that they have arrived, or never will.
//!
//! Posted writes of one requester arrive in their order. Nothing tells their sender when, and those of two requesters
//! have no order between them: an engine is one, the CPU another. So what the CPU says of slots that an engine
//! has written counts from when the mark behind them has been seen: a word with the epoch and a number, which the engine
//! itself writes.

use super::{Port, State, word};
use crate::ntb::ring::layout::MARK_OFFSET;
use crate::ntb::ring::memory::{Memory, Transfer};

/// Marks of an epoch, of this side and of the neighbour.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Marks {
    /// The last mark made.
    last: Transfer,
    number: u32,
    /// The neighbour uses this epoch when it has seen its mark.
    needed: bool,
    /// What this side announces counts from this mark on; 0: at once.
    pub(super) announces: u32,
    /// The mark of the neighbour's epoch was not seen yet.
    pub(super) awaits: bool,
    /// What the neighbour has announced counts from this mark on; 0: at once.
    pub(super) announced: u32,
}

impl Port {
    /// Whether a mark of the neighbour's epoch, of this number or a later one, has been seen.
    #[inline(never)]
    pub(super) fn has_mark<M: Memory>(&self, number: u32, memory: &mut M) -> bool {
        let mark = memory.load_word(self.side, MARK_OFFSET);
        mark as u32 == self.peer_epoch && ((mark >> 32) as u32).wrapping_sub(number) as i32 >= 0
    }

    /// Whether the mark that was waited for has come.
    #[inline]
    pub(super) fn has_awaited<M: Memory>(&self, memory: &mut M) -> bool {
        self.marks.awaits && self.has_mark(0, memory)
    }

    /// Whether what the neighbour has announced counts.
    pub(super) fn has_announced<M: Memory>(&self, memory: &mut M) -> bool {
        self.marks.announced == 0 || self.has_mark(self.marks.announced, memory)
    }

    /// Marks a new epoch, again if the last mark was lost. Says whether the neighbour has to see the mark.
    pub(super) fn mark_epoch<M: Memory>(&mut self, memory: &mut M) -> bool {
        if self.state == State::Greeting && memory.has_left(self.side, self.marks.last) {
            match memory.mark(self.side, MARK_OFFSET, word(self.epoch, 0)) {
                Some(Transfer::Done) => self.marks.needed = false,
                Some(last) => (self.marks.last, self.marks.needed) = (last, true),
                None => self.marks.needed = true,
            }
        }
        self.marks.needed
    }

    /// Looks at what has left; called every heartbeat. Behind what an engine has written a mark is made, again and again
    /// until the neighbour has taken all: a mark may be lost, too.
    pub(super) fn announce<M: Memory>(&mut self, memory: &mut M) {
        let heads = self.heads();
        let is_taken = self.producers.iter().all(|producer| producer.head == producer.tail);
        if is_taken {
            self.leaving.left = heads;
            return;
        }
        if self.leaving.has_left_at_once() || !memory.has_left(self.side, self.marks.last) {
            return;
        }
        let number = self.marks.number.wrapping_add(1).max(1);
        match memory.mark(self.side, MARK_OFFSET, word(self.epoch, number)) {
            Some(Transfer::Done) => {
                self.marks.announces = 0;
                self.leaving.look(heads, self.side, memory);
            }
            Some(last) => {
                self.marks = Marks { last, number, announces: number, ..self.marks.clone() };
                self.leaving.left = heads;
            }
            None => {}
        }
    }
}
