// SPDX-License-Identifier: Apache-2.0
//! Exchanges of a job whose PEs are all on one host: through memory that they share.
//!
//! Each PE writes what it contributes to a slot of its own, and reads those of the others once the
//! launcher has told that all have written. Through the launcher alone, what has to be carried grows with
//! the square of the PEs.
//!
//! A slot holds the number of the exchange, the length of the contribution, and its bytes. Each PE has
//! two, used by turns: who writes to one of them again knows that everybody has read it, because all PEs
//! have entered the exchange between.

use super::Bootstrap;
use crate::error::{Error, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Words of a slot.
const SLOT: usize = 128;
/// Words of a slot before the bytes of the contribution.
const HEAD: usize = 2;
/// Bytes that a slot holds. What is longer goes through the launcher.
const BYTES: usize = (SLOT - HEAD) * 8;

/// The slots of a job, in a memory file that all its PEs have mapped.
pub struct Slots {
    base: NonNull<AtomicU64>,
    n_pes: usize,
}

// SAFETY: memory that consists of atomics and stays mapped until the slots are dropped.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// Bytes that the slots of `n_pes` PEs take; none if there are too many.
    pub fn len(n_pes: usize) -> Option<usize> {
        n_pes.checked_mul(2 * SLOT * 8)
    }

    /// Maps the slots of `n_pes` PEs, which begin at `offset` of a file that holds them.
    pub fn map(file: &OwnedFd, offset: usize, n_pes: usize) -> Result<Slots> {
        let fail = |e| Error::system("mapping memory to start in", e);
        let len = Slots::len(n_pes).and_then(NonZeroUsize::new);
        let len = len.ok_or_else(|| fail(nix::Error::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(None, len, access, MapFlags::MAP_SHARED, file, offset as libc::off_t)
                .map_err(fail)?
        };
        Ok(Slots { base: base.cast(), n_pes })
    }

    /// The words of the slot of PE `pe` in exchange number `round`.
    fn slot(&self, round: u64, pe: usize) -> &[AtomicU64; SLOT] {
        assert!(pe < self.n_pes, "PE {pe} of {}", self.n_pes);
        let index = (round % 2) as usize * self.n_pes + pe;
        // SAFETY: one of the slots that are mapped, which consist of atomics and begin on a page.
        unsafe { self.base.add(index * SLOT).cast().as_ref() }
    }

    fn write(&self, round: u64, pe: usize, bytes: &[u8]) {
        let slot = self.slot(round, pe);
        if bytes.len() <= BYTES {
            for (word, part) in slot[HEAD..].iter().zip(bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..part.len()].copy_from_slice(part);
                word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
            }
        }
        slot[1].store(bytes.len() as u64, Ordering::Relaxed);
        slot[0].store(round, Ordering::Release);
    }

    /// The length of what a PE contributes; none if it has contributed nothing yet.
    fn length(&self, round: u64, pe: usize) -> Option<usize> {
        let slot = self.slot(round, pe);
        let written = slot[0].load(Ordering::Acquire) == round;
        written.then(|| usize::try_from(slot[1].load(Ordering::Relaxed)).unwrap_or(usize::MAX))
    }

    /// The first `len` bytes of what a PE contributes, as far as the slot holds them.
    fn read(&self, round: u64, pe: usize, len: usize) -> Vec<u8> {
        let len = len.min(BYTES);
        let words = self.slot(round, pe)[HEAD..].iter().take(len.div_ceil(8));
        let mut bytes: Vec<u8> = Vec::with_capacity(len.next_multiple_of(8));
        words.for_each(|word| bytes.extend(word.load(Ordering::Relaxed).to_le_bytes()));
        bytes.truncate(len);
        bytes
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let len = self.n_pes * 2 * SLOT * 8;
        // SAFETY: the mapping made by `map`; no reference into it outlives the slots.
        let _ = unsafe { munmap(self.base.cast(), len) };
    }
}

/// The bootstrap of a job on one host.
pub struct OnHost {
    launcher: Arc<dyn Bootstrap>,
    slots: Slots,
    /// Exchanges so far.
    rounds: Mutex<u64>,
}

impl OnHost {
    /// Takes the exchanges over from `launcher`. All PEs of the job do so, between the same two.
    pub fn new(launcher: Arc<dyn Bootstrap>, slots: Slots) -> OnHost {
        OnHost { launcher, slots, rounds: Mutex::new(0) }
    }
}

impl Bootstrap for OnHost {
    fn pe(&self) -> usize {
        self.launcher.pe()
    }

    fn n_pes(&self) -> usize {
        self.launcher.n_pes()
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut rounds = self.rounds.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *rounds += 1;
        let round = *rounds;
        self.slots.write(round, self.pe(), mine);
        self.launcher.barrier()?;
        let mut lens = Vec::with_capacity(self.n_pes());
        for pe in 0..self.n_pes() {
            // It did not get as far, and says why.
            let absent = || Error::Common {
                speaker: pe as u32,
                what: format!("PE {pe} has no part in the memory of its host"),
            };
            lens.push(self.slots.length(round, pe).ok_or_else(absent)?);
        }
        if lens.iter().any(|len| *len > BYTES) {
            return self.launcher.allgather(mine);
        }
        let all = lens.into_iter().enumerate();
        Ok(all.map(|(pe, len)| self.slots.read(round, pe, len)).collect())
    }

    fn barrier(&self) -> Result<()> {
        self.launcher.barrier()
    }

    fn barrier_at_end(&self) -> Result<()> {
        self.launcher.barrier_at_end()
    }

    fn abort(&self, code: i32) {
        self.launcher.abort(code);
    }

    fn finalize(&self) {
        self.launcher.finalize();
    }

    fn is_alive(&self) -> bool {
        self.launcher.is_alive()
    }

    fn launcher(&self) -> &str {
        self.launcher.launcher()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Threads;
    use super::*;
    use crate::memory::sealable;
    use proptest::prelude::*;

    fn slots(n_pes: usize) -> impl Fn() -> Slots {
        let file = sealable("test").unwrap();
        nix::unistd::ftruncate(&file, 4096 + Slots::len(n_pes).unwrap() as i64).unwrap();
        move || Slots::map(&file, 4096, n_pes).unwrap()
    }

    /// All PEs of a job of threads do `work`.
    fn job(n_pes: usize, work: impl Fn(&OnHost) + Sync) {
        let slots = slots(n_pes);
        std::thread::scope(|scope| {
            for launcher in Threads::job(n_pes) {
                let (bootstrap, work) = (OnHost::new(Arc::new(launcher), slots()), &work);
                scope.spawn(move || work(&bootstrap));
            }
        });
    }

    #[test]
    fn contributions_of_any_length_arrive_in_pe_order() {
        // What is longer than a slot, of one PE or of all, goes another way.
        let lens = [0, 1, 8, 9, BYTES - 1, BYTES, BYTES + 1, 5 * BYTES];
        job(4, |bootstrap| {
            for (round, len) in lens.into_iter().cycle().take(24).enumerate() {
                let of =
                    |pe: usize| vec![(pe * 7 + round) as u8; len.saturating_sub(pe * (round % 3))];
                let all = bootstrap.allgather(&of(bootstrap.pe())).unwrap();
                assert_eq!(all, (0..4).map(of).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn a_pe_that_contributes_nothing_is_left_to_say_why() {
        job(3, |bootstrap| {
            if bootstrap.pe() == 1 {
                return bootstrap.launcher.barrier().unwrap();
            }
            let error = bootstrap.allgather(b"here").unwrap_err();
            assert!(matches!(error, Error::Common { speaker: 1, .. }), "{error}");
        });
    }

    proptest! {
        /// Whatever PEs write to slots: what is read fits into one.
        #[test]
        fn garbage_in_slots_does_no_harm(words in prop::collection::vec(any::<u64>(), SLOT)) {
            let slots = slots(2)();
            for (slot, word) in slots.slot(1, 1).iter().zip(words) {
                slot.store(word, Ordering::Relaxed);
            }
            slots.slot(1, 1)[0].store(1, Ordering::Relaxed);
            let len = slots.length(1, 1).unwrap();
            prop_assert_eq!(slots.read(1, 1, len).len(), len.min(BYTES));
            prop_assert_eq!(slots.length(1, 0), None);
        }
    }
}
