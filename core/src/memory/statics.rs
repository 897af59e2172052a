// SPDX-License-Identifier: Apache-2.0
//! Static data of the executable as symmetric memory.
//!
//! The writable data segments (`PT_LOAD` minus RELRO) are copied to a memory file which is then mapped
//! over them, shared. The program goes on as before; peers map the same file and reach its global
//! variables with loads, stores and CPU atomics, without kernel modules or system calls.
//!
//! - Works for PIE, non-PIE and static executables; the address stays.
//! - Most executables have one such segment. A large alignment, large code models and linker options make
//!   several, with gaps between them. Offsets count from the first one on, through the gaps, which stay holes
//!   of the file and are no static data: nothing writes there, and what the process has mapped there stays.
//!   Constants that lie in a gap are copied to the file, so that it holds the same bytes.
//! - Untouched parts of `.bss` are not copied and cost no memory.
//! - A child made by `fork` gets a private copy back: it sees the data as it was when `fork` was
//!   called, and what it writes stays its own.
//! - Done once per process. A second initialisation uses the same file.
//! - What other threads write to the segments meanwhile is held up until the file is mapped; see
//!   `standstill`.

use super::common::Part;
use super::standstill::Standstill;
use crate::error::{Error, Result};
use crate::threads::without_signals;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The static data of the executable.
#[derive(Debug)]
pub struct StaticData {
    base: usize,
    /// Up to the end of the last range.
    len: usize,
    /// Length of the first range, which nearly always is the only one.
    first_len: usize,
    /// Offsets of the other ranges.
    others: Box<[Range<usize>]>,
    /// Addresses of what is not writable.
    constants: Box<[Constants]>,
    layout: u64,
    part: Option<Part>,
    /// Where the part is mapped in one piece, or 0.
    whole: usize,
}

/// Where the data segments lie.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    /// In ascending order, with gaps between them.
    areas: Vec<Area>,
    constants: Vec<Constants>,
    layout: u64,
}

/// Where a data segment lies and where in it `.bss` begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Area {
    start: usize,
    /// First page that holds nothing from the executable file.
    bss: usize,
    end: usize,
}

/// Where data lie that are not writable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Constants {
    range: Range<usize>,
    /// The loader has put addresses into them that may differ from process to process.
    relocated: bool,
}

/// What an address that is not one of static data has to do with the executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// Nothing.
    No,
    /// It is that of a constant, with the same bytes in all processes of the executable.
    Alike,
    /// It is that of a constant among those that hold addresses, which differ from process to process.
    Relocated,
}

static REMAPPED: OnceLock<StaticData> = OnceLock::new();

impl StaticData {
    /// Bytes that [`StaticData::remap`] needs in a memory file; 0 if it has been done.
    pub fn need() -> Result<usize> {
        match REMAPPED.get() {
            Some(_) => Ok(0),
            None => find().map(|extent| extent.len()),
        }
    }

    /// Remaps the data segments to `part`, which has the length that [`StaticData::need`] tells. A second
    /// call gives what the first one made.
    pub fn remap(part: Option<Part>) -> Result<&'static StaticData> {
        if let Some(done) = REMAPPED.get() {
            return Ok(done);
        }
        let extent = find()?;
        let part =
            part.ok_or_else(|| Error::Memory("no memory file for static data".to_owned()))?;
        let whole = match extent.areas.len() {
            1 => extent.start(),
            _ => map_whole(&part, extent.len())?,
        };
        share(&extent, &part)?;
        forked::protect(&extent, &part)?;
        Ok(REMAPPED.get_or_init(|| StaticData::of(extent, Some(part), whole)))
    }

    /// Describes the data segments and leaves them as they are, private to this process.
    pub fn in_place() -> Result<StaticData> {
        let extent = find()?;
        let whole = if extent.areas.len() == 1 { extent.start() } else { 0 };
        Ok(StaticData::of(extent, None, whole))
    }

    fn of(extent: Extent, part: Option<Part>, whole: usize) -> StaticData {
        let (base, len) = (extent.start(), extent.len());
        let mut ranges = extent.areas.iter().map(|area| area.start - base..area.end - base);
        let first_len = ranges.next().map_or(0, |first| first.end);
        let others = ranges.collect();
        let (constants, layout) = (extent.constants.into(), extent.layout);
        StaticData { base, len, first_len, others, constants, layout, part, whole }
    }

    /// Start of the first segment.
    pub fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    /// Bytes from the start of the first segment to the end of the last one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// An executable without writable data has an empty segment.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length of the first segment.
    #[inline]
    pub fn first_len(&self) -> usize {
        self.first_len
    }

    /// The segments: offsets from the start of the first one.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        std::iter::once(0..self.first_len).chain(self.others.iter().cloned())
    }

    /// The offset of an address in a segment other than the first one.
    #[cold]
    #[inline(never)]
    pub fn offset_beyond_first(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.base);
        self.others.iter().any(|range| range.contains(&offset)).then_some(offset)
    }

    /// Bytes from an offset to the end of the segment that it is in; 0 in a gap.
    pub fn room_at(&self, offset: usize) -> usize {
        self.ranges().find(|range| range.contains(&offset)).map_or(0, |range| range.end - offset)
    }

    /// Whether `len` bytes at an address are constants of the executable.
    pub fn constant(&self, address: usize, len: usize) -> Constant {
        let holds = |constants: &&Constants| {
            let Range { start, end } = constants.range;
            constants.range.contains(&address) && start < end && len <= end - address
        };
        match self.constants.iter().find(holds) {
            None => Constant::No,
            Some(Constants { relocated: true, .. }) => Constant::Relocated,
            Some(_) => Constant::Alike,
        }
    }

    /// Where the data can be reached in one piece, as a device needs it: at its start, or, where there are
    /// several segments, in a second mapping of the memory file. Null where there is none.
    pub fn whole(&self) -> *mut u8 {
        self.whole as *mut u8
    }

    /// Equal for processes of the same executable: only then do variables have equal offsets.
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// The memory file, which may hold static data of other PEs too, if the segments were remapped.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.part.as_ref().map(|part| part.file.as_fd())
    }

    /// Where in the file the data begin.
    pub fn file_offset(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.offset)
    }
}

impl Extent {
    fn start(&self) -> usize {
        self.areas[0].start
    }

    fn len(&self) -> usize {
        self.areas[self.areas.len() - 1].end - self.start()
    }

    /// Constants in the gaps.
    fn enclosed(&self) -> impl Iterator<Item = &Range<usize>> {
        let (start, end) = (self.start(), self.start() + self.len());
        let inside = move |range: &&Range<usize>| start <= range.start && range.end <= end;
        self.constants.iter().map(|constants| &constants.range).filter(inside)
    }
}

/// Finds the data segments of the main program: its writable `PT_LOAD` segments without the part
/// that becomes read-only after relocation.
fn find() -> Result<Extent> {
    let (bias, headers) = program();
    let extent = extent(bias, headers).ok_or_else(|| {
        Error::Memory("the executable has no writable data segment to share".to_owned())
    })?;
    Ok(Extent { layout: fingerprint(bias, headers, &extent), ..extent })
}

/// Whether the executable is linked statically: the C library is part of it, and it cannot load libraries.
pub fn is_statically_linked() -> bool {
    !program().1.iter().any(|header| header.p_type == libc::PT_INTERP)
}

/// Where the main program is loaded, and its program headers.
fn program() -> (usize, &'static [libc::Elf64_Phdr]) {
    let mut found: (usize, &'static [libc::Elf64_Phdr]) = (0, &[]);
    // SAFETY: the callback runs before the call returns and gets a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// Looks at the first object only: the main program.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the C library passes valid program headers of the main program, which stays loaded, and `found` is the
    // pointer given to dl_iterate_phdr.
    unsafe {
        let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum as usize);
        *found.cast::<(usize, &'static [libc::Elf64_Phdr])>() =
            ((*info).dlpi_addr as usize, headers);
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
    let readable =
        || headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_R != 0);
    // Code is no data. But where no segment is for reading alone, the linker has put constants into that of the code.
    let apart = readable().any(|h| h.p_flags & (libc::PF_W | libc::PF_X) == 0);
    let (mut areas, mut constants) = (Vec::<Area>::new(), Vec::new());
    for h in readable() {
        let first = bias + h.p_vaddr as usize;
        if h.p_flags & libc::PF_W == 0 {
            if h.p_flags & libc::PF_X == 0 || !apart {
                let range = first..first + h.p_memsz as usize;
                constants.push(Constants { range, relocated: false });
            }
            continue;
        }
        let end = (first + h.p_memsz as usize).next_multiple_of(page);
        let bss = (first + h.p_filesz as usize).next_multiple_of(page);
        // Linkers that keep RELRO in a segment of its own leave nothing of it here.
        let start = down(first).max(if relro_end <= end { relro_end } else { 0 });
        if first < start {
            let range = first..start.min(first + h.p_memsz as usize);
            constants.push(Constants { range, relocated: bias != 0 });
        }
        if start < end {
            areas.push(Area { start, bss: bss.clamp(start, end), end });
        }
    }
    // Program headers are in ascending order, but nobody checks them.
    areas.sort_unstable_by_key(|area| area.start);
    areas.dedup_by(|next, area| {
        let adjoins = next.start <= area.end;
        if adjoins {
            *area = Area { start: area.start, bss: next.bss, end: area.end.max(next.end) };
        }
        adjoins
    });
    (!areas.is_empty()).then_some(Extent { areas, constants, layout: 0 })
}

/// FNV-1a over the program headers, the place of the data segments relative to the program, and the
/// start of its code: the same for every process of one executable, wherever it is loaded.
fn fingerprint(bias: usize, headers: &[libc::Elf64_Phdr], extent: &Extent) -> u64 {
    const CODE_BYTES: usize = 64 << 10;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for area in &extent.areas {
        mix(&(area.start - bias).to_le_bytes());
        mix(&(area.end - area.start).to_le_bytes());
    }
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

/// Maps the file in one piece, gaps included. Only this process uses it: a `fork` child has no such mapping.
fn map_whole(part: &Part, len: usize) -> Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe {
        let whole = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            part.file.as_raw_fd(),
            part.offset as libc::off_t,
        );
        if whole == libc::MAP_FAILED {
            let why = std::io::Error::last_os_error();
            return Err(Error::system("mapping static data in one piece", why));
        }
        libc::madvise(whole, len, libc::MADV_DONTFORK);
        Ok(whole as usize)
    }
}

/// Copies the segments to a part of a memory file and maps it in their place.
///
/// A signal handler of the program waits meanwhile: what it stored to a page that has been copied would be lost, and with
/// other threads at a standstill, a store would wait for this thread, which is where the handler would run.
fn share(extent: &Extent, part: &Part) -> Result<()> {
    let mut shared = Ok(());
    without_signals(|| {
        shared = copy_and_map(extent, part);
        Ok(())
    })
    .map_err(|e| Error::system("holding signals back", e))?;
    shared
}

/// See [`share`].
fn copy_and_map(extent: &Extent, part: &Part) -> Result<()> {
    let fail = |what: &str, e: std::io::Error| Error::system(format!("{what} static data"), e);
    let ranges = extent.areas.iter().map(|area| area.start..area.end).collect();
    let mut bss: Vec<TouchedPages> =
        extent.areas.iter().map(|area| TouchedPages::of(area.bss, area.end)).collect();
    let fd = part.file.as_raw_fd();
    let in_file = |address: usize| part.offset + (address - extent.start());
    let copy = |start: usize, end: usize| -> std::io::Result<()> {
        let mut at = start;
        while at < end {
            let (offset, left) = (in_file(at), end - at);
            // The system call itself: sanitizers watch the C library's function, and find that the
            // space between two variables is read.
            // SAFETY: a readable part of this process's data segments.
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
    for constants in extent.enclosed() {
        copy(constants.start, constants.end).map_err(|e| fail("copying", e))?;
    }
    // From here on other threads write nothing to the segments. Nor does this one: it makes nothing but
    // system calls, and uses memory that it has already.
    let standstill = Standstill::of(ranges)?;
    for (area, bss) in extent.areas.iter().zip(&mut bss) {
        bss.look();
        let mut at = area.bss;
        while let Some((start, end)) = bss.next_range(at) {
            copy(start, end).map_err(|e| fail("copying", e))?;
            at = end;
        }
    }
    for area in &extent.areas {
        // The initialised part comes last and at once: between its copy and the mapping nothing may be
        // written to it by this thread, and nothing but system calls happens in between.
        copy(area.start, area.bss).map_err(|e| fail("copying", e))?;
        // SAFETY: replaces the segment by a file of the same content, at the same address, with the
        // same access; no reference changes meaning. Nobody writes to it meanwhile.
        let mapped = unsafe {
            libc::mmap(
                area.start as *mut libc::c_void,
                area.end - area.start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd,
                in_file(area.start) as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(fail("remapping", std::io::Error::last_os_error()));
        }
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
/// that copy over the shared mapping with one system call, the parent throws it away. The child's data are
/// private then: when it forks itself, nothing is left to do.
///
/// In an executable that the C library is linked into as well, what that changes in the child before it calls
/// the handler is changed in the parent too: the number of its threads and the lists of their stacks among them. Such
/// programs are warned if they fork while they have several threads.
mod forked {
    use super::*;
    use crate::process::has_one_thread;
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    struct Protected {
        pieces: Vec<Piece>,
        /// Bytes of all pieces.
        len: usize,
        file: i32,
        /// What tells the file from another one, to which the program may have given its number.
        id: (u64, u64),
        /// Whether the variables of the C library are among the data, and nobody was warned yet.
        warns: AtomicBool,
    }

    thread_local! {
        /// Between the handlers of a fork, which all run in the thread that forks: several threads may be
        /// between theirs at the same time. Private memory: where this library is linked into the executable, its
        /// own static variables are part of a segment, and parent and child would share the address.
        static SNAPSHOT: Cell<*mut libc::c_void> = const { Cell::new(std::ptr::null_mut()) };
    }

    /// A data segment.
    struct Piece {
        base: usize,
        len: usize,
        /// Where it begins in the file.
        first: usize,
        /// Where it begins in the snapshot.
        at: usize,
    }

    static PROTECTED: AtomicPtr<Protected> = AtomicPtr::new(std::ptr::null_mut());

    /// Has fork handlers protect the segments.
    pub fn protect(extent: &Extent, part: &Part) -> Result<()> {
        let mut len = 0;
        let piece = |area: &Area| {
            let first = part.offset + (area.start - extent.start());
            let piece = Piece { base: area.start, len: area.end - area.start, first, at: len };
            len += piece.len;
            piece
        };
        let pieces = extent.areas.iter().map(piece).collect();
        let file = part.file.as_raw_fd();
        let id = id_of(file).ok_or_else(|| {
            Error::system("looking at a memory file", std::io::Error::last_os_error())
        })?;
        let warns = AtomicBool::new(is_statically_linked());
        let protected = Box::new(Protected { pieces, len, file, id, warns });
        PROTECTED.store(Box::into_raw(protected), Ordering::Release);
        std::hint::black_box(&AT_START);
        match register() {
            0 => Ok(()),
            code => {
                Err(Error::system("registering for fork", std::io::Error::from_raw_os_error(code)))
            }
        }
    }

    /// Called when the library is loaded. A fork calls handlers of children in the order in which they were registered, and
    /// those before a fork in the opposite order. So what a program registers, whenever it does, finds the child's data its
    /// own, and what it does before the fork is in the copy. The lower the number in its section's name, the earlier; those
    /// up to 100 are the compiler's.
    #[used]
    #[unsafe(link_section = ".init_array.00101")]
    static AT_START: extern "C" fn() = at_start;

    extern "C" fn at_start() {
        // Where there is no memory for it, it is tried again when data are shared.
        register();
    }

    /// Registers the handlers, once; an error number, or 0.
    fn register() -> i32 {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        if REGISTERED.swap(true, Ordering::Relaxed) {
            return 0;
        }
        // SAFETY: the handlers have the right type, and stay. They do nothing before data are shared; the child's makes
        // system calls and does nothing else.
        let code = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if code != 0 {
            REGISTERED.store(false, Ordering::Relaxed);
        }
        code
    }

    /// None in a child, whose data are its own.
    fn protected() -> Option<&'static Protected> {
        // SAFETY: never freed once it is set.
        unsafe { PROTECTED.load(Ordering::Acquire).as_ref() }
    }

    /// Device and number of a file; none if there is no such descriptor.
    fn id_of(file: i32) -> Option<(u64, u64)> {
        // SAFETY: all-zero is a valid value, which the call fills.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::fstat(file, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
        }
    }

    unsafe extern "C" fn prepare() {
        let Some(Protected { pieces, len, file, id, warns }) = protected() else { return };
        if id_of(*file) != Some(*id) {
            return;
        }
        if warns.load(Ordering::Relaxed) && !has_one_thread() {
            warns.store(false, Ordering::Relaxed);
            tracing::warn!(
                "this program is linked with -static and forks while it has several threads. It shares variables of \
                 the C library with its child for a moment, so this PE may hang. SHMEM_STATIC=cma avoids this"
            );
        }
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
            for piece in pieces {
                if !copy_piece(*file, copy.cast::<u8>().add(piece.at), piece) {
                    libc::munmap(copy, *len);
                    return;
                }
            }
            SNAPSHOT.set(copy);
        }
    }

    /// Copies what the file has of a segment; false if the system refuses.
    ///
    /// # Safety
    /// `dest` has room for the piece.
    unsafe fn copy_piece(file: i32, dest: *mut u8, piece: &Piece) -> bool {
        // Behind it may come other segments, and the data of other PEs.
        let last = (piece.first + piece.len) as libc::off_t;
        let mut at = piece.first as libc::off_t;
        loop {
            // SAFETY: no more than asks where the file has data.
            let (start, end) = unsafe {
                let start = libc::lseek(file, at, libc::SEEK_DATA);
                if start < 0 {
                    // There is nothing any more.
                    return *libc::__errno_location() == libc::ENXIO;
                }
                if start >= last {
                    return true;
                }
                (start, libc::lseek(file, start, libc::SEEK_HOLE).min(last))
            };
            if end <= start {
                return true;
            }
            let dest = dest.wrapping_add(start as usize - piece.first);
            // SAFETY: a part of the piece.
            if !unsafe { read(file, dest, (end - start) as usize, start as usize) } {
                return false;
            }
            at = end;
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
        let copy = SNAPSHOT.replace(std::ptr::null_mut());
        if let Some(Protected { len, .. }) = protected()
            && !copy.is_null()
        {
            // SAFETY: the memory made by `prepare`, used by nobody else in this process.
            unsafe { libc::munmap(copy, *len) };
        }
    }

    unsafe extern "C" fn child() {
        let Some(Protected { pieces, .. }) = protected() else { return };
        let copy = SNAPSHOT.replace(std::ptr::null_mut());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let move_piece = |piece: &Piece| {
            let (from, to) = (copy.wrapping_byte_add(piece.at), piece.base as *mut libc::c_void);
            // SAFETY: moves a part of the snapshot over the shared mapping of the same length.
            unsafe { libc::mremap(from, piece.len, piece.len, flags, to) != libc::MAP_FAILED }
        };
        let moved = !copy.is_null() && pieces.iter().all(move_piece);
        if !moved {
            // Going on would let the child write into the parent's variables.
            const TEXT: &[u8] =
                b"tombolo: a fork child cannot get its static data: there is no memory, \
                or the program has closed a descriptor of the library\n";
            // SAFETY: write and _exit are async-signal-safe.
            unsafe {
                libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
                libc::_exit(127);
            }
        }
        // Perhaps one of the variables that are the child's own now.
        PROTECTED.store(std::ptr::null_mut(), Ordering::Relaxed);
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
        assert!(data.room_at(address - data.base) >= size_of::<AtomicUsize>());
        assert_eq!(data.layout(), StaticData::in_place().unwrap().layout());
    }

    #[test]
    fn constants_are_known_and_those_with_addresses_told_apart() {
        static NUMBERS: [u8; 3] = [1, 2, 3];
        let data = StaticData::in_place().unwrap();
        let address = (&raw const NUMBERS) as usize;
        assert_eq!(data.constant(address, 3), Constant::Alike);
        assert_eq!(data.constant(address, usize::MAX), Constant::No);
        assert_eq!(data.constant((&raw const INITIALISED) as usize, 1), Constant::No);
    }

    /// A segment that begins with a page.
    fn header(flags: u32, page_number: u64, filesz: u64, memsz: u64) -> libc::Elf64_Phdr {
        let page = super::super::page_size() as u64;
        libc::Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: page_number * page,
            p_paddr: 0,
            p_filesz: filesz,
            p_memsz: memsz,
            p_align: page,
        }
    }

    #[test]
    fn code_is_constant_only_where_the_linker_has_put_constants_beside_it() {
        let page = super::super::page_size();
        let size = page as u64;
        let code = header(libc::PF_R | libc::PF_X, 1, size, size);
        let variables = header(libc::PF_R | libc::PF_W, 3, size, size);
        let constant = |headers: &[libc::Elf64_Phdr], page_number: usize| {
            let data = StaticData::of(extent(0, headers).unwrap(), None, 0);
            data.constant(page_number * page, 8)
        };
        let apart = [code, header(libc::PF_R, 2, size, size), variables];
        assert_eq!([1, 2].map(|page| constant(&apart, page)), [Constant::No, Constant::Alike]);
        assert_eq!(constant(&[code, variables], 1), Constant::Alike);
    }

    #[test]
    fn segments_that_adjoin_are_one_and_a_gap_is_in_none() {
        let page = super::super::page_size() as u64;
        let (constant, variable) = (libc::PF_R, libc::PF_R | libc::PF_W);
        let mut headers = vec![
            header(constant, 0, 100, 100),
            header(variable, 2, 3 * page, 3 * page),
            header(variable, 5, 10, 2 * page),
            header(constant, 20, page, page),
            header(variable, 30, 0, page),
        ];
        headers.push(libc::Elf64_Phdr {
            p_type: libc::PT_GNU_RELRO,
            ..header(constant, 2, page, page)
        });
        let extent = extent(1 << 30, &headers).unwrap();
        let at = |pages: u64| (1 << 30) + (pages * page) as usize;
        let area = |start, bss, end| Area { start: at(start), bss: at(bss), end: at(end) };
        assert_eq!(extent.areas, [area(3, 6, 7), area(30, 30, 31)]);
        assert_eq!(extent.enclosed().collect::<Vec<_>>(), [&(at(20)..at(21))]);
        let data = StaticData::of(extent, None, 0);
        assert_eq!(data.ranges().map(|range| range.len()).sum::<usize>(), 5 * page as usize);
        assert_eq!(data.offset_beyond_first(at(30)), Some(at(30) - at(3)));
        assert_eq!([data.offset_beyond_first(at(20)), data.offset_beyond_first(at(7))], [None; 2]);
        assert_eq!(data.room_at(at(30) + 1 - at(3)), page as usize - 1);
        assert_eq!(data.room_at(at(7) - at(3)), 0);
        assert_eq!(data.constant(at(2) + 8, 8), Constant::Relocated);
        assert_eq!(data.constant(at(20) - 1, 8), Constant::No);
    }
}
