// SPDX-License-Identifier: Apache-2.0
//! The status board: one cache-line-aligned slot per PE, in memory shared by the job and its
//! launcher, telling which blocking call each PE is in and since when, and which PEs are lost.
//!
//! - A PE writes only its own slot, and the launcher the mark of a loss in any; any process that
//!   has the board reads all of them.
//! - A slot is written when a wait has outlasted its spinning, never on a fast path.
//! - Readers check every field: a slot may be half written or hold garbage.

use crate::error::{Error, Result};
use crate::memory::{check_file_size, seal, sealable};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Bytes of a routine's name that a slot keeps.
const NAME_MAX: usize = 48;
const MAGIC: u32 = 0x746f_6d62;

/// Tells the number of a PE from a stray word.
const MISSED: u32 = 0x6d15_5ed0;

/// One PE's slot. 128 bytes: adjacent-line prefetch makes neighbours share 64-byte lines.
#[repr(C, align(128))]
struct Slot {
    magic: AtomicU32,
    pid: AtomicI32,
    /// Even: not in a blocking call. Odd: in the call described below.
    entry: AtomicU32,
    state: AtomicU32,
    since_ns: AtomicU64,
    argument: AtomicU64,
    name: [AtomicU64; NAME_MAX / 8],
    /// Not 0: the launcher has found the PE to be lost.
    lost: AtomicU32,
    /// 0, or [`MISSED`] XOR the first PE that this one could not reach any more and went on without.
    missed: AtomicU32,
    /// Barriers of all PEs that this one had begun when it left.
    barriers: AtomicU64,
}

/// How far a PE has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Process not seen by the library yet.
    Absent = 0,
    /// Between the start and the end of `shmem_init`.
    Starting = 1,
    /// Initialised.
    Running = 2,
    /// Finalised.
    Finished = 3,
    /// Past the barrier of `shmem_finalize`, waiting for the launcher to let all PEs finalise.
    Leaving = 4,
}

/// What a slot says about its PE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How far the PE has come.
    pub state: State,
    /// Process id as the PE sees it.
    pub pid: i32,
    /// The blocking call it is in.
    pub call: Option<Call>,
    /// Once it leaves: how many barriers of all PEs it has begun.
    pub barriers: u64,
}

/// A blocking call in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the routine.
    pub routine: String,
    /// Team number, address or peer, as the routine has it.
    pub argument: u64,
    /// When the wait began, nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.call, self.state) {
            (Some(call), _) => {
                let seconds = monotonic_ns().saturating_sub(call.since_ns) as f64 / 1e9;
                let argument = match call.argument {
                    0 => String::new(),
                    argument => format!(" ({argument:#x})"),
                };
                write!(f, "in {}{argument} for {seconds:.1} s", call.routine)
            }
            (None, State::Absent) => f.write_str("has not called shmem_init"),
            (None, State::Starting) => f.write_str("in shmem_init"),
            (None, State::Running) => f.write_str("not in a blocking SHMEM call"),
            (None, State::Finished) => f.write_str("has called shmem_finalize"),
            (None, State::Leaving) => f.write_str("in shmem_finalize, waiting for other PEs"),
        }
    }
}

/// The board of a job.
pub struct Board {
    slots: *mut Slot,
    count: usize,
    fd: OwnedFd,
}

// SAFETY: every field of a slot is atomic, and the mapping lives as long as the board.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Makes an empty board for `count` PEs in anonymous shared memory.
    pub fn create(count: usize) -> Result<Board> {
        let fd =
            sealable("tombolo-board").map_err(|e| Error::system("creating the status board", e))?;
        check_file_size("the status board", count * size_of::<Slot>())?;
        nix::unistd::ftruncate(&fd, (count * size_of::<Slot>()) as i64)
            .map_err(|e| Error::system("sizing the status board", e))?;
        // The launcher reads it: no PE can take it away from it.
        seal(&fd);
        Board::open(fd, count)
    }

    /// Maps a board made by another process; an error if it is too small for `count` PEs.
    pub fn open(fd: OwnedFd, count: usize) -> Result<Board> {
        let bytes = count * size_of::<Slot>();
        let size = nix::sys::stat::fstat(&fd)
            .map_err(|e| Error::system("looking at the status board", e))?
            .st_size;
        if count == 0 || (size as u64) < bytes as u64 {
            return Err(Error::Bootstrap(format!(
                "status board holds {size} bytes, {count} PEs need {bytes}"
            )));
        }
        use nix::sys::mman::{MapFlags, ProtFlags, mmap};
        let length = std::num::NonZeroUsize::new(bytes).expect("count is positive");
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let slots = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &fd,
                0,
            )
        }
        .map_err(|e| Error::system("mapping the status board", e))?;
        Ok(Board { slots: slots.as_ptr().cast(), count, fd })
    }

    /// The descriptor to hand to other processes.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Says how far PE `pe`, this process, has come.
    pub fn announce(&self, pe: usize, state: State) {
        let slot = self.slot(pe);
        slot.pid.store(std::process::id() as i32, Ordering::Relaxed);
        slot.state.store(state as u32, Ordering::Release);
        slot.magic.store(MAGIC, Ordering::Release);
    }

    /// Says that PE `pe`, this process, leaves after it has begun `barriers` barriers of all PEs.
    pub fn announce_leaving(&self, pe: usize, barriers: u64) {
        self.slot(pe).barriers.store(barriers, Ordering::Relaxed);
        self.announce(pe, State::Leaving);
    }

    /// Publishes that PE `pe`, this process, waits in `routine`.
    pub fn enter(&self, pe: usize, routine: &str, argument: u64, since_ns: u64) {
        let slot = self.slot(pe);
        let mut name = [0u8; NAME_MAX];
        let kept = routine.len().min(NAME_MAX);
        name[..kept].copy_from_slice(&routine.as_bytes()[..kept]);
        for (word, bytes) in slot.name.iter().zip(name.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
        slot.argument.store(argument, Ordering::Relaxed);
        slot.since_ns.store(since_ns, Ordering::Relaxed);
        slot.entry.fetch_or(1, Ordering::Release);
    }

    /// Takes back what `enter` published.
    pub fn leave(&self, pe: usize) {
        self.slot(pe).entry.fetch_and(!1, Ordering::Release);
    }

    /// Marks PE `pe` as lost, for good. For the launcher, when the others go on without it.
    pub fn mark_lost(&self, pe: usize) {
        self.slot(pe).lost.store(1, Ordering::Release);
    }

    /// Says that PE `pe`, this process, goes on without PE `other`, which it cannot reach.
    pub fn miss(&self, pe: usize, other: usize) {
        let missed = &self.slot(pe).missed;
        // The first one stays.
        let told = MISSED ^ other as u32;
        let _ = missed.compare_exchange(0, told, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// A PE that PE `pe` has gone on without because it could not reach it.
    pub fn missed(&self, pe: usize) -> Option<usize> {
        let other = (self.slot(pe).missed.load(Ordering::Acquire) ^ MISSED) as usize;
        (other < self.count && other != pe).then_some(other)
    }

    /// Whether the launcher has found PE `pe` to be lost.
    pub fn is_lost(&self, pe: usize) -> bool {
        self.slot(pe).lost.load(Ordering::Acquire) != 0
    }

    /// How many barriers of all PEs PE `pe` had begun when it left the job; none if it has not left.
    pub fn left_after(&self, pe: usize) -> Option<u64> {
        let slot = self.slot(pe);
        let has_left = slot.magic.load(Ordering::Acquire) == MAGIC
            && [State::Leaving as u32, State::Finished as u32]
                .contains(&slot.state.load(Ordering::Acquire));
        has_left.then(|| slot.barriers.load(Ordering::Relaxed))
    }

    /// What PE `pe` last said of itself.
    pub fn report(&self, pe: usize) -> Report {
        let slot = self.slot(pe);
        if slot.magic.load(Ordering::Acquire) != MAGIC {
            return Report { state: State::Absent, pid: 0, call: None, barriers: 0 };
        }
        let state = match slot.state.load(Ordering::Acquire) {
            1 => State::Starting,
            2 => State::Running,
            3 => State::Finished,
            4 => State::Leaving,
            _ => State::Absent,
        };
        let call = (slot.entry.load(Ordering::Acquire) & 1 == 1).then(|| {
            let bytes: Vec<u8> = slot
                .name
                .iter()
                .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
                .take_while(|byte| *byte != 0)
                .collect();
            Call {
                routine: String::from_utf8_lossy(&bytes).into_owned(),
                argument: slot.argument.load(Ordering::Relaxed),
                since_ns: slot.since_ns.load(Ordering::Relaxed),
            }
        });
        let barriers = slot.barriers.load(Ordering::Relaxed);
        Report { state, pid: slot.pid.load(Ordering::Relaxed), call, barriers }
    }

    fn slot(&self, pe: usize) -> &Slot {
        assert!(pe < self.count, "PE {pe} of {}", self.count);
        // SAFETY: in bounds by the check above; the mapping lives as long as `self`, and all
        // fields are atomic, so other processes may write them at any time.
        unsafe { &*self.slots.add(pe) }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<Slot>();
        // SAFETY: the mapping made by `open`; no reference into it outlives the board.
        unsafe { libc::munmap(self.slots.cast(), bytes) };
    }
}

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever PEs write to their slots: whoever reads it has something to show.
        #[test]
        fn garbage_in_slots_does_no_harm(
            words in any::<[u64; size_of::<Slot>() / 8]>(), real: bool, waits: bool,
        ) {
            let board = Board::create(2).unwrap();
            let slot = (&raw const *board.slot(1)).cast::<u64>().cast_mut();
            for (at, word) in words.into_iter().enumerate() {
                // SAFETY: inside the slot, whose fields are all atomic.
                unsafe { AtomicU64::from_ptr(slot.add(at)) }.store(word, Ordering::Relaxed);
            }
            if real {
                board.announce(1, State::Running);
            }
            if waits {
                board.slot(1).entry.fetch_or(1, Ordering::Relaxed);
            }
            let report = board.report(1);
            prop_assert!(!report.to_string().is_empty());
            prop_assert!(report.call.is_none_or(|call| call.routine.len() <= 3 * NAME_MAX));
            prop_assert!(board.missed(1).is_none_or(|pe| pe < 2));
            prop_assert!(!board.is_lost(0));
        }
    }

    #[test]
    fn a_wait_is_seen_by_whoever_has_the_board() {
        let board = Board::create(2).unwrap();
        let other = Board::open(board.fd().try_clone_to_owned().unwrap(), 2).unwrap();
        assert_eq!(other.report(1).state, State::Absent);
        board.announce(1, State::Running);
        board.enter(1, "shmem_barrier_all", 7, 42);
        let call = other.report(1).call.unwrap();
        assert_eq!(
            (call.routine.as_str(), call.argument, call.since_ns),
            ("shmem_barrier_all", 7, 42)
        );
        assert!(other.report(1).to_string().starts_with("in shmem_barrier_all (0x7) for "));
        board.leave(1);
        assert_eq!(other.report(1).call, None);
        assert_eq!(other.report(1).to_string(), "not in a blocking SHMEM call");
        board.enter(1, "shmem_barrier_all", 0, 42);
        assert!(other.report(1).to_string().starts_with("in shmem_barrier_all for "));
    }

    #[test]
    fn a_pe_that_leaves_tells_of_its_barriers() {
        let board = Board::create(2).unwrap();
        let other = Board::open(board.fd().try_clone_to_owned().unwrap(), 2).unwrap();
        board.announce_leaving(1, 7);
        let report = other.report(1);
        assert_eq!((report.state, report.barriers), (State::Leaving, 7));
    }

    #[test]
    fn a_loss_is_seen_whatever_the_pe_says_of_itself() {
        let board = Board::create(2).unwrap();
        let other = Board::open(board.fd().try_clone_to_owned().unwrap(), 2).unwrap();
        board.mark_lost(1);
        other.announce(1, State::Running);
        assert_eq!([0, 1].map(|pe| other.is_lost(pe)), [false, true]);
    }

    #[test]
    fn the_first_pe_that_another_misses_is_told_and_nonsense_is_not() {
        let board = Board::create(3).unwrap();
        assert_eq!(board.missed(0), None);
        board.miss(0, 2);
        board.miss(0, 1);
        board.miss(1, 7);
        board.miss(2, 2);
        assert_eq!([0, 1, 2].map(|pe| board.missed(pe)), [Some(2), None, None]);
        // Nor is a number that some PE has written there by mistake: a job that went well has.
        for stray in [1, 2, 3, 0xff, u32::MAX] {
            board.slot(1).missed.store(stray, Ordering::Relaxed);
            assert_eq!(board.missed(1), None, "{stray}");
        }
    }

    #[test]
    fn a_board_that_is_too_small_is_refused() {
        let board = Board::create(2).unwrap();
        assert!(Board::open(board.fd().try_clone_to_owned().unwrap(), 1000).is_err());
    }
}
