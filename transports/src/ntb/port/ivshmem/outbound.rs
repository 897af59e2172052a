// SPDX-License-Identifier: Apache-2.0
//! The peer's window: stores that its driver allows.

use super::Core;
use super::layout::{WRITERS, limit};
use crate::ntb::port::{Event, Line, Outbound, PortError, Result, WindowMapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use tombolo_core::copy;

/// A handle on the window.
pub struct IvshmemOutbound {
    target: Target,
    /// By slot: what was behind it, and the generation of the link, when it was opened. `(0, _)` is
    /// not open.
    opened: Vec<(u64, u64)>,
}

/// The window, and a counter for writes to it.
#[derive(Clone)]
struct Target {
    core: Arc<Core>,
    base: *mut u8,
    slot_size: usize,
    size: usize,
    writer: usize,
}

// SAFETY: memory that is shared with another machine anyway; stores only.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// Says that a write is under way, as long as it lives.
struct Writing<'a>(&'a AtomicU64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A part of a range that lies in one slot.
struct Piece {
    slot: usize,
    /// Where it is in the slot, in the window, and in the range.
    within: usize,
    offset: usize,
    done: usize,
    len: usize,
}

impl Target {
    fn new(core: Arc<Core>) -> Target {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let window = core.shared.window();
        Target {
            base: core.shared.window_base(1 - core.side),
            slot_size: window.slot_size() as usize,
            size: window.size as usize,
            writer: NEXT.fetch_add(1, Ordering::Relaxed) % WRITERS,
            core,
        }
    }

    /// Whoever closes a slot, or the link, first does so and then waits for writes that are under
    /// way; who writes first says so and then looks whether it may.
    fn begin(&self) -> Writing<'_> {
        let count = &self.core.own().writers[self.writer].0;
        count.fetch_add(1, Ordering::SeqCst);
        Writing(count)
    }

    fn entry(&self, slot: usize) -> u64 {
        self.core.peer().entries[slot].load(Ordering::SeqCst)
    }

    /// The parts of a range by slot, as far as the window goes; says whether that is all of it.
    fn pieces(&self, offset: usize, len: usize) -> (impl Iterator<Item = Piece> + use<>, bool) {
        let (slot_size, size) = (self.slot_size, self.size);
        let inside = len.min(size.saturating_sub(offset));
        let mut done = 0;
        let next = move || {
            let at = offset + done;
            let within = at % slot_size;
            let piece = (inside - done).min(slot_size - within);
            let part = Piece { slot: at / slot_size, within, offset: at, done, len: piece };
            done += piece;
            (piece > 0).then_some(part)
        };
        (std::iter::from_fn(next), inside == len)
    }

    fn fault(&self, up: bool) {
        self.core.count(if up { Event::WindowFaults } else { Event::Lost }, 1);
    }

    fn arrived(&self, bytes: usize) {
        self.core.count(Event::Bytes, bytes as u64);
        self.core.count(Event::Tlps, bytes.div_ceil(Line::BYTES) as u64);
    }
}

impl IvshmemOutbound {
    pub fn new(core: Arc<Core>) -> IvshmemOutbound {
        let target = Target::new(core);
        IvshmemOutbound { opened: vec![(0, 0); target.size / target.slot_size], target }
    }

    /// Gives `act` every part of the range that may be written, with the address of its first byte,
    /// until one may not; says how many bytes that were.
    fn each(&self, offset: usize, len: usize, mut act: impl FnMut(&Piece, *mut u8, usize)) {
        let _writing = self.target.begin();
        let generation = self.target.core.shared.up_generation();
        let (pieces, whole) = self.target.pieces(offset, len);
        for piece in pieces {
            let entry = self.target.entry(piece.slot);
            let is_open = entry != 0 && generation == Some(self.opened[piece.slot].1);
            let limit = match is_open && entry == self.opened[piece.slot].0 {
                true => limit(entry, self.target.slot_size),
                false => 0,
            };
            let open = piece.len.min(limit.saturating_sub(piece.within));
            if open > 0 {
                act(&piece, self.target.base.wrapping_add(piece.offset), open);
                self.target.arrived(open);
            }
            if open < piece.len {
                return self.target.fault(generation.is_some());
            }
        }
        if !whole {
            self.target.fault(generation.is_some());
        }
    }
}

impl Outbound for IvshmemOutbound {
    fn size(&self) -> usize {
        self.target.size
    }

    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        let Some(generation) = self.target.core.shared.up_generation() else {
            return Err(PortError::NotConnected);
        };
        let (pieces, whole) = self.target.pieces(offset, len);
        let mut closed = None;
        for Piece { slot, within, len, .. } in pieces {
            let entry = self.target.entry(slot);
            self.opened[slot] = (entry, generation);
            if within + len > limit(entry, self.target.slot_size) {
                closed.get_or_insert(slot);
            }
        }
        match closed {
            Some(slot) => Err(PortError::Closed { window: 0, slot }),
            None if !whole => {
                Err(PortError::Invalid("a range beyond the end of the window".into()))
            }
            None => Ok(()),
        }
    }

    unsafe fn write(&mut self, offset: usize, source: *const u8, len: usize) {
        self.each(offset, len, |piece, to, open| {
            // SAFETY: inside the peer's window, which stays mapped; the caller vouches for the source.
            unsafe { copy::cached(to, source.add(piece.done), open) };
        });
    }

    fn write_line(&mut self, offset: usize, line: &Line) {
        if !offset.is_multiple_of(Line::BYTES) {
            return self.target.fault(true);
        }
        self.each(offset, Line::BYTES, |_, to, open| {
            for (index, word) in line.0.iter().take(open / 8).enumerate() {
                // SAFETY: an aligned word inside the peer's window, which stays mapped.
                let at = unsafe { AtomicU64::from_ptr(to.add(index * 8).cast()) };
                // Each after the one before: who sees the last sees all.
                at.store(*word, Ordering::Release);
            }
        });
    }

    fn flush(&mut self) {
        fence(Ordering::SeqCst);
    }

    fn read(&mut self, offset: usize, dest: &mut [u8]) {
        self.target.core.count(Event::Reads, dest.len().div_ceil(8) as u64);
        // Reading needs no permission but that of the peer.
        let _ = self.open(offset, dest.len());
        dest.fill(0xff);
        let at = dest.as_mut_ptr();
        self.each(offset, dest.len(), |piece, from, open| {
            // SAFETY: both ranges are as long; the peer may write to its own meanwhile.
            unsafe { copy::cached(at.add(piece.done), from, open) };
        });
    }

    fn map(&mut self, offset: usize, len: usize) -> Option<Box<dyn WindowMapping>> {
        self.open(offset, len).ok().filter(|()| len > 0)?;
        let (pieces, _) = self.target.pieces(offset, len);
        let slots: Vec<(usize, u64)> =
            pieces.map(|piece| (piece.slot, self.opened[piece.slot].0)).collect();
        let generation = self.opened[slots.first()?.0].1;
        let target = self.target.clone();
        let mapping = IvshmemMapping { target, slots, generation, offset, len };
        Some(Box::new(mapping))
    }
}

/// A range of the window for many threads.
struct IvshmemMapping {
    target: Target,
    /// With what was behind them.
    slots: Vec<(usize, u64)>,
    generation: u64,
    offset: usize,
    len: usize,
}

impl WindowMapping for IvshmemMapping {
    fn size(&self) -> usize {
        self.len
    }

    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> bool {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let _writing = self.target.begin();
        if !inside || !self.is_open() {
            return false;
        }
        let to = self.target.base.wrapping_add(self.offset + offset);
        // SAFETY: inside the peer's window, which stays mapped; the caller vouches for the source.
        unsafe { copy::cached(to, source, len) };
        fence(Ordering::Release);
        self.target.arrived(len);
        true
    }

    fn is_open(&self) -> bool {
        let is_same = |(slot, entry): &(usize, u64)| self.target.entry(*slot) == *entry;
        self.target.core.shared.up_generation() == Some(self.generation)
            && self.slots.iter().all(is_same)
    }
}
