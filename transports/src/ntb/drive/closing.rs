// SPDX-License-Identifier: Apache-2.0
//! How a PE has a neighbour close the window through which its direct puts go.
//!
//! Puts that were not seen to arrive, over a link that seems to be up, may still be under way: a bridge or
//! a switch may hold them for any time. If they were repeated another way at once, the first ones could
//! arrive late, over what the program has put there since. So the target closes its window first, after
//! which nothing arrives through it any more ([`NtbPort::mw_clear_trans`]), and says so.
//!
//! - Both is said in words of the target's control area. Who asks writes and reads them over the ring, whose
//!   packets go the other way round where the link does not carry them.
//! - The window stays closed until its link changes: with the link ends what was under way over it.
//!   Until then puts go over the ring.
//!
//! [`NtbPort::mw_clear_trans`]: crate::ntb::port::NtbPort::mw_clear_trans

use super::arrival::By;
use crate::ntb::ring::Side;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::control;
use tombolo_core::transport::{Segment, SegmentKind};

/// Words of a PE's [line](control::arrival) in the control area of another one. Each has one for each [`By`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The number that was written behind puts.
    Number = 0,
    /// What the target is asked to close, by [`request`].
    Request = 1,
    /// The last request that it has carried out.
    Closed = 2,
}

impl Word {
    /// Offset in the heap of the word for puts of `pe`, of `n_pes`.
    pub const fn offset(self, n_pes: usize, pe: usize, by: By) -> usize {
        control::arrival(n_pes, pe) + (self as usize * By::COUNT + by as usize) * 8
    }
}

/// Asks to close the window at `side` of the target, by a number that counts requests from 1.
pub fn request(number: u64, side: Side) -> u64 {
    number << 1 | side as u64
}

/// The requests of neighbouring PEs, in this PE's heap.
pub struct Requests {
    heap: *mut u8,
    /// Offsets of requests and of the words in which they are answered.
    words: Vec<[usize; 2]>,
}

// SAFETY: words of the heap that are accessed as atomics; the heap stays until the transport is closed.
unsafe impl Send for Requests {}
// SAFETY: as above.
unsafe impl Sync for Requests {}

/// A request that was not answered.
pub struct Asked<'a> {
    request: u64,
    answer: &'a AtomicU64,
}

impl Requests {
    /// Those of nobody so far.
    pub fn new(segments: &[Segment<'_>]) -> Requests {
        let heap = segments.iter().find(|segment| segment.kind == SegmentKind::Heap);
        let heap = heap.map_or(std::ptr::null_mut(), |segment| segment.base);
        Requests { heap, words: Vec::new() }
    }

    /// Those of some of `n_pes` PEs.
    pub fn of(&self, pes: impl Iterator<Item = usize>, n_pes: usize) -> Requests {
        let by = |pe| {
            By::BOTH.map(|by| [Word::Request, Word::Closed].map(|word| word.offset(n_pes, pe, by)))
        };
        let words = if self.heap.is_null() { vec![] } else { pes.flat_map(by).collect() };
        Requests { heap: self.heap, words }
    }

    /// Those that were not answered.
    pub fn open(&self) -> impl Iterator<Item = Asked<'_>> {
        self.words.iter().filter_map(|[asked, answer]| {
            let [asked, answer] = [asked, answer].map(|offset| {
                // SAFETY: an aligned word of the control area, which every heap begins with.
                unsafe { &*self.heap.add(*offset).cast::<AtomicU64>() }
            });
            let request = asked.load(Ordering::Acquire);
            let is_open = request != answer.load(Ordering::Relaxed);
            is_open.then_some(Asked { request, answer })
        })
    }
}

impl Asked<'_> {
    /// Whose window is to be closed. It comes from another host, which may write what it likes.
    pub fn side(&self) -> Side {
        Side::BOTH[(self.request & 1) as usize]
    }

    /// Nothing arrives through the window any more.
    pub fn answer(&self) {
        self.answer.store(self.request, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_open_until_they_are_answered() {
        const N: usize = 3;
        let words = control::len(N) / 8;
        let heap: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let segment = Segment {
            kind: SegmentKind::Heap,
            base: heap.as_ptr().cast_mut().cast(),
            len: words * 8,
            whole: heap.as_ptr().cast_mut().cast(),
            file: None,
            file_offset: 0,
            layout: 0,
        };
        let requests = Requests::new(&[segment]).of([1, 2].into_iter(), N);
        assert_eq!(requests.open().count(), 0);
        let at = |word: Word, pe, by| &heap[word.offset(N, pe, by) / 8];
        let asked = [(1, By::Cpu, Side::Left), (2, By::Dma, Side::Right), (0, By::Dma, Side::Left)];
        for (pe, by, side) in asked {
            at(Word::Request, pe, by).store(request(1, side), Ordering::Relaxed);
        }
        let sides: Vec<Side> = requests.open().map(|asked| asked.side()).collect();
        assert_eq!(sides, [Side::Left, Side::Right], "PE 0 is no neighbour");
        requests.open().for_each(|asked| asked.answer());
        assert_eq!(requests.open().count(), 0);
        let closed = at(Word::Closed, 1, By::Cpu).load(Ordering::Relaxed);
        assert_eq!(closed, request(1, Side::Left));
    }

    #[test]
    fn words_of_a_pe_share_a_line_and_no_word() {
        let words = [Word::Number, Word::Request, Word::Closed];
        let all = words.iter().flat_map(|word| By::BOTH.map(|by| word.offset(4, 2, by)));
        let mut all: Vec<usize> = all.collect();
        let line = control::arrival(4, 2)..control::arrival(4, 3);
        assert!(all.iter().all(|at| line.contains(at) && at.is_multiple_of(8)), "{all:?}");
        all.dedup();
        assert_eq!(all.len(), words.len() * By::COUNT);
    }
}
