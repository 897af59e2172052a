// SPDX-License-Identifier: Apache-2.0
//! What a requester has sent and the peer cannot see yet.

use super::words::LinkWord;
use crate::ntb::port::{Line, LinkTiming};
use std::collections::VecDeque;

/// 16 KiB and 256 KiB.
const LINES_MIN: usize = 256;
const LINES_MAX: usize = 4096;

/// A piece of a write, on its way to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where to, bytes from the start of the window.
    pub offset: usize,
    pub len: usize,
    /// Largest payload of its TLPs.
    pub tlp: usize,
    /// When the peer may see it.
    pub due_ps: u64,
    /// The link when it left: once that has changed, it is lost.
    pub link: LinkWord,
    /// The translation when its writer opened the slot: once that has changed, it reaches nothing.
    pub generation: u64,
}

/// A queue of pieces and their bytes, first in, first out. Nothing is allocated after the start.
pub struct Flight {
    pieces: VecDeque<(usize, Piece)>,
    lines: Box<[Line]>,
    /// Lines taken and given back since the queue was last empty.
    taken: usize,
    given: usize,
}

impl Flight {
    /// An empty queue of `lines` lines (a power of two, or 0 for one that is never used), each of
    /// which may be a piece.
    pub fn new(lines: usize) -> Flight {
        debug_assert!(lines == 0 || lines.is_power_of_two());
        Flight {
            pieces: VecDeque::with_capacity(lines),
            lines: vec![Line([0; 8]); lines].into(),
            taken: 0,
            given: 0,
        }
    }

    /// Lines for what a link may carry within `span_ps`, and as much again.
    pub fn lines_for(timing: &LinkTiming, span_ps: u64) -> usize {
        let bytes = timing.line_bytes_per_s() * span_ps as f64 / 1e12;
        (2 * bytes as usize / Line::BYTES).clamp(LINES_MIN, LINES_MAX).next_power_of_two()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// When the first piece is due.
    pub fn next_due_ps(&self) -> Option<u64> {
        self.pieces.front().map(|(_, piece)| piece.due_ps)
    }

    /// When the last piece is due.
    pub fn last_due_ps(&self) -> Option<u64> {
        self.pieces.back().map(|(_, piece)| piece.due_ps)
    }

    /// Whether a piece of `len` bytes can be kept.
    pub fn has_room(&self, len: usize) -> bool {
        self.start_of(len) + len.div_ceil(Line::BYTES) - self.given <= self.lines.len()
    }

    /// Keeps a piece. There must be room for it.
    ///
    /// # Safety
    /// `source` must be readable for `piece.len` bytes.
    pub unsafe fn push(&mut self, piece: Piece, source: *const u8) {
        assert!(self.has_room(piece.len), "the caller has made room");
        let start = self.start_of(piece.len);
        self.taken = start + piece.len.div_ceil(Line::BYTES);
        let index = start & (self.lines.len() - 1);
        let to = &mut self.lines[index..];
        debug_assert!(piece.len <= size_of_val(to));
        // SAFETY: from `start` on there are lines enough for the piece, none of them in use.
        unsafe { to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(source, piece.len) };
        self.pieces.push_back((start, piece));
    }

    /// The first piece and its bytes, if it is due at `now_ps`.
    pub fn first_due(&self, now_ps: u64) -> Option<(Piece, *const u8)> {
        let (start, piece) = *self.pieces.front()?;
        let from = &self.lines[start & (self.lines.len() - 1)..];
        (piece.due_ps <= now_ps).then(|| (piece, from.as_ptr().cast()))
    }

    /// Forgets the first piece.
    pub fn pop(&mut self) {
        if let Some((start, piece)) = self.pieces.pop_front() {
            self.given = start + piece.len.div_ceil(Line::BYTES);
        }
        if self.pieces.is_empty() {
            // Lines that are in the cache are used again.
            (self.taken, self.given) = (0, 0);
        }
    }

    /// Where the lines of the next piece begin: they do not wrap around.
    fn start_of(&self, len: usize) -> usize {
        let size = self.lines.len();
        let end = self.taken % size + len.div_ceil(Line::BYTES);
        if end <= size { self.taken } else { self.taken.next_multiple_of(size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: usize, len: usize, due_ps: u64) -> Piece {
        Piece { offset, len, tlp: 64, due_ps, link: LinkWord::default(), generation: 2 }
    }

    #[test]
    fn pieces_come_out_whole_in_order_and_not_before_they_are_due() {
        let mut flight = Flight::new(16);
        let bytes: Vec<u8> = (0..1024).map(|k| (k * 7 + k / 256) as u8).collect();
        let lens = [1, 64, 65, 200, 1024, 8, 640, 64, 700, 3];
        let (mut next, mut kept, mut seen) = (0, VecDeque::new(), 0);
        while seen < 1000 {
            let len = lens[next % lens.len()];
            if flight.has_room(len) && next < 1000 {
                let sent = piece(next, len, 10 * next as u64);
                // SAFETY: every length is at most that of `bytes`.
                unsafe { flight.push(sent, bytes.as_ptr()) };
                kept.push_back(sent);
                next += 1;
                continue;
            }
            let expected: Piece = kept.pop_front().unwrap();
            if let Some(before) = expected.due_ps.checked_sub(1) {
                assert!(flight.first_due(before).is_none());
            }
            let (found, at) = flight.first_due(expected.due_ps).unwrap();
            assert_eq!(found, expected);
            // SAFETY: what `first_due` gave stays until `pop`.
            let got = unsafe { std::slice::from_raw_parts(at, found.len) };
            assert_eq!(got, &bytes[..found.len], "piece {seen}");
            flight.pop();
            seen += 1;
        }
        assert!(flight.is_empty() && flight.last_due_ps().is_none());
        assert!(flight.has_room(1024), "all room has come back");
    }

    #[test]
    fn there_is_room_for_what_is_under_way_and_a_bound() {
        let timing = LinkTiming::default();
        let trip_ps = 1_000_000;
        let bytes = Flight::lines_for(&timing, trip_ps) * Line::BYTES;
        assert!(bytes as f64 > timing.line_bytes_per_s() * trip_ps as f64 / 1e12);
        assert_eq!(Flight::lines_for(&timing, u64::MAX), LINES_MAX);
    }
}
