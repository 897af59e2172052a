// SPDX-License-Identifier: Apache-2.0
//! Outbound windows of slots that the peer's driver opens and closes: it says in memory of this side
//! which are open, and a write goes nowhere else. Where the words are, and how bytes get to the peer,
//! is the matter of a [`Face`].

use super::{Event, Line, Outbound, PortError, Result, WindowMapping};

/// What stands for a slot that is open: which opening it was, and how many bytes are open. 0 is a
/// closed slot.
pub fn entry(opening: u32, limit: u32) -> u64 {
    u64::from(opening) << 32 | u64::from(limit)
}

/// Bytes of a slot that an entry opens; never more than there are.
pub fn limit(entry: u64, slot_size: usize) -> usize {
    (entry as u32 as usize).min(slot_size)
}

/// A window of the peer, as one requester has it. Offsets given to it lie inside of the window.
pub trait Face: Clone + Send + Sync + 'static {
    /// Says that a write is under way, as long as it lives.
    type Writing<'a>
    where
        Self: 'a;

    /// Which window of the port it is.
    fn index(&self) -> usize;

    /// Bytes of the window, and of each of its slots.
    fn sizes(&self) -> (usize, usize);

    /// Whoever closes a slot, or the link, first does so and then waits for writes that are under
    /// way; who writes first says so and then looks whether it may.
    fn begin(&self) -> Self::Writing<'_>;

    /// What the peer says of a slot: anything, if it is broken or hostile.
    fn entry(&self, slot: usize) -> u64;

    /// The generation of the link, if it is up. On the data path: a few loads.
    fn up_generation(&self) -> Option<u64>;

    /// Looks at the device for changes of the link that nobody has told of yet.
    fn refresh(&self) {}

    /// Whether the peer makes the same of the window: it cannot be opened otherwise.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Stores bytes.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes.
    unsafe fn store(&self, offset: usize, source: *const u8, len: usize);

    /// Stores words, each after the one before: who sees the last sees all.
    fn store_words(&self, offset: usize, words: &[u64]);

    /// Loads bytes.
    ///
    /// # Safety
    /// `dest` is writable for `len` bytes.
    unsafe fn load(&self, offset: usize, dest: *mut u8, len: usize);

    /// Orders what this thread has stored before what it stores later.
    fn order(&self);

    /// Orders it before everything that this thread does later.
    fn flush(&self);

    fn count(&self, event: Event, amount: u64);
}

/// A handle on a window.
pub struct SlottedOutbound<F> {
    face: F,
    /// By slot: what was behind it, and the generation of the link, when it was opened. `(0, _)` is
    /// not open.
    opened: Vec<(u64, u64)>,
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

/// The parts of a range by slot, as far as the window goes; says whether that is all of it.
fn pieces(
    (size, slot_size): (usize, usize),
    offset: usize,
    len: usize,
) -> (impl Iterator<Item = Piece> + use<>, bool) {
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

fn fault(face: &impl Face, up: bool) {
    face.count(if up { Event::WindowFaults } else { Event::Lost }, 1);
}

fn arrived(face: &impl Face, bytes: usize) {
    face.count(Event::Bytes, bytes as u64);
    face.count(Event::Tlps, bytes.div_ceil(Line::BYTES) as u64);
}

impl<F: Face> SlottedOutbound<F> {
    pub fn new(face: F) -> SlottedOutbound<F> {
        let (size, slot_size) = face.sizes();
        SlottedOutbound { opened: vec![(0, 0); size / slot_size], face }
    }

    /// How many bytes may be written from the start of a range on, for who does not write by the CPU: they
    /// are counted as written.
    pub fn permitted(&self, offset: usize, len: usize) -> usize {
        let mut permitted = 0;
        self.each(offset, len, |_, open| permitted += open);
        permitted
    }

    /// The window.
    pub fn face(&self) -> &F {
        &self.face
    }

    /// `open` by what is known of the link.
    pub fn open_as_told(&mut self, offset: usize, len: usize) -> Result<()> {
        let Some(generation) = self.face.up_generation() else {
            return Err(PortError::NotConnected);
        };
        self.face.check()?;
        let (pieces, whole) = pieces(self.face.sizes(), offset, len);
        let mut closed = None;
        for Piece { slot, within, len, .. } in pieces {
            let entry = self.face.entry(slot);
            self.opened[slot] = (entry, generation);
            if within + len > limit(entry, self.face.sizes().1) {
                closed.get_or_insert(slot);
            }
        }
        match closed {
            Some(slot) => Err(PortError::Closed { window: self.face.index(), slot }),
            None if !whole => {
                Err(PortError::Invalid("a range beyond the end of the window".into()))
            }
            None => Ok(()),
        }
    }

    /// Gives `act` every part of the range that may be written, until one may not.
    fn each(&self, offset: usize, len: usize, mut act: impl FnMut(&Piece, usize)) {
        let face = &self.face;
        let _writing = face.begin();
        let generation = face.up_generation();
        let (pieces, whole) = pieces(face.sizes(), offset, len);
        for piece in pieces {
            let entry = face.entry(piece.slot);
            let is_open = entry != 0 && generation == Some(self.opened[piece.slot].1);
            let limit = match is_open && entry == self.opened[piece.slot].0 {
                true => limit(entry, face.sizes().1),
                false => 0,
            };
            let open = piece.len.min(limit.saturating_sub(piece.within));
            if open > 0 {
                act(&piece, open);
                arrived(face, open);
            }
            if open < piece.len {
                return fault(face, generation.is_some());
            }
        }
        if !whole {
            fault(face, generation.is_some());
        }
    }
}

impl<F: Face> Outbound for SlottedOutbound<F> {
    fn size(&self) -> usize {
        self.face.sizes().0
    }

    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        self.face.refresh();
        self.open_as_told(offset, len)
    }

    unsafe fn write(&mut self, offset: usize, source: *const u8, len: usize) {
        self.each(offset, len, |piece, open| {
            // SAFETY: inside the window; the caller vouches for the source.
            unsafe { self.face.store(piece.offset, source.add(piece.done), open) };
        });
    }

    fn write_line(&mut self, offset: usize, line: &Line) {
        if !offset.is_multiple_of(Line::BYTES) {
            return fault(&self.face, true);
        }
        self.each(offset, Line::BYTES, |piece, open| {
            self.face.store_words(piece.offset, &line.0[..open / 8]);
        });
    }

    fn flush(&mut self) {
        self.face.flush();
    }

    fn read(&mut self, offset: usize, dest: &mut [u8]) {
        self.face.count(Event::Reads, dest.len().div_ceil(8) as u64);
        // Reading needs no permission but that of the peer.
        let _ = self.open(offset, dest.len());
        dest.fill(0xff);
        let at = dest.as_mut_ptr();
        self.each(offset, dest.len(), |piece, open| {
            // SAFETY: both ranges are as long; the peer may write to its own meanwhile.
            unsafe { self.face.load(piece.offset, at.add(piece.done), open) };
        });
    }

    fn map(&mut self, offset: usize, len: usize) -> Option<Box<dyn WindowMapping>> {
        self.open(offset, len).ok().filter(|()| len > 0)?;
        let (pieces, _) = pieces(self.face.sizes(), offset, len);
        let slots: Vec<(usize, u64)> =
            pieces.map(|piece| (piece.slot, self.opened[piece.slot].0)).collect();
        let generation = self.opened[slots.first()?.0].1;
        let face = self.face.clone();
        Some(Box::new(SlottedMapping { face, slots, generation, offset, len }))
    }
}

/// A range of the window for many threads.
struct SlottedMapping<F> {
    face: F,
    /// With what was behind them.
    slots: Vec<(usize, u64)>,
    generation: u64,
    offset: usize,
    len: usize,
}

impl<F: Face> WindowMapping for SlottedMapping<F> {
    fn size(&self) -> usize {
        self.len
    }

    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> bool {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let _writing = self.face.begin();
        if !inside || !self.is_open() {
            return false;
        }
        // SAFETY: inside the window; the caller vouches for the source.
        unsafe { self.face.store(self.offset + offset, source, len) };
        self.face.order();
        arrived(&self.face, len);
        true
    }

    fn is_open(&self) -> bool {
        let is_same = |(slot, entry): &(usize, u64)| self.face.entry(*slot) == *entry;
        !self.is_cut() && self.slots.iter().all(is_same)
    }

    fn is_cut(&self) -> bool {
        self.face.up_generation() != Some(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_never_opens_more_than_its_slot() {
        assert_eq!(limit(entry(7, 4096), 8192), 4096);
        assert_eq!(limit(u64::MAX, 8192), 8192);
        assert_eq!(limit(0, 8192), 0);
    }
}
