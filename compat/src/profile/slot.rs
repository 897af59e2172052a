// SPDX-License-Identifier: Apache-2.0
//! The counters of one thread.

use super::{Kind, LOCAL, Recorder, State, awaited};
use std::arch::asm;
use std::cell::{Cell as Own, OnceCell};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use tombolo_core::Waiting;
use tombolo_core::board::monotonic_ns;
use tombolo_core::profile::{
    CELL, CLASSES, Cell, Exchanged, Head, LIVES, Lives, PEER, PENDING, Pending, SLOTS, class,
};
use tombolo_core::wait::Waited;

/// Entries of the table by which a thread finds rows; a power of two.
const ENTRIES: usize = 1024;

/// A thread's place in the area. The last one belongs to all threads that found no other.
pub struct Slot {
    number: usize,
    shared: bool,
    peers: &'static [[AtomicU64; PEER]],
    lives: &'static [AtomicU64; LIVES],
    /// What the thread is in the middle of; not known of threads that share a slot.
    pending: &'static [AtomicU64; PENDING],
    /// Address of the slot's first cell in the area.
    cells: usize,
    /// Nanoseconds of all waits so far.
    blocked: AtomicU64,
    /// The counters of the call that may be waiting, in [`State::count`].
    current: AtomicPtr<Cells>,
    /// Rows that were looked up: a key of routine and way, and the row's cells. None in the shared slot.
    entries: Box<[(AtomicU64, AtomicPtr<Row>); ENTRIES]>,
}

/// What the area said of the call around another one: the words of [`Pending`] up to its bytes.
#[derive(Clone, Copy)]
pub struct Around([u64; Pending::CallBytes as usize + 1]);

/// The counters of one kind of call.
pub type Cells = [AtomicU64; CELL];
type Row = [Cells; CLASSES];

thread_local! {
    static OWN: Own<*const Slot> = const { Own::new(std::ptr::null()) };
    static END: OnceCell<End> = const { OnceCell::new() };
}

/// Dropped when the thread ends.
struct End {
    recorder: &'static Recorder,
    slot: &'static Slot,
}

/// Slots by the address of the thread's control block, a few of the most: in a shared library the
/// thread's own variables are behind a call, which takes as long as a small operation.
pub struct ByThread([(AtomicUsize, AtomicPtr<Slot>); THREADS]);

/// Entries of it; a power of two.
const THREADS: usize = 64;
/// In place of an address while a thread takes an entry.
const TAKEN: usize = 1;

impl ByThread {
    pub const fn new() -> ByThread {
        ByThread([const { (AtomicUsize::new(0), AtomicPtr::new(std::ptr::null_mut())) }; THREADS])
    }

    /// An entry that several threads may share, and the thread's address.
    #[inline(always)]
    fn entry(&self) -> (&(AtomicUsize, AtomicPtr<Slot>), usize) {
        let own: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the control block begins with its own address.
        unsafe {
            asm!(
                "mov {}, qword ptr fs:[0]",
                out(reg) own,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: reads a register.
        unsafe {
            asm!(
                "mrs {}, tpidr_el0",
                out(reg) own,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        // Blocks lie at the ends of stacks, which begin at pages.
        let hash = (own >> 6) ^ (own >> 12) ^ (own >> 23);
        (&self.0[hash & (THREADS - 1)], own)
    }
}

/// The slot of this thread.
#[inline(always)]
pub fn slot(recorder: &'static Recorder) -> &'static Slot {
    let ((known, slot), own) = recorder.threads.entry();
    if known.load(Ordering::Acquire) == own {
        // SAFETY: set before the address was, and never freed.
        return unsafe { &*slot.load(Ordering::Relaxed) };
    }
    behind(recorder)
}

/// As [`slot`], for threads that have no entry.
#[cold]
#[inline(never)]
fn behind(recorder: &'static Recorder) -> &'static Slot {
    let own = OWN.get();
    // SAFETY: null, or a slot that is never freed.
    match unsafe { own.as_ref() } {
        Some(slot) => slot,
        None => first(recorder),
    }
}

fn first(recorder: &'static Recorder) -> &'static Slot {
    let slot = recorder.free().pop().unwrap_or_else(|| new(recorder));
    OWN.set(slot);
    // The first one counts from the begin on.
    let since = match slot.number {
        0 if slot.lives[Lives::Begun as usize].load(Ordering::Relaxed) == 0 => {
            recorder.area.head(Head::Began).load(Ordering::Relaxed)
        }
        _ => monotonic_ns(),
    };
    slot.live(Lives::Begun, Lives::Since, since);
    // Fails where the thread is about to end: it counts as if it did not.
    let _ = END.try_with(|end| end.set(End { recorder, slot }));
    let ((known, entry), own) = recorder.threads.entry();
    // The entry stays with the first that takes it, until that thread ends.
    if known.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        entry.store(std::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        known.store(own, Ordering::Release);
    }
    slot
}

fn new(recorder: &'static Recorder) -> &'static Slot {
    let number = recorder.slots.fetch_add(1, Ordering::Relaxed).min(SLOTS - 1);
    recorder.area.head(Head::Slots).fetch_max(number as u64 + 1, Ordering::Relaxed);
    let entries = std::iter::repeat_with(Default::default).take(ENTRIES).collect::<Vec<_>>();
    let Ok(entries) = entries.into_boxed_slice().try_into() else {
        unreachable!("as many as asked")
    };
    // Never freed: a thread may end in the middle of a job, and its counts stay.
    Box::leak(Box::new(Slot {
        number,
        shared: number == SLOTS - 1,
        peers: recorder.area.peers(number),
        lives: recorder.area.lives(number),
        pending: recorder.area.pending(number),
        cells: recorder.area.cells(number, 0).as_ptr() as usize,
        blocked: AtomicU64::new(0),
        current: AtomicPtr::default(),
        entries,
    }))
}

impl Drop for End {
    fn drop(&mut self) {
        let End { recorder, slot } = *self;
        // The counters are memory of the PE also in a `fork` child, whose end is not that of a thread.
        if std::process::id() != recorder.process {
            return;
        }
        OWN.set(std::ptr::null());
        let ((known, _), own) = recorder.threads.entry();
        // A thread that gets the same control block is another one.
        let _ = known.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
        let until = match super::on() {
            Some(_) => monotonic_ns(),
            None => recorder.area.head(Head::Ended).load(Ordering::Relaxed),
        };
        slot.current.store(std::ptr::null_mut(), Ordering::Relaxed);
        // It may have ended in a call, as threads do that are cancelled.
        slot.end(Around([0; _]));
        slot.end_wait();
        slot.live(Lives::Ended, Lives::Until, until);
        recorder.free().push(slot);
    }
}

impl Slot {
    pub fn number(&self) -> usize {
        self.number
    }

    /// The number as events have it.
    pub fn bits(&self) -> u64 {
        (self.number as u64) << 32
    }

    /// Adds to a counter and gives what it was.
    #[inline(always)]
    pub fn add(&self, counter: &AtomicU64, what: u64) -> u64 {
        if self.shared {
            return counter.fetch_add(what, Ordering::Relaxed);
        }
        let old = counter.load(Ordering::Relaxed);
        counter.store(old.wrapping_add(what), Ordering::Relaxed);
        old
    }

    /// Nanoseconds that this thread has waited so far.
    pub fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed)
    }

    /// A call of this kind has waited.
    pub fn block(&self, cell: &Cells, ns: u64) {
        self.add(&self.blocked, ns);
        if !self.shared {
            self.add(&self.pending[Pending::CallBlocked as usize], ns);
        }
        self.add(&cell[Cell::BlockedNs as usize], ns);
    }

    /// The counters of the call that may be waiting, if there is one.
    pub fn current(&self) -> Option<&'static Cells> {
        // SAFETY: null, or counters that are never freed.
        unsafe { self.current.load(Ordering::Relaxed).as_ref() }
    }

    /// A thread has begun or ended.
    fn live(&self, number: Lives, sum: Lives, at: u64) {
        self.lives[number as usize].fetch_add(1, Ordering::Relaxed);
        self.lives[sum as usize].fetch_add(at, Ordering::Relaxed);
    }

    /// Says which call may be waiting from now on; gives the one before.
    pub fn enter(&self, cell: *const Cells) -> *const Cells {
        let before = self.current.load(Ordering::Relaxed);
        self.current.store(cell.cast_mut(), Ordering::Relaxed);
        before
    }

    /// 1 and the number of a cell of this slot, as the area has it.
    fn number_of(&self, cell: &Cells) -> u64 {
        ((cell.as_ptr() as usize - self.cells) / size_of::<Cells>()) as u64 + 1
    }

    fn tell(&self, word: Pending, value: u64) {
        // A PE may be killed between any two stores: what is complete is marked by the last one.
        self.pending[word as usize].store(value, Ordering::Release);
    }

    /// Tells the area of a call that begins. Gives when that is, and what the area said before.
    pub fn begin(&self, cell: &Cells, peer: u64, len: usize) -> (u64, Around) {
        if self.shared {
            return (monotonic_ns(), Around([0; _]));
        }
        let around = Around(std::array::from_fn(|word| self.pending[word].load(Ordering::Relaxed)));
        self.tell(Pending::Call, 0);
        self.tell(Pending::CallBlocked, 0);
        self.tell(Pending::CallPeer, peer);
        self.tell(Pending::CallBytes, len as u64);
        let at = monotonic_ns();
        self.tell(Pending::CallSince, at);
        self.tell(Pending::Call, self.number_of(cell));
        (at, around)
    }

    /// The call is over, and the one around it goes on.
    pub fn end(&self, Around(around): Around) {
        if self.shared {
            return;
        }
        // Time is rather lost than counted twice, if the PE is killed here.
        self.tell(Pending::Call, 0);
        let [call, rest @ ..] = around;
        if call > 0 {
            let rest = self.pending[1..].iter().zip(rest);
            rest.for_each(|(word, value)| word.store(value, Ordering::Release));
            self.tell(Pending::Call, call);
        }
    }

    /// Tells the area of a wait that begins.
    pub fn begin_wait(&self, state: &State, waiting: &Waiting, waited: &Waited) {
        if self.shared {
            return;
        }
        let current = self.current();
        let cell = current.unwrap_or_else(|| self.cell(state, waiting.routine, LOCAL, 0));
        self.tell(Pending::Wait, 0);
        self.tell(Pending::WaitAlone, current.is_none().into());
        self.tell(Pending::WaitSince, waited.since);
        self.tell(Pending::WaitPeer, awaited(waiting));
        self.turn_wait(waited);
        self.tell(Pending::Wait, self.number_of(cell));
    }

    /// Tells the area what a wait is for from now on.
    pub fn turn_wait(&self, waited: &Waited) {
        if self.shared {
            return;
        }
        let times = &self.pending[Pending::WaitNs as usize..];
        times.iter().zip(waited.ns).for_each(|(word, ns)| word.store(ns, Ordering::Relaxed));
        self.tell(Pending::WaitReason, waited.now as u64);
    }

    /// Tells the area that the wait is over.
    pub fn end_wait(&self) {
        if !self.shared {
            self.tell(Pending::Wait, 0);
        }
    }

    /// The counters of a kind of call.
    #[inline(always)]
    pub fn cell(
        &self,
        state: &State,
        routine: &'static str,
        way: u8,
        len: usize,
    ) -> &'static Cells {
        // Addresses have 48 bits. The lowest of a key is set, so that no key is 0.
        let key = (routine.as_ptr() as u64) << 9 | u64::from(way) << 1 | 1;
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros());
        let (known, row) = &self.entries[hash as usize & (ENTRIES - 1)];
        let row = match known.load(Ordering::Relaxed) == key {
            true => row.load(Ordering::Relaxed).cast_const(),
            false => self.look_up(state, routine, way, (hash as usize, key)),
        };
        // SAFETY: entered with its key, by this thread alone; the area is never unmapped.
        unsafe { &(*row)[class(len)] }
    }

    #[cold]
    #[inline(never)]
    fn look_up(
        &self,
        state: &State,
        routine: &'static str,
        way: u8,
        (at, key): (usize, u64),
    ) -> *const Row {
        let row = state.row(routine, way);
        let found: *const Row = state.recorder.area.cells(self.number, row.into());
        if !self.shared {
            let (known, row) = &self.entries[at & (ENTRIES - 1)];
            row.store(found.cast_mut(), Ordering::Relaxed);
            known.store(key, Ordering::Relaxed);
        }
        found
    }

    /// Counts what is exchanged with a PE.
    #[inline(always)]
    pub fn exchange(&self, kind: Kind, pe: usize, len: usize) {
        let words = &self.peers[pe];
        let (number, bytes) = match kind {
            Kind::Put => (Exchanged::Puts, Some(Exchanged::PutBytes)),
            Kind::Get => (Exchanged::Gets, Some(Exchanged::GetBytes)),
            Kind::Amo => (Exchanged::Amos, None),
        };
        self.add(&words[number as usize], 1);
        if let Some(bytes) = bytes {
            self.add(&words[bytes as usize], len as u64);
        }
    }
}
