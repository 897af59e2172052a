//! Posted writes: from a requester's hands into the peer's memory, or into nothing.

use super::layout::LinkMemory;
use super::link::Link;
use super::pace::Pace;
use super::random::Random;
use super::requester::Claim;
use super::sys::SharedMapping;
use super::translation::{MapCache, look_up};
use crate::ntb::port::{Event, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes placed under one look at link and translation.
const DIRECT_STEP: usize = 64 << 10;
/// The same in modelled time: the copy of one step must be shorter than a propagation.
const MODELLED_STEP: usize = 1 << 10;

/// The way of one requester through one window.
pub struct Posted {
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
    random: Random,
}

/// What this requester believes to be behind a slot.
#[derive(Clone)]
struct Slot {
    generation: u64,
    /// Open from the start of the slot.
    len: usize,
    base: *mut u8,
    _keep: Option<Arc<SharedMapping>>,
}

// SAFETY: `base` points into the mapping, which the slot keeps, and which any thread may use.
unsafe impl Send for Posted {}

/// What became of a step.
enum Outcome {
    Placed { dropped_tlps: u64 },
    Lost,
}

impl Posted {
    pub fn new(link: Arc<Link>, maps: Arc<MapCache>, side: usize, window: usize) -> Result<Posted> {
        let claim = Claim::new(Arc::clone(&link), side)?;
        let rules = link.config.windows[window];
        let slot_size = rules.slot_size() as usize;
        let modelled = link.is_modelled();
        let step = if modelled { MODELLED_STEP } else { DIRECT_STEP };
        let stream = (side as u64) << 32 | (window as u64) << 16 | claim.index() as u64;
        let closed = Slot { generation: u64::MAX, len: 0, base: std::ptr::null_mut(), _keep: None };
        Ok(Posted {
            random: Random::new(link.config.seed, stream),
            slots: vec![closed; rules.slots].into(),
            size: rules.size as usize,
            slot_shift: slot_size.trailing_zeros(),
            step: step.min(slot_size),
            pace: Pace::default(),
            link,
            maps,
            side,
            window,
            claim,
            modelled,
        })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn window(&self) -> usize {
        self.window
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Side of the requester; the memory is at the other one.
    pub fn side(&self) -> usize {
        self.side
    }

    pub fn count(&self, event: Event, by: u64) {
        self.claim.count(event, by);
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
            if let Outcome::Lost = outcome {
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
    ) -> Outcome {
        let memory: *const LinkMemory = self.link.memory();
        // SAFETY: link memory stays mapped as long as `self.link`, which nothing here replaces.
        let memory = unsafe { &*memory };
        let word = memory.status.read();
        if !word.is_up() {
            return Outcome::Lost;
        }
        let count = tlps(offset, len, tlp);
        let faulty = memory.status.faulty.load(Ordering::Relaxed) != 0;
        if self.modelled || faulty {
            self.travel(memory, len, count);
        }
        self.claim.enter();
        // Read again behind the barrier of `enter`: what was on its way when the link went down
        // is lost, and a closed translation is seen to be closed.
        let outcome = if memory.status.read() == word {
            // SAFETY: as above.
            unsafe { self.place(memory, offset, source, len, tlp) }
        } else {
            Outcome::Lost
        };
        if let Outcome::Placed { dropped_tlps: 0 } = outcome
            && faulty
        {
            self.damage(memory, offset, len, tlp);
        }
        self.claim.leave();
        if let Outcome::Placed { dropped_tlps } = outcome {
            self.claim.count(Event::Tlps, count - dropped_tlps);
        }
        outcome
    }

    /// Waits until the step has crossed the link.
    #[cold]
    fn travel(&mut self, memory: &LinkMemory, len: usize, tlps: u64) {
        let timing = &self.link.config.timing;
        // At most a second, whatever the control block says.
        let delay_ns = memory.faults.delay_ns.load(Ordering::Relaxed).min(1_000_000_000);
        let (wire_ps, propagation_ns) = if self.modelled {
            (timing.wire_ps(len as u64, tlps), u64::from(timing.propagation_ns) + delay_ns)
        } else {
            (0, delay_ns)
        };
        let wire = &memory.sides[self.side].wire_free_ps.0;
        self.pace.transmit(&self.link, wire, wire_ps, propagation_ns * 1000);
    }

    /// Copies into the memory behind the slot; TLPs that do not fit in what is open are dropped.
    ///
    /// # Safety
    /// As `send`, and the range lies within one slot.
    unsafe fn place(
        &mut self,
        memory: &LinkMemory,
        offset: usize,
        source: *const u8,
        len: usize,
        tlp: usize,
    ) -> Outcome {
        let index = offset >> self.slot_shift;
        let entry = &memory.sides[1 - self.side].windows[self.window][index];
        let generation = entry.generation.load(Ordering::SeqCst);
        if self.slots[index].generation != generation {
            self.look_behind(memory, index, generation);
        }
        let slot = &self.slots[index];
        let within = offset & ((1 << self.slot_shift) - 1);
        let mut fits = len;
        if within + len > slot.len {
            // Up to the last multiple of `tlp` that is open, or the end of what is open if the
            // write itself ends there.
            let open_end = (slot.len / tlp * tlp).max(within);
            fits = open_end - within;
        }
        if fits > 0 {
            // SAFETY: `within + fits <= slot.len`, which is mapped at `base`; source as promised.
            unsafe { copy(source, slot.base.add(within), fits) };
            self.claim.count(Event::Bytes, fits as u64);
        }
        let dropped_tlps = if fits == len { 0 } else { tlps(offset + fits, len - fits, tlp) };
        self.claim.count(Event::WindowFaults, dropped_tlps);
        Outcome::Placed { dropped_tlps }
    }

    /// Follows a changed translation. What cannot be reached is closed until it changes again.
    #[cold]
    fn look_behind(&mut self, memory: &LinkMemory, index: usize, generation: u64) {
        let limit = 1u64 << self.slot_shift;
        let found = look_up(memory, 1 - self.side, self.window, index)
            .filter(|target| target.generation == generation)
            .and_then(|target| match self.maps.mapping(self.window, index, &target, limit) {
                Ok(mapping) => Some(mapping),
                Err(error) => {
                    tracing::debug!(window = self.window, slot = index, %error, "closed slot");
                    None
                }
            });
        self.slots[index] = match found {
            Some(mapping) => {
                Slot { generation, len: mapping.size(), base: mapping.base(), _keep: Some(mapping) }
            }
            None => Slot { generation, len: 0, base: std::ptr::null_mut(), _keep: None },
        };
    }

    /// Flips a bit in some of the TLPs just placed, as the control block asks.
    #[cold]
    fn damage(&mut self, memory: &LinkMemory, offset: usize, len: usize, tlp: usize) {
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
        self.claim.enter();
        for (index, byte) in dest.iter_mut().enumerate() {
            let slot = (offset + index) >> self.slot_shift;
            let within = (offset + index) & ((1 << self.slot_shift) - 1);
            let entry = &memory.sides[1 - self.side].windows[self.window][slot];
            let generation = entry.generation.load(Ordering::SeqCst);
            if self.slots[slot].generation != generation {
                self.look_behind(memory, slot, generation);
            }
            if within < self.slots[slot].len {
                // SAFETY: inside the slot's mapping.
                *byte = unsafe { self.slots[slot].base.add(within).read_volatile() };
            }
        }
        self.claim.leave();
    }
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
