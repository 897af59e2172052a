// SPDX-License-Identifier: Apache-2.0
//! What lock-free code synchronises with: atomics, threads and a futex. With `--cfg loom` they are
//! those of the model checker, which runs the code under every interleaving and every value that
//! the memory model lets a load return.

#[cfg(loom)]
pub use checked::*;
#[cfg(not(loom))]
pub use native::*;

#[cfg(not(loom))]
mod native {
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub use std::sync::{Arc, Mutex};
    pub use std::thread;
    use std::time::Duration;

    /// A word that threads of several processes can sleep on. All zero at first.
    #[repr(transparent)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// The value.
        #[inline]
        pub fn load(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }

        /// Changes the value; whoever sleeps goes on sleeping until [`Futex::wake`].
        #[inline]
        pub fn change(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        /// Sleeps until woken, but not if the value is not `value` any more. May return for no
        /// reason, and does after `longest`.
        pub fn wait(&self, value: u32, longest: Duration) {
            let timeout = libc::timespec {
                tv_sec: longest.as_secs() as libc::time_t,
                tv_nsec: longest.subsec_nanos().into(),
            };
            self.call(libc::FUTEX_WAIT, value, &timeout);
        }

        /// Wakes one sleeper.
        pub fn wake(&self) {
            self.call(libc::FUTEX_WAKE, 1, std::ptr::null());
        }

        fn call(&self, operation: i32, value: u32, timeout: *const libc::timespec) {
            // SAFETY: a live, aligned word and a null or valid timeout. Not FUTEX_PRIVATE: the word
            // is shared between processes. Errors (interrupted, timed out, changed) all mean: look
            // again.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, timeout) };
        }
    }
}

#[cfg(loom)]
mod checked {
    pub use loom::sync::Arc;
    use loom::sync::Condvar;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub use loom::thread;
    use std::time::Duration;

    /// The model of a futex: comparing and falling asleep are one step, as they are in the kernel.
    /// Sleep never ends by itself, so a lost wake-up is a deadlock, which loom reports.
    pub struct Futex {
        word: AtomicU32,
        sleepers: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        /// Zero.
        #[cfg(test)]
        pub fn new() -> Futex {
            Futex { word: AtomicU32::new(0), sleepers: Mutex::new(()), woken: Condvar::new() }
        }

        /// As the native one.
        pub fn load(&self) -> u32 {
            self.word.load(Ordering::SeqCst)
        }

        /// As the native one.
        pub fn change(&self) {
            self.word.fetch_add(1, Ordering::SeqCst);
        }

        /// As the native one, but sleeps as long as nobody wakes it.
        pub fn wait(&self, value: u32, _longest: Duration) {
            let sleepers = self.sleepers.lock().expect("nobody panics with the lock");
            if self.load() == value {
                drop(self.woken.wait(sleepers).expect("nobody panics with the lock"));
            }
        }

        /// As the native one.
        pub fn wake(&self) {
            let _sleepers = self.sleepers.lock().expect("nobody panics with the lock");
            self.woken.notify_one();
        }
    }
}
