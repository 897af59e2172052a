// SPDX-License-Identifier: Apache-2.0
//! Distributed locks (OpenSHMEM 1.6, "Distributed Locking Routines") as queues of waiters
//! (Mellor-Crummey and Scott: "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", 1991).
//!
//! A lock is 8 bytes at the same address on every PE, all zero while it is free:
//!
//! - Bytes 0 to 3 at the lock's home PE: 1 + the last PE of the queue, or 0. The home follows from
//!   the address.
//! - Bytes 4 to 7 at every PE: its place in the queue, with 1 + the PE behind it and, in the top
//!   bit, whether the lock is its own now.
//!
//! Who waits looks at its own memory only; the PE before it writes there. First come, first served.
//! Threads of one PE have one place there; they take turns at it ([`tombolo_core::thread_queues`]).
//!
//! Where a program goes on without lost PEs (`SHMEM_ON_LOSS=continue`), a lock that a lost PE held
//! or waited for is not passed on: who waits behind ends the job with an error, as every wait that
//! lasts too long. So does who asks for a lock whose home is lost and out of reach, at once: the
//! answer would say that it is free, to everybody.

use tombolo_core::sync::{AtomicU32, Ordering};
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_core::wait::Reason;
use tombolo_core::{Waiting, World};

const GRANTED: u32 = 1 << 31;

/// The halves of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    /// The last PE of the queue.
    Tail,
    /// A PE's place in it.
    Place,
}

/// How a PE reaches the words of a lock.
trait Queue {
    /// Number of this PE.
    fn pe(&self) -> usize;

    /// The PE whose tail counts.
    fn home(&self) -> usize;

    /// Executes an AMO on a word of the lock at `pe`; gives the old value.
    fn amo(&self, half: Half, op: AmoOp, operand: u32, compare: u32, pe: usize) -> u32;

    /// This PE's own place.
    fn place(&self) -> &AtomicU32;

    /// Waits until `ready`.
    fn wait(&self, ready: impl FnMut() -> bool);

    /// Waits for this PE's place to change; gives its value.
    fn wait_for_place(&self, ready: impl Fn(u32) -> bool) -> u32 {
        let mut value = 0;
        self.wait(|| {
            value = self.place().load(Ordering::Acquire);
            ready(value)
        });
        value
    }

    /// This PE as queues name it.
    fn name(&self) -> u32 {
        self.pe() as u32 + 1
    }
}

/// Gets the lock when all who asked before have left it.
fn enter(queue: &impl Queue) {
    let before = queue.amo(Half::Tail, AmoOp::Set, queue.name(), 0, queue.home());
    if before == 0 {
        return;
    }
    // Tells the PE before who comes next, then waits to be told by it.
    queue.amo(Half::Place, AmoOp::Or, queue.name(), 0, before as usize - 1);
    queue.wait_for_place(|place| place & GRANTED != 0);
    // As an AMO, because the PE behind may enter itself meanwhile.
    queue.amo(Half::Place, AmoOp::And, !GRANTED, 0, queue.pe());
}

/// Gets the lock if nobody has it.
fn try_enter(queue: &impl Queue) -> bool {
    queue.amo(Half::Tail, AmoOp::CompareSwap, queue.name(), 0, queue.home()) == 0
}

/// Passes the lock on; an error if the PE behind, of `n_pes`, is none.
fn leave(queue: &impl Queue, n_pes: usize) -> Result<(), ()> {
    let last = queue.amo(Half::Tail, AmoOp::CompareSwap, 0, queue.name(), queue.home());
    if last == queue.name() {
        return Ok(());
    }
    // Somebody is behind, and about to say who.
    let next = queue.wait_for_place(|place| place != 0);
    if next as usize > n_pes {
        return Err(());
    }
    // The place must be empty before the next PE goes on: this PE may soon queue again.
    queue.amo(Half::Place, AmoOp::Set, 0, 0, queue.pe());
    queue.amo(Half::Place, AmoOp::Or, GRANTED, 0, next as usize - 1);
    Ok(())
}

/// Sets a lock when all PEs and threads that asked before have cleared it (`shmem_set_lock`).
///
/// # Safety
/// `lock` is a symmetric variable used as a lock only, and this thread does not hold it.
pub unsafe fn set(world: &World, lock: *mut i64, routine: &'static str) {
    let lock = Lock::new(world, lock, routine);
    world.thread_queues().enter(lock.tail as usize, |ready| lock.wait(ready));
    enter(&lock);
}

/// Sets a lock if nobody holds it; says whether it did (`shmem_test_lock`, which returns 0 then).
///
/// # Safety
/// As [`set`].
pub unsafe fn test(world: &World, lock: *mut i64, routine: &'static str) -> bool {
    let lock = Lock::new(world, lock, routine);
    let (threads, address) = (world.thread_queues(), lock.tail as usize);
    if !threads.try_enter(address) {
        return false;
    }
    let free = try_enter(&lock);
    if !free {
        threads.leave(address);
    }
    free
}

/// Clears a lock after completing this PE's operations on the default context (`shmem_clear_lock`).
///
/// # Safety
/// As [`set`], but this PE holds the lock. It is an error if it does not.
pub unsafe fn clear(world: &World, lock: *mut i64, routine: &'static str) {
    let lock = Lock::new(world, lock, routine);
    if !world.thread_queues().is_entered(lock.tail as usize) {
        let lock = lock.tail;
        world.stop_job(routine, format_args!("lock = {lock:p} is not held by this PE"));
    }
    world.quiet(world.context(), routine);
    if leave(&lock, world.n_pes()).is_err() {
        let lock = lock.tail;
        world.stop_job(routine, format_args!("the lock at {lock:p} is damaged: it was written to"));
    }
    world.thread_queues().leave(lock.tail as usize);
}

/// One lock, as a call sees it.
struct Lock<'a> {
    world: &'a World,
    routine: &'static str,
    tail: *mut u8,
    place: *mut u8,
    home: usize,
}

impl<'a> Lock<'a> {
    fn new(world: &'a World, lock: *mut i64, routine: &'static str) -> Lock<'a> {
        let tail = lock.cast::<u8>();
        let Some(place) = world.locate(tail).filter(|place| place.offset % 8 == 0) else {
            world.stop_job(
                routine,
                format_args!("lock = {lock:p} is not a symmetric variable of type long"),
            )
        };
        let home = home(place.offset, world.n_pes());
        Lock { world, routine, tail, place: tail.wrapping_add(4), home }
    }
}

impl Queue for Lock<'_> {
    fn pe(&self) -> usize {
        self.world.pe()
    }

    fn home(&self) -> usize {
        self.home
    }

    fn amo(&self, half: Half, op: AmoOp, operand: u32, compare: u32, pe: usize) -> u32 {
        let amo = Amo { op, size: 4, operand: operand.into(), compare: compare.into() };
        let variable = if half == Half::Tail { self.tail } else { self.place };
        let (world, routine) = (self.world, self.routine);
        let old = world.amo_fetch(world.internal_context(), variable, amo, pe, routine) as u32;
        if pe == self.home && world.goes_on_without(pe) && world.ptr(variable, pe).is_null() {
            let lock = self.tail;
            world.stop_job(routine, format_args!("the lock at {lock:p} is lost with PE {pe}"));
        }
        old
    }

    fn place(&self) -> &AtomicU32 {
        // SAFETY: an aligned half of the lock, which was located; everybody accesses it whole.
        unsafe { &*self.place.cast::<AtomicU32>() }
    }

    fn wait(&self, ready: impl FnMut() -> bool) {
        let waiting =
            Waiting { routine: self.routine, argument: self.tail as u64, reason: Reason::Lock };
        self.world.wait(waiting, ready);
    }
}

/// The home of the lock at `offset` of its segment. Scattered, because locks often lie at equal
/// distances.
fn home(offset: usize, n_pes: usize) -> usize {
    let hash = (offset as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash % n_pes as u64) as usize
}

#[cfg(all(loom, test))]
mod checked {
    use super::*;
    use loom::cell::UnsafeCell;
    use tombolo_core::amo::execute_checked;
    use tombolo_core::sync::{Arc, thread};

    const PES: usize = 2;

    struct Shared {
        tail: AtomicU32,
        places: [AtomicU32; PES],
        /// What the lock protects.
        count: UnsafeCell<u64>,
    }

    // SAFETY: the model checker reports accesses to the count that are not ordered.
    unsafe impl Sync for Shared {}

    struct Member(usize, Arc<Shared>);

    impl Queue for Member {
        fn pe(&self) -> usize {
            self.0
        }

        fn home(&self) -> usize {
            0
        }

        fn amo(&self, half: Half, op: AmoOp, operand: u32, compare: u32, pe: usize) -> u32 {
            let amo = Amo { op, size: 4, operand: operand.into(), compare: compare.into() };
            let Shared { tail, places, .. } = &*self.1;
            let variable = if half == Half::Tail { tail } else { &places[pe] };
            execute_checked(variable, amo) as u32
        }

        fn place(&self) -> &AtomicU32 {
            &self.1.places[self.0]
        }

        fn wait(&self, mut ready: impl FnMut() -> bool) {
            while !ready() {
                thread::yield_now();
            }
        }
    }

    impl Member {
        fn count(&self) {
            // SAFETY: checked by the model checker.
            self.1.count.with_mut(|count| unsafe { *count += 1 });
            leave(self, PES).expect("nobody else writes to the lock");
        }
    }

    /// One PE at a time has the lock, each sees what the one before wrote, and none waits for ever,
    /// though each comes back at once.
    #[test]
    fn loom_a_lock_is_held_by_one_at_a_time_and_passed_on() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new(Shared {
                tail: AtomicU32::new(0),
                places: std::array::from_fn(|_| AtomicU32::new(0)),
                count: UnsafeCell::new(0),
            });
            let other = Member(1, shared.clone());
            let other = thread::spawn(move || {
                for _ in 0..2 {
                    enter(&other);
                    other.count();
                }
            });
            let member = Member(0, shared.clone());
            enter(&member);
            member.count();
            let again = try_enter(&member);
            if again {
                member.count();
            }
            other.join().expect("the other one gets the lock");
            let count = shared.count.with(|count| unsafe { *count });
            assert_eq!(count, 3 + u64::from(again));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_of_evenly_spaced_locks_are_scattered() {
        for stride in [8, 16, 64, 128, 4096] {
            for n_pes in [2, 3, 4, 8] {
                let mut counts = vec![0usize; n_pes];
                (0..1000).for_each(|i| counts[home(i * stride, n_pes)] += 1);
                let fair = 1000 / n_pes;
                assert!(counts.iter().all(|c| *c > fair / 2), "{stride} {n_pes} {counts:?}");
            }
        }
    }
}
