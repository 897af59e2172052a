// SPDX-License-Identifier: Apache-2.0
//! Copies into and out of mapped symmetric memory.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// Copies `len` bytes. Copies of 1, 2, 4 and 8 bytes are single accesses: where the processor makes
/// such an access at once, as it does when aligned, a peer polling the destination never sees half a
/// word.
///
/// # Safety
/// Both ranges are valid and do not overlap; other processes may write them meanwhile.
#[inline(always)]
pub unsafe fn cached(dest: *mut u8, source: *const u8, len: usize) {
    // A word is the commonest size and the one whose cost is all overhead: nothing before it.
    if len == 8 {
        // SAFETY: the caller vouches for the ranges.
        return unsafe { single::<u64>(dest, source) };
    }
    // SAFETY: as above.
    unsafe { other(dest, source, len) }
}

/// As [`cached`] where the compiler knows the length, and it is short: the copy becomes the few loads and
/// stores that it takes, in place.
///
/// # Safety
/// As [`cached`].
#[inline(always)]
pub unsafe fn known(dest: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        match len {
            8 => single::<u64>(dest, source),
            4 => single::<u32>(dest, source),
            2 => single::<u16>(dest, source),
            1 => single::<u8>(dest, source),
            _ => std::ptr::copy_nonoverlapping(source, dest, len),
        }
    }
}

/// Not inlined, or the compiler would make one jump table of all sizes.
#[inline(never)]
unsafe fn other(dest: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        match len {
            4 => single::<u32>(dest, source),
            2 => single::<u16>(dest, source),
            1 => single::<u8>(dest, source),
            _ if cfg!(target_arch = "x86_64")
                && BY_STRING.contains(&len)
                && follows_closely(dest, source) =>
            {
                in_pieces(dest, source, len);
            }
            _ => std::ptr::copy_nonoverlapping(source, dest, len),
        }
    }
}

/// On x86-64, copies of so many bytes are made by `rep movsb` in the GNU C library, if the processor claims to be fast
/// at that; shorter ones, and ones that the caches of a core do not hold, by vector registers.
const BY_STRING: Range<usize> = 2112..512 << 10;
/// Bytes of a copy by vector registers.
const PIECE: usize = 1984;

/// Whether the destination begins a little further in its page than the source does, by less than a vector. There
/// are processors (an EPYC of AMD was seen) on which `rep movsb` then copies 3 bytes a nanosecond in place of 50, as
/// if each read had to wait for what was written just before.
#[inline]
fn follows_closely(dest: *const u8, source: *const u8) -> bool {
    const PAGE: usize = 4096;
    (1..64).contains(&((dest as usize).wrapping_sub(source as usize) % PAGE))
}

/// # Safety
/// As [`cached`].
#[inline(never)]
unsafe fn in_pieces(dest: *mut u8, source: *const u8, len: usize) {
    for at in (0..len).step_by(PIECE) {
        // SAFETY: a part of the ranges, for which the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(source.add(at), dest.add(at), PIECE.min(len - at));
        }
    }
}

#[inline(always)]
unsafe fn single<T: Copy>(dest: *mut u8, source: *const u8) {
    // SAFETY: the caller vouches for the ranges; no alignment is asked for.
    unsafe { dest.cast::<T>().write_unaligned(source.cast::<T>().read_unaligned()) }
}

/// Ends a blocking get from mapped memory: the program reads nothing from now on before the get has read its data. A
/// program relies on that when it gets a flag until it is set, and then gets the data that were complete before.
/// x86-64 reads in the order of the program. No fence is compiled there, because the copy before it could not be a tail
/// call then.
#[inline(always)]
pub fn then_read() {
    if cfg!(not(target_arch = "x86_64")) {
        fence(Ordering::Acquire);
    }
}

/// Asks for the cache lines of `len` bytes as if they were to be written. What another PE has written
/// and this one reads once is written again sooner for it: on some processors a line that two caches
/// share takes several times as long to take back as one that a single other cache has. A hint,
/// whatever the address.
#[inline]
pub fn claim(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program could see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

/// Copies `len` bytes with stores that bypass the caches, for transfers so large that caching them
/// would only push other data out. On processors for which there are none here it is an ordinary copy. A fence
/// orders these stores as it does any others.
///
/// # Safety
/// As [`cached`].
pub unsafe fn streaming(dest: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the ranges, the feature was detected.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx") {
            return x86::streaming_avx(dest, source, len);
        }
    }
    // SAFETY: the caller vouches for the ranges.
    unsafe { std::ptr::copy_nonoverlapping(source, dest, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    const LINE: usize = 64;

    /// # Safety
    /// As `streaming`; the processor has AVX.
    #[target_feature(enable = "avx")]
    pub unsafe fn streaming_avx(mut dest: *mut u8, mut source: *const u8, mut len: usize) {
        // SAFETY: every access lies inside the ranges the caller vouches for: the head up to the
        // first line boundary, whole lines, the tail. Streaming stores need alignment of `dest`
        // only, which the head establishes.
        unsafe {
            let head = dest.align_offset(LINE).min(len);
            std::ptr::copy_nonoverlapping(source, dest, head);
            (dest, source, len) = (dest.add(head), source.add(head), len - head);
            while len >= 2 * LINE {
                let lines = [
                    _mm256_loadu_si256(source.cast()),
                    _mm256_loadu_si256(source.add(32).cast()),
                    _mm256_loadu_si256(source.add(64).cast()),
                    _mm256_loadu_si256(source.add(96).cast()),
                ];
                // A few lines ahead of the hardware prefetcher's page-bounded reach.
                _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(1024).cast());
                _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(1024 + LINE).cast());
                _mm256_stream_si256(dest.cast(), lines[0]);
                _mm256_stream_si256(dest.add(32).cast(), lines[1]);
                _mm256_stream_si256(dest.add(64).cast(), lines[2]);
                _mm256_stream_si256(dest.add(96).cast(), lines[3]);
                (dest, source, len) = (dest.add(2 * LINE), source.add(2 * LINE), len - 2 * LINE);
            }
            std::ptr::copy_nonoverlapping(source, dest, len);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_pieces_are_exact() {
        let source: Vec<u8> = (0..24_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut dest = vec![0u8; 30_000];
        let lens = [PIECE, 2111, 2112, 2 * PIECE, 2 * PIECE + 1, 20_000];
        for (len, further) in lens.iter().flat_map(|len| [1, 16, 63].map(|further| (*len, further)))
        {
            let begins = |at: &usize| {
                let apart = (dest.as_ptr() as usize + at).wrapping_sub(source.as_ptr() as usize);
                apart % 4096 == further
            };
            let at = (0..4096).find(begins).unwrap();
            assert!(follows_closely(dest[at..].as_ptr(), source.as_ptr()));
            dest.fill(0xEE);
            // SAFETY: both ranges lie inside their vectors.
            unsafe { cached(dest.as_mut_ptr().add(at), source.as_ptr(), len) };
            assert_eq!(dest[at..at + len], source[..len]);
            assert!(dest[..at].iter().chain(&dest[at + len..]).all(|b| *b == 0xEE));
        }
        assert!(!follows_closely(dest.as_ptr(), dest.as_ptr()));
        assert!(!follows_closely(dest.as_ptr(), dest[1..].as_ptr()));
    }

    #[test]
    fn every_length_and_alignment_copies_exactly() {
        let source: Vec<u8> = (0..2000).map(|i| (i * 7 + 3) as u8).collect();
        for copy in [cached, known, streaming] {
            for len in (0..300).chain([1000, 1500]) {
                for shift in 0..9 {
                    let mut dest = vec![0xEEu8; 2000];
                    // SAFETY: both ranges lie inside their vectors.
                    unsafe {
                        copy(dest.as_mut_ptr().add(shift), source.as_ptr().add(shift * 3), len)
                    };
                    assert!(dest[..shift].iter().all(|b| *b == 0xEE));
                    assert_eq!(dest[shift..shift + len], source[shift * 3..shift * 3 + len]);
                    assert!(dest[shift + len..].iter().all(|b| *b == 0xEE));
                }
            }
        }
    }
}
