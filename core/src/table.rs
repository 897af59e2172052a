//! The table behind the fast path: where this PE's segments are and where its peers' copies of them
//! are mapped. One look turns a symmetric address and a PE into a local address.

use crate::transport::SegmentKind;
use std::cell::UnsafeCell;

/// Where one segment is mapped.
#[derive(Debug)]
#[repr(C)]
struct Row {
    base: usize,
    len: usize,
    /// Per PE, the address in this process of the peer's segment, or 0.
    peers: *const usize,
}

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

    /// Enters a segment: `peers` has an address or 0 for every PE and must outlive the entry.
    ///
    /// # Safety
    /// No other thread uses the table during the call, and every non-zero address is a mapping of
    /// `len` bytes that allows loads, stores and atomics until `clear`.
    pub unsafe fn fill(&self, kind: SegmentKind, base: *mut u8, len: usize, peers: *const usize) {
        // SAFETY: exclusive by the caller's word.
        unsafe { (*self.rows.get())[kind as usize] = Row { base: base as usize, len, peers } };
    }

    /// Takes over all rows of another table.
    ///
    /// # Safety
    /// As [`Table::fill`], for the rows of `other`.
    pub unsafe fn copy_from(&self, other: &Table) {
        // SAFETY: exclusive by the caller's word.
        unsafe { *self.rows.get() = std::ptr::read(other.rows.get()) };
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
        // SAFETY: rows are stable while in use, and `peers` has an entry for every PE.
        unsafe {
            let rows = &*self.rows.get();
            let mut offset = (address as usize).wrapping_sub(rows[0].base);
            let mut peers = rows[0].peers;
            if offset >= rows[0].len {
                offset = (address as usize).wrapping_sub(rows[1].base);
                peers = rows[1].peers;
                if offset >= rows[1].len {
                    return std::ptr::null_mut();
                }
            }
            let base = *peers.add(pe());
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
            table.fill(SegmentKind::Static, base, here.len(), peers.as_ptr());
            assert_eq!(table.remote(base.add(5), 0) as usize, 0x1005);
            assert!(table.remote(base.add(5), 1).is_null());
            assert_eq!(table.remote(base.add(63), 2) as usize, 0x303f);
            assert!(table.remote(base.add(64), 2).is_null());
            assert!(table.remote(base.wrapping_sub(1), 2).is_null());
        }
    }
}
