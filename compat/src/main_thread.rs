// SPDX-License-Identifier: Apache-2.0
//! Programs whose main thread ends before others, by `pthread_exit`: the process is to end with the
//! last thread of the program, as it does without this library. Threads of the library never end by
//! themselves, and the C library takes them for the program's.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, Once};
use std::time::Duration;
use tombolo_core::threads::is_of_library;

/// How often the threads that are left are counted, once the main thread has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Threads that have come while the library started: those of libraries that it uses are among them. Of its own ones,
/// some start later.
static OURS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The threads there are before the library starts its own.
pub struct Before(BTreeSet<u32>);

impl Before {
    /// To be made before the library starts threads.
    pub fn now() -> Before {
        Before(threads())
    }

    /// Those that have come since are the library's. Takes care that the process ends with the last
    /// of the others, if this is the main thread: no other one's end is of interest.
    pub fn started(self) {
        let new = threads().difference(&self.0).copied().collect();
        *OURS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
        static ONCE: Once = Once::new();
        if is_main() {
            ONCE.call_once(watch);
        }
    }
}

/// The threads of this process; none where `/proc` cannot be read.
fn threads() -> BTreeSet<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

fn is_main() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Has `main_thread_ends` called when this thread ends by `pthread_exit`. (It is not called when
/// the process exits.)
fn watch() {
    let mut key = 0;
    // SAFETY: the key is made before it is used; its value only has to differ from null.
    unsafe {
        if libc::pthread_key_create(&raw mut key, Some(main_thread_ends)) == 0 {
            libc::pthread_setspecific(key, (&raw const OURS).cast());
        }
    }
}

/// Leaves the rest to a new thread: this one's data is being taken down.
unsafe extern "C" fn main_thread_ends(_: *mut c_void) {
    let (mut thread, default) = (0, std::ptr::null());
    // SAFETY: the thread gets no argument, and nobody joins it. In a fork child `OURS` names no
    // thread there is, so that its process ends with its last one as well.
    unsafe {
        if libc::pthread_create(&raw mut thread, default, await_others, std::ptr::null_mut()) == 0 {
            libc::pthread_detach(thread);
        }
    }
}

/// Exits when no thread of the program is left, as the C library does.
extern "C" fn await_others(_: *mut c_void) -> *mut c_void {
    // SAFETY: no arguments, cannot fail.
    let known = unsafe { [libc::getpid(), libc::gettid()] }.map(|thread| thread as u32);
    loop {
        let ours = OURS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let there = threads();
        let is_ours = |thread: &u32| {
            known.contains(thread) || ours.contains(thread) || is_of_library(*thread)
        };
        if !there.is_empty() && there.iter().all(is_ours) {
            std::process::exit(0);
        }
        std::thread::sleep(PAUSE);
    }
}
