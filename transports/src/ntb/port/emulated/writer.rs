// SPDX-License-Identifier: Apache-2.0
//! Whoever writes through a window: what it has open, what it has under way, and how a write gets into
//! the peer's memory, or into nothing.

use super::flight::{Flight, Piece};
use super::layout::LinkMemory;
use super::link::Link;
use super::pace::{self, Pace};
use super::random::Random;
use super::requester::Claim;
use super::sys::SharedMapping;
use super::translation::{MapCache, look_up};
use super::words::LinkWord;
use crate::ntb::port::{Event, PortError, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use tombolo_core::sync;

/// Bytes placed under one look at link and translation.
const DIRECT_STEP: usize = 64 << 10;
/// The same in modelled time: it becomes visible at once, when its last byte is due.
const MODELLED_STEP: usize = 1 << 10;
/// Longest delay that a fault can ask for, nanoseconds.
pub const DELAY_MAX_NS: u64 = 1_000_000_000;

/// Who writes through a window.
pub struct Writer {
    link: Arc<Link>,
    maps: Arc<MapCache>,
    side: usize,
    window: usize,
    claim: Claim,
    slots: Box<[Slot]>,
    size: usize,
    slot_shift: u32,
    step: usize,
    modelled: bool,
    pace: Pace,
    flight: Flight,
    random: Random,
}

/// What was behind a slot when it was last opened.
#[derive(Clone)]
struct Slot {
    generation: u64,
    /// The link then.
    link: LinkWord,
    /// Open from the start of the slot.
    len: usize,
    base: *mut u8,
    _keep: Option<Arc<SharedMapping>>,
}

impl Slot {
    fn closed() -> Slot {
        let base = std::ptr::null_mut();
        Slot { generation: u64::MAX, link: LinkWord::default(), len: 0, base, _keep: None }
    }
}

// SAFETY: `base` points into the mapping, which the slot keeps, and which any thread may use.
unsafe impl Send for Writer {}

/// What became of a step.
enum Step {
    /// It is under way.
    Sent,
    Placed {
        dropped_tlps: u64,
    },
    Lost,
}

impl Writer {
    pub fn new(link: Arc<Link>, maps: Arc<MapCache>, side: usize, window: usize) -> Result<Writer> {
        let claim = Claim::new(Arc::clone(&link), side)?;
        let rules = link.config.windows[window];
        let slot_size = rules.slot_size() as usize;
        let modelled = link.is_modelled();
        let step = if modelled { MODELLED_STEP } else { DIRECT_STEP };
        let timing = &link.config.timing;
        let pace = Pace::new(timing);
        let stream = (side as u64) << 32 | (window as u64) << 16 | claim.index() as u64;
        let closed = Slot::closed();
        Ok(Writer {
            random: Random::new(link.config.seed, stream),
            slots: vec![closed; rules.slots].into(),
            size: rules.size as usize,
            slot_shift: slot_size.trailing_zeros(),
            step: step.min(slot_size),
            flight: Flight::new(if modelled {
                Flight::lines_for(timing, pace.latency_ps())
            } else {
                0
            }),
            pace,
            link,
            maps,
            side,
            window,
            claim,
            modelled,
        })
    }

    /// Sends `len` bytes in TLPs of up to `tlp` bytes (a power of two), cut at its multiples.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes.
    pub unsafe fn send(&mut self, offset: usize, source: *const u8, len: usize, tlp: usize) {
        let inside = self.size.saturating_sub(offset).min(len);
        if inside < len {
            let outside = tlps(offset.saturating_add(inside), len - inside, tlp);
            self.claim.count(Event::WindowFaults, outside);
        }
        let mut done = 0;
        while done < inside {
            let at = offset + done;
            let len = (inside - done).min(self.step - at % self.step);
            // SAFETY: `done + len <= inside <= len` of the caller's readable range.
            let outcome = unsafe { self.send_step(at, source.add(done), len, tlp) };
            if let Step::Lost = outcome {
                self.claim.count(Event::Lost, tlps(at, inside - done, tlp));
                return;
            }
            done += len;
        }
    }

    /// Sends what lies within one step, and therefore within one slot.
    ///
    /// # Safety
    /// As `send`.
    unsafe fn send_step(
        &mut self,
        offset: usize,
        source: *const u8,
        len: usize,
        tlp: usize,
    ) -> Step {
        // SAFETY: used in this call alone.
        let memory = unsafe { self.memory() };
        let link = memory.status.read();
        let slot = &self.slots[offset >> self.slot_shift];
        // What was opened before the link went down is lost though it is up again: nothing may
        // arrive that follows something lost.
        if !link.is_up() || (slot.len > 0 && slot.link != link) {
            return Step::Lost;
        }
        let generation = slot.generation;
        let piece = Piece { offset, len, tlp, due_ps: 0, link, generation };
        if self.modelled {
            // SAFETY: as above.
            unsafe { self.launch(memory, piece, source) };
            return Step::Sent;
        }
        if memory.status.faulty.load(Ordering::Relaxed) != 0 {
            pace::wait_until(&self.link, self.link.now_ps() + delay_ps(memory));
        }
        // SAFETY: as above.
        unsafe { self.land(memory, &piece, source) }
    }

    /// Keeps a piece until it is due, and holds the writer up where hardware would.
    ///
    /// # Safety
    /// `source` must be readable for the length of the piece, which lies within one slot.
    unsafe fn launch(&mut self, memory: &LinkMemory, mut piece: Piece, source: *const u8) {
        let mut now = self.place_due(self.link.now_ps());
        while let Some(due_ps) = self.flight.last_due_ps()
            && !self.flight.has_room(piece.len)
        {
            pace::pause(due_ps.saturating_sub(now));
            now = self.place_due(self.link.now_ps());
        }
        let wire_ps = self.link.config.timing.wire_ps(piece.len as u64, piece.tlps());
        let wire = &memory.sides[self.side].wire_free_ps.0;
        let passage = self.pace.issue(now, wire, wire_ps, delay_ps(memory));
        piece.due_ps = passage.due_ps;
        // SAFETY: as above; room was made.
        unsafe { self.flight.push(piece, source) };
        while now < passage.accepted_ps {
            pace::pause(passage.accepted_ps - now);
            now = self.place_due(self.link.now_ps());
        }
    }

    /// A piece of up to `len` bytes at `offset` leaves at `from_ps` at the earliest, and is due some
    /// time later: its maker keeps it until then, and then has it [arrive](Writer::arrive). It ends
    /// with its slot. An error: so many bytes cannot leave, and count as lost. Pieces arrive in the
    /// order in which they leave, and no writer both keeps pieces and has them kept.
    pub fn depart(
        &mut self,
        offset: usize,
        len: usize,
        tlp: usize,
        from_ps: u64,
    ) -> std::result::Result<Piece, usize> {
        if offset >= self.size || len > self.size - offset {
            self.claim.count(Event::WindowFaults, tlps(offset, len, tlp));
            return Err(len);
        }
        let len = len.min((1 << self.slot_shift) - (offset & ((1 << self.slot_shift) - 1)));
        // SAFETY: used in this call alone.
        let memory = unsafe { self.memory() };
        let link = memory.status.read();
        let slot = &self.slots[offset >> self.slot_shift];
        if !link.is_up() || (slot.len > 0 && slot.link != link) {
            self.claim.count(Event::Lost, tlps(offset, len, tlp));
            return Err(len);
        }
        let mut piece = Piece { offset, len, tlp, due_ps: 0, link, generation: slot.generation };
        let delay_ps = delay_ps(memory);
        if self.modelled {
            let wire_ps = self.link.config.timing.wire_ps(len as u64, piece.tlps());
            let wire = &memory.sides[self.side].wire_free_ps.0;
            piece.due_ps = self.pace.issue(from_ps, wire, wire_ps, delay_ps).due_ps;
        } else if delay_ps > 0 {
            piece.due_ps = self.link.now_ps() + delay_ps;
        }
        Ok(piece)
    }

    /// A piece that has left, and is due, gets into the peer's memory, or into nothing. Whether all of it
    /// has.
    ///
    /// # Safety
    /// `source` must be readable for the length of the piece.
    pub unsafe fn arrive(&mut self, piece: &Piece, source: *const u8) -> bool {
        // SAFETY: the link memory is used in this call alone; the source as promised.
        let outcome = unsafe { self.land(self.memory(), piece, source) };
        if let Step::Lost = outcome {
            self.claim.count(Event::Lost, piece.tlps());
        }
        matches!(outcome, Step::Placed { dropped_tlps: 0 })
    }

    /// Places what is due at the time `now`. How long it is until something else is, if anything is
    /// under way.
    pub fn advance(&mut self, now: u64) -> Option<u64> {
        self.place_due(now);
        self.flight.next_due_ps().map(|due_ps| due_ps.saturating_sub(now))
    }

    pub fn count(&self, event: Event, by: u64) {
        self.claim.count(event, by);
    }

    pub fn is_under_way(&self) -> bool {
        !self.flight.is_empty()
    }

    /// Places what is due at the time `now`; gives it back.
    fn place_due(&mut self, now: u64) -> u64 {
        while let Some((piece, source)) = self.flight.first_due(now) {
            // SAFETY: used in this round alone; the bytes stay until `pop`.
            let outcome = unsafe { self.land(self.memory(), &piece, source) };
            if let Step::Lost = outcome {
                self.claim.count(Event::Lost, piece.tlps());
            }
            self.flight.pop();
        }
        now
    }

    /// Places a piece that has crossed the link, if that is still what it was when the piece left.
    ///
    /// # Safety
    /// As `launch`.
    unsafe fn land(&mut self, memory: &LinkMemory, piece: &Piece, source: *const u8) -> Step {
        let faulty = memory.status.faulty.load(Ordering::Relaxed) != 0;
        self.claim.enter();
        // Read again behind the barrier of `enter`: what was on its way when the link went down
        // is lost, and a closed translation is seen to be closed.
        let outcome = if memory.status.read() == piece.link {
            // SAFETY: as above.
            unsafe { self.place(memory, piece, source) }
        } else {
            Step::Lost
        };
        if let Step::Placed { dropped_tlps: 0 } = outcome
            && faulty
        {
            self.damage(memory, piece);
        }
        self.claim.leave();
        if let Step::Placed { dropped_tlps } = outcome {
            self.claim.count(Event::Tlps, piece.tlps() - dropped_tlps);
        }
        outcome
    }

    /// Copies into the memory behind the slot; TLPs that do not fit in what is open are dropped, and
    /// all of them where the slot was set anew meanwhile.
    ///
    /// # Safety
    /// As `launch`.
    unsafe fn place(&mut self, memory: &LinkMemory, piece: &Piece, source: *const u8) -> Step {
        let Piece { offset, len, tlp, .. } = *piece;
        let index = offset >> self.slot_shift;
        let generation = self.translation(memory, offset).load(Ordering::SeqCst);
        let slot = &self.slots[index];
        // Neither changed since the writer has opened it, nor opened again while this was under way.
        let current = [slot.generation, piece.generation] == [generation; 2];
        let open = if current { slot.len } else { 0 };
        let within = offset & ((1 << self.slot_shift) - 1);
        let mut fits = len;
        if within + len > open {
            // Up to the last multiple of `tlp` that is open, or the end of what is open if the
            // write itself ends there.
            let open_end = (open / tlp * tlp).max(within);
            fits = open_end - within;
        }
        if fits > 0 {
            // SAFETY: `within + fits <= slot.len`, which is mapped at `base`; source as promised.
            unsafe { copy(source, slot.base.add(within), fits) };
            self.claim.count(Event::Bytes, fits as u64);
        }
        let dropped_tlps = if fits == len { 0 } else { tlps(offset + fits, len - fits, tlp) };
        self.claim.count(Event::WindowFaults, dropped_tlps);
        Step::Placed { dropped_tlps }
    }

    /// Generation of what is behind the slot of `offset`.
    fn translation<'a>(&self, memory: &'a LinkMemory, offset: usize) -> &'a sync::AtomicU64 {
        let slots = &memory.sides[1 - self.side].windows[self.window];
        &slots[offset >> self.slot_shift].generation
    }

    /// Link memory, without a borrow of `self`.
    ///
    /// # Safety
    /// Not used after `self`: it stays mapped as long as `self.link`, which nothing replaces.
    unsafe fn memory<'a>(&self) -> &'a LinkMemory {
        let memory: *const LinkMemory = self.link.memory();
        // SAFETY: the caller's promise.
        unsafe { &*memory }
    }

    /// Opens all slots of a range that the peer has opened; an error says why not all.
    pub fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        let link = self.link.word();
        if !link.is_up() {
            return Err(PortError::NotConnected);
        }
        if offset >= self.size || len > self.size - offset {
            return Err(PortError::Invalid(format!(
                "{len} bytes at {offset} of a window of {}",
                self.size
            )));
        }
        let (first, last) =
            (offset >> self.slot_shift, (offset + len.max(1) - 1) >> self.slot_shift);
        (first..=last).map(|index| self.open_slot(index, link)).fold(Ok(()), Result::and)
    }

    fn open_slot(&mut self, index: usize, link: LinkWord) -> Result<()> {
        let found = look_up(self.link.memory(), 1 - self.side, self.window, index);
        let Some(target) = found else {
            // The mapping is kept: most likely the peer opens the slot again onto the same memory.
            self.slots[index].len = 0;
            return Err(PortError::Closed { window: self.window, slot: index });
        };
        let mapping = self.maps.mapping(&target)?;
        let start = usize::try_from(target.offset).unwrap_or(usize::MAX).min(mapping.size());
        let slot_size = 1u64 << self.slot_shift;
        let len = (mapping.size() - start).min(target.size.min(slot_size) as usize);
        // SAFETY: `start` is at most the length of the mapping.
        let base = unsafe { mapping.base().add(start) };
        let generation = target.generation;
        self.slots[index] = Slot { generation, link, len, base, _keep: Some(mapping) };
        Ok(())
    }

    /// Flips a bit in some of the TLPs just placed, as the control block asks.
    #[cold]
    fn damage(&mut self, memory: &LinkMemory, piece: &Piece) {
        let Piece { offset, len, tlp, .. } = *piece;
        let ppm = memory.faults.corrupt_ppm.load(Ordering::Relaxed);
        if ppm == 0 {
            return;
        }
        let slot = &self.slots[offset >> self.slot_shift];
        let within = offset & ((1 << self.slot_shift) - 1);
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(tlp - (within + done) % tlp);
            if self.random.chance(ppm) {
                let victim = within + done + self.random.below(piece as u64) as usize;
                // SAFETY: inside what `place` has just written, and still mapped.
                unsafe {
                    let byte = slot.base.add(victim);
                    byte.write_volatile(byte.read_volatile() ^ 1 << self.random.below(8));
                }
                self.claim.count(Event::Corrupted, 1);
            }
            done += piece;
        }
    }

    /// Reads `dest.len()` bytes, all ones where nothing answers. Counts one read for every 8 bytes.
    pub fn receive(&mut self, offset: usize, dest: &mut [u8]) {
        dest.fill(0xff);
        for (index, bytes) in dest.chunks_mut(8).enumerate() {
            self.claim.count(Event::Reads, 1);
            super::pace::remote_read(&self.link);
            if let Some(at) = offset.checked_add(index * 8) {
                self.receive_word(at, bytes);
            }
        }
    }

    fn receive_word(&mut self, offset: usize, dest: &mut [u8]) {
        let link = Arc::clone(&self.link);
        let memory = link.memory();
        if offset >= self.size || dest.len() > self.size - offset || !memory.status.read().is_up() {
            return;
        }
        // Where it fails, all ones are read.
        let _ = self.open(offset, dest.len());
        self.claim.enter();
        for (index, byte) in dest.iter_mut().enumerate() {
            let slot = &self.slots[(offset + index) >> self.slot_shift];
            let within = (offset + index) & ((1 << self.slot_shift) - 1);
            let current = self.translation(memory, offset + index).load(Ordering::SeqCst);
            if slot.generation == current && within < slot.len {
                // SAFETY: inside the slot's mapping.
                *byte = unsafe { slot.base.add(within).read_volatile() };
            }
        }
        self.claim.leave();
    }
}

impl Piece {
    fn tlps(&self) -> u64 {
        tlps(self.offset, self.len, self.tlp)
    }
}

/// What faults add to a passage. More than any fault asks for is damage: it is not followed.
pub fn delay_ps(memory: &LinkMemory) -> u64 {
    let delay_ns = memory.faults.delay_ns.load(Ordering::Relaxed);
    if delay_ns <= DELAY_MAX_NS { delay_ns * 1000 } else { 0 }
}

/// TLPs that carry `len` bytes at `offset` when cut at multiples of `tlp`.
fn tlps(offset: usize, len: usize, tlp: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    // An address that wraps around is outside of everything; its TLPs are still counted.
    let last = offset.saturating_add(len - 1);
    (last / tlp - offset / tlp + 1) as u64
}

/// Copies in order with what this thread has written before: whoever sees a byte of this sees all
/// earlier writes. Aligned words appear whole; the last word of a line appears last.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap.
#[inline]
unsafe fn copy(source: *const u8, dest: *mut u8, len: usize) {
    // SAFETY: the caller's promise; atomics are used where the address is aligned for them.
    unsafe {
        match len {
            8 if dest.addr().is_multiple_of(8) => {
                let value = source.cast::<u64>().read_unaligned();
                AtomicU64::from_ptr(dest.cast()).store(value, Ordering::Release);
            }
            4 if dest.addr().is_multiple_of(4) => {
                let value = source.cast::<u32>().read_unaligned();
                AtomicU32::from_ptr(dest.cast()).store(value, Ordering::Release);
            }
            64 if dest.addr().is_multiple_of(64) => {
                fence(Ordering::Release);
                let words = source.cast::<u64>();
                for index in 0..7 {
                    let value = words.add(index).read_unaligned();
                    AtomicU64::from_ptr(dest.cast::<u64>().add(index))
                        .store(value, Ordering::Relaxed);
                }
                let last = words.add(7).read_unaligned();
                AtomicU64::from_ptr(dest.cast::<u64>().add(7)).store(last, Ordering::Release);
            }
            _ => {
                fence(Ordering::Release);
                source.copy_to_nonoverlapping(dest, len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tlps_are_cut_at_their_multiples() {
        let cases = [(0, 0, 0), (0, 1, 1), (0, 64, 1), (63, 2, 2), (60, 64, 2), (64, 128, 2)];
        for (offset, len, expected) in cases {
            assert_eq!(tlps(offset, len, 64), expected, "{offset}+{len}");
        }
        assert_eq!(tlps(usize::MAX - 1, 64, 64), 1);
    }
}
