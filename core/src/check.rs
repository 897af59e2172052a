// SPDX-License-Identifier: Apache-2.0
//! Checks of arguments that `SHMEM_DEBUG` asks for. Each failed check ends the job with one line:
//! routine, argument, value, what was expected.

use crate::memory::statics::Constant;
use crate::world::World;

impl World {
    /// Checks that `len` bytes at `address` lie in one block of the symmetric heap, or in the static data.
    pub fn check_range(
        &self,
        routine: &'static str,
        argument: &str,
        address: *const u8,
        len: usize,
    ) {
        let Some(place) = self.locate(address) else {
            self.not_symmetric(routine, argument, address);
        };
        let heap = self.heap();
        let in_heap = place.segment == crate::transport::SegmentKind::Heap;
        if in_heap && place.offset < heap.control_len() {
            // The runtime's own area: only the runtime has such addresses.
            return;
        }
        if in_heap {
            let Some((block, size)) = heap.block_at(address) else {
                self.stop_job(
                    routine,
                    format_args!(
                        "{argument} = {address:p} lies in no block of the symmetric heap: it was \
                         never allocated, or has been freed"
                    ),
                );
            };
            let before = address as usize - block as usize;
            if before.checked_add(len).is_none_or(|end| end > size) {
                self.stop_job(
                    routine,
                    format_args!(
                        "{argument} = {address:p} with {len} bytes goes past the end of its block \
                         of {size} bytes at {block:p}"
                    ),
                );
            }
        } else if len > self.room_at(address) {
            self.stop_job(
                routine,
                format_args!(
                    "{argument} = {address:p} with {len} bytes goes past the end of the static data"
                ),
            );
        }
    }

    /// As [`World::check_range`] for what is only read, which may be constants of the program.
    pub fn check_readable(
        &self,
        routine: &'static str,
        argument: &str,
        address: *const u8,
        len: usize,
    ) {
        if self.locate(address).is_some() || !self.has_constant(address, len, self.pe()) {
            self.check_range(routine, argument, address, len);
        }
    }

    /// Checks that a PE number is one of `n_pes`.
    #[inline]
    pub fn check_pe(&self, routine: &'static str, pe: i64, n_pes: usize) {
        if usize::try_from(pe).is_ok_and(|pe| pe < n_pes) {
            return;
        }
        self.bad_pe(routine, pe, n_pes);
    }

    /// Checks that source and destination on this PE do not overlap.
    pub fn check_overlap(
        &self,
        routine: &'static str,
        dest: *const u8,
        source: *const u8,
        len: usize,
    ) {
        let distance = (dest as usize).abs_diff(source as usize);
        if len > 0 && dest != source && distance < len {
            self.stop_job(
                routine,
                format_args!("dest = {dest:p} and source = {source:p} overlap within {len} bytes"),
            );
        }
    }

    #[cold]
    pub(crate) fn bad_pe(&self, routine: &'static str, pe: i64, n_pes: usize) -> ! {
        let last = n_pes.saturating_sub(1);
        self.stop_job(routine, format_args!("pe = {pe} is not a PE: expected 0 to {last}"))
    }

    #[cold]
    pub(crate) fn not_symmetric(
        &self,
        routine: &'static str,
        argument: &str,
        address: *const u8,
    ) -> ! {
        let (heap, data) = (self.heap(), self.static_data());
        match data.map_or(Constant::No, |data| data.constant(address as usize, 1)) {
            Constant::No => {}
            Constant::Alike => self.stop_job(
                routine,
                format_args!(
                    "{argument} = {address:p} lies in constants of the program: these can only be read, not \
                     past their end, and from PEs that run the same program"
                ),
            ),
            Constant::Relocated => self.stop_job(
                routine,
                format_args!(
                    "{argument} = {address:p} lies among constants that hold addresses: these differ from \
                     PE to PE; expected a variable, or a program linked with -no-pie"
                ),
            ),
        }
        let range = |base: *mut u8, len: usize| {
            format!("{base:p} to {:p}", base.wrapping_add(len.saturating_sub(1)))
        };
        let ranges = data.into_iter().flat_map(|data| {
            data.ranges().map(|range| (data.base().wrapping_add(range.start), range.len()))
        });
        let statics: String = ranges
            .map(|(base, len)| format!(" or from {} (static data)", range(base, len)))
            .collect();
        self.stop_job(
            routine,
            format_args!(
                "{argument} = {address:p} is not symmetric: expected an address from {} (heap){statics}",
                range(heap.base(), heap.len())
            ),
        )
    }
}
