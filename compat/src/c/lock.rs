//! Distributed locks (OpenSHMEM 1.6, "Distributed Locking Routines").

use super::wait::POLLS;
use super::{fast, slow};
use crate::library::library;
use std::ffi::{c_int, c_long};
use tombolo_collectives::locks;

routines! {
    [shmem_set_lock](lock: *mut c_long) {
        check(ROUTINE, lock);
        locks::set(&library(ROUTINE).world, lock, ROUTINE)
    }
    [shmem_test_lock](lock: *mut c_long) -> c_int {
        check(ROUTINE, lock);
        let world = &library(ROUTINE).world;
        let free = locks::test(world, lock, ROUTINE);
        if free {
            POLLS.found();
        } else {
            POLLS.in_vain(world.patience());
        }
        (!free).into()
    }
    [shmem_clear_lock](lock: *mut c_long) {
        check(ROUTINE, lock);
        locks::clear(&library(ROUTINE).world, lock, ROUTINE)
    }
}

fn check(routine: &'static str, lock: *const c_long) {
    if fast::checking() {
        slow::check_variable(routine, "lock", lock, 1);
    }
}
