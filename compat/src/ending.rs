// SPDX-License-Identifier: Apache-2.0
//! The end of the process.
//!
//! At exit the C library first calls what the program has registered with `atexit` and the destructors
//! of its static objects, the last one registered first, whichever of them came before `shmem_init`. Then it
//! calls the destructors in `.fini_array`, those of the program before those of its libraries. There
//! this library ends its part: whatever a program has arranged for its exit can still use it.
//!
//! `shmem_global_exit` exits in the same way, and the launcher hears of it when all of that is done, so that it does not
//! end this process before. The library stays open meanwhile. What would wait for other PEs does not.

use crate::library::{self, library};
use crate::process;
use crate::profile;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;
use tombolo_core::bootstrap::Bootstrap;
use tombolo_core::error::report;
use tombolo_core::world;

/// How long what runs at exit may take after `shmem_global_exit`: the other PEs go on until then.
const LONGEST: Duration = Duration::from_secs(5);

/// Exit status of this process, once it is known.
static STATUS: AtomicI32 = AtomicI32::new(0);
/// The process exits: what was registered after `shmem_init` has run.
static EXITS: AtomicBool = AtomicBool::new(false);
/// The process that joined the job.
static PID: AtomicU32 = AtomicU32::new(0);

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
    PID.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the handler is there at exit: the library is linked so that it is never unloaded.
    unsafe { on_exit(keep_status, std::ptr::null_mut()) };
}

/// Destructors do not get the status.
extern "C" fn keep_status(status: c_int, _: *mut c_void) {
    STATUS.store(status, Ordering::Relaxed);
    EXITS.store(true, Ordering::Relaxed);
}

/// The thread that exits runs it after the destructors of its thread-local data.
extern "C" fn at_end() {
    if world::ending_code().is_none() {
        return process::at_exit(STATUS.load(Ordering::Relaxed));
    }
    // Called after the destructors of all other libraries, which may have output to write.
    // SAFETY: the handler is there at exit.
    if unsafe { on_exit(tell_launcher, std::ptr::null_mut()) } != 0 {
        tell_launcher(0, std::ptr::null_mut());
    }
}

extern "C" fn tell_launcher(_: c_int, _: *mut c_void) {
    if let (Some(code), Some(bootstrap)) = (world::ending_code(), library::job())
        && is_pe()
    {
        world::flush_and_abort(&**bootstrap, code);
    }
}

/// Whether this process joined the job: `fork` children did not.
pub fn is_pe() -> bool {
    PID.load(Ordering::Relaxed) == std::process::id()
}

/// Ends the job from this PE (OpenSHMEM 1.6, `shmem_global_exit`).
pub fn global_exit(status: c_int) -> ! {
    let bootstrap = library("shmem_global_exit").world.bootstrap();
    if is_pe() {
        profile::exits();
    }
    // Another call of `exit` within the destructors of libraries leaves the others out, ours among them.
    if EXITS.load(Ordering::Relaxed) || !is_pe() {
        world::end(&**bootstrap, status)
    }
    if world::begin_ending(status) {
        if watch(bootstrap.clone(), status).is_err() {
            world::end(&**bootstrap, status)
        }
    } else if !world::is_ending_here() {
        world::await_end()
    }
    // Called by what runs at exit, it goes on with the rest of that.
    // SAFETY: ends the process. It does not return where it is called a second time, either.
    unsafe { libc::exit(world::ending_code().unwrap_or(status)) }
}

/// Ends the job after [`LONGEST`] if the process has not exited by then.
fn watch(bootstrap: Arc<dyn Bootstrap>, code: c_int) -> std::io::Result<()> {
    // Where a signal handler has interrupted the allocation of memory, a thread cannot be made either.
    kill_after(LONGEST + Duration::from_secs(1));
    let before = block_signals()?;
    let watcher = std::thread::Builder::new().name("tombolo-exit".into()).spawn(move || {
        std::thread::sleep(LONGEST);
        let (pe, seconds) = (bootstrap.pe(), LONGEST.as_secs());
        report(format_args!(
            "PE {pe}: shmem_global_exit: what the program runs at exit has not ended after {seconds} s"
        ));
        bootstrap.abort(code);
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) }
    });
    // SAFETY: puts back the mask there was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    watcher.map(drop)
}

/// Blocks all signals for this thread and those it makes; gives the mask there was.
fn block_signals() -> std::io::Result<libc::sigset_t> {
    // SAFETY: all-zero is a valid value of both sets, which the calls fill.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
            0 => Ok(before),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    }
}

/// The kernel kills this process after `time`.
fn kill_after(time: Duration) {
    // SAFETY: all-zero is a valid value of each; the timer is set if it was made.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
        let mut timer: libc::timer_t = std::ptr::null_mut();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0 {
            let mut at: libc::itimerspec = std::mem::zeroed();
            at.it_value.tv_sec = time.as_secs() as libc::time_t;
            libc::timer_settime(timer, 0, &raw const at, std::ptr::null_mut());
        }
    }
}
