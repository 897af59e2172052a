// SPDX-License-Identifier: Apache-2.0
//! Static data of the executable as symmetric memory.
//!
//! The writable data segment (`PT_LOAD` minus RELRO) is copied to a memory file which is then mapped
//! over it, shared. The program goes on as before; peers map the same file and reach its global
//! variables with loads, stores and CPU atomics, without kernel modules or system calls.
//!
//! - Works for PIE, non-PIE and static executables; the address stays.
//! - Untouched parts of `.bss` are not copied and cost no memory.
//! - A child made by `fork` gets a private copy back: it sees the data as it was when `fork` was
//!   called, and what it writes stays its own.
//! - Done once per process. A second initialisation uses the same file.
//! - What other threads write to the segment meanwhile is held up until the file is mapped; see
//!   `standstill`.

use super::common::Part;
use super::standstill::Standstill;
use crate::error::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The writable static data of the executable.
#[derive(Debug)]
pub struct StaticData {
    base: usize,
    len: usize,
    layout: u64,
    part: Option<Part>,
}

/// Where the data segment lies and where in it `.bss` begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: usize,
    /// First page that holds nothing from the executable file.
    bss: usize,
    end: usize,
    layout: u64,
}

static REMAPPED: OnceLock<StaticData> = OnceLock::new();

impl StaticData {
    /// Bytes that [`StaticData::remap`] needs in a memory file; 0 if it has been done.
    pub fn need() -> Result<usize> {
        match REMAPPED.get() {
            Some(_) => Ok(0),
            None => find().map(|extent| extent.end - extent.start),
        }
    }

    /// Remaps the data segment to `part`, which has the length that [`StaticData::need`] tells. A second
    /// call gives what the first one made.
    pub fn remap(part: Option<Part>) -> Result<&'static StaticData> {
        if let Some(done) = REMAPPED.get() {
            return Ok(done);
        }
        let extent = find()?;
        let part =
            part.ok_or_else(|| Error::Memory("no memory file for static data".to_owned()))?;
        share(extent, &part)?;
        forked::protect(extent.start, extent.end - extent.start, &part)?;
        Ok(REMAPPED.get_or_init(|| StaticData {
            base: extent.start,
            len: extent.end - extent.start,
            layout: extent.layout,
            part: Some(part),
        }))
    }

    /// Describes the data segment and leaves it as it is, private to this process.
    pub fn in_place() -> Result<StaticData> {
        let extent = find()?;
        let len = extent.end - extent.start;
        Ok(StaticData { base: extent.start, len, layout: extent.layout, part: None })
    }

    /// Start of the segment.
    pub fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// An executable without writable data has an empty segment.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Equal for processes of the same executable: only then do variables have equal offsets.
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// The memory file, which may hold static data of other PEs too, if the segment was remapped.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.part.as_ref().map(|part| part.file.as_fd())
    }

    /// Where in the file the data begin.
    pub fn file_offset(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.offset)
    }
}

/// Finds the data segment of the main program: its writable `PT_LOAD` segments without the part
/// that becomes read-only after relocation.
fn find() -> Result<Extent> {
    let mut found: Option<Extent> = None;
    // SAFETY: the callback runs before the call returns and gets a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found.ok_or_else(|| {
        Error::Memory("the executable has no writable data segment to share".to_owned())
    })
}

/// Looks at the first object only: the main program.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the C library passes valid program headers of a loaded object, and `found` is the
    // pointer given to dl_iterate_phdr.
    unsafe {
        let bias = (*info).dlpi_addr as usize;
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum as usize);
        *found.cast::<Option<Extent>>() = extent(bias, headers);
    }
    1
}

fn extent(bias: usize, headers: &[libc::Elf64_Phdr]) -> Option<Extent> {
    let page = super::page_size();
    let down = |address: usize| address & !(page - 1);
    let relro_end = headers
        .iter()
        .filter(|h| h.p_type == libc::PT_GNU_RELRO)
        .map(|h| down(bias + (h.p_vaddr + h.p_memsz) as usize))
        .max()
        .unwrap_or(0);
    let mut extent: Option<Extent> = None;
    for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0) {
        let start = bias + h.p_vaddr as usize;
        let end = (start + h.p_memsz as usize).next_multiple_of(page);
        let bss = (start + h.p_filesz as usize).next_multiple_of(page);
        // Linkers that keep RELRO in a segment of its own leave nothing of it here.
        let start = down(start).max(if relro_end <= end { relro_end } else { 0 });
        if start < end {
            let first = extent.map_or(start, |e| if e.end == start { e.start } else { start });
            extent = Some(Extent { start: first, bss: bss.clamp(first, end), end, layout: 0 });
        }
    }
    extent.map(|e| Extent { layout: fingerprint(bias, headers, e), ..e })
}

/// FNV-1a over the program headers, the place of the data segment relative to the program, and the
/// start of its code: the same for every process of one executable, wherever it is loaded.
fn fingerprint(bias: usize, headers: &[libc::Elf64_Phdr], extent: Extent) -> u64 {
    const CODE_BYTES: usize = 64 << 10;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    mix(&(extent.start - bias).to_le_bytes());
    mix(&(extent.end - extent.start).to_le_bytes());
    for h in headers {
        for field in [u64::from(h.p_type), h.p_vaddr, h.p_memsz, h.p_filesz] {
            mix(&field.to_le_bytes());
        }
    }
    let code = headers.iter().find(|h| {
        h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0 && h.p_flags & libc::PF_R != 0
    });
    if let Some(h) = code {
        let len = (h.p_filesz as usize).min(CODE_BYTES);
        // SAFETY: a loaded, readable segment of the running program.
        mix(unsafe { std::slice::from_raw_parts((bias + h.p_vaddr as usize) as *const u8, len) });
    }
    hash
}

/// Copies the segment to a part of a memory file and maps it in its place.
fn share(extent: Extent, part: &Part) -> Result<()> {
    let len = extent.end - extent.start;
    let fail = |what: &str, e: std::io::Error| Error::system(format!("{what} static data"), e);
    let mut bss = TouchedPages::of(extent.bss, extent.end);
    let fd = part.file.as_raw_fd();
    let copy = |start: usize, end: usize| -> std::io::Result<()> {
        let mut at = start;
        while at < end {
            let (offset, left) = (part.offset + at - extent.start, end - at);
            // The system call itself: sanitizers watch the C library's function, and find that the
            // space between two variables is read.
            // SAFETY: a readable part of this process's data segment.
            let n = unsafe { libc::syscall(libc::SYS_pwrite64, fd, at, left, offset) };
            match n {
                n if n > 0 => at += n as usize,
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                _ => {
                    let e = std::io::Error::last_os_error();
                    if e.kind() != std::io::ErrorKind::Interrupted {
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    };
    // From here on other threads write nothing to the segment. Nor does this one: it makes nothing but
    // system calls, and uses memory that it has already.
    let standstill = Standstill::of(extent.start, extent.end)?;
    bss.look();
    let mut at = extent.bss;
    while let Some((start, end)) = bss.next_range(at) {
        copy(start, end).map_err(|e| fail("copying", e))?;
        at = end;
    }
    // The initialised part comes last and at once: between its copy and the mapping nothing may be
    // written to it by this thread, and nothing but system calls happens in between.
    copy(extent.start, extent.bss).map_err(|e| fail("copying", e))?;
    // SAFETY: replaces the segment by a file of the same content, at the same address, with the
    // same access; no reference changes meaning. Nobody writes to it meanwhile.
    let mapped = unsafe {
        libc::mmap(
            extent.start as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            fd,
            part.offset as libc::off_t,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(fail("remapping", std::io::Error::last_os_error()));
    }
    drop(standstill);
    Ok(())
}

/// Which pages of a range have been touched, by the kernel's page map; all of them where that cannot
/// be read.
struct TouchedPages {
    start: usize,
    end: usize,
    map: Option<std::fs::File>,
    /// An entry of 8 bytes for each page.
    entries: Vec<u8>,
}

impl TouchedPages {
    fn of(start: usize, end: usize) -> TouchedPages {
        let entries = vec![0; (end - start) / super::page_size() * 8];
        TouchedPages { start, end, map: std::fs::File::open("/proc/self/pagemap").ok(), entries }
    }

    /// Reads the state of now. Takes no memory.
    fn look(&mut self) {
        let offset = (self.start / super::page_size() * 8) as u64;
        let read = |map: &std::fs::File| map.read_exact_at(&mut self.entries, offset).is_ok();
        if !self.map.as_ref().is_some_and(read) {
            self.map = None;
        }
    }

    /// The first range of touched pages at or after `at`.
    fn next_range(&self, at: usize) -> Option<(usize, usize)> {
        const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
        let page = super::page_size();
        let touched = |at: &usize| {
            let entry = self.entries.as_chunks().0[(at - self.start) / page];
            self.map.is_none() || u64::from_le_bytes(entry) & PRESENT_OR_SWAPPED != 0
        };
        let first = (at..self.end).step_by(page).find(touched)?;
        let end = (first..self.end).step_by(page).find(|at| !touched(at)).unwrap_or(self.end);
        Some((first, end))
    }
}

/// Gives a `fork` child its own copy of the data.
///
/// Before the fork the parent copies what is in the memory file to private memory; the child moves
/// that copy over the shared mapping with one system call, the parent throws it away.
mod forked {
    use super::*;

    /// Lies in private memory: where this library is linked into the executable, its own static
    /// variables are part of the segment, and parent and child would share the snapshot's address.
    struct Protected {
        base: usize,
        len: usize,
        file: i32,
        /// Where in the file the data begin.
        first: usize,
        snapshot: AtomicPtr<libc::c_void>,
    }

    static PROTECTED: AtomicPtr<Protected> = AtomicPtr::new(std::ptr::null_mut());

    /// Registers the fork handlers for the segment.
    pub fn protect(base: usize, len: usize, part: &Part) -> Result<()> {
        let (file, first) = (part.file.as_raw_fd(), part.offset);
        let snapshot = AtomicPtr::new(std::ptr::null_mut());
        let protected = Box::new(Protected { base, len, file, first, snapshot });
        PROTECTED.store(Box::into_raw(protected), Ordering::Relaxed);
        // SAFETY: the handlers make system calls and do nothing else.
        match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
            0 => Ok(()),
            code => {
                Err(Error::system("registering for fork", std::io::Error::from_raw_os_error(code)))
            }
        }
    }

    fn protected() -> &'static Protected {
        // SAFETY: set before the handlers were registered, and never freed.
        unsafe { &*PROTECTED.load(Ordering::Relaxed) }
    }

    unsafe extern "C" fn prepare() {
        let Protected { len, file, first, snapshot, .. } = protected();
        // Behind it may come the data of other PEs.
        let last = (*first + *len) as libc::off_t;
        // SAFETY: private memory at an address of the kernel's choice; what is read from the file
        // stays inside it.
        unsafe {
            let copy = libc::mmap(
                std::ptr::null_mut(),
                *len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if copy == libc::MAP_FAILED {
                return;
            }
            let mut at = *first as libc::off_t;
            loop {
                let start = libc::lseek(*file, at, libc::SEEK_DATA);
                if start < 0 || start >= last {
                    break;
                }
                let end = libc::lseek(*file, start, libc::SEEK_HOLE).min(last);
                if end <= start {
                    break;
                }
                let dest = copy.cast::<u8>().add(start as usize - *first);
                if !read(*file, dest, (end - start) as usize, start as usize) {
                    libc::munmap(copy, *len);
                    return;
                }
                at = end;
            }
            snapshot.store(copy, Ordering::Relaxed);
        }
    }

    /// Reads `len` bytes at `offset` of a file by system calls alone, which no sanitizer watches.
    ///
    /// # Safety
    /// `dest` is writable for `len` bytes.
    unsafe fn read(file: i32, dest: *mut u8, len: usize, offset: usize) -> bool {
        let mut done = 0;
        while done < len {
            let (at, left) = (dest.wrapping_add(done), len - done);
            // SAFETY: the rest of `dest`.
            match unsafe { libc::syscall(libc::SYS_pread64, file, at, left, offset + done) } {
                n if n > 0 => done += n as usize,
                n if n < 0
                    && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => return false,
            }
        }
        true
    }

    unsafe extern "C" fn parent() {
        let Protected { len, snapshot, .. } = protected();
        let copy = snapshot.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if !copy.is_null() {
            // SAFETY: the memory made by `prepare`, used by nobody else in this process.
            unsafe { libc::munmap(copy, *len) };
        }
    }

    unsafe extern "C" fn child() {
        let Protected { base, len, snapshot, .. } = protected();
        let copy = snapshot.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves the snapshot over the shared mapping of the same length.
        let moved = !copy.is_null()
            && unsafe { libc::mremap(copy, *len, *len, flags, *base as *mut libc::c_void) }
                != libc::MAP_FAILED;
        if !moved {
            // Going on would let the child write into the parent's variables.
            const TEXT: &[u8] = b"tombolo: no memory to give a fork child its static data\n";
            // SAFETY: write and _exit are async-signal-safe.
            unsafe {
                libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
                libc::_exit(127);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static INITIALISED: AtomicUsize = AtomicUsize::new(7);

    #[test]
    fn the_data_segment_holds_static_variables() {
        let data = StaticData::in_place().unwrap();
        let address = (&raw const INITIALISED) as usize;
        assert!((data.base..data.base + data.len).contains(&address));
        assert_eq!(data.layout(), StaticData::in_place().unwrap().layout());
    }
}
