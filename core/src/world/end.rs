// SPDX-License-Identifier: Apache-2.0
//! Leaving a job, and ending it.

use super::World;
use crate::board::State;
use crate::bootstrap::Bootstrap;
use crate::error::{Result, report};
use std::time::Duration;

impl World {
    /// Collective: leaves the job. The caller has synchronised: nobody uses this PE's memory any
    /// more.
    pub fn stop(self) -> Result<()> {
        self.bootstrap.barrier_at_end()?;
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
pub fn end(bootstrap: &dyn Bootstrap, code: i32) -> ! {
    // SAFETY: flushing all streams is allowed at any time.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    await_readers();
    bootstrap.abort(code);
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
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
