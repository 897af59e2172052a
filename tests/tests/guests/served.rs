// SPDX-License-Identifier: Apache-2.0
//! An NTB link between guests that is a register model of this process: its two functions are PCI
//! devices for QEMU, by the protocol vfio-user.
//!
//! A thread for each function answers what its guest reads and writes. A window leads into the memory
//! of the other guest, where that guest's IOMMU lets it.

use nix::sys::eventfd::EventFd;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use tombolo_transports::ntb::port::Device;
use tombolo_transports::ntb::port::bridges::{Bench, Function};
use tombolo_transports::ntb::port::epf::model::{Epf, Shape};
use vfio_bindings::bindings::vfio::*;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// As Linux's own function, with windows that a job fits in.
pub const SHAPE: Shape = Shape { windows: [4 << 20, 64 << 20], ..Shape::LINUX };

/// Base address registers that are windows.
const FIRST_WINDOW: u32 = 4;
const LAST_WINDOW: u32 = 5;
/// A base address register that the function leaves free: QEMU keeps the table of vectors there.
const VECTORS_BAR: u8 = 1;
const PAGE: u64 = 4096;
/// Where the command register and the capabilities are in configuration space, and in the second one
/// the register that resets the function.
const COMMAND: usize = 4;
const MSIX: usize = 0x40;
const EXPRESS: usize = 0x60;
const CONTROL: usize = EXPRESS + 8;
const RESETS: u16 = 1 << 15;

/// A link, at a socket for each of its ends. It ends with this value.
pub struct Link {
    sockets: [PathBuf; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Link {
    pub fn serve(sockets: [PathBuf; 2]) -> Result<Link, String> {
        let bench = Bench::new(Epf::new(SHAPE));
        let mut threads = vec![];
        for (side, socket) in sockets.iter().enumerate() {
            let end = End {
                function: bench.function(side),
                bench: bench.clone(),
                side,
                config: configuration(),
                memory: vec![],
                maps: BTreeMap::new(),
            };
            let server = Server::new(socket, true, interrupts(), regions(&end));
            let server = server.map_err(|e| format!("{}: {e}", socket.display()))?;
            threads.push(std::thread::spawn(move || end.answer(&server)));
        }
        Ok(Link { sockets, threads })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // A guest that was never there: its thread waits for it.
            drop(UnixStream::connect(socket));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One function.
struct End {
    bench: Arc<Bench<Epf>>,
    function: Arc<Function<Epf>>,
    side: usize,
    config: [u8; 256],
    /// Memory of the guest, which it opens to the function in pieces: thousands of pages.
    memory: Vec<Memory>,
    /// The pieces: address and length.
    maps: BTreeMap<u64, usize>,
}

/// A file that is memory of the guest, mapped whole.
struct Memory {
    /// Which file: its device and number.
    file: (u64, u64),
    base: NonNull<c_void>,
    len: NonZeroUsize,
}

// SAFETY: memory of a guest, shared with it; access is by raw pointer.
unsafe impl Send for Memory {}

impl Memory {
    fn map(file: &File) -> io::Result<Memory> {
        let about = file.metadata()?;
        let len = usize::try_from(about.len()).ok().and_then(NonZeroUsize::new);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, file, 0)? };
        Ok(Memory { file: (about.dev(), about.ino()), base, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, which the function does not reach any more.
        let _ = unsafe { munmap(self.base, self.len.get()) };
    }
}

fn configuration() -> [u8; 256] {
    let mut space = [0; 256];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &[0x57, 0x19, 0x09, 0x08]);
    // It has capabilities, and is memory.
    put(0x06, &[0x10, 0]);
    put(0x0a, &[0x00, 0x05]);
    put(0x2c, &[0x57, 0x19, 0x01, 0x00]);
    put(0x34, &[MSIX as u8]);
    let last = SHAPE.vectors as u8 - 1;
    put(MSIX, &[0x11, EXPRESS as u8, last, 0, VECTORS_BAR, 0, 0, 0, VECTORS_BAR, 0x08, 0, 0]);
    // An endpoint that can be reset alone.
    put(EXPRESS, &[0x10, 0, 0x02, 0, 0, 0, 0, 0x10]);
    space
}

fn interrupts() -> Vec<IrqInfo> {
    let kind = |index| match index {
        VFIO_PCI_MSIX_IRQ_INDEX => {
            let flags = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE;
            IrqInfo { index, flags, count: SHAPE.vectors as u32 }
        }
        _ => IrqInfo { index, flags: 0, count: 0 },
    };
    (0..VFIO_PCI_NUM_IRQS).map(kind).collect()
}

fn regions(end: &End) -> Vec<ServerRegion> {
    let region = |index| {
        let size = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => end.config.len() as u64,
            _ if index == u32::from(VECTORS_BAR) => PAGE,
            0..=LAST_WINDOW => end.function.bar_size(index as usize) as u64,
            _ => 0,
        };
        let flags = match size {
            0 => 0,
            _ => VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
        };
        let argsz = size_of::<vfio_region_info>() as u32;
        let region_info = vfio_region_info { argsz, flags, index, size, ..Default::default() };
        ServerRegion { region_info, sparse_areas: vec![], mmap_fd: None }
    };
    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}

impl End {
    /// Until the guest ends.
    fn answer(mut self, server: &Server) {
        if let Err(error) = server.run(&mut self) {
            eprintln!("side {} of a link: {error}", self.side);
        }
        self.untie();
        self.unmap(0, u64::MAX);
        // As the firmware does when the slot of a host loses its power.
        self.bench.reset(self.side);
    }

    fn untie(&self) {
        (0..SHAPE.vectors).for_each(|vector| self.bench.tie(self.side, vector, None));
    }

    /// Takes back all memory in a range.
    fn unmap(&mut self, address: u64, len: u64) {
        let end = address.saturating_add(len);
        let inside = |(address, len): &(u64, usize)| address + *len as u64 <= end;
        let pieces = self.maps.range(address..end).map(|(address, len)| (*address, *len));
        for (address, len) in pieces.filter(inside).collect::<Vec<_>>() {
            self.maps.remove(&address);
            self.function.unmap(address, len);
        }
    }
}

impl ServerBackend for End {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let (at, bar) = (offset as usize, region as usize);
        data.fill(0xff);
        match (region, data.len()) {
            (VFIO_PCI_CONFIG_REGION_INDEX, len) => {
                let bytes = self.config.get(at..at + len);
                bytes.into_iter().for_each(|bytes| data.copy_from_slice(bytes));
            }
            // SAFETY: a slice is writable for its length.
            (FIRST_WINDOW..=LAST_WINDOW, len) => unsafe {
                self.function.load(bar, at, data.as_mut_ptr(), len);
            },
            (0, 2) => data.copy_from_slice(&self.function.read16(bar, at).to_le_bytes()),
            (0, 4) => data.copy_from_slice(&self.function.read32(bar, at).to_le_bytes()),
            (0, 8) => data.copy_from_slice(&self.function.read64(bar, at).to_le_bytes()),
            _ => {}
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let (at, bar) = (offset as usize, region as usize);
        match (region, data) {
            (VFIO_PCI_CONFIG_REGION_INDEX, [low, high, ..])
                if at == CONTROL && u16::from_le_bytes([*low, *high]) & RESETS != 0 =>
            {
                self.bench.reset(self.side);
            }
            (VFIO_PCI_CONFIG_REGION_INDEX, [low, high, ..]) if at == COMMAND => {
                self.config[COMMAND..COMMAND + 2].copy_from_slice(&[*low, *high]);
            }
            // SAFETY: a slice is readable for its length.
            (FIRST_WINDOW..=LAST_WINDOW, _) => unsafe {
                self.function.store(bar, at, data.as_ptr(), data.len());
            },
            (0 | 2, &[a, b]) => self.function.write16(bar, at, u16::from_le_bytes([a, b])),
            (0 | 2, &[a, b, c, d]) => {
                self.function.write32(bar, at, u32::from_le_bytes([a, b, c, d]));
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        // What is not memory that may be written is nothing for windows to lead to.
        let Some(file) = fd.filter(|_| flags.contains(DmaMapFlags::READ_WRITE)) else {
            return Ok(());
        };
        let about = file.metadata()?;
        let is_it = |memory: &Memory| memory.file == (about.dev(), about.ino());
        let place = match self.memory.iter().position(is_it) {
            Some(place) => place,
            None => {
                self.memory.push(Memory::map(&file)?);
                self.memory.len() - 1
            }
        };
        let Memory { base, len, .. } = &self.memory[place];
        if offset.checked_add(size).is_none_or(|end| end > len.get() as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = base.as_ptr().cast::<u8>().wrapping_add(offset as usize);
        // SAFETY: inside of the mapping; `unmap` takes it back before that goes.
        unsafe { self.function.map(address, at, size as usize) }.map_err(io::Error::other)?;
        self.maps.insert(address, size as usize);
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        match flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            true => self.unmap(0, u64::MAX),
            false => self.unmap(address, size),
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.bench.reset(self.side);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        _flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        if count == 0 {
            self.untie();
        }
        let events = fds.into_iter().map(|file| {
            // SAFETY: what comes with this message is an event.
            unsafe { EventFd::from_owned_fd(OwnedFd::from(file)) }
        });
        let vectors =
            (start..start.saturating_add(count)).take_while(|v| *v < SHAPE.vectors as u32);
        let mut events = events.fuse();
        for vector in vectors {
            self.bench.tie(self.side, vector as usize, events.next());
        }
        Ok(())
    }
}
