// SPDX-License-Identifier: Apache-2.0
//! The table behind the fast path: where this PE's segments are and where its peers' copies of them
//! are mapped. One look turns a symmetric address and a PE into a local address.
//!
//! The look is most of what a scalar put costs. One bit of an address tells in which row it is
//! probably found, so that heap and static data take the same path and the same time.

use std::cell::UnsafeCell;

/// Where one segment is mapped.
#[derive(Debug)]
#[repr(C, align(32))]
struct Row {
    base: usize,
    len: usize,
    /// Per PE, the address in this process of the peer's segment, or 0.
    peers: *const usize,
}

/// Distance of rows: a power of two, so that a shift turns one bit of an address into a distance.
const STRIDE: usize = size_of::<Row>();
const _: () = assert!(STRIDE.is_power_of_two());

/// The bit in which addresses of anonymous mappings, the heap among them, differ from those of the
/// executable and its static data in Linux's usual layouts. In others the second look finds them.
const TELLING_BIT: u32 = if cfg!(target_arch = "x86_64") { 45 } else { 46 };

const EMPTY: Row = Row { base: 0, len: 0, peers: std::ptr::null() };

/// Segments of this PE and their mappings of all peers.
///
/// Filled while the PE starts and emptied when it stops; between the two it does not change. An
/// empty table finds nothing: every operation then takes the checked path, which is how argument
/// checking and calls in the wrong order cost nothing when all is well.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Table {
    rows: UnsafeCell<[Row; 2]>,
}

// SAFETY: the rows change only in `fill` and `clear`, whose callers vouch that no other thread uses
// the table meanwhile.
unsafe impl Sync for Table {}
// SAFETY: as above; the pointers are to memory the table's owner keeps alive.
unsafe impl Send for Table {}

impl Table {
    /// A table that finds nothing.
    pub const fn empty() -> Table {
        Table { rows: UnsafeCell::new([EMPTY; 2]) }
    }

    /// Enters a segment, one of at most two: `peers` has an address or 0 for every PE and must outlive the entry.
    ///
    /// # Safety
    /// No other thread uses the table during the call, and every non-zero address is a mapping of
    /// `len` bytes that allows loads, stores and atomics until `clear`.
    pub unsafe fn fill(&self, base: *mut u8, len: usize, peers: *const usize) {
        // SAFETY: exclusive by the caller's word.
        let rows = unsafe { &mut *self.rows.get() };
        let likely = likely_distance(base as usize) / STRIDE;
        let free = if rows[likely].len == 0 { likely } else { 1 - likely };
        rows[free] = Row { base: base as usize, len, peers };
    }

    /// Empties the table.
    ///
    /// # Safety
    /// No other thread uses the table during the call.
    pub unsafe fn clear(&self) {
        // SAFETY: exclusive by the caller's word.
        unsafe { *self.rows.get() = [EMPTY; 2] };
    }

    /// The address in this process of `address` at PE `pe`; null when `address` is not symmetric or
    /// the PE's segment is not mapped here.
    ///
    /// # Safety
    /// `pe` is a PE of the job, unless the table is empty.
    #[inline(always)]
    pub unsafe fn remote<T>(&self, address: *const T, pe: usize) -> *mut T {
        // SAFETY: by the caller's word.
        unsafe { self.remote_by(address, || pe) }
    }

    /// As [`Table::remote`] for a PE that has to be worked out first. An empty table never asks for
    /// it: what the PE is worked out from is then not looked at before it has been checked.
    ///
    /// # Safety
    /// `pe` gives a PE of the job.
    #[inline(always)]
    pub unsafe fn remote_by<T>(&self, address: *const T, pe: impl FnOnce() -> usize) -> *mut T {
        // SAFETY: rows are stable while in use, both distances are those of a row, and `peers` has
        // an entry for every PE.
        unsafe {
            let rows = self.rows.get().cast::<Row>();
            let likely = likely_distance(address as usize);
            let mut row = rows.byte_add(likely);
            let mut offset = (address as usize).wrapping_sub((*row).base);
            if offset >= (*row).len {
                unlikely();
                row = rows.byte_add(likely ^ STRIDE);
                offset = (address as usize).wrapping_sub((*row).base);
                if offset >= (*row).len {
                    return std::ptr::null_mut();
                }
            }
            let base = *(*row).peers.add(pe());
            if base == 0 {
                return std::ptr::null_mut();
            }
            let at = base.wrapping_add(offset) as *mut T;
            // An address inside a mapping is never null: callers need not look twice.
            std::hint::assert_unchecked(!at.is_null());
            at
        }
    }
}

/// Has the compiler move what is near out of the way of what is likely.
#[cold]
fn unlikely() {}

/// Distance from the first row to the one in which an address is probably found.
#[inline(always)]
fn likely_distance(address: usize) -> usize {
    (address >> (TELLING_BIT - STRIDE.trailing_zeros())) & STRIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_at_every_mapped_peer_and_nowhere_else() {
        let mut here = [0u8; 64];
        let peers = [0x1000usize, 0, 0x3000];
        let table = Table::empty();
        let base = here.as_mut_ptr();
        // SAFETY: nothing is accessed through the addresses found.
        unsafe {
            assert!(table.remote(base, 99).is_null());
            table.fill(base, here.len(), peers.as_ptr());
            assert_eq!(table.remote(base.add(5), 0) as usize, 0x1005);
            assert!(table.remote(base.add(5), 1).is_null());
            assert_eq!(table.remote(base.add(63), 2) as usize, 0x303f);
            assert!(table.remote(base.add(64), 2).is_null());
            assert!(table.remote(base.wrapping_sub(1), 2).is_null());
        }
    }

    #[test]
    fn segments_are_found_whatever_bits_their_addresses_share() {
        let telling = 1usize << TELLING_BIT;
        let heap_peers = [0x5000usize; 2];
        let data_peers = [0usize, 0x7000];
        for (heap, data) in [(telling, 0x1000), (0x1000, telling), (0x1000, 0x9000)] {
            let table = Table::empty();
            // SAFETY: nothing is accessed through the addresses found.
            unsafe {
                table.fill(heap as *mut u8, 0x100, heap_peers.as_ptr());
                table.fill(data as *mut u8, 0x100, data_peers.as_ptr());
                let find = |address: usize, pe| table.remote(address as *const u8, pe) as usize;
                assert_eq!([find(heap + 0xff, 1), find(data + 1, 1)], [0x50ff, 0x7001]);
                assert_eq!([find(data + 1, 0), find(data + 0x100, 1), find(heap - 1, 1)], [0; 3]);
                table.clear();
                assert_eq!(find(heap, 0), 0);
            }
        }
    }
}
