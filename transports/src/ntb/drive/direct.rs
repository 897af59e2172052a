// SPDX-License-Identifier: Apache-2.0
//! Direct windows: the segments of PEs on neighbouring hosts as memory for stores.
//!
//! Where a window is large enough, every PE opens its share of it onto its whole segments. A put to
//! a neighbour is then a copy by the initiator alone: no target CPU, no packet, no acknowledgement.
//!
//! Order, where stores have arrived when a flush returns ([`Arrival`]): a direct put is complete when
//! it returns, precedes every packet submitted after it, and has to wait only for packets submitted
//! before (the endpoint's `fence` does). A link that went down during the copy is noticed after it;
//! the put is then repeated over the ring. Where stores are under way for a while, see
//! [`Arrivals`](super::arrival::Arrivals).
//!
//! [`Arrival`]: crate::ntb::port::Arrival

use super::carriers::{CarrierLimits, CarrierRules};
use super::dma::DmaWriter;
use crate::ntb::port::{Outbound, Window, WindowMapping};
use crate::ntb::ring::Side;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
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
    /// By side: the channel that writes there, where the port has one and it is used.
    engines: [Option<Arc<DmaWriter>>; 2],
    /// What carries puts of which sizes.
    carriers: CarrierLimits,
    /// By side: the peer was asked to close its window there. Nothing is mapped before the link changes.
    withdrawn: [AtomicBool; 2],
    /// Mappings of links that went down. Other threads may still be looking at them: they stay what
    /// `Box::into_raw` has given, and are freed with the peer.
    retired: Mutex<Vec<Retired>>,
}

/// A mapping that is not offered any more.
struct Retired(*mut Mapped);

// SAFETY: what it leads to may be used, and dropped, by any thread.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, given up by the one swap that has found it, and dropped
        // with the peer, when nobody looks at it any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

struct Mapped {
    window: Box<dyn WindowMapping>,
}

/// A way to a peer, as long as its link and translations stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    side: Side,
    /// Names a mapping of the segment asked for; it is not freed before the peer, so no other one
    /// has its address.
    mapping: *const Mapped,
}

// SAFETY: any thread may use the mapping, which only its peer follows the address of.
unsafe impl Send for Way {}

impl Way {
    /// At which side of this host it begins.
    pub fn side(self) -> Side {
        self.side
    }
}

impl DirectPeer {
    /// A neighbour with nothing mapped yet.
    pub fn new(
        offers: [Option<(usize, usize)>; KINDS],
        ways: Vec<Side>,
        engines: [Option<Arc<DmaWriter>>; 2],
        rules: CarrierRules,
    ) -> DirectPeer {
        let (maps, withdrawn, retired) = Default::default();
        let has_engine = ways.iter().any(|side| engines[*side as usize].is_some());
        let carriers = CarrierLimits::new(rules, has_engine);
        DirectPeer { offers, ways, maps, engines, carriers, withdrawn, retired }
    }

    /// What carries puts of which sizes.
    #[inline]
    pub fn carriers(&self) -> &CarrierLimits {
        &self.carriers
    }

    /// Whether a DMA channel leads to it.
    pub fn has_engine(&self) -> bool {
        self.ways.iter().any(|side| self.engines[*side as usize].is_some())
    }

    /// The DMA channel of a way.
    pub fn engine(&self, way: Way) -> Option<&DmaWriter> {
        self.engines[way.side as usize].as_deref()
    }

    /// Where `len` bytes of a segment lie in the window; none where the segment is not offered.
    pub fn window_offset(&self, segment: SegmentKind, offset: usize, len: usize) -> Option<usize> {
        let (start, all) = self.offers[segment as usize]?;
        (offset.checked_add(len)? <= all).then_some(start + offset)
    }

    /// The engines' channels are not used any more.
    pub fn close(&self) {
        self.engines.iter().flatten().for_each(|engine| engine.close());
    }

    /// The link at `side` has changed.
    pub fn cut(&self, side: Side) {
        self.withdrawn[side as usize].store(false, Ordering::Release);
        if let Some(engine) = &self.engines[side as usize] {
            engine.cut();
        }
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
        self.ways.iter().any(|side| {
            let mapped = self.mapped(*side, segment);
            // SAFETY: the caller's promise; the mapping checks the range.
            mapped.is_some_and(|mapped| unsafe { mapped.window.write(offset, source, len) })
        })
    }

    /// The first way by which a segment is open.
    pub fn way(&self, segment: SegmentKind) -> Option<Way> {
        self.ways.iter().find_map(|side| {
            let mapped = self.mapped(*side, segment)?;
            mapped.window.is_open().then_some(Way { side: *side, mapping: mapped })
        })
    }

    /// Whether nothing that was written by a way can have been lost so far.
    pub fn is_way_open(&self, way: Way, segment: SegmentKind) -> bool {
        let mapped = self.mapped(way.side, segment);
        mapped.is_some_and(|it| std::ptr::eq(it, way.mapping) && it.window.is_open())
    }

    /// Whether the link of a way of this peer has changed: nothing is under way any more.
    pub fn is_cut(&self, way: Way) -> bool {
        // SAFETY: made by `way` of this peer, which frees no mapping before itself.
        unsafe { &*way.mapping }.window.is_cut()
    }

    /// Nothing is put by a way any more, until its link has changed.
    pub fn withdraw(&self, way: Way) {
        if !self.mapped(way.side, SegmentKind::Heap).is_some_and(|it| std::ptr::eq(it, way.mapping))
        {
            return;
        }
        self.withdrawn[way.side as usize].store(true, Ordering::Release);
        for place in &self.maps[way.side as usize] {
            self.replace(place, std::ptr::null_mut());
        }
    }

    fn replace(&self, place: &AtomicPtr<Mapped>, mapped: *mut Mapped) {
        let old = place.swap(mapped, Ordering::AcqRel);
        if !old.is_null() {
            self.retired.lock().unwrap_or_else(|e| e.into_inner()).push(Retired(old));
        }
    }

    /// `put` by one way.
    ///
    /// # Safety
    /// As `put`.
    pub unsafe fn put_by(
        &self,
        way: Way,
        segment: SegmentKind,
        offset: usize,
        source: *const u8,
        len: usize,
    ) -> bool {
        let mapped = self.mapped(way.side, segment);
        // SAFETY: the caller's promise; the mapping checks the range.
        mapped.is_some_and(|mapped| unsafe { mapped.window.write(offset, source, len) })
    }

    #[inline]
    fn mapped(&self, side: Side, segment: SegmentKind) -> Option<&Mapped> {
        let at = self.maps[side as usize][segment as usize].load(Ordering::Acquire);
        // SAFETY: null or a box that is retired, not freed, as long as `self` lives.
        unsafe { at.as_ref() }
    }

    /// Maps what can be mapped through the window at `side` and is not. True when nothing is
    /// missing there.
    pub fn map(&self, side: Side, window: &mut dyn Outbound) -> bool {
        if !self.ways.contains(&side) || self.withdrawn[side as usize].load(Ordering::Acquire) {
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
            // The engine after the mapping: as long as that is open, it is as well.
            let engine = self.engines[side as usize].as_ref();
            let opens = || engine.is_none_or(|engine| engine.open(offset, len));
            let Some(mapping) = window.map(offset, len).filter(|_| opens()) else {
                whole = false;
                continue;
            };
            self.replace(place, Box::into_raw(Box::new(Mapped { window: mapping })));
        }
        whole
    }

    /// Whether stores reach a segment at present.
    pub fn is_open(&self, segment: SegmentKind) -> bool {
        self.way(segment).is_some()
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
            fixed: false,
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
