// SPDX-License-Identifier: Apache-2.0
//! What the processes of a host that use a port share of its state: words in a memory file, which the owner of the
//! device keeps and all others see.
//!
//! The owner believes nothing of it: what another process does to these words can delay or wake, and no more. What a
//! process has lost, it alone has: the link goes on for the owner and the others.

use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{Counters, Event, InboundMemory, PcieGen, PortError, Result};
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tombolo_core::memory::page_size;

/// Processes of a host that may use a port; the first place is the owner's.
pub const PLACES: usize = 128;
/// Counters of writes of one process; its handles share them.
pub const WRITERS: usize = 16;
/// Doorbells that may be words of memory.
pub const BELLS: usize = 32;
/// Says that the words are those of this build.
const FORM: u64 = 0x544d_424c_574f_0001;

/// A count on a line of its own.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Counter(pub AtomicU64);

/// The words.
#[repr(C)]
pub struct Block {
    form: AtomicU64,
    /// The generation of the link; 0 when it is down. Every write reads it: nothing that is written often is near.
    up_generation: AtomicU64,
    /// Changes whenever the link goes up or down; never 0.
    generation: AtomicU64,
    /// The link as trained, packed.
    trained: AtomicU64,
    /// Places that have been given to processes, the owner's included.
    places: AtomicU32,
    /// Doorbell bits that have rung and were not cleared; those that wake nobody.
    bells: Bells,
    /// What others wait for: counts what has happened. And how many of them sleep.
    events: Events,
    /// What the peer's doorbells that are words were last set to, and own ones as last seen.
    pub rung: [AtomicU64; BELLS],
    pub heard: [AtomicU64; BELLS],
    /// By process: only itself writes there, so that none waits for the cache of another.
    by_place: [Place; PLACES],
}

#[repr(C, align(64))]
struct Bells {
    pending: AtomicU64,
    mask: AtomicU64,
    /// Doorbells are taken: the link is enabled.
    listens: AtomicU32,
}

#[repr(C, align(64))]
struct Events {
    count: AtomicU32,
    sleepers: AtomicU32,
}

/// What a process tells.
#[repr(C, align(64))]
struct Place {
    counts: [AtomicU64; Event::ALL.len()],
    /// Writes that are under way.
    writers: [Counter; WRITERS],
    /// Doorbells that the owner is to ring.
    to_ring: AtomicU64,
}

/// The words as this process has them, in its place.
pub struct Words {
    block: NonNull<Block>,
    place: usize,
    /// This process has nothing of the owner any more.
    lost: AtomicBool,
    memory: InboundMemory,
}

// SAFETY: all words are atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Deref for Words {
    type Target = Block;

    fn deref(&self) -> &Block {
        // SAFETY: inside of the mapping, which is as long, page-aligned, and stays as long as the value; all fields
        // are atomics, for which every bit pattern is a value.
        unsafe { self.block.as_ref() }
    }
}

impl Words {
    /// New words, of a port whose link is down and whose doorbells are all masked. No value of doorbells that are words
    /// comes after `first` twice.
    pub fn new(first: u64) -> Result<Words> {
        let words = Words::of(InboundMemory::new(size_of::<Block>())?, 0);
        words.generation.store(1, Ordering::SeqCst);
        words.bells.mask.store(u64::MAX, Ordering::SeqCst);
        words.rung.iter().for_each(|rung| rung.store(first, Ordering::SeqCst));
        words.places.store(1, Ordering::SeqCst);
        words.form.store(FORM, Ordering::SeqCst);
        Ok(words)
    }

    /// Those of another process, which has given this one a place.
    pub fn join(file: OwnedFd, place: usize) -> Result<Words> {
        let memory =
            InboundMemory::of_file(file, 0, size_of::<Block>().next_multiple_of(page_size()))?;
        let words = Words::of(memory, place);
        let (form, places) =
            (words.form.load(Ordering::SeqCst), words.places.load(Ordering::SeqCst));
        match form == FORM && place > 0 && place < PLACES && place < places as usize {
            true => Ok(words),
            false => {
                Err(PortError::Invalid("the state of a port is not that of this build".into()))
            }
        }
    }

    fn of(memory: InboundMemory, place: usize) -> Words {
        let block = NonNull::new(memory.base().cast()).expect("a mapping is somewhere");
        Words { block, place, lost: AtomicBool::new(false), memory }
    }

    /// The file, for other processes.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }

    /// The number of this process's place.
    pub fn place(&self) -> usize {
        self.place
    }

    /// The doorbells that the owner is to ring for this process.
    pub fn to_ring(&self) -> &AtomicU64 {
        &self.by_place[self.place].to_ring
    }

    /// A counter for writes of this process that are under way.
    pub fn writer(&self, number: usize) -> &AtomicU64 {
        &self.by_place[self.place].writers[number % WRITERS].0
    }

    /// The generation of a link that is up, for this process.
    pub fn up_generation(&self) -> Option<u64> {
        match self.up_generation.load(Ordering::SeqCst) {
            _ if self.lost.load(Ordering::SeqCst) => None,
            0 => None,
            generation => Some(generation),
        }
    }

    /// Changes whenever the link goes up or down, for this process.
    pub fn generation(&self) -> u64 {
        let lost = self.lost.load(Ordering::SeqCst);
        self.generation.load(Ordering::SeqCst).wrapping_add(lost.into())
    }

    /// The owner has ended, or this process has parted from it: to it the link is down, for good.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.tell();
    }

    /// Counts something that this process has done.
    pub fn count(&self, event: Event, amount: u64) {
        self.by_place[self.place].counts[event as usize].fetch_add(amount, Ordering::Relaxed);
    }
}

impl Block {
    /// Places that have been given, the owner's included.
    pub fn places(&self) -> usize {
        (self.places.load(Ordering::SeqCst) as usize).clamp(1, PLACES)
    }

    /// Gives a process a place that no other has had.
    pub fn take_place(&self) -> Option<usize> {
        let next = |places: u32| (places < PLACES as u32).then(|| places + 1);
        let order = Ordering::SeqCst;
        self.places.fetch_update(order, order, next).ok().map(|place| place as usize)
    }

    fn in_use(&self) -> &[Place] {
        &self.by_place[..self.places()]
    }

    /// The process in a place has ended: none of its writes is under way.
    pub fn leave(&self, place: usize) {
        if let Some(place) = self.by_place.get(place) {
            place.writers.iter().for_each(|writer| writer.0.store(0, Ordering::SeqCst));
        }
    }

    /// Takes the doorbells that the process in a place wants rung.
    pub fn take_to_ring(&self, place: usize) -> u64 {
        self.by_place.get(place).map_or(0, |place| place.to_ring.swap(0, Ordering::SeqCst))
    }

    /// Counts of writes that are under way, of all processes.
    pub fn writers(&self) -> impl Iterator<Item = &AtomicU64> {
        self.in_use().iter().flat_map(|place| &place.writers).map(|writer| &writer.0)
    }

    /// What all processes have counted.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for (place, event) in self.in_use().iter().flat_map(|p| Event::ALL.map(|event| (p, event)))
        {
            let more = place.counts[event as usize].load(Ordering::Relaxed);
            counters[event] = counters[event].wrapping_add(more);
        }
        counters
    }

    /// Doorbell bits that have rung.
    pub fn pending(&self) -> &AtomicU64 {
        &self.bells.pending
    }

    /// Those that wake nobody.
    pub fn mask(&self) -> &AtomicU64 {
        &self.bells.mask
    }

    /// Whether doorbells are taken.
    pub fn listens(&self) -> bool {
        self.bells.listens.load(Ordering::SeqCst) != 0
    }

    /// Has doorbells be taken, or not.
    pub fn listen(&self, on: bool) {
        self.bells.listens.store(on.into(), Ordering::SeqCst);
    }

    /// The link as trained: what others say may be anything.
    pub fn trained(&self) -> Trained {
        let word = self.trained.load(Ordering::Relaxed);
        let speed = PcieGen::ALL[(word as usize & 0xff).min(PcieGen::ALL.len() - 1)];
        let width = (word >> 8) as u32 & 0xff;
        let max_payload = (word >> 16) as u32 & 0xffff;
        Trained { speed, width: width.max(1), max_payload: max_payload.clamp(64, 4096) }
    }

    /// Says how it is trained.
    pub fn set_trained(&self, trained: Trained) {
        let speed = PcieGen::ALL.iter().position(|speed| *speed == trained.speed).unwrap_or(0);
        let (width, payload) = (trained.width.min(0xff), trained.max_payload.min(0xffff));
        let word = speed as u64 | u64::from(width) << 8 | u64::from(payload) << 16;
        // Others read this line on their data paths.
        if self.trained.load(Ordering::Relaxed) != word {
            self.trained.store(word, Ordering::Relaxed);
        }
    }

    /// The link has gone up or down: a new generation, which is returned.
    pub fn follow(&self, up: bool) -> u64 {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.set_up(if up { Some(generation) } else { None });
        generation
    }

    /// Says of which generation the link is that is up, if it is.
    pub fn set_up(&self, generation: Option<u64>) {
        self.up_generation.store(generation.unwrap_or(0), Ordering::SeqCst);
    }

    /// Has processes that wait look again.
    pub fn tell(&self) {
        self.events.count.fetch_add(1, Ordering::SeqCst);
        if self.events.sleepers.load(Ordering::SeqCst) != 0 {
            // SAFETY: wakes who waits at a word of a mapping.
            unsafe {
                let word = self.events.count.as_ptr();
                libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX);
            }
        }
    }

    /// Waits until `look` says so or `timeout` has passed; returns what it has seen last.
    pub fn wait<T>(&self, timeout: Duration, look: impl Fn() -> (bool, T)) -> T {
        let begun = Instant::now();
        loop {
            let before = self.events.count.load(Ordering::SeqCst);
            let (done, seen) = look();
            let left = timeout.saturating_sub(begun.elapsed());
            if done || left.is_zero() {
                return seen;
            }
            self.events.sleepers.fetch_add(1, Ordering::SeqCst);
            let time = libc::timespec {
                tv_sec: left.as_secs().min(1 << 30) as libc::time_t,
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: waits at a word of a mapping, for a time in a local.
            unsafe {
                let word = self.events.count.as_ptr();
                libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, before, &raw const time);
            }
            self.events.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_left_is_read_as_something_that_can_be() {
        let words = Words::new(1).unwrap();
        words.trained.store(u64::MAX, Ordering::Relaxed);
        let trained = words.trained();
        assert!(trained.width > 0 && trained.max_payload <= 4096);
        let gen3 = Trained { speed: PcieGen::Gen3, width: 8, max_payload: 256 };
        words.set_trained(gen3);
        assert_eq!(words.trained(), gen3);
        words.places.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(words.writers().count(), PLACES * WRITERS);
        assert_eq!(words.take_place(), None);
        words.leave(usize::MAX);
        assert_eq!(words.take_to_ring(usize::MAX), 0);
    }

    #[test]
    fn places_are_given_once_and_words_are_joined_in_them() {
        let words = Words::new(1).unwrap();
        let file = || words.file().unwrap().try_clone_to_owned().unwrap();
        assert!(Words::join(file(), 1).is_err(), "it was not given");
        let places: Vec<usize> = std::iter::from_fn(|| words.take_place()).collect();
        assert_eq!(places, (1..PLACES).collect::<Vec<_>>());
        let other = Words::join(file(), 5).unwrap();
        other.count(Event::Bytes, 7);
        words.count(Event::Bytes, 1);
        assert_eq!(words.counters()[Event::Bytes], 8);
        other.writer(3).store(1, Ordering::SeqCst);
        assert_eq!(words.writers().filter(|w| w.load(Ordering::SeqCst) == 1).count(), 1);
        words.leave(5);
        assert_eq!(words.writers().filter(|w| w.load(Ordering::SeqCst) == 1).count(), 0);
        assert!(Words::join(file(), 0).is_err() && Words::join(file(), PLACES).is_err());
        let short = InboundMemory::new(4096).unwrap();
        let short = short.file().unwrap().try_clone_to_owned().unwrap();
        assert!(Words::join(short, 1).is_err(), "no words");
    }

    #[test]
    fn a_loss_ends_the_waits_of_a_process_and_nothing_of_others() {
        let words = Words::new(1).unwrap();
        let up = words.follow(true);
        let join = || {
            let place = words.take_place().unwrap();
            Words::join(words.file().unwrap().try_clone_to_owned().unwrap(), place).unwrap()
        };
        let (loses, stays) = (join(), join());
        assert_eq!((loses.up_generation(), loses.generation()), (Some(up), up));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let down = || (loses.up_generation().is_none(), loses.generation());
                loses.wait(Duration::from_secs(60), down)
            });
            loses.lose();
            assert_ne!(waits.join().unwrap(), up);
        });
        for other in [&words, &stays] {
            assert_eq!((other.up_generation(), other.generation()), (Some(up), up));
        }
        words.follow(false);
        assert_eq!((loses.up_generation(), stays.up_generation()), (None, None));
        assert_ne!(stays.generation(), up);
    }
}
