// SPDX-License-Identifier: Apache-2.0
//! Holds up what other threads write to ranges of memory while they are replaced.
//!
//! The ranges become read-only. A thread that writes to one gets `SIGSEGV`, waits in the handler until
//! they are replaced, and repeats its write. So nothing that it writes is lost, and reading goes
//! on all the time.
//!
//! The handler stays: a thread that has been refused its write may not have a processor for long, and comes to the
//! handler when all others have gone on. Any other `SIGSEGV` goes to what was there before.
//!
//! Two things are not held up. A system call of another thread that writes to a range fails with
//! `EFAULT`, and a thread that has blocked `SIGSEGV` and writes to a range is ended by the kernel.

use crate::error::{Error, Result};
use crate::process::has_one_thread;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// What the handler has to know. It lies in private memory that is never freed: where this library is
/// linked into the executable, its own static variables are part of a range.
struct Held {
    ranges: Vec<Range<usize>>,
    /// 0 until the ranges are replaced.
    is_over: AtomicU32,
    /// The last thread that came when they were, and its address: it comes only once.
    late: [AtomicUsize; 2],
    /// The handler before this one.
    previous: libc::sigaction,
}

static HELD: AtomicPtr<Held> = AtomicPtr::new(std::ptr::null_mut());

/// Ranges to which no other thread writes. Writers go on when it is dropped.
pub struct Standstill(&'static Held);

impl Standstill {
    /// Holds up writers to the pages of these ranges, if the process has other threads. There must be no other
    /// standstill, and the calling thread itself must not write to the ranges.
    pub fn of(ranges: Vec<Range<usize>>) -> Result<Option<Standstill>> {
        if has_one_thread() {
            return Ok(None);
        }
        let fail = |e| Error::system("holding up writes to static data", e);
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks for the handler that there is; the place is valid for it.
        let asked =
            unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), previous.as_mut_ptr()) };
        if asked != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        // SAFETY: written by the call, and valid when zero.
        let previous = unsafe { previous.assume_init() };
        let (is_over, late) = (AtomicU32::new(0), [const { AtomicUsize::new(0) }; 2]);
        let held = Box::new(Held { ranges, is_over, late, previous });
        let held: &'static Held = Box::leak(held);
        HELD.store(std::ptr::from_ref(held).cast_mut(), Ordering::Release);
        // What is passed on to the previous handler finds the signals blocked that it asked for.
        let mut action = previous;
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        action.sa_flags &= !libc::SA_RESETHAND;
        // SAFETY: the handler's type is that of SA_SIGINFO.
        let installed = unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) };
        if installed != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        let standstill = Standstill(held);
        protect(held, libc::PROT_READ).map_err(fail)?;
        Ok(Some(standstill))
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        let held = self.0;
        // For ranges that were not replaced after all.
        _ = protect(held, libc::PROT_READ | libc::PROT_WRITE);
        held.is_over.store(1, Ordering::Release);
        // SAFETY: wakes who waits for an aligned word that is never freed.
        unsafe {
            libc::syscall(libc::SYS_futex, &raw const held.is_over, libc::FUTEX_WAKE, i32::MAX)
        };
    }
}

impl Held {
    /// Whether a thread that has been refused a write at this address is to write again, when that is possible.
    fn writes_again(&self, address: usize) -> bool {
        if self.is_over.load(Ordering::Acquire) == 0 {
            return true;
        }
        // SAFETY: no arguments, cannot fail.
        let now = [unsafe { libc::gettid() } as usize, address];
        let last = self.late.each_ref().map(|last| last.load(Ordering::Relaxed));
        self.late.iter().zip(now).for_each(|(last, now)| last.store(now, Ordering::Relaxed));
        now != last
    }
}

fn protect(held: &Held, access: libc::c_int) -> io::Result<()> {
    for range in &held.ranges {
        // SAFETY: pages of this process; who may write to them waits in the handler.
        if unsafe { libc::mprotect(range.start as *mut _, range.len(), access) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Waits for the end of the standstill, or does what was done before for any other `SIGSEGV`.
unsafe extern "C" fn handle(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    /// What `si_code` says of access that the page forbids.
    const SEGV_ACCERR: libc::c_int = 2;
    // SAFETY: set before the handler was installed, and never freed.
    let held = unsafe { &*HELD.load(Ordering::Acquire) };
    // SAFETY: the kernel passes a valid description, with an address for this signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_held = code == SEGV_ACCERR && held.ranges.iter().any(|range| range.contains(&address));
    if is_held && held.writes_again(address) {
        // SAFETY: the thread's own place for the error number, which the call below may change.
        let errno = unsafe { *libc::__errno_location() };
        while held.is_over.load(Ordering::Acquire) == 0 {
            let word = &raw const held.is_over;
            let forever = std::ptr::null::<libc::timespec>();
            // SAFETY: sleeps on an aligned word that is never freed.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, 0, forever) };
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    let previous = &held.previous;
    // SAFETY: the handler that the program has set, with the arguments that its flags ask for.
    unsafe {
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The instruction faults again on return, and then the kernel decides.
                libc::sigaction(signal, previous, std::ptr::null_mut());
                if code <= 0 {
                    // Sent by somebody: nothing would happen again.
                    libc::raise(signal);
                }
            }
            address if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let call: unsafe extern "C" fn(
                    libc::c_int,
                    *mut libc::siginfo_t,
                    *mut libc::c_void,
                ) = std::mem::transmute(address);
                call(signal, info, context);
            }
            address => {
                let call: unsafe extern "C" fn(libc::c_int) = std::mem::transmute(address);
                call(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler() -> usize {
        // SAFETY: all-zero is a valid value, which the call fills.
        unsafe {
            let mut current: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut current), 0);
            current.sa_sigaction
        }
    }

    /// What the kernel sends this thread when it refuses a write.
    fn refuse(address: usize) {
        // SAFETY: all-zero is a valid value; the address of a fault lies behind the three numbers, which padding
        // follows.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (info.si_signo, info.si_code) = (libc::SIGSEGV, 2);
            (&raw mut info).cast::<usize>().add(2).write(address);
            let (process, thread) = (libc::getpid(), libc::gettid());
            let call = libc::SYS_rt_tgsigqueueinfo;
            assert_eq!(libc::syscall(call, process, thread, libc::SIGSEGV, &raw const info), 0);
        }
    }

    #[test]
    fn a_thread_that_comes_late_writes_again_and_any_other_fault_is_passed_on() {
        let page = super::super::page_size();
        let mut memory = vec![0u8; 2 * page];
        let start = (memory.as_mut_ptr() as usize).next_multiple_of(page);
        // The test runs beside the thread that started it.
        let standstill = Standstill::of(std::iter::once(start..start + page).collect())
            .unwrap()
            .expect("two threads");
        let ours = handler();
        drop(standstill);
        memory.fill(1);
        refuse(start + 8);
        assert_eq!(handler(), ours);
        std::thread::scope(|scope| _ = scope.spawn(|| refuse(start + 8)));
        assert_eq!(handler(), ours);
        refuse(start + 8);
        assert_eq!(handler(), ours);
        // It cannot write: the handler of the standard library, which was there before, gives up.
        refuse(start + 8);
        assert_eq!(handler(), libc::SIG_DFL);
    }
}
