//! Direct windows: the segments of PEs on neighbouring hosts as memory for stores.
//!
//! Where a window is large enough, every PE opens its share of it onto its whole segments. A put to
//! a neighbour is then a copy by the initiator alone: no target CPU, no packet, no acknowledgement.
//!
//! Order: a mapping is offered by ports whose stores have arrived once a store fence has
//! retired ([`WindowMapping`]). So a direct put is complete when it returns, precedes every packet
//! submitted after it, and has to wait only for packets submitted before (the endpoint's `fence`
//! does). A link that went down during the copy is noticed after it; the put is then repeated
//! over the ring.

use crate::ntb::port::{Outbound, Window, WindowMapping};
use crate::ntb::ring::Side;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use tombolo_core::copy;
use tombolo_core::transport::SegmentKind;

const KINDS: usize = SegmentKind::ALL.len();

/// Where a PE opens its segments in the window for direct access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// First slot.
    pub slot: usize,
    /// Slots.
    pub slots: usize,
    /// Bytes to translate, by the window's rules.
    pub size: u64,
    /// Offset in the window.
    pub offset: u64,
}

/// Places segments of the given lengths in the share of PE `local_index` of `pes`. A segment that
/// does not fit as a whole is left out.
pub fn plan(
    window: &Window,
    local_index: usize,
    pes: usize,
    lens: [Option<u64>; KINDS],
) -> [Option<Opening>; KINDS] {
    let share = window.share(local_index, pes);
    let mut next = share.start;
    lens.map(|len| {
        let size = window.round_up(len?);
        let slots = usize::try_from(size.div_ceil(window.slot_size())).ok()?;
        if slots > share.end - next {
            return None;
        }
        let slot = next;
        next += slots;
        Some(Opening { slot, slots, size, offset: slot as u64 * window.slot_size() })
    })
}

/// What one neighbouring PE offers, and what of it is mapped.
pub struct DirectPeer {
    /// By segment: offset in the window, and length.
    offers: [Option<(usize, usize)>; KINDS],
    /// Ways to it in order of preference: two when both links lead to its host.
    ways: Vec<Side>,
    /// By side and segment; null where nothing is mapped.
    maps: [[AtomicPtr<Mapped>; KINDS]; 2],
    /// Mappings of links that went down: other threads may still be looking at them.
    #[expect(clippy::vec_box, reason = "readers hold the address")]
    retired: Mutex<Vec<Box<Mapped>>>,
}

struct Mapped {
    base: *mut u8,
    len: usize,
    window: Box<dyn WindowMapping>,
}

// SAFETY: the mapping may be used from any thread; `base` is its address.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl DirectPeer {
    /// A neighbour with nothing mapped yet.
    pub fn new(offers: [Option<(usize, usize)>; KINDS], ways: Vec<Side>) -> DirectPeer {
        DirectPeer { offers, ways, maps: Default::default(), retired: Mutex::default() }
    }

    /// Copies `len` bytes to `offset` of the segment. False: nothing can be said to have arrived,
    /// send it another way.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes; the range lies inside the segment.
    #[inline]
    pub unsafe fn put(
        &self,
        segment: SegmentKind,
        offset: usize,
        source: *const u8,
        len: usize,
    ) -> bool {
        let Some(mapped) = self.open(segment) else { return false };
        if offset.checked_add(len).is_none_or(|end| end > mapped.len) {
            return false;
        }
        // SAFETY: inside the mapping; the caller vouches for the source.
        unsafe { copy::cached(mapped.base.add(offset), source, len) };
        fence(Ordering::Release);
        mapped.window.is_open()
    }

    #[inline]
    fn open(&self, segment: SegmentKind) -> Option<&Mapped> {
        self.ways.iter().find_map(|side| {
            let at = self.maps[*side as usize][segment as usize].load(Ordering::Acquire);
            // SAFETY: null or a box that is retired, not freed, as long as `self` lives.
            let mapped = unsafe { at.as_ref() }?;
            mapped.window.is_open().then_some(mapped)
        })
    }

    /// Maps what can be mapped through the window at `side` and is not. True when nothing is
    /// missing there.
    pub fn map(&self, side: Side, window: &mut dyn Outbound) -> bool {
        if !self.ways.contains(&side) {
            return true;
        }
        let mut whole = true;
        for (offer, place) in self.offers.iter().zip(&self.maps[side as usize]) {
            let Some((offset, len)) = *offer else { continue };
            // SAFETY: as in `open`.
            let current = unsafe { place.load(Ordering::Acquire).as_ref() };
            if current.is_some_and(|mapped| mapped.window.is_open()) {
                continue;
            }
            let Some(mapping) = window.map(offset, len) else {
                whole = false;
                continue;
            };
            let mapped = Box::new(Mapped { base: mapping.base(), len, window: mapping });
            let old = place.swap(Box::into_raw(mapped), Ordering::AcqRel);
            if !old.is_null() {
                // SAFETY: made by `into_raw` below, and taken out by this swap alone.
                let old = unsafe { Box::from_raw(old) };
                self.retired.lock().unwrap_or_else(|e| e.into_inner()).push(old);
            }
        }
        whole
    }

    /// Whether stores reach a segment at present.
    pub fn is_open(&self, segment: SegmentKind) -> bool {
        self.open(segment).is_some()
    }
}

impl Drop for DirectPeer {
    fn drop(&mut self) {
        for place in self.maps.iter_mut().flatten() {
            let at = *place.get_mut();
            if !at.is_null() {
                // SAFETY: from `into_raw`, and nobody uses it while `self` is dropped.
                drop(unsafe { Box::from_raw(at) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(slots: usize, size_aligned: bool) -> Window {
        Window {
            size: 1 << 30,
            slots,
            addr_align: 4096,
            size_align: 4096,
            size_aligned,
            has_limit: true,
        }
    }

    #[test]
    fn segments_of_different_pes_never_meet() {
        for aligned in [false, true] {
            let window = window(64, aligned);
            for pes in 1..=8 {
                let mut end = 0;
                for local in 0..pes {
                    let lens = [Some(33 << 20), Some(5 << 20)];
                    for opening in plan(&window, local, pes, lens).into_iter().flatten() {
                        assert!(opening.slot >= end, "PE {local} of {pes}");
                        assert!(opening.slots as u64 * window.slot_size() >= opening.size);
                        assert_eq!(opening.offset, opening.slot as u64 * window.slot_size());
                        end = opening.slot + opening.slots;
                    }
                    assert!(end <= window.share(local, pes).end);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let window = window(16, false);
        let [heap, statics] = plan(&window, 0, 2, [Some(600 << 20), Some(1 << 20)]);
        assert_eq!(heap, None);
        assert_eq!(statics.map(|opening| opening.offset), Some(0));
        assert_eq!(plan(&window, 0, 17, [Some(1), Some(1)]), [None, None]);
    }
}
