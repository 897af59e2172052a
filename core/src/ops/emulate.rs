// SPDX-License-Identifier: Apache-2.0
//! What an endpoint does not do by itself, made from what it does and from requests to the target.

use super::{Mode, Way};
use crate::context::Context;
use crate::transport::{Amo, AmoOp, Remote, Stream};
use crate::world::World;
use crate::world::peers::Peer;

/// Bytes that a get with an alignment fetches at a time.
const BOUNCE: usize = 4096;

impl World {
    /// Puts a word that the endpoint might tear, or a range that is not at its alignment: the target
    /// stores what the endpoint cannot put. True if nothing is left to do.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes.
    #[expect(clippy::too_many_arguments, reason = "the arguments of a put and its route")]
    #[inline(never)]
    pub(super) unsafe fn put_by_parts(
        &self,
        context: &Context,
        align: usize,
        target: Remote,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) -> bool {
        let word = len <= 8 && target.offset.is_multiple_of(len);
        if word && !self.ptr(self.base(target.segment).cast_const(), pe).is_null() {
            // SAFETY: by the caller's word, to mapped memory.
            unsafe { crate::copy::cached(self.mapped(target, pe), source, len) };
            return true;
        }
        if !word && target.offset.is_multiple_of(align) && len.is_multiple_of(align) {
            return false;
        }
        let first = if word { len } else { target.offset.next_multiple_of(align) - target.offset };
        let first = first.min(len);
        let middle = (len - first) / align * align;
        for (start, end) in [(0, first), (first + middle, len)] {
            for at in (start..end).step_by(8) {
                let place = Remote { offset: target.offset + at, ..target };
                // SAFETY: a part of the source.
                unsafe {
                    self.request_store(place, source.add(at), (end - at).min(8), pe, routine)
                };
            }
        }
        if middle > 0 {
            let dest = self.base(target.segment).wrapping_add(target.offset + first);
            // SAFETY: a part of the source; the range is aligned, so this is the last time round.
            unsafe {
                self.put(context, dest, source.add(first), middle, pe, Mode::Blocking, routine);
            }
        }
        true
    }

    /// Gets a range that need not be at the endpoint's alignment through a buffer; false if it fails.
    ///
    /// # Safety
    /// `dest` is writable for `len` bytes.
    pub(super) unsafe fn receive_aligned(
        &self,
        way: Way<'_>,
        peer: &Peer,
        dest: *mut u8,
        len: usize,
    ) -> bool {
        let Way { context, index, target, pe, routine } = way;
        let can = peer.can(target.segment);
        #[repr(C, align(64))]
        struct Bounce([u8; BOUNCE]);
        let mut bounce = Bounce([0; BOUNCE]);
        let align = can.get_align;
        let mut done = 0;
        while done < len {
            let offset = (target.offset + done) / align * align;
            let skip = target.offset + done - offset;
            let most = BOUNCE.min(can.get_max) / align * align;
            let fetched = (skip + len - done).next_multiple_of(align).min(most);
            let own = Stream::new(context.stream(index.into()).id, true);
            let from = Remote { offset, ..target };
            let into = bounce.0.as_mut_ptr();
            let accepted = self.accepted(routine, pe, || {
                // SAFETY: the buffer lives until the stream is quiet. Segments are whole pages, so that
                // nothing beyond one is asked for.
                unsafe { peer.endpoint.get(&own, into, from, fetched) }
            });
            if !self.until_quiet(index, &own, routine, pe) || !accepted {
                return false;
            }
            let part = (fetched - skip).min(len - done);
            // SAFETY: by the caller's word; the buffer holds `fetched` bytes.
            unsafe { std::ptr::copy_nonoverlapping(into.add(skip), dest.add(done), part) };
            done += part;
        }
        true
    }

    /// Executes an AMO over an endpoint and waits for the old value. An operation that a device does
    /// not have is made from its compare-and-swap, so that all stay in one domain of atomicity.
    pub(super) fn amo_over_endpoint(&self, way: Way<'_>, amo: Amo, by_device: bool) -> u64 {
        let peer = self.peer_of(way.index, way.pe, way.routine);
        if peer.amos(way.target.segment, by_device).has(amo.op, amo.size) {
            return self.fetch_over_endpoint(way, peer, amo, by_device);
        }
        let swap = |compare, operand| {
            let amo = Amo { op: AmoOp::CompareSwap, compare, operand, ..amo };
            self.fetch_over_endpoint(way, peer, amo, by_device)
        };
        let mut old = swap(0, 0);
        loop {
            let new = amo.applied_to(old);
            if amo.op == AmoOp::Fetch || self.goes_on_without(way.pe) {
                return old;
            }
            let seen = swap(old, new);
            if seen == old {
                return old;
            }
            old = seen;
        }
    }

    fn fetch_over_endpoint(&self, way: Way<'_>, peer: &Peer, amo: Amo, by_device: bool) -> u64 {
        let Way { context, index, target, pe, routine } = way;
        let own = Stream::new(context.stream(index.into()).id, true);
        // What a lost PE answers.
        let mut result = 0u64;
        let place = (&raw mut result).cast::<u8>();
        self.until_accepted(routine, pe, || {
            // SAFETY: the result lives until the stream is quiet, waited for below.
            unsafe { peer.amo(&own, target, amo, Some(place), by_device) }
        });
        self.until_quiet(index, &own, routine, pe);
        // SAFETY: written by another thread before the count seen above.
        unsafe { std::ptr::read_volatile(&raw const result) }
    }
}
