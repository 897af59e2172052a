// SPDX-License-Identifier: Apache-2.0
//! Hears from the kernel when memory of this process is unmapped, moved or emptied: through
//! `userfaultfd` (Linux 5.11), whose events need no privilege, and no memory is ever protected.
//!
//! Whoever unmaps watched memory is held by the kernel until the event has been read. A thread of its
//! own reads events, and takes no lock and allocates nothing on the way: what it waited for might be
//! held by the very thread that waits for it.

use crate::threads::{of_library, without_signals};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread::{self, JoinHandle};

/// Ranges that are watched at a time.
const RANGES: usize = 256;

/// From `linux/userfaultfd.h`.
mod uffd {
    pub const API: u64 = 0xAA;
    pub const USER_MODE_ONLY: i32 = 1;
    pub const EVENT_REMAP: u8 = 0x14;
    pub const EVENT_REMOVE: u8 = 0x15;
    pub const EVENT_UNMAP: u8 = 0x16;
    /// Tells of REMAP, REMOVE and UNMAP.
    pub const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6;
    pub const REGISTER_MODE_WP: u64 = 2;
    pub const IOCTL_API: u64 = 0xC018_AA3F;
    pub const IOCTL_REGISTER: u64 = 0xC020_AA00;
    pub const IOCTL_UNREGISTER: u64 = 0x8010_AA01;
    pub const IOCTL_WRITEPROTECT: u64 = 0xC018_AA06;

    #[repr(C)]
    pub struct Api {
        pub api: u64,
        pub features: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    pub struct Range {
        pub start: u64,
        pub len: u64,
    }

    #[repr(C)]
    pub struct Register {
        pub range: Range,
        pub mode: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    #[derive(Default)]
    pub struct WriteProtect {
        pub range: Range,
        pub mode: u64,
    }

    /// UNMAP and REMOVE have start and end first; REMAP has the old address, the new one, a length.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Message {
        pub event: u8,
        pub reserved: [u8; 7],
        pub arguments: [u64; 3],
    }
}

/// A range of this process that is watched.
#[derive(Debug)]
pub struct Ticket(usize);

/// Watches memory of this process. One for all caches, because memory has one watcher at most.
pub struct Watch {
    shared: Arc<Shared>,
    /// Held while ranges are entered or taken out. Not by the thread.
    taken: Mutex<[bool; RANGES]>,
    /// None before it starts and once it is waited for.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    uffd: OwnedFd,
    /// Readable from when the thread is to end.
    stop: OwnedFd,
    ranges: [Range; RANGES],
    /// Odd while events that were read may not have been entered yet.
    round: AtomicU64,
}

#[derive(Default)]
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Nothing has happened to it.
    intact: AtomicBool,
}

impl Watch {
    /// The watch of this process; none where the kernel does not offer it or does not allow it.
    pub fn shared() -> Option<Arc<Watch>> {
        static ONLY: Mutex<Weak<Watch>> = Mutex::new(Weak::new());
        let mut only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = only.upgrade() {
            return Some(watch);
        }
        let watch = Arc::new(Watch::start()?);
        *only = Arc::downgrade(&watch);
        Some(watch)
    }

    fn start() -> Option<Watch> {
        let mut watch = Watch::without_thread()?;
        let seen = watch.shared.clone();
        let thread = thread::Builder::new().name("shmem-unmapped".into()).stack_size(64 << 10);
        let started = without_signals(|| thread.spawn(move || of_library(|| seen.listen())));
        watch.thread = Some(started.ok()?);
        Some(watch)
    }

    fn without_thread() -> Option<Watch> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | uffd::USER_MODE_ONLY;
        // SAFETY: no memory is passed; a descriptor of this process's own comes back.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let uffd = owned(fd as RawFd)?;
        let mut api = uffd::Api { api: uffd::API, features: uffd::FEATURES, ioctls: 0 };
        control(&uffd, uffd::IOCTL_API, &mut api)?;
        // SAFETY: as above.
        let stop = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) })?;
        let ranges = std::array::from_fn(|_| Range::default());
        let shared = Arc::new(Shared { uffd, stop, ranges, round: AtomicU64::new(0) });
        let watch = Watch { shared, taken: Mutex::new([false; RANGES]), thread: None };
        children::are_kept_from(&watch.shared);
        watch.shared.tells_of_unmapping().then_some(watch)
    }

    /// Watches whole pages; none if there is no room, or for memory of which the kernel does not tell,
    /// such as that of files, or if somebody else watches it.
    pub fn add(self: &Arc<Watch>, start: usize, end: usize) -> Option<Ticket> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|taken| !taken)?;
        let range = &self.shared.ranges[index];
        range.start.store(start, Ordering::Relaxed);
        range.end.store(end, Ordering::Relaxed);
        range.intact.store(true, Ordering::SeqCst);
        register(&self.shared.uffd, start, end)?;
        taken[index] = true;
        Some(Ticket(index))
    }

    /// Whether nothing has happened to a range, as far as this thread may know of it: what was done to it before this
    /// call, in the order of the program, is known. Takes a system call.
    ///
    /// Another thread may get memory at an address as soon as the kernel has unmapped what was there, which is before
    /// the event can be read. So first no call that unmaps may be under way, and only then does a look at what has been
    /// entered say something. The thread makes `round` odd before it reads an event, and only then does the call that
    /// unmaps go on: who comes after that finds `round` odd, or the event entered.
    pub fn is_intact(&self, ticket: &Ticket) -> bool {
        // Mostly it is about other memory, and over soon. What seems not intact is registered anew, which takes longer.
        let mut patience = 0..1000;
        while !self.shared.is_settled() {
            if patience.next().is_none() {
                return false;
            }
            thread::yield_now();
        }
        self.seems_intact(ticket)
    }

    /// Whether nothing is known to have happened to a range. What another thread does to it is perhaps not known yet.
    pub fn seems_intact(&self, ticket: &Ticket) -> bool {
        while self.shared.round.load(Ordering::SeqCst) & 1 == 1 {
            thread::yield_now();
        }
        self.shared.ranges[ticket.0].intact.load(Ordering::SeqCst)
    }

    /// Watches a range no longer.
    pub fn remove(&self, ticket: Ticket) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[ticket.0] = false;
        let bounds = |index: usize| {
            let range = &self.shared.ranges[index];
            (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed))
        };
        let (start, end) = bounds(ticket.0);
        let still = (0..RANGES).any(|index| {
            let (from, to) = bounds(index);
            taken[index] && from < end && start < to
        });
        if !still {
            let mut range = uffd::Range { start: start as u64, len: (end - start) as u64 };
            // Refused where other memory is there now, which is then not watched anyway.
            control(&self.shared.uffd, uffd::IOCTL_UNREGISTER, &mut range);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Far more than is ever taken by reading.
        let many = 1u64 << 32;
        // SAFETY: 8 bytes of a local variable.
        unsafe { libc::write(self.shared.stop.as_raw_fd(), (&raw const many).cast(), 8) };
        // All watching ends before the thread is waited for. A thread of the program that frees a watched stack holds
        // a lock of the C library, and waits until its event is read or no descriptor is open. Waiting for the end of a
        // thread takes the same lock.
        replace(self.shared.uffd.as_raw_fd(), self.shared.stop.as_raw_fd());
        children::need_not_be(&self.shared);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Closes the descriptor of a watch. Its number stands for `stop` then, so nothing else gets it.
fn replace(uffd: RawFd, stop: RawFd) {
    // SAFETY: both are descriptors of a watch that has not been dropped.
    unsafe { libc::dup3(stop, uffd, libc::O_CLOEXEC) };
}

/// Processes that the program forks have the descriptor too. None of their memory is watched, but what frees memory
/// here would wait for as long as one of them kept it open.
mod children {
    use super::*;

    /// Descriptors of watches, the one of `userfaultfd` in the upper half. A second watch begins while the first one ends.
    static WATCHES: [AtomicU64; 8] = [const { AtomicU64::new(NONE) }; 8];
    const NONE: u64 = u64::MAX;

    /// Puts one value in the place of another, once, if that is there.
    fn exchange(from: u64, to: u64) {
        let put =
            |one: &AtomicU64| one.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        let _ = WATCHES.iter().any(|one| put(one).is_ok());
    }

    fn pair(shared: &Shared) -> u64 {
        (shared.uffd.as_raw_fd() as u64) << 32 | shared.stop.as_raw_fd() as u64
    }

    /// From now on, children close the descriptor before `fork` returns in them. Where there is no memory or no room
    /// for that, they have it.
    pub fn are_kept_from(shared: &Shared) {
        static REGISTERED: Once = Once::new();
        exchange(NONE, pair(shared));
        // SAFETY: the handler has the right type, and makes system calls only.
        REGISTERED.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close));
        });
    }

    /// Before the descriptors are closed here.
    pub fn need_not_be(shared: &Shared) {
        exchange(pair(shared), NONE);
    }

    unsafe extern "C" fn close() {
        for watch in &WATCHES {
            let pair = watch.load(Ordering::SeqCst);
            if pair != NONE {
                replace((pair >> 32) as RawFd, pair as u32 as RawFd);
            }
        }
    }
}

/// Memory of this process's own, whose contents do not matter.
struct Probe(usize);

impl Probe {
    /// Whatever the size of pages is.
    const LEN: usize = 64 << 10;

    fn map() -> Option<Probe> {
        let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Probe::LEN, access, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Probe(at as usize))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        unmap(self.0);
    }
}

/// Unmaps a [`Probe`].
fn unmap(at: usize) {
    // SAFETY: mapped by `Probe::map`, and used by nobody.
    unsafe { libc::munmap(at as *mut _, Probe::LEN) };
}

impl Shared {
    /// Whether no call that unmaps, moves or empties watched memory waits for its event to be read, or is about to.
    fn is_settled(&self) -> bool {
        // While there is such a call the kernel refuses with EAGAIN, before it looks at the request. Otherwise it refuses
        // this one, which names a range of no bytes.
        let mut request = uffd::WriteProtect::default();
        // SAFETY: the structure that this request takes, with a range of no bytes.
        let done = unsafe {
            let number = uffd::IOCTL_WRITEPROTECT as libc::Ioctl;
            libc::ioctl(self.uffd.as_raw_fd(), number, &raw mut request)
        };
        done < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Whether the kernel does what [`Shared::is_settled`] relies on, which no page of its manual promises. Before anything
    /// else is watched.
    fn tells_of_unmapping(&self) -> bool {
        let Some(probe) = Probe::map() else { return false };
        let (start, end) = (probe.0, probe.0 + Probe::LEN);
        if register(&self.uffd, start, end).is_none() {
            return false;
        }
        let was_settled = self.is_settled();
        let unmaps = thread::Builder::new().stack_size(64 << 10);
        let unmaps = without_signals(|| unmaps.spawn(move || of_library(|| unmap(start))));
        let Ok(unmaps) = unmaps else {
            // Nobody would read the event of this thread.
            let (start, len) = (start as u64, Probe::LEN as u64);
            control(&self.uffd, uffd::IOCTL_UNREGISTER, &mut uffd::Range { start, len });
            return false;
        };
        std::mem::forget(probe);
        // The event is there before the call that unmaps is over, which waits until it is read.
        let mut polled = [self.readable()];
        let mut is_there = 0;
        while is_there < 1 && !unmaps.is_finished() {
            // SAFETY: an array of one.
            is_there = unsafe { libc::poll(polled.as_mut_ptr(), 1, 1000) };
        }
        let is_told = !self.is_settled();
        let is_read = self.read().is_some();
        unmaps.join().is_ok() && was_settled && is_told && is_read
    }

    fn readable(&self) -> libc::pollfd {
        libc::pollfd { fd: self.uffd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
    }

    fn listen(&self) {
        let stop = self.stop.as_raw_fd();
        let stop = libc::pollfd { fd: stop, events: libc::POLLIN, revents: 0 };
        let mut polled = [self.readable(), stop];
        loop {
            // SAFETY: an array of two. Errors mean: look again.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
            self.round.fetch_add(1, Ordering::SeqCst);
            while let Some(message) = self.read() {
                self.enter(&message);
            }
            self.round.fetch_add(1, Ordering::SeqCst);
            if polled[1].revents != 0 {
                return;
            }
        }
    }

    fn read(&self) -> Option<uffd::Message> {
        let mut message = uffd::Message::default();
        let (at, len) = ((&raw mut message).cast(), size_of::<uffd::Message>());
        // SAFETY: a local variable of that size; any bytes are a valid value.
        let read = unsafe { libc::read(self.uffd.as_raw_fd(), at, len) };
        (read == len as isize).then_some(message)
    }

    fn enter(&self, message: &uffd::Message) {
        let [first, second, third] = message.arguments.map(|argument| argument as usize);
        let (start, end) = match message.event {
            uffd::EVENT_UNMAP | uffd::EVENT_REMOVE => (first, second),
            uffd::EVENT_REMAP => (first, first.saturating_add(third)),
            _ => return,
        };
        for range in &self.ranges {
            let (from, to) =
                (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed));
            if from < end && start < to {
                range.intact.store(false, Ordering::SeqCst);
            }
        }
    }
}

fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a descriptor that was just made, and is nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the kernel tell of what happens to whole pages; none if it is refused.
fn register(uffd: &OwnedFd, start: usize, end: usize) -> Option<()> {
    let range = uffd::Range { start: start as u64, len: (end - start) as u64 };
    let mut register = uffd::Register { range, mode: uffd::REGISTER_MODE_WP, ioctls: 0 };
    control(uffd, uffd::IOCTL_REGISTER, &mut register)
}

/// An `ioctl` of the descriptor; none if it is refused.
fn control<T>(uffd: &OwnedFd, request: u64, argument: &mut T) -> Option<()> {
    // SAFETY: the requests of this file, each with the structure that it takes. They change how the
    // kernel tells of memory, never its contents.
    let done = unsafe { libc::ioctl(uffd.as_raw_fd(), request as libc::Ioctl, argument) };
    (done == 0).then_some(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::time::{Duration, Instant};

    /// A watch; none, and it is told, where the kernel does not let this process watch its memory.
    fn allowed(start: fn() -> Option<Watch>) -> Option<Arc<Watch>> {
        if let Some(watch) = start() {
            return Some(Arc::new(watch));
        }
        let refusal = refusal();
        let why = refusal.expect("no watch starts, although the kernel has all that it needs");
        // Past the test harness, which shows nothing of tests that pass.
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(io::stderr(), "{name}: not tested: {why}");
        None
    }

    /// Why the kernel does not let this process watch its memory, if so.
    fn refusal() -> Option<String> {
        /// Set by kernels that can protect memory from being written, which tell whether events are to be read.
        const CAN_PROTECT: u64 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | uffd::USER_MODE_ONLY;
        // SAFETY: no memory is passed; a descriptor of this process's own comes back.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let error = io::Error::last_os_error();
        let Some(uffd) = owned(fd as RawFd) else {
            let known = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EINVAL];
            assert!(error.raw_os_error().is_some_and(|code| known.contains(&code)), "{error}");
            return Some(format!("userfaultfd: {error}"));
        };
        let mut api = uffd::Api { api: uffd::API, features: uffd::FEATURES, ioctls: 0 };
        if control(&uffd, uffd::IOCTL_API, &mut api).is_none() {
            return Some(format!("UFFDIO_API: {}", io::Error::last_os_error()));
        }
        let can_protect = api.features & CAN_PROTECT != 0;
        (!can_protect).then(|| "the kernel cannot protect memory from being written".into())
    }

    #[test]
    fn a_thread_gives_its_watched_stack_back_while_the_watch_ends() {
        gives_back(300, || None);
        // Children of the program do not keep what watches.
        gives_back(100, || Some(Child::fork()));
    }

    #[test]
    fn memory_that_another_thread_is_unmapping_is_not_intact() {
        // Nobody reads events, so the call that unmaps does not end.
        let Some(watch) = allowed(Watch::without_thread) else { return };
        let (memory, other) = (Probe::map().expect("memory"), Probe::map().expect("memory"));
        let watched = |memory: &Probe| watch.add(memory.0, memory.0 + Probe::LEN).expect("watched");
        let (ticket, of_other) = (watched(&memory), watched(&other));
        assert!(watch.is_intact(&ticket) && watch.is_intact(&of_other));
        let unmaps = std::thread::spawn(move || drop(memory));
        let deadline = Instant::now() + Duration::from_secs(60);
        while watch.is_intact(&ticket) {
            assert!(Instant::now() < deadline, "it is not noticed");
            std::thread::yield_now();
        }
        assert!(watch.seems_intact(&ticket), "nobody has read the event");
        // Which memory it is about is not known yet.
        assert!(!watch.is_intact(&of_other));
        let seen = watch.shared.clone();
        let listens = std::thread::spawn(move || seen.listen());
        unmaps.join().expect("no panic");
        assert!(!watch.seems_intact(&ticket));
        assert!(watch.is_intact(&of_other));
        drop(watch);
        listens.join().expect("no panic");
    }

    /// A thread gives its stack back while its watch ends; before that, something is made that stays.
    fn gives_back(rounds: usize, before: impl Fn() -> Option<Child>) {
        const STACK: usize = 64 << 20;
        for _ in 0..rounds {
            let Some(watch) = allowed(Watch::start) else { return };
            let _child = before();
            let seen = watch.clone();
            // So large a stack is given back to the system when the thread was waited for.
            let thread = std::thread::Builder::new().stack_size(STACK);
            let thread = thread.spawn(move || {
                let local = [0u8; 3 * 4096];
                let start = (local.as_ptr().addr() + 4095) & !4095;
                let _ = seen.add(start, start + 4096);
                std::hint::black_box(&local);
            });
            let thread = thread.expect("a thread");
            let waits = std::thread::spawn(move || thread.join());
            drop(watch);
            waits.join().expect("no panic").expect("no panic");
        }
    }

    /// A forked process that runs until this is dropped.
    struct Child(libc::pid_t);

    impl Child {
        fn fork() -> Child {
            // SAFETY: the child makes system calls only.
            match unsafe { libc::fork() } {
                0 => {
                    // Not left alone when the test program is killed.
                    // SAFETY: as above.
                    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                    loop {
                        // SAFETY: as above.
                        unsafe { libc::pause() };
                    }
                }
                child => Child(child),
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            assert!(self.0 > 0, "no process can be made");
            // SAFETY: a child of this process's own that nobody else waits for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}
