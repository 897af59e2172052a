// SPDX-License-Identifier: Apache-2.0
//! Symmetric memory of the PEs of this host, as far as this process can reach it. Everything that
//! asks for a range of it comes from another host and is checked here.

use crate::ntb::ring::{Location, OutOfRange};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use tombolo_core::transport::{Amo, Mapping, SegmentKind};
use tombolo_core::{amo, copy};

/// A segment without its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Equal on two PEs if and only if their segments have the same layout.
    pub layout: u64,
}

/// Segments by local index of their PE.
#[derive(Clone, Debug, Default)]
pub struct HostMemory(Vec<[Option<Part>; SegmentKind::ALL.len()]>);

#[derive(Clone, Copy, Debug)]
struct Part {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain shared memory, reached by raw pointers and atomics only.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// From what the core hands over.
    ///
    /// # Safety
    /// The mappings stay valid for as long as the value or a copy of it is used.
    pub unsafe fn new(memory: &[[Option<Mapping>; SegmentKind::ALL.len()]]) -> HostMemory {
        let part = |m: Mapping| Part { base: m.base, len: m.len };
        HostMemory(memory.iter().map(|pe| pe.map(|m| m.map(part))).collect())
    }

    /// Address of `len` bytes at `place`.
    pub fn at(&self, place: Location, len: usize) -> Result<*mut u8, OutOfRange> {
        let segments = self.0.get(usize::from(place.pe)).ok_or(OutOfRange)?;
        let part = segments.get(usize::from(place.segment)).copied().flatten().ok_or(OutOfRange)?;
        let offset = usize::try_from(place.offset).map_err(|_| OutOfRange)?;
        match offset.checked_add(len) {
            Some(end) if end <= part.len => Ok(part.base.wrapping_add(offset)),
            _ => Err(OutOfRange),
        }
    }

    /// Applies an AMO with the CPU's atomics.
    pub fn amo(&self, place: Location, amo: &Amo) -> Result<u64, OutOfRange> {
        let at = self.at(place, amo.size.into())?;
        if !at.addr().is_multiple_of(amo.size.into()) {
            return Err(OutOfRange);
        }
        // SAFETY: inside a mapped segment and aligned, both just checked.
        Ok(unsafe { amo::execute(at, *amo) })
    }
}

/// Copies a short value; aligned words of 2, 4 and 8 bytes are stored whole. Who sees any of it sees what this thread
/// has stored before.
///
/// # Safety
/// `dest` is writable for `bytes.len()` bytes; others may access it atomically meanwhile.
pub unsafe fn store(dest: *mut u8, bytes: &[u8]) {
    macro_rules! word {
        ($int:ty, $atomic:ty) => {
            if let Ok(word) = bytes.try_into().map(<$int>::from_ne_bytes)
                && dest.addr().is_multiple_of(size_of::<$int>())
            {
                // SAFETY: aligned, and writable by the caller's promise.
                unsafe { (*dest.cast::<$atomic>()).store(word, Ordering::Release) };
                return;
            }
        };
    }
    word!(u8, AtomicU8);
    word!(u16, AtomicU16);
    word!(u32, AtomicU32);
    word!(u64, AtomicU64);
    fence(Ordering::Release);
    // SAFETY: the caller's promise; a slice never overlaps raw memory it does not borrow.
    unsafe { bytes.as_ptr().copy_to_nonoverlapping(dest, bytes.len()) };
}

/// The reverse of [`store`].
///
/// # Safety
/// `source` is readable for `bytes.len()` bytes; others may write it atomically meanwhile.
pub unsafe fn load(source: *const u8, bytes: &mut [u8]) {
    macro_rules! word {
        ($int:ty, $atomic:ty) => {
            if bytes.len() == size_of::<$int>() && source.addr().is_multiple_of(bytes.len()) {
                // SAFETY: aligned, and readable by the caller's promise.
                let word = unsafe { (*source.cast::<$atomic>()).load(Ordering::Acquire) };
                bytes.copy_from_slice(&word.to_ne_bytes());
                return;
            }
        };
    }
    word!(u8, AtomicU8);
    word!(u16, AtomicU16);
    word!(u32, AtomicU32);
    word!(u64, AtomicU64);
    // SAFETY: as in `store`.
    unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
}

/// CRC32C of `len` bytes. They are copied before they are summed: a neighbour that breaks the
/// protocol, or the program, may write to them meanwhile. Then the sum is wrong, which is what it is
/// for.
///
/// # Safety
/// `source` is readable for `len` bytes.
pub unsafe fn checksum(source: *const u8, len: usize) -> u32 {
    let mut piece = [0u8; 1024];
    let mut sum = 0;
    for at in (0..len).step_by(piece.len()) {
        let bytes = &mut piece[..(len - at).min(1024)];
        // SAFETY: inside the caller's range; no reference to it is made.
        unsafe { copy::cached(bytes.as_mut_ptr(), source.add(at), bytes.len()) };
        sum = crc32c::crc32c_append(sum, bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::transport::AmoOp;

    #[test]
    fn ranges_from_elsewhere_are_checked() {
        let mut words = [0u64; 8];
        let base = words.as_mut_ptr().cast();
        let mapping = Mapping { base, len: 64, load: true, atomic: true };
        // SAFETY: the array outlives the value.
        let memory = unsafe { HostMemory::new(&[[Some(mapping), None]]) };
        let place = |pe, segment, offset| Location { pe, segment, offset };
        assert_eq!(memory.at(place(0, 0, 56), 8), Ok(base.wrapping_add(56)));
        for (bad, len) in [
            (place(0, 0, 57), 8),
            (place(0, 0, u64::MAX), 8),
            (place(0, 0, 0), usize::MAX),
            (place(0, 1, 0), 1),
            (place(0, 2, 0), 1),
            (place(1, 0, 0), 1),
        ] {
            assert_eq!(memory.at(bad, len), Err(OutOfRange), "{bad:?}+{len}");
        }
        let add = Amo { op: AmoOp::Add, size: 8, operand: 5, compare: 0 };
        assert_eq!(memory.amo(place(0, 0, 4), &add), Err(OutOfRange), "not aligned");
        assert_eq!(memory.amo(place(0, 0, 8), &add), Ok(0));
        assert_eq!(memory.amo(place(0, 0, 8), &add), Ok(5));
    }

    #[test]
    fn sums_of_pieces_are_those_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        for len in [0, 1, 1023, 1024, 1025, 5000] {
            // SAFETY: inside the vector.
            let sum = unsafe { checksum(bytes.as_ptr(), len) };
            assert_eq!(sum, crc32c::crc32c(&bytes[..len]), "{len}");
        }
    }

    #[test]
    fn short_values_keep_their_bytes_at_every_length_and_alignment() {
        let source: Vec<u8> = (1..=24).collect();
        for shift in 0..8 {
            for len in 0..=24 {
                let mut space = [0u64; 5];
                let mut back = vec![0; len];
                // SAFETY: `8 + shift + len <= 40`.
                unsafe {
                    let at = space.as_mut_ptr().cast::<u8>().add(8 + shift);
                    store(at, &source[..len]);
                    load(at, &mut back);
                }
                assert_eq!(back, source[..len], "{len} at {shift}");
            }
        }
    }
}
