// SPDX-License-Identifier: Apache-2.0
//! Deprecated names of SGI's library, and cache control, which coherent caches have made idle
//! (OpenSHMEM 1.6, "Deprecated API").

use super::memory;
use crate::library::library;
use crate::process;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{Ordering, fence};
use tombolo_core::memory::Placement;

plain_routines! {
    callers: "memory that is freed or resized was allocated by these routines: the heap looks it up";
    // A call on top of an initialisation changes nothing; the program's exit finalises.
    start_pes(_npes: c_int) {
        process::enter_to_stay("start_pes")
    }
    _my_pe() -> c_int {
        library("_my_pe").world.pe() as c_int
    }
    _num_pes() -> c_int {
        library("_num_pes").world.n_pes() as c_int
    }
    shmalloc(size: usize) -> *mut c_void {
        memory::allocate("shmalloc", size, memory::USUAL)
    }
    shfree(ptr: *mut c_void) {
        memory::free("shfree", ptr)
    }
    shrealloc(ptr: *mut c_void, size: usize) -> *mut c_void {
        memory::reallocate("shrealloc", ptr, size)
    }
    shmemalign(alignment: usize, size: usize) -> *mut c_void {
        memory::allocate("shmemalign", size, Placement::aligned(alignment))
    }
}

routines! {
    callers: "nothing: an address is not looked at, because caches are coherent";
    [shmem_set_cache_inv]() {
        fence(Ordering::SeqCst)
    }
    [shmem_clear_cache_inv]() {
        fence(Ordering::SeqCst)
    }
    [shmem_set_cache_line_inv](_dest: *mut c_void) {
        fence(Ordering::SeqCst)
    }
    [shmem_clear_cache_line_inv](_dest: *mut c_void) {
        fence(Ordering::SeqCst)
    }
    [shmem_udcflush]() {
        fence(Ordering::SeqCst)
    }
    [shmem_udcflush_line](_dest: *mut c_void) {
        fence(Ordering::SeqCst)
    }
}
