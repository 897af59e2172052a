// SPDX-License-Identifier: Apache-2.0
//! Threads of a PE that want the same lock queue for it: to the other PEs they are one.
//!
//! A lock that one thread has, and no other thread wants, costs one compare-and-swap on a word of its own and
//! another one to give it back: together a fifth of what a lock costs that is not contended. As long as the process has
//! a single thread, a load and a store take their place. Locks share these words by chance; a second lock
//! on a word, or a second thread at a lock, is dealt with under a mutex.

use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering};
use std::sync::atomic::AtomicU8;

/// Values of a word that are no addresses of locks.
const FREE: u64 = 0;
const CROWDED: u64 = 1;

/// Words, a power of two.
const WORDS: usize = if cfg!(loom) { 1 } else { 64 };

/// The queues of a PE, one for each lock.
pub struct ThreadQueues {
    words: [Word; WORDS],
    /// Not 0 as long as this is the only thread of the process.
    alone: &'static AtomicU8,
}

/// The queues that have this word.
struct Word {
    /// [`FREE`], or the address of a lock that one thread has and no other wants, or [`CROWDED`].
    first: AtomicU64,
    /// All queues of the word if it is crowded, and else none.
    crowd: Mutex<Vec<Queue>>,
}

/// Threads that have a lock or want it.
struct Queue {
    address: u64,
    /// The next place to be given out.
    next: u32,
    /// The place whose turn it is.
    turn: Arc<AtomicU32>,
}

/// What a thread finds.
enum Joined {
    /// The lock is its own.
    First,
    /// Others are before it. It has no place.
    Refused,
    /// Others are before it: it has to wait until this place has its turn.
    Behind(Arc<AtomicU32>, u32),
}

impl Default for ThreadQueues {
    fn default() -> ThreadQueues {
        ThreadQueues::new(told_alone())
    }
}

/// What the C library tells of the threads of this process, from its version 2.32 on.
fn told_alone() -> &'static AtomicU8 {
    static NEVER: AtomicU8 = AtomicU8::new(0);
    let name = c"__libc_single_threaded".as_ptr();
    // SAFETY: looks up a name. It is that of a variable of one byte, which lives as long as the process.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name).cast::<AtomicU8>().as_ref() }.unwrap_or(&NEVER)
}

impl ThreadQueues {
    fn new(alone: &'static AtomicU8) -> ThreadQueues {
        let word = |_| Word { first: AtomicU64::new(FREE), crowd: Mutex::new(Vec::new()) };
        ThreadQueues { words: std::array::from_fn(word), alone }
    }

    #[inline]
    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed) != 0
    }

    /// Gets the first place for the lock at `address` when all threads that asked before have left it. Waits by
    /// `wait` until what that is given says so.
    #[inline]
    pub fn enter(&self, address: usize, wait: impl FnOnce(&mut dyn FnMut() -> bool)) {
        let word = self.word(address);
        if !word.take(address, self.is_alone())
            && let Joined::Behind(turn, place) = word.join(address, true)
        {
            wait(&mut || turn.load(Ordering::Acquire) == place);
        }
    }

    /// Gets the first place if no thread is in the queue.
    #[inline]
    pub fn try_enter(&self, address: usize) -> bool {
        let word = self.word(address);
        word.take(address, self.is_alone()) || matches!(word.join(address, false), Joined::First)
    }

    /// Whether a thread has the lock at `address` or waits for it.
    #[inline]
    pub fn is_entered(&self, address: usize) -> bool {
        let (word, address) = (self.word(address), address as u64);
        match word.first.load(Ordering::Relaxed) {
            CROWDED => word.has(address),
            first => first == address,
        }
    }

    /// Makes room for the next one in the queue.
    #[inline]
    pub fn leave(&self, address: usize) {
        let (word, address) = (self.word(address), address as u64);
        if !word.change(address, FREE, Ordering::Release, self.is_alone()) {
            word.pass_on(address);
        }
    }

    #[inline]
    fn word(&self, address: usize) -> &Word {
        // Scattered, because locks often lie at equal distances.
        let hash = (address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.words[hash as usize % WORDS]
    }
}

impl Word {
    #[inline]
    fn take(&self, address: usize, alone: bool) -> bool {
        self.change(FREE, address as u64, Ordering::Acquire, alone)
    }

    /// Changes the word if it has the value `old`; whether it had.
    #[inline]
    fn change(&self, old: u64, new: u64, order: Ordering, alone: bool) -> bool {
        if !alone {
            return self.first.compare_exchange(old, new, order, Ordering::Relaxed).is_ok();
        }
        let is_old = self.first.load(Ordering::Relaxed) == old;
        if is_old {
            self.first.store(new, Ordering::Relaxed);
        }
        is_old
    }

    #[cold]
    fn join(&self, address: usize, patient: bool) -> Joined {
        let address = address as u64;
        let mut crowd = self.crowd.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            let first = self.first.load(Ordering::Acquire);
            if first == CROWDED {
                break;
            }
            let taken = (Ordering::AcqRel, Ordering::Relaxed);
            if self.first.compare_exchange(first, CROWDED, taken.0, taken.1).is_ok() {
                if first != FREE {
                    crowd.push(Queue::of(first));
                }
                break;
            }
        }
        match crowd.iter_mut().find(|queue| queue.address == address) {
            None => {
                crowd.push(Queue::of(address));
                Joined::First
            }
            Some(_) if !patient => Joined::Refused,
            Some(queue) => {
                queue.next = queue.next.wrapping_add(1);
                Joined::Behind(queue.turn.clone(), queue.next.wrapping_sub(1))
            }
        }
    }

    #[cold]
    fn has(&self, address: u64) -> bool {
        let crowd = self.crowd.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        crowd.iter().any(|queue| queue.address == address)
    }

    /// Nothing changes if no thread has the lock: then a program gives back what it has not got.
    #[cold]
    fn pass_on(&self, address: u64) {
        let mut crowd = self.crowd.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(at) = crowd.iter().position(|queue| queue.address == address) else { return };
        let turn = crowd[at].turn.load(Ordering::Relaxed).wrapping_add(1);
        if turn != crowd[at].next {
            crowd[at].turn.store(turn, Ordering::Release);
            return;
        }
        crowd.swap_remove(at);
        if crowd.is_empty() {
            self.first.store(FREE, Ordering::Release);
        }
    }
}

impl Queue {
    /// With one thread in it.
    fn of(address: u64) -> Queue {
        Queue { address, next: 1, turn: Arc::new(AtomicU32::new(0)) }
    }
}

#[cfg(all(loom, test))]
mod checked {
    use super::*;
    use crate::sync::thread;
    use loom::cell::UnsafeCell;

    struct Shared {
        queues: ThreadQueues,
        /// What the locks protect.
        counts: [UnsafeCell<u64>; 2],
    }

    // SAFETY: the model checker reports accesses to a count that are not ordered.
    unsafe impl Sync for Shared {}

    const LOCKS: [usize; 2] = [8, 16];

    impl Shared {
        fn count(&self, lock: usize) {
            self.queues.enter(LOCKS[lock], |ready| {
                while !ready() {
                    thread::yield_now();
                }
            });
            self.count_inside(lock);
        }

        fn count_inside(&self, lock: usize) {
            // SAFETY: checked by the model checker.
            self.counts[lock].with_mut(|count| unsafe { *count += 1 });
            self.queues.leave(LOCKS[lock]);
        }
    }

    /// One thread at a time has a lock and sees what the one before wrote, also where two locks share a word.
    #[test]
    fn loom_queues_let_one_thread_through_at_a_time() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let counts = [UnsafeCell::new(0), UnsafeCell::new(0)];
            let shared = Arc::new(Shared { queues: ThreadQueues::default(), counts });
            let other = shared.clone();
            let other = thread::spawn(move || {
                other.count(0);
                other.count(1);
            });
            shared.count(0);
            let again = shared.queues.try_enter(LOCKS[1]);
            if again {
                shared.count_inside(1);
            }
            other.join().expect("the other one gets through");
            let counts = [0, 1].map(|lock| shared.counts[lock].with(|count| unsafe { *count }));
            assert_eq!(counts, [2, 1 + u64::from(again)]);
            assert!(LOCKS.iter().all(|lock| shared.queues.try_enter(*lock)));
        });
    }
}

#[cfg(all(not(loom), test))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc;

    /// Locks at these addresses share a word.
    fn neighbours(queues: &ThreadQueues) -> [usize; 2] {
        let same = |address: &usize| std::ptr::eq(queues.word(*address), queues.word(8));
        [8, (16..).step_by(8).find(same).expect("there are few words")]
    }

    fn never(_: &mut dyn FnMut() -> bool) {
        panic!("nobody is before this thread");
    }

    #[test]
    fn a_lock_that_a_thread_has_or_waits_for_is_refused_to_others() {
        let queues = ThreadQueues::default();
        for lock in neighbours(&queues) {
            assert!(!queues.is_entered(lock));
            queues.enter(lock, never);
            assert!(queues.is_entered(lock));
        }
        for lock in neighbours(&queues) {
            assert!(!queues.try_enter(lock));
            queues.leave(lock);
            assert!(!queues.is_entered(lock));
            assert!(queues.try_enter(lock) && !queues.try_enter(lock));
        }
        for lock in neighbours(&queues) {
            queues.leave(lock);
            // Once too often changes nothing.
            queues.leave(lock);
            assert!(queues.try_enter(lock));
        }
    }

    #[test]
    fn a_process_of_one_thread_has_the_same_queues() {
        static ALONE: AtomicU8 = AtomicU8::new(1);
        let queues = ThreadQueues::new(&ALONE);
        for lock in neighbours(&queues) {
            assert!(queues.try_enter(lock) && !queues.try_enter(lock));
        }
        // Another thread comes.
        ALONE.store(0, Ordering::Relaxed);
        for lock in neighbours(&queues) {
            assert!(!queues.try_enter(lock));
            queues.leave(lock);
            queues.enter(lock, never);
        }
    }

    #[test]
    fn threads_get_a_lock_in_the_order_in_which_they_asked() {
        let queues = ThreadQueues::default();
        let (told, order) = mpsc::channel();
        queues.enter(8, never);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (queues, told, (asked, waits)) = (&queues, told.clone(), mpsc::channel());
                scope.spawn(move || {
                    queues.enter(8, |ready| {
                        asked.send(()).expect("somebody listens");
                        while !ready() {
                            std::thread::yield_now();
                        }
                    });
                    told.send(thread).expect("somebody listens");
                    queues.leave(8);
                });
                waits.recv().expect("the thread has to wait");
            }
            queues.leave(8);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn threads_are_never_in_a_lock_together() {
        struct Count(Cell<u64>);
        // SAFETY: whoever has the lock of a count alone uses it, which is what is tested.
        unsafe impl Sync for Count {}
        let queues = ThreadQueues::default();
        let locks = neighbours(&queues);
        let counts = [Count(Cell::new(0)), Count(Cell::new(0))];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (queues, counts) = (&queues, &counts);
                scope.spawn(move || {
                    for time in 0..2000 {
                        let which = (thread + time) % 2;
                        let (lock, count) = (locks[which], &counts[which].0);
                        if time % 3 == 0 {
                            while !queues.try_enter(lock) {
                                std::thread::yield_now();
                            }
                        } else {
                            queues.enter(lock, |ready| {
                                while !ready() {
                                    std::thread::yield_now();
                                }
                            });
                        }
                        count.set(count.get() + 1);
                        queues.leave(lock);
                    }
                });
            }
        });
        assert_eq!(counts.map(|count| count.0.get()), [4000, 4000]);
    }
}
