// SPDX-License-Identifier: Apache-2.0
//! Long copies between mapped memory that go on while the program computes: by a thread beside it, and by the
//! program itself once it waits.
//!
//! A copy is cut into chunks, which whoever is free takes one after the other. So a program that waits at once
//! loses next to nothing, also if the thread has no processor: it copies all chunks itself.

use crate::copy;
use crate::threads::{processor, spawn_without_signals};
use crate::transport::Stream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Copies under way at most; more are carried out at once.
const SLOTS: usize = 32;
/// Bytes that are copied in one go.
const CHUNK: usize = 64 << 10;
/// How long the thread looks for more before it sleeps.
const LOOKS: Duration = Duration::from_micros(50);
/// How long it leaves the processor of a program on which it was woken.
const NAP: Duration = Duration::from_micros(20);
/// How many times in a row: it may be allowed no other processor, and the program may wait there without knowing of
/// the copy.
const NAPS: u32 = 50;

/// The shortest copies that are for the copier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Least {
    /// While the thread looks for more.
    pub awake: usize,
    /// While it sleeps: waking it takes several microseconds.
    pub asleep: usize,
}

/// A copy.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub dest: *mut u8,
    pub source: *const u8,
    pub len: usize,
    /// With stores that bypass the caches.
    pub streaming: bool,
    /// Counts it.
    pub stream: *const Stream,
}

/// Copies under way and the thread that carries them out.
pub(crate) struct Copier {
    shared: Arc<Shared>,
    /// Started with the first copy; none if the system refused it.
    thread: OnceLock<Option<JoinHandle<()>>>,
    least: Least,
}

struct Shared {
    slots: [Slot; SLOTS],
    stop: AtomicBool,
    asleep: AtomicBool,
    /// The processor of the thread that entered the last copy.
    processor: AtomicUsize,
}

/// Room for a copy.
///
/// `next` names the copy, by how many have been here, and the next chunk that nobody has taken. Whoever takes a
/// chunk reads the copy first and then raises `next`, which fails if another copy has come meanwhile: a
/// copy is replaced only under another name, and only after all of its chunks are done.
struct Slot {
    /// The copy's number times 2^32, and the next chunk: [`CLOSED`] while there is no copy.
    next: AtomicU64,
    /// Chunks that are not done.
    left: AtomicU32,
    taken: AtomicBool,
    copy: [AtomicU64; 5],
}

/// No chunk has this number.
const CLOSED: u64 = u32::MAX as u64;

/// A copy as words, which a thread may read while another one replaces them.
fn words(copy: &Copy) -> [u64; 5] {
    let Copy { dest, source, len, streaming, stream } = *copy;
    [dest as u64, source as u64, len as u64, streaming.into(), stream as u64]
}

impl Slot {
    fn new() -> Slot {
        Slot {
            next: AtomicU64::new(CLOSED),
            left: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            copy: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Enters a copy, if there is none.
    fn enter(&self, copy: &Copy) -> bool {
        if self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        // Nobody takes chunks: the slot is closed. Whoever reads one of the words below sees that it is.
        fence(Ordering::Release);
        let number = (self.next.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        for (place, word) in self.copy.iter().zip(words(copy)) {
            place.store(word, Ordering::Relaxed);
        }
        self.left.store(copy.len.div_ceil(CHUNK) as u32, Ordering::Relaxed);
        self.next.store(number << 32, Ordering::Release);
        true
    }

    /// Whether there is a copy of which chunks may be left.
    fn has_some(&self) -> bool {
        self.next.load(Ordering::Relaxed) & CLOSED != CLOSED
    }

    /// Copies a chunk of what is here, if one is left.
    fn step(&self) -> bool {
        let next = self.next.load(Ordering::Acquire);
        if next & CLOSED == CLOSED {
            return false;
        }
        let [dest, source, len, streaming, stream] =
            std::array::from_fn(|index| self.copy[index].load(Ordering::Relaxed));
        let start = (next & CLOSED) as usize * CHUNK;
        if start >= len as usize {
            return false;
        }
        fence(Ordering::Acquire);
        let raised =
            self.next.compare_exchange(next, next + 1, Ordering::Acquire, Ordering::Relaxed);
        if raised.is_err() {
            // Somebody else has it; there may be another one.
            return true;
        }
        let size = CHUNK.min(len as usize - start);
        let (dest, source) = (dest as usize as *mut u8, source as usize as *const u8);
        // SAFETY: by the word of who entered the copy: it is under way until all chunks are done, and nobody
        // else has this one.
        unsafe {
            let (dest, source) = (dest.add(start), source.add(start));
            match streaming {
                0 => copy::cached(dest, source, size),
                _ => copy::streaming(dest, source, size),
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.next.store(next | CLOSED, Ordering::Relaxed);
            self.taken.store(false, Ordering::Release);
            // SAFETY: the stream stays until it is quiet.
            let stream = unsafe { &*(stream as usize as *const Stream) };
            stream.completed.fetch_add(1, Ordering::Release);
        }
        true
    }
}

impl Shared {
    /// Copies chunks as long as there are any; whether there were.
    fn help(&self) -> bool {
        let mut found = false;
        for slot in &self.slots {
            while slot.step() {
                found = true;
            }
        }
        found
    }

    fn run(&self) {
        let (mut since, mut naps) = (Instant::now(), 0);
        while !self.stop.load(Ordering::Relaxed) {
            if self.slots.iter().any(Slot::has_some) {
                // With a chunk in hand it would hold up the program, which can copy as well.
                if naps < NAPS && processor() == self.processor.load(Ordering::Relaxed) {
                    thread::sleep(NAP);
                    naps += 1;
                    continue;
                }
                self.help();
                (since, naps) = (Instant::now(), 0);
            } else if since.elapsed() < LOOKS {
                std::hint::spin_loop();
            } else {
                // Whoever enters a copy, or sets `stop`, unparks after that.
                self.asleep.store(true, Ordering::Relaxed);
                thread::park();
                self.asleep.store(false, Ordering::Relaxed);
                since = Instant::now();
            }
        }
    }
}

impl Copier {
    /// One that has nothing to do.
    pub(crate) fn new(least: Least) -> Copier {
        let slots = std::array::from_fn(|_| Slot::new());
        let (stop, asleep) = (AtomicBool::new(false), AtomicBool::new(true));
        let shared = Arc::new(Shared { slots, stop, asleep, processor: AtomicUsize::new(0) });
        Copier { shared, thread: OnceLock::new(), least }
    }

    /// The shortest copy that it may take.
    pub(crate) fn least(&self) -> usize {
        self.least.awake
    }

    /// Enters a copy. False if it has to be carried out otherwise: it is too short to wake the thread for, too
    /// many are under way, or there is no thread.
    ///
    /// # Safety
    /// Both ranges are valid and do not overlap, until the stream has counted the copy as complete. The
    /// stream stays until then.
    pub(crate) unsafe fn enter(&self, copy: &Copy) -> bool {
        let asleep = self.shared.asleep.load(Ordering::Relaxed);
        if copy.len < if asleep { self.least.asleep } else { self.least.awake } {
            return false;
        }
        let Some(thread) = self.thread() else { return false };
        self.shared.processor.store(processor(), Ordering::Relaxed);
        let entered = self.shared.slots.iter().any(|slot| slot.enter(copy));
        if entered {
            thread.unpark();
        }
        entered
    }

    fn thread(&self) -> Option<&Thread> {
        let start = || {
            let shared = self.shared.clone();
            spawn_without_signals("shmem-copier", move || shared.run()).ok()
        };
        self.thread.get_or_init(start).as_ref().map(JoinHandle::thread)
    }

    /// Copies what is left, for a thread that waits. What others have begun may not be done.
    pub(crate) fn help(&self) {
        self.shared.help();
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.help();
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(Some(thread)) = self.thread.take() {
            thread.thread().unpark();
            // Only a panic is an error, and nothing in `run` panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Status;
    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;

    const ALL: Least = Least { awake: 1, asleep: 1 };

    fn until_quiet(copier: &Copier, stream: &Stream) {
        while !stream.is_quiet() {
            copier.help();
        }
    }

    /// Waits for the thread alone.
    fn until_copied(stream: &Stream) {
        let begun = Instant::now();
        while !stream.is_quiet() {
            assert!(begun.elapsed() < Duration::from_secs(30), "nobody copies");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Enters a copy of all of `source`, or copies it.
    fn copy(copier: &Copier, stream: &Stream, dest: &mut [u8], source: &[u8]) -> Status {
        let (to, from, len) = (dest.as_mut_ptr(), source.as_ptr(), source.len().min(dest.len()));
        let copy = Copy { dest: to, source: from, len, streaming: len % 2 == 1, stream };
        stream.counted(|| {
            // SAFETY: callers keep both, and wait for the stream.
            if unsafe { copier.enter(&copy) } {
                return Status::Pending;
            }
            // SAFETY: two slices.
            unsafe { copy::cached(to, from, len) };
            Status::Complete
        })
    }

    #[test]
    fn every_byte_of_many_copies_arrives_once_they_are_complete() {
        let copier = Copier::new(ALL);
        let source: Vec<u8> = (0..CHUNK * 3 + 777).map(|index| ((index * 7) >> 3) as u8).collect();
        for round in 0..if cfg!(miri) { 2 } else { 200 } {
            let stream = Stream::new(0, round % 2 == 0);
            // More than there are slots.
            let mut dests: Vec<Vec<u8>> =
                (0..SLOTS + 5).map(|index| vec![0; source.len() - index * 4000 - round]).collect();
            dests.iter_mut().for_each(|dest| _ = copy(&copier, &stream, dest, &source));
            until_quiet(&copier, &stream);
            let whole = |dest: &Vec<u8>| *dest == source[..dest.len()];
            assert!(dests.iter().all(whole), "round {round}");
        }
    }

    #[test]
    fn threads_with_streams_of_their_own_share_it() {
        let copier = &Copier::new(ALL);
        thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let stream = Stream::new(thread.into(), true);
                    let source = vec![thread + 1; 2 * CHUNK + 1];
                    for _ in 0..if cfg!(miri) { 2 } else { 300 } {
                        let mut dest = vec![0; source.len()];
                        _ = copy(copier, &stream, &mut dest, &source);
                        until_quiet(copier, &stream);
                        assert!(dest == source);
                    }
                });
            }
        });
    }

    #[test]
    fn the_thread_goes_on_while_nobody_waits() {
        let copier = Copier::new(ALL);
        let (stream, source) = (Stream::new(0, true), vec![3; 10 * CHUNK]);
        let mut dest = vec![0; source.len()];
        for _ in 0..3 {
            dest.fill(0);
            assert_eq!(copy(&copier, &stream, &mut dest, &source), Status::Pending);
            // It sleeps in between.
            until_copied(&stream);
            assert!(dest == source);
        }
    }

    /// The thread is where the program is then, and shares its processor with it.
    #[test]
    #[cfg_attr(miri, ignore = "it binds a thread to a processor")]
    fn the_thread_goes_on_where_it_has_no_processor_of_its_own() {
        let me = Pid::from_raw(0);
        let mut here = CpuSet::new();
        here.set(processor()).unwrap();
        let pinned = thread::spawn(move || {
            sched_setaffinity(me, &here).unwrap();
            let (stream, source) = (Stream::new(0, true), vec![3; 10 * CHUNK]);
            let mut dest = vec![0; source.len()];
            let copier = Copier::new(ALL);
            assert_eq!(copy(&copier, &stream, &mut dest, &source), Status::Pending);
            until_copied(&stream);
            assert!(dest == source);
        });
        pinned.join().unwrap();
    }

    #[test]
    fn short_copies_do_not_wake_the_thread() {
        let copier = Copier::new(Least { awake: 1, asleep: 2 * CHUNK });
        let (stream, source) = (Stream::new(0, true), vec![5; 2 * CHUNK]);
        let mut dest = vec![0; CHUNK];
        assert_eq!(copy(&copier, &stream, &mut dest, &source), Status::Complete);
        assert!(dest == source[..CHUNK] && copier.thread.get().is_none());
        let mut dest = vec![0; 2 * CHUNK];
        assert_eq!(copy(&copier, &stream, &mut dest, &source), Status::Pending);
        until_quiet(&copier, &stream);
        assert!(dest == source);
    }

    #[test]
    fn the_end_leaves_nothing_half_done() {
        let (stream, source) = (Stream::new(0, true), vec![9; 20 * CHUNK]);
        let mut dest = vec![0; source.len()];
        let copier = Copier::new(ALL);
        _ = copy(&copier, &stream, &mut dest, &source);
        drop(copier);
        assert!(stream.is_quiet() && dest == source);
    }
}
