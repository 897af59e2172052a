// SPDX-License-Identifier: Apache-2.0
//! The operating system calls of the emulated port.

use crate::ntb::port::{PortError, Result};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::signal::kill;
use nix::sys::stat::Mode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::Pid;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tombolo_core::process::Stat;

pub use tombolo_core::board::monotonic_ns;

/// A shared mapping of part of a file.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; what it is used for decides how it is accessed.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of `file` from `offset` on for reading and writing.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> Result<SharedMapping> {
        let length = NonZeroUsize::new(len)
            .ok_or_else(|| PortError::Invalid("an empty file cannot be mapped".into()))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, offset as i64) }
            .map_err(|e| PortError::system("mapping NTB memory", e))?;
        Ok(SharedMapping { base: base.cast(), len })
    }

    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn size(&self) -> usize {
        self.len
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; users keep `self` alive as long as they touch it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// `/proc` as a process saw it when it opened a port: the way to window memory stays open to one that
/// has changed its root since.
#[derive(Debug)]
pub struct Processes(Option<File>);

impl Processes {
    /// Without `/proc` everything fails that needs it, and says so.
    pub fn find() -> Processes {
        let folder = File::options().read(true).custom_flags(libc::O_DIRECTORY).open("/proc");
        Processes(folder.ok().filter(Processes::is_one))
    }

    /// A program that closes descriptors which are not its own may have another file there.
    fn is_one(folder: &File) -> bool {
        fstatfs(folder).is_ok_and(|of| of.filesystem_type() == PROC_SUPER_MAGIC)
    }

    /// Opens the memory file that process `pid` has open as `fd`, and checks that it is the one with
    /// `inode`.
    ///
    /// This is the emulated bus: the kernel lets a process into the descriptors of a sibling with
    /// the same credentials, without privilege, socket or name, and the way is gone when the process
    /// is.
    pub fn open_file_of(&self, pid: u32, fd: u32, inode: u64) -> Result<File> {
        let name = format!("{pid}/fd/{fd}");
        let path = format!("/proc/{name}");
        let file = match self.0.as_ref().filter(|folder| Processes::is_one(folder)) {
            Some(folder) => {
                openat(folder, name.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
                    .map(File::from)
                    .map_err(std::io::Error::from)
            }
            None => File::options().read(true).write(true).open(&path),
        };
        let file = file.map_err(|e| {
            // In a container it may be missing, or be that of the system around it.
            let own = std::fs::read_link("/proc/self");
            let own = own.is_ok_and(|own| own.to_str() == Some(&*std::process::id().to_string()));
            let why =
                if own { "" } else { " (emulated hosts need a /proc of this process namespace)" };
            PortError::system(format!("reaching window memory at {path}{why}"), e)
        })?;
        if inode_of(&file)? != inode {
            return Err(PortError::Invalid(format!(
                "{path} is not the registered memory any more"
            )));
        }
        Ok(file)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(folder) = self.0.take()
            && !Processes::is_one(&folder)
        {
            // The number is nobody's, or somebody else's by now.
            let _ = folder.into_raw_fd();
        }
    }
}

/// Number of the file's inode, unique among memory files.
pub fn inode_of(file: impl AsFd) -> Result<u64> {
    let stat = nix::sys::stat::fstat(file)
        .map_err(|e| PortError::system("looking at registered memory", e))?;
    Ok(stat.st_ino)
}

/// Length of a file.
pub fn len_of(file: &File) -> Result<u64> {
    let meta = file.metadata().map_err(|e| PortError::system("looking at window memory", e))?;
    Ok(meta.size())
}

/// Whether the process runs; one that waits to be reaped does not. Where that cannot be told from a
/// running one, because this process is short of descriptors or sees no `/proc`, it does.
pub fn is_alive(pid: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().filter(|number| *number > 0) else { return false };
    if kill(Pid::from_raw(number), None) == Err(Errno::ESRCH) {
        return false;
    }
    // Without /proc there is no file of any process.
    !Stat::of(number).is_ok_and(|stat| stat.is_over)
}

/// Sleeps while `word` holds `expected`, at most `timeout`, until woken for a bit of `bits`.
pub fn sleep_on(word: &AtomicU32, expected: u32, bits: u32, timeout: Duration) {
    let deadline = monotonic_ns().saturating_add(timeout.as_nanos().min(1 << 62) as u64);
    let at = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as libc::time_t,
        tv_nsec: (deadline % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `word` and `at` are valid for the call; the kernel only reads them. The result does
    // not matter: callers look at the memory again whatever ended the sleep.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            expected,
            &at,
            std::ptr::null::<u32>(),
            bits,
        )
    };
}

/// Wakes all processes that sleep on `word` for a bit of `bits`.
pub fn wake(word: &AtomicU32, bits: u32) {
    // SAFETY: `word` is valid for the call, which does not access it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE_BITSET,
            i32::MAX,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            bits,
        )
    };
}

/// Lets naps of this thread end when they should. Where that is refused they end later.
pub fn nap_precisely() {
    // SAFETY: a prctl without memory arguments, for this thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

/// A descriptor's number, as other processes see it.
pub fn number_of(file: impl AsFd) -> u32 {
    file.as_fd().as_raw_fd() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::InboundMemory;

    #[test]
    fn only_the_registered_file_is_opened() {
        let (memory, other) =
            (InboundMemory::new(4096).unwrap(), InboundMemory::new(8192).unwrap());
        let (file, own) = (memory.region().file, std::process::id());
        let file = file.expect("a file");
        let inode = inode_of(file).unwrap();
        // By the descriptor of /proc, and where a program has put another file in its place.
        for processes in [Processes::find(), Processes(Some(File::open("/dev/null").unwrap()))] {
            let opened = processes.open_file_of(own, number_of(file), inode).unwrap();
            assert_eq!(len_of(&opened).unwrap(), 4096);
            // The number now leads to another file: it was closed and used again.
            let closed = number_of(other.region().file.expect("a file"));
            let error = processes.open_file_of(own, closed, inode).unwrap_err();
            assert!(error.to_string().contains("not the registered memory"), "{error}");
        }
    }

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let start = std::time::Instant::now();
        // Not reaped yet: it is a zombie from some moment on, and counts as dead.
        while is_alive(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        // SAFETY: the child makes a thread, and system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            extern "C" fn wait(_: *mut libc::c_void) -> *mut libc::c_void {
                // SAFETY: waits for a signal, by which the process ends.
                unsafe { libc::pause() };
                std::ptr::null_mut()
            }
            // SAFETY: in the child of a fork, which has this one thread; it ends with its parent.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let mut thread: libc::pthread_t = 0;
                libc::pthread_create(&mut thread, std::ptr::null(), wait, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z')
        };
        while !state() {
            std::thread::yield_now();
        }
        assert!(is_alive(child as u32));
        kill(Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL).unwrap();
        while is_alive(child as u32) {
            std::thread::yield_now();
        }
        nix::sys::wait::waitpid(Pid::from_raw(child), None).unwrap();
    }
}
