// SPDX-License-Identifier: Apache-2.0
//! What the CPU has still to store to one side: payloads that leave in steps, each with its header behind.
//!
//! A link that is slower than memory takes a few KiB at once, and the CPU's next store waits for it. A CPU that
//! stores a whole payload waits for the link, and afterwards the link has nothing to do while the CPU copies
//! what has arrived to its destination. In short steps by turns, the link carries one step while the CPU
//! copies.

use std::collections::VecDeque;

use super::memory::Span;
use super::packet::LineWords;

/// Bytes of a step: fewer than links take without a wait.
pub const STEP_BYTES: usize = 1024;
/// Payloads that may wait, each with its header.
const PAYLOADS: usize = 32;

/// What is to be stored next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// So many bytes at an offset, and behind the last ones of a payload its seal.
    Payload {
        /// Where they are.
        from: Span,
        /// Where they belong in the neighbour's region.
        offset: usize,
        /// How many.
        len: usize,
        /// The seal, with the last of them.
        seal: Option<u64>,
        /// They are the first ones of a payload.
        is_first: bool,
    },
    /// A header line.
    Header {
        /// Where it belongs.
        offset: usize,
        /// The line.
        line: LineWords,
    },
}

/// The payloads and headers of one side, in order.
#[derive(Clone, Debug, Default, Hash)]
pub struct Steps {
    waiting: VecDeque<Step>,
    /// The header stored next belongs to the last payload.
    header_follows: bool,
    /// Payloads taken.
    taken: u64,
    /// Payloads stored as a whole.
    stored: u64,
}

impl Steps {
    /// Nothing waits.
    pub fn new() -> Steps {
        Steps { waiting: VecDeque::with_capacity(2 * PAYLOADS), ..Steps::default() }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a payload with its seal: its number, or none where there is no room.
    pub fn payload(&mut self, from: Span, offset: usize, len: usize, seal: u64) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        let step = Step::Payload { from, offset, len, seal: Some(seal), is_first: true };
        self.waiting.push_back(step);
        self.header_follows = true;
        self.taken += 1;
        Some(self.taken)
    }

    /// Takes a header line, if it belongs to the payload taken last, whose number it gives.
    #[inline]
    pub fn header(&mut self, offset: usize, line: &LineWords) -> Option<u64> {
        if !std::mem::take(&mut self.header_follows) {
            return None;
        }
        self.waiting.push_back(Step::Header { offset, line: *line });
        Some(self.taken)
    }

    /// The next step, which is to be stored now.
    pub fn take(&mut self) -> Option<Step> {
        match self.waiting.front_mut()? {
            Step::Payload { from, offset, len, is_first, .. } if *len > STEP_BYTES => {
                let step = Step::Payload {
                    from: *from,
                    offset: *offset,
                    len: STEP_BYTES,
                    seal: None,
                    is_first: std::mem::take(is_first),
                };
                *from = from.plus(STEP_BYTES);
                (*offset, *len) = (*offset + STEP_BYTES, *len - STEP_BYTES);
                Some(step)
            }
            Step::Payload { .. } => {
                self.stored += 1;
                self.waiting.pop_front()
            }
            Step::Header { .. } => self.waiting.pop_front(),
        }
    }

    /// Whether nothing more can wait.
    fn is_full(&self) -> bool {
        self.waiting.len() + 2 > 2 * PAYLOADS
    }

    /// Whether something that waits is to be stored before the next payload. One whose bytes do not stay as they
    /// are cannot wait behind others.
    pub fn must_store_first(&self, stays: bool) -> bool {
        self.is_full() || !stays && !self.is_empty()
    }

    /// Whether the next step is a header, which takes no time to speak of behind the end of its payload.
    pub fn is_header_next(&self) -> bool {
        matches!(self.waiting.front(), Some(Step::Header { .. }))
    }

    /// Whether the payload of a number is not read any more.
    pub fn has_ended(&self, number: u64) -> bool {
        self.stored >= number
    }

    /// The link has changed: what waits is not stored any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.header_follows = false;
        self.stored = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes stored, in order, and whether each header came directly behind its payload's seal.
    #[test]
    fn payloads_leave_whole_in_order_and_with_their_headers_behind() {
        let mut steps = Steps::new();
        let lens = [8, STEP_BYTES, STEP_BYTES + 8, 5 * STEP_BYTES];
        for (number, len) in lens.into_iter().enumerate() {
            let at = number * 65_536;
            let taken = steps.payload(Span::Local(at as u64), at, len, number as u64);
            assert_eq!(taken, Some(number as u64 + 1));
            assert_eq!(steps.header(at + 60_000, &[number as u64; 8]), taken);
            assert_eq!(steps.header(0, &[0; 8]), None, "a header of its own");
        }
        for (number, len) in lens.into_iter().enumerate() {
            let mut done = 0;
            loop {
                assert!(!steps.has_ended(number as u64 + 1));
                let Some(Step::Payload { from, offset, len: part, seal, is_first }) = steps.take()
                else {
                    panic!("a payload is missing")
                };
                assert_eq!(
                    (from, offset),
                    (Span::Local((number * 65_536 + done) as u64), number * 65_536 + done)
                );
                assert_eq!(is_first, done == 0);
                assert!(part <= STEP_BYTES);
                done += part;
                if let Some(seal) = seal {
                    assert_eq!((seal, done), (number as u64, len));
                    break;
                }
            }
            assert!(steps.has_ended(number as u64 + 1));
            let header =
                Step::Header { offset: number * 65_536 + 60_000, line: [number as u64; 8] };
            assert_eq!(steps.take(), Some(header));
        }
        assert!(steps.is_empty() && steps.take().is_none());
    }

    #[test]
    fn as_many_wait_as_there_is_room_for_and_none_after_a_change_of_the_link() {
        let mut steps = Steps::new();
        let mut last = 0;
        while let Some(number) = steps.payload(Span::Local(0), 0, 4096, 0) {
            last = number;
            assert_eq!(steps.header(0, &[0; 8]), Some(number));
        }
        assert_eq!(last, PAYLOADS as u64);
        assert!(steps.must_store_first(true) && steps.must_store_first(false));
        steps.take();
        steps.clear();
        assert!(steps.is_empty() && steps.has_ended(last));
        assert!(!steps.must_store_first(true) && !steps.must_store_first(false));
        assert_eq!(steps.payload(Span::Local(0), 0, 8, 0), Some(last + 1));
        assert!(!steps.has_ended(last + 1));
    }
}
