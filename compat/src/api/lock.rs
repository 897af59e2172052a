// SPDX-License-Identifier: Apache-2.0
//! Distributed locks (OpenSHMEM 1.6, "Distributed Locking Routines").

use super::atomic::SymmetricAtomic;
use super::memory::{AllocError, SymmetricBox};
use super::world::World;
use crate::c::lock;
use std::cell::Cell;
use std::thread;

/// A lock that one PE of the job holds at a time. PEs that wait get it in the order in which they
/// asked.
///
/// ```
/// let world = tombolo::init()?;
/// let lock = world.alloc_lock()?;
/// let total = world.alloc(0u64)?;
/// {
///     let _held = lock.lock();
///     let sum = world.g(&total, 0);
///     world.p(&total, sum + 1, 0);
/// } // Completes the operations of the default context, then lets the next PE go on.
/// world.barrier_all();
/// assert_eq!(world.g(&total, 0), world.n_pes() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lock<'w> {
    variable: SymmetricBox<'w, SymmetricAtomic<i64>>,
    held: Cell<bool>,
}

/// The lock is held while this lives.
#[must_use = "the lock is free again when the guard is dropped"]
pub struct LockGuard<'a> {
    lock: &'a Lock<'a>,
}

impl<'w> Lock<'w> {
    pub(super) fn new(world: &'w World) -> Result<Lock<'w>, AllocError> {
        Ok(Lock { variable: world.alloc_atomic(0)?, held: Cell::new(false) })
    }

    /// Waits until no other PE holds the lock, and holds it (`shmem_set_lock`).
    ///
    /// # Panics
    /// This PE holds it.
    #[track_caller]
    pub fn lock(&self) -> LockGuard<'_> {
        assert!(!self.held.get(), "this PE holds the lock already");
        // SAFETY: a symmetric variable used as a lock only, which this PE does not hold.
        unsafe { lock::set("Lock::lock", self.variable.as_ptr()) };
        self.held.set(true);
        LockGuard { lock: self }
    }

    /// Holds the lock if no PE does (`shmem_test_lock`).
    ///
    /// # Panics
    /// This PE holds it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        assert!(!self.held.get(), "this PE holds the lock already");
        // SAFETY: as above.
        let free = unsafe { lock::test("Lock::try_lock", self.variable.as_ptr()) };
        self.held.set(free);
        free.then(|| LockGuard { lock: self })
    }
}

impl Drop for Lock<'_> {
    /// Frees the lock if its guard was forgotten: others may wait for it, and its memory may become that of another one.
    fn drop(&mut self) {
        if self.held.get() && !thread::panicking() {
            // SAFETY: as above, and this PE holds it.
            unsafe { lock::clear("drop of a Lock", self.variable.as_ptr()) };
        }
    }
}

impl Drop for LockGuard<'_> {
    /// Completes this PE's operations on the default context and frees the lock
    /// (`shmem_clear_lock`).
    fn drop(&mut self) {
        // SAFETY: as above, and this PE holds it.
        unsafe { lock::clear("drop of a LockGuard", self.lock.variable.as_ptr()) };
        self.lock.held.set(false);
    }
}
