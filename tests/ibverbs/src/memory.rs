// SPDX-License-Identifier: Apache-2.0
//! Registered memory, and how a card reads and writes it.

use crate::random::Random;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Registered memory.
pub struct Region {
    pub at: usize,
    pub len: usize,
    pub access: c_int,
    /// Its protection domain.
    pub domain: usize,
}

pub type Regions = HashMap<u32, Region>;

/// Whether a key of a protection domain gives access to a range.
pub fn allows(
    regions: &Regions,
    key: u32,
    domain: usize,
    at: usize,
    len: usize,
    access: c_int,
) -> bool {
    regions.get(&key).is_some_and(|region| {
        region.domain == domain
            && region.access & access == access
            && at >= region.at
            && at.checked_add(len).is_some_and(|end| end <= region.at + region.len)
    })
}

/// Whether this process has all of a range mapped, writable if that is asked for: what the kernel does not pin it does
/// not register.
pub fn is_mapped(at: usize, len: usize, writable: bool) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut covered = at;
    for line in maps.lines() {
        let mut words = line.split([' ', '-']);
        let mut address = || usize::from_str_radix(words.next()?, 16).ok();
        let (Some(from), Some(to)) = (address(), address()) else { continue };
        let rights = words.next().unwrap_or_default();
        let serves = rights.starts_with('r') && (!writable || rights.starts_with("rw"));
        if serves && from <= covered && covered < to {
            covered = to;
        }
    }
    covered >= at + len
}

/// A range in pieces, in any order. Pieces of a card end between words.
pub fn pieces(random: &mut Random, at: usize, len: usize, whole_words: bool) -> Vec<(u32, u32)> {
    let mut pieces = vec![];
    let mut from = 0;
    while from < len {
        let wish = match whole_words {
            true => 8 * (1 + random.below(64)) as usize - at.wrapping_add(from) % 8,
            false if len < 64 => 1,
            false => 1 + random.below(500) as usize,
        };
        let piece = wish.min(len - from);
        pieces.push((from as u32, piece as u32));
        from += piece;
    }
    random.shuffle(&mut pieces);
    pieces
}

/// Writes a piece; aligned words whole.
///
/// # Safety
/// The memory is writable.
pub unsafe fn store(at: usize, data: &[u8]) {
    let mut from = 0;
    while from < data.len() {
        let place = at + from;
        // SAFETY: inside the memory; words are aligned.
        unsafe {
            match data[from..].first_chunk() {
                Some(word) if place.is_multiple_of(8) => {
                    (place as *mut u64).write_volatile(u64::from_ne_bytes(*word));
                    from += 8;
                }
                _ => {
                    (place as *mut u8).write_volatile(data[from]);
                    from += 1;
                }
            }
        }
    }
}

/// Reads a piece; aligned words whole.
///
/// # Safety
/// The memory is readable.
unsafe fn load_piece(at: usize, data: &mut [u8]) {
    let mut from = 0;
    while from < data.len() {
        let place = at + from;
        // SAFETY: inside the memory; words are aligned.
        unsafe {
            match data[from..].first_chunk_mut() {
                Some(word) if place.is_multiple_of(8) => {
                    *word = (place as *const u64).read_volatile().to_ne_bytes();
                    from += 8;
                }
                _ => {
                    data[from] = (place as *const u8).read_volatile();
                    from += 1;
                }
            }
        }
    }
}

/// Reads memory, in any order.
///
/// # Safety
/// The memory is readable.
pub unsafe fn load(random: &mut Random, at: usize, len: usize, whole_words: bool) -> Vec<u8> {
    let mut data = vec![0; len];
    for (from, piece) in pieces(random, at, len, whole_words) {
        let (from, piece) = (from as usize, piece as usize);
        // SAFETY: a part of the memory.
        unsafe { load_piece(at + from, &mut data[from..from + piece]) };
    }
    data
}

/// Carries out an atomic operation and gives the old value: atomic with those of processors, or with those of this
/// process's card alone, which carries out one at a time.
///
/// # Safety
/// The word is writable and aligned.
pub unsafe fn atomic(
    random: &mut Random,
    at: usize,
    with_processors: bool,
    change: impl Fn(u64) -> u64,
) -> u64 {
    let word = at as *mut AtomicU64;
    if with_processors {
        // SAFETY: by the caller's word.
        let word = unsafe { &*word };
        return word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change(old)))
            .unwrap_or_else(|old| old);
    }
    // SAFETY: by the caller's word.
    unsafe {
        let old = word.cast::<u64>().read_volatile();
        if random.one_in(8) {
            // What a processor writes meanwhile is lost.
            std::thread::yield_now();
        }
        word.cast::<u64>().write_volatile(change(old));
        old
    }
}
