// SPDX-License-Identifier: Apache-2.0
//! Reading what was copied, as programs do: by the initiator of a get, by the target of a put.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tombolo_core::World;

/// Turns of a reader that are none: it rests, or has come to its end.
const REST: u64 = 0;
const END: u64 = u64::MAX;
/// Between looks of a reader that rests: it must not take processors from other measurements.
const NAP: Duration = Duration::from_millis(1);

/// What a reader is told, in symmetric memory.
#[repr(C, align(64))]
struct CacheLine {
    turn: AtomicU64,
    bytes: AtomicU64,
    done: AtomicU64,
}

/// Readers on the PEs of this host.
pub struct Readers<'a> {
    world: &'a World,
    line: *mut CacheLine,
}

impl<'a> Readers<'a> {
    /// Takes symmetric memory, which is zero at first: every PE makes this call.
    pub fn new(world: &'a World) -> Readers<'a> {
        let line = world.heap().allocate(size_of::<CacheLine>(), align_of::<CacheLine>()).cast();
        Readers { world, line }
    }

    fn line(&self, pe: usize) -> Option<&CacheLine> {
        // SAFETY: null, or a mapped line that lives as long as the world.
        unsafe { self.world.ptr(self.line, pe).as_ref() }
    }

    /// Whether a PE can be told to read.
    pub fn reach(&self, pe: usize) -> bool {
        pe != self.world.pe() && self.line(pe).is_some()
    }

    /// On a PE that does not measure: reads from `place` when told to, until the end.
    pub fn attend(&self, place: *const u8) {
        let Some(line) = self.line(self.world.pe()).filter(|_| self.reach(0)) else { return };
        let mut last = REST;
        loop {
            match line.turn.load(Ordering::Acquire) {
                END => return,
                REST => std::thread::sleep(NAP),
                turn if turn == last => std::hint::spin_loop(),
                turn => {
                    // SAFETY: the initiator names no more bytes than the buffer holds.
                    unsafe { read(place, line.bytes.load(Ordering::Relaxed) as usize) };
                    last = turn;
                    line.done.store(turn, Ordering::Release);
                }
            }
        }
    }

    /// Has a PE read and waits until it has.
    pub fn have_read(&self, pe: usize, bytes: usize) {
        let Some(line) = self.line(pe) else { return };
        let turn = line.done.load(Ordering::Relaxed) + 1;
        line.bytes.store(bytes as u64, Ordering::Relaxed);
        line.turn.store(turn, Ordering::Release);
        while line.done.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
    }

    /// Lets a PE rest until it is told to read again.
    pub fn rest(&self, pe: usize) {
        self.tell(pe, REST);
    }

    /// Lets all readers go.
    pub fn end(&self) {
        (0..self.world.n_pes()).filter(|pe| self.reach(*pe)).for_each(|pe| self.tell(pe, END));
    }

    fn tell(&self, pe: usize, turn: u64) {
        if let Some(line) = self.line(pe) {
            line.turn.store(turn, Ordering::Release);
        }
    }
}

/// Reads whole words.
///
/// # Safety
/// `place` is aligned to a word and readable for `bytes` bytes.
pub unsafe fn read(place: *const u8, bytes: usize) {
    // SAFETY: by the caller's word.
    let words = unsafe { std::slice::from_raw_parts(place.cast::<u64>(), bytes / 8) };
    std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
}
