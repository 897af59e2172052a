// SPDX-License-Identifier: Apache-2.0
//! Distributed locks (OpenSHMEM 1.6, "Distributed Locking Routines").

use super::fast::TABLES;
use super::slow;
use super::wait::{POLLS, in_vain};
use crate::library::library;
use crate::profile;
use std::ffi::{c_int, c_long};
use tombolo_collectives::locks;
use tombolo_core::wait::Reason;

routines! {
    callers: "`lock` is a symmetric variable, zero at first, that is changed by these routines alone: it \
        is accessed by AMOs only";
    [shmem_set_lock](lock: *mut c_long) {
        set(ROUTINE, lock)
    }
    [shmem_test_lock](lock: *mut c_long) -> c_int {
        (!test(ROUTINE, lock)).into()
    }
    [shmem_clear_lock](lock: *mut c_long) {
        clear(ROUTINE, lock)
    }
}

/// `shmem_set_lock`.
///
/// # Safety
/// As [`locks::set`]; so for the two below.
pub unsafe fn set(routine: &'static str, lock: *mut c_long) {
    check(routine, lock);
    // SAFETY: by the caller's word.
    profile::within(routine, 0, |library| unsafe { locks::set(&library.world, lock, routine) })
}

/// Sets the lock if it is free, and says whether it was.
///
/// # Safety
/// See [`set`].
pub unsafe fn test(routine: &'static str, lock: *mut c_long) -> bool {
    check(routine, lock);
    profile::within(routine, 0, |library| {
        // SAFETY: by the caller's word.
        let free = unsafe { locks::test(&library.world, lock, routine) };
        if free {
            POLLS.found();
        } else {
            in_vain(&library.world, routine, Reason::Lock);
        }
        free
    })
}

/// `shmem_clear_lock`.
///
/// # Safety
/// See [`set`].
pub unsafe fn clear(routine: &'static str, lock: *mut c_long) {
    check(routine, lock);
    // SAFETY: by the caller's word.
    profile::within(routine, 0, |library| unsafe { locks::clear(&library.world, lock, routine) })
}

fn check(routine: &'static str, lock: *const c_long) {
    if TABLES.checking() && library(routine).checks() {
        slow::check_variable(routine, "lock", lock, 1);
    }
}
