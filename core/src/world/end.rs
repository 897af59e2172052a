// SPDX-License-Identifier: Apache-2.0
//! Leaving a job, and ending it.

use super::World;
use crate::board::State;
use crate::bootstrap::Bootstrap;
use crate::error::{Result, report};
use crate::threads::spawn_without_signals;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long output may take that nobody has to read before the job ends without it.
const FLUSH: Duration = Duration::from_secs(1);
/// Time between two looks if it is out.
const TURN: Duration = Duration::from_millis(10);

/// The end of the job that the program has asked for, or 0: the thread that ends the process in its
/// upper half, the exit code in its lower half.
static ENDING: AtomicU64 = AtomicU64::new(0);

impl World {
    /// Collective: leaves the job. The caller has synchronised: nobody uses this PE's memory any
    /// more.
    pub fn stop(self) -> Result<()> {
        self.leave_together("shmem_finalize", true)?;
        self.board.announce(self.pe, State::Finished);
        Ok(())
    }

    /// Says what is wrong and ends the job with exit code 1.
    #[cold]
    pub fn stop_job(&self, routine: &str, what: impl std::fmt::Display) -> ! {
        report(format_args!("PE {}: {routine}: {what}", self.pe));
        end(&*self.bootstrap, 1)
    }
}

/// Ends the job with exit code `code`: lets the program's output out, tells the launcher and leaves
/// without running exit handlers, which might wait for PEs that are gone.
///
/// Where the program is ending the job already, its exit code stands. If another thread is at it, that
/// one goes on and this one waits for the end of the process.
pub fn end(bootstrap: &dyn Bootstrap, code: i32) -> ! {
    match ending_code() {
        Some(_) if !is_ending_here() => await_end(),
        ending => {
            let code = ending.unwrap_or(code);
            flush_and_abort(bootstrap, code);
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
    }
}

/// The program wants the job to end with `code`, and this thread is about to exit the process. False if
/// that is so already, then with the code given first.
pub fn begin_ending(code: i32) -> bool {
    let wanted = this_thread() << 32 | u64::from(code as u32);
    ENDING.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The exit code with which the program wants the job to end, if it does.
pub fn ending_code() -> Option<i32> {
    let ending = ENDING.load(Ordering::Acquire);
    (ending != 0).then_some(ending as i32)
}

/// Whether this thread ends the job and runs what the program wants to be run at exit: other PEs come to
/// nothing any more for which it would wait.
#[inline]
pub fn is_ending_here() -> bool {
    let ending = ENDING.load(Ordering::Relaxed);
    ending != 0 && ending >> 32 == this_thread()
}

#[cold]
fn this_thread() -> u64 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() as u64 }
}

/// For threads that have no more to do while another one ends the process.
pub fn await_end() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Lets the program's output out, then asks the launcher to end the job.
pub fn flush_and_abort(bootstrap: &dyn Bootstrap, code: i32) {
    flush();
    await_readers();
    bootstrap.abort(code);
}

/// Lets the output of the C library out. That takes the lock of every stream, and another thread of the program may
/// keep one for good, such as that of the standard input while it waits for a line: for who only holds a lock this
/// waits no longer than [`FLUSH`], for whoever is to read the output as long as it takes.
fn flush() {
    // SAFETY: flushing all streams is allowed at any time.
    let flush_all = || unsafe { libc::fflush(std::ptr::null_mut()) };
    let (done, flushed) = channel();
    let helper = spawn_without_signals("shmem-flush", move || {
        flush_all();
        // Who waited may have given up.
        let _ = done.send(());
    });
    if helper.is_err() {
        flush_all();
        return;
    }
    let mut waited = Duration::ZERO;
    while waited < FLUSH && flushed.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout) {
        if is_writable(1) && is_writable(2) {
            waited += TURN;
        }
    }
}

/// Whether writing there does not wait for a reader.
fn is_writable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready != 0
}

/// Waits, for a tenth of a second at most, until somebody has read what this process wrote to its
/// standard output and error. Hydra closes their pipes unread when it hears of an abort, and the
/// line that says why the job ends would be lost with them.
fn await_readers() {
    let unread = |fd: i32| {
        let mut bytes: libc::c_int = 0;
        // SAFETY: asks how many bytes lie in a pipe; fails on anything else.
        let asked = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) };
        asked == 0 && bytes > 0
    };
    let is_pipe = |fd: &i32| {
        // SAFETY: all-zero is a valid value, and the call only fills it.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstat(*fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
        }
    };
    let pipes: Vec<i32> = [1, 2].into_iter().filter(is_pipe).collect();
    for _ in 0..100 {
        if !pipes.iter().any(|fd| unread(*fd)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
