// SPDX-License-Identifier: Apache-2.0
//! Words of link memory by which processes agree without a lock: whether the link is up, who is
//! placing a write, and what is behind a slot. Checked under every interleaving by models (`loom_`).

use std::sync::atomic::AtomicU32 as PlainU32;
use tombolo_core::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Whether the link is up, in one word so that the data path looks at one line.
#[repr(C, align(128))]
pub struct Status {
    /// Low bits: what an active link needs. Above: how often it went up or down.
    word: AtomicU64,
    /// Non-zero when [`FaultControl`](super::layout::FaultControl) asks for anything on the data path.
    pub faulty: PlainU32,
}

/// What a link needs to be up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Need {
    /// Side 0 has enabled it.
    Enabled0 = 1,
    /// Side 1 has enabled it.
    Enabled1 = 2,
    /// The cable is in.
    Cable = 4,
    /// The host of side 0 runs.
    Host0 = 8,
    /// The host of side 1 runs.
    Host1 = 16,
}

const UP: u64 = 31;
const GENERATION: u64 = 1 << 8;

/// A reading of [`Status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkWord(u64);

impl LinkWord {
    pub fn is_up(self) -> bool {
        self.0 & UP == UP
    }

    pub fn generation(self) -> u64 {
        self.0 / GENERATION
    }
}

impl Status {
    /// In one order with changes and with `placing` of requesters: who looks after it has said that
    /// it is placing a write sees a change that did not wait for it.
    pub fn read(&self) -> LinkWord {
        LinkWord(self.word.load(Ordering::SeqCst))
    }

    /// Fulfils or takes away a need. The new word and whether the link went up or down by it.
    pub fn change(&self, need: Need, fulfilled: bool) -> (LinkWord, bool) {
        let next = |old: u64| {
            let needs = if fulfilled { old | need as u64 } else { old & !(need as u64) };
            let edge = (old & UP == UP) != (needs & UP == UP);
            if edge { needs.wrapping_add(GENERATION) } else { needs }
        };
        let old = self
            .word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(next(old)))
            .expect("the closure always gives a value");
        let new = LinkWord(next(old));
        (new, new.is_up() != LinkWord(old).is_up())
    }
}

/// Says whether its requester is placing a write in the peer's memory: odd while it does.
#[repr(transparent)]
pub struct Placing(AtomicU32);

impl Placing {
    /// Not placing; gives the number. A requester before may have died while placing.
    pub fn reset(&self) -> u32 {
        let number = self.0.load(Ordering::Relaxed);
        let number = number.wrapping_add(number & 1);
        self.0.store(number, Ordering::SeqCst);
        number
    }

    /// Begins: whatever is looked up from here on is newer than what somebody had changed who does
    /// not see that this has begun. In one order with changes of [`Status`] and [`Translation`].
    #[inline]
    pub fn begin(&self, number: u32) {
        self.0.swap(number, Ordering::SeqCst);
    }

    /// Ends: whoever sees it sees what was placed.
    #[inline]
    pub fn end(&self, number: u32) {
        self.0.store(number, Ordering::Release);
    }

    /// The number of the write that is being placed.
    pub fn current(&self) -> Option<u32> {
        let number = self.0.load(Ordering::SeqCst);
        (!number.is_multiple_of(2)).then_some(number)
    }

    /// Whether that write is still being placed.
    pub fn is_at(&self, number: u32) -> bool {
        self.0.load(Ordering::SeqCst) == number
    }
}

/// What is behind one slot.
#[repr(C, align(64))]
pub struct Translation {
    /// Odd: closed or being changed. Even and not zero: open. Every change raises it.
    pub generation: AtomicU64,
    /// Process that is changing it, or 0.
    pub changing: PlainU32,
    /// Process and descriptor that registered the memory.
    pid: AtomicU32,
    fd: AtomicU32,
    /// Identity of the file, in case that process is gone and its number used again.
    inode: AtomicU64,
    /// Offset of the registered memory in the file, and its bytes.
    region_offset: AtomicU64,
    region_len: AtomicU64,
    /// Where in that memory the slot starts.
    offset: AtomicU64,
    /// Bytes that are open from the start of the slot.
    size: AtomicU64,
}

/// What a translation says, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    pub pid: u32,
    pub fd: u32,
    pub inode: u64,
    pub region_offset: u64,
    pub region_len: u64,
    pub offset: u64,
    pub size: u64,
}

impl Translation {
    /// Whether a slot of this generation is open.
    fn is_open_at(generation: u64) -> bool {
        generation != 0 && generation.is_multiple_of(2)
    }

    pub fn is_open(&self) -> bool {
        Translation::is_open_at(self.generation.load(Ordering::SeqCst))
    }

    /// Closes it; false if it is closed.
    pub fn close(&self) -> bool {
        let closed =
            self.generation.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |generation| {
                Translation::is_open_at(generation).then(|| generation + 1)
            });
        closed.is_ok()
    }

    /// Opens it, which must be closed; gives its generation. Only one process at a time does this.
    pub fn open(&self, contents: &Contents) -> u64 {
        // Whoever reads a new field sees that the slot was closed before.
        fence(Ordering::Release);
        self.pid.store(contents.pid, Ordering::Relaxed);
        self.fd.store(contents.fd, Ordering::Relaxed);
        self.inode.store(contents.inode, Ordering::Relaxed);
        self.region_offset.store(contents.region_offset, Ordering::Relaxed);
        self.region_len.store(contents.region_len, Ordering::Relaxed);
        self.offset.store(contents.offset, Ordering::Relaxed);
        self.size.store(contents.size, Ordering::Relaxed);
        // From 0 or odd to the next even number.
        let generation = self.generation.load(Ordering::SeqCst).wrapping_add(2) & !1;
        self.generation.store(generation, Ordering::SeqCst);
        generation
    }

    /// Its generation and what it says. None when it is closed or about to change.
    pub fn read(&self) -> Option<(u64, Contents)> {
        let generation = self.generation.load(Ordering::SeqCst);
        let contents = Contents {
            pid: self.pid.load(Ordering::Relaxed),
            fd: self.fd.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
            region_offset: self.region_offset.load(Ordering::Relaxed),
            region_len: self.region_len.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            size: self.size.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let stable = self.generation.load(Ordering::Relaxed) == generation;
        (stable && Translation::is_open_at(generation)).then_some((generation, contents))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_edges_of_the_link_change_its_generation() {
        let status = Status { word: AtomicU64::new(0), faulty: PlainU32::new(0) };
        let needs = [Need::Cable, Need::Host0, Need::Host1, Need::Enabled0];
        for need in needs {
            assert!(!status.change(need, true).1, "{need:?}");
        }
        assert_eq!(status.read().generation(), 0);
        let (word, edge) = status.change(Need::Enabled1, true);
        assert!(edge && word.is_up());
        assert!(!status.change(Need::Enabled1, true).1);
        let (word, edge) = status.change(Need::Cable, false);
        assert!(edge && !word.is_up());
        assert_eq!(word.generation(), 2);
    }
}

#[cfg(all(test, loom))]
mod checked {
    use super::*;
    use loom::cell::UnsafeCell;
    use tombolo_core::sync::{Arc, thread};

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    struct Memory {
        status: Status,
        placing: Placing,
        slot: Translation,
        /// What is behind the slot.
        data: UnsafeCell<u64>,
    }

    // SAFETY: the model checker reports accesses to the data that are not ordered.
    unsafe impl Sync for Memory {}

    fn contents(all: u64) -> Contents {
        Contents {
            pid: all as u32,
            fd: all as u32,
            inode: all,
            region_offset: all,
            region_len: all,
            offset: all,
            size: all,
        }
    }

    /// A link that is up, with an open slot.
    fn memory() -> Arc<Memory> {
        let word = || AtomicU64::new(0);
        let memory = Memory {
            status: Status { word: word(), faulty: PlainU32::new(0) },
            placing: Placing(AtomicU32::new(0)),
            slot: Translation {
                generation: word(),
                changing: PlainU32::new(0),
                pid: AtomicU32::new(0),
                fd: AtomicU32::new(0),
                inode: word(),
                region_offset: word(),
                region_len: word(),
                offset: word(),
                size: word(),
            },
            data: UnsafeCell::new(0),
        };
        for need in [Need::Cable, Need::Host0, Need::Host1, Need::Enabled0, Need::Enabled1] {
            memory.status.change(need, true);
        }
        memory.placing.reset();
        memory.slot.open(&contents(1));
        Arc::new(memory)
    }

    /// A posted write lands while `change` takes away its ground: it is placed before the barrier ends,
    /// or not at all.
    fn nothing_lands_late(change: fn(&Memory)) {
        check(move || {
            let memory = memory();
            let link = memory.status.read();
            let generation = memory.slot.read().expect("open").0;
            let writer = memory.clone();
            let writer = thread::spawn(move || {
                writer.placing.begin(1);
                let current = writer.slot.generation.load(Ordering::SeqCst) == generation;
                if writer.status.read() == link && current {
                    // SAFETY: checked by the model checker.
                    writer.data.with_mut(|data| unsafe { *data = 1 });
                }
                writer.placing.end(2);
            });
            change(&memory);
            if let Some(number) = memory.placing.current() {
                while memory.placing.is_at(number) {
                    thread::yield_now();
                }
            }
            // SAFETY: as above; the memory may serve something else now.
            memory.data.with_mut(|data| unsafe { *data = 2 });
            writer.join().expect("the writer ends");
        });
    }

    #[test]
    fn loom_no_write_lands_after_the_barrier_of_a_link_that_goes_down() {
        nothing_lands_late(|memory| {
            memory.status.change(Need::Cable, false);
        });
    }

    #[test]
    fn loom_no_write_lands_after_the_barrier_of_a_slot_that_is_closed() {
        nothing_lands_late(|memory| assert!(memory.slot.close()));
    }

    /// Who reads a slot while it is set anew finds the old contents, the new ones, or none.
    #[test]
    fn loom_contents_of_a_slot_are_never_mixed() {
        check(|| {
            let memory = memory();
            let reader = memory.clone();
            let reader = thread::spawn(move || {
                if let Some((generation, found)) = reader.slot.read() {
                    assert_eq!(found, contents(generation / 2));
                }
            });
            assert!(memory.slot.close());
            assert_eq!(memory.slot.open(&contents(2)), 4);
            reader.join().expect("the reader ends");
        });
    }
}
