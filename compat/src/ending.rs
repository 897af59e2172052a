// SPDX-License-Identifier: Apache-2.0
//! The end of the process.
//!
//! At exit the C library first calls what the program has registered with `atexit` and the destructors
//! of its static objects, the last one registered first, whichever of them came before `shmem_init`. Then it
//! calls the destructors in `.fini_array`, those of the program before those of its libraries. There
//! this library ends its part: whatever a program has arranged for its exit can still use it.

use crate::process;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

/// Exit status of this process, once it is known.
static STATUS: AtomicI32 = AtomicI32::new(0);

/// Called at exit. The lower the number in its section's name, the later; those up to 100 are the
/// compiler's.
#[used]
#[unsafe(link_section = ".fini_array.00101")]
static AT_END: extern "C" fn() = at_end;

unsafe extern "C" {
    /// As `atexit`, with the exit status passed to the handler (Linux, glibc).
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// To be called when this process has joined its job.
pub fn prepare() {
    // A linker takes this file out of an archive, with the destructor, because the destructor is used here.
    std::hint::black_box(&AT_END);
    // SAFETY: the handler is there at exit: the library is linked so that it is never unloaded.
    unsafe { on_exit(keep_status, std::ptr::null_mut()) };
}

/// Destructors do not get the status.
extern "C" fn keep_status(status: c_int, _: *mut c_void) {
    STATUS.store(status, Ordering::Relaxed);
}

/// The thread that exits runs it after the destructors of its thread-local data.
extern "C" fn at_end() {
    process::at_exit(STATUS.load(Ordering::Relaxed));
}
