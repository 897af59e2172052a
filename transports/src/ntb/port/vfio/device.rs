// SPDX-License-Identifier: Apache-2.0
//! An open PCI function: its registers, memory and interrupts.

use super::{Container, call};
use crate::ntb::port::{PortError, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::*;

const GET_REGION_INFO: u32 = 8;
const GET_IRQ_INFO: u32 = 9;
const SET_IRQS: u32 = 10;

/// The command register in configuration space, and what it has to say: the function answers to its
/// memory and may raise message-signalled interrupts.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u16 = 2 | 4;

/// An open function.
#[derive(Debug)]
pub struct Device {
    file: File,
    address: String,
    _container: Arc<Container>,
}

/// A memory range of a function, mapped into this process for as long as the value lives.
#[derive(Debug)]
pub struct Bar {
    base: NonNull<u8>,
    size: usize,
    /// The mapping stays without it, but the function does not answer any more.
    _device: Arc<Device>,
}

// SAFETY: memory of a device, shared with others anyway; access is by raw pointer or atomically.
unsafe impl Send for Bar {}
// SAFETY: as above.
unsafe impl Sync for Bar {}

impl Device {
    /// Takes over a descriptor and lets the function answer.
    ///
    /// # Safety
    /// `fd` is a descriptor of a VFIO device that nobody else owns.
    pub(super) unsafe fn new(
        fd: RawFd,
        address: String,
        container: Arc<Container>,
    ) -> Result<Device> {
        // SAFETY: the caller's promise.
        let file = unsafe { File::from_raw_fd(fd) };
        let device = Device { file, address, _container: container };
        let space = device.region(VFIO_PCI_CONFIG_REGION_INDEX)?;
        let failed = |e| PortError::system(format!("enabling {}", device.address), e);
        let mut command = [0; 2];
        device.file.read_exact_at(&mut command, space.offset + COMMAND).map_err(failed)?;
        let command = u16::from_le_bytes(command) | MEMORY_AND_MASTER;
        device.file.write_all_at(&command.to_le_bytes(), space.offset + COMMAND).map_err(failed)?;
        Ok(device)
    }

    /// Where it is on the bus, for people.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Maps the memory of a base address register. The kernel maps it without caching or
    /// write-combining, unless it is the memory of a virtual machine.
    pub fn map(self: &Arc<Device>, index: u32) -> Result<Bar> {
        let info = self.region(index)?;
        let size = usize::try_from(info.size).ok().and_then(NonZeroUsize::new);
        let size = size.filter(|_| info.flags & VFIO_REGION_INFO_FLAG_MMAP != 0);
        let size = size.ok_or_else(|| {
            PortError::Invalid(format!("{} has no memory behind BAR {index}", self.address))
        })?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let offset = libc::off_t::try_from(info.offset)
            .map_err(|_| PortError::Invalid("an offset that no file has".into()))?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, &self.file, offset) };
        let base = base.map_err(|e| {
            PortError::system(format!("mapping BAR {index} of {}", self.address), e)
        })?;
        Ok(Bar { base: base.cast(), size: size.get(), _device: self.clone() })
    }

    /// Ties every MSI-X vector to an event of its own, up to `most`.
    pub fn interrupts(&self, most: u32) -> Result<Vec<EventFd>> {
        let mut info = vfio_irq_info {
            argsz: size_of::<vfio_irq_info>() as u32,
            flags: 0,
            index: VFIO_PCI_MSIX_IRQ_INDEX,
            count: 0,
        };
        let failed = |e| PortError::system(format!("interrupts of {}", self.address), e);
        self.call(GET_IRQ_INFO, &raw mut info).map_err(failed)?;
        let count = info.count.min(most);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = |_| EventFd::from_value_and_flags(0, flags);
        let events: Vec<EventFd> = (0..count)
            .map(event)
            .collect::<nix::Result<_>>()
            .map_err(|e| PortError::system("making events for interrupts", e))?;
        if count > 0 {
            let head = size_of::<vfio_irq_set>() as u32;
            let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
            // The structure ends in an array of as many descriptors as it says.
            let mut set = vec![head + 4 * count, flags, VFIO_PCI_MSIX_IRQ_INDEX, 0, count];
            set.extend(events.iter().map(|event| event.as_fd_number()));
            self.call(SET_IRQS, set.as_mut_ptr()).map_err(failed)?;
        }
        Ok(events)
    }

    fn region(&self, index: u32) -> Result<vfio_region_info> {
        let mut info = vfio_region_info {
            argsz: size_of::<vfio_region_info>() as u32,
            flags: 0,
            index,
            cap_offset: 0,
            size: 0,
            offset: 0,
        };
        self.call(GET_REGION_INFO, &raw mut info)
            .map_err(|e| PortError::system(format!("region {index} of {}", self.address), e))?;
        Ok(info)
    }

    fn call<T>(&self, number: u32, argument: *mut T) -> std::io::Result<i32> {
        call(self.file.as_raw_fd(), number, argument as libc::c_ulong)
    }
}

/// The number of a descriptor as VFIO takes it.
trait Number {
    fn as_fd_number(&self) -> u32;
}

impl Number for EventFd {
    fn as_fd_number(&self) -> u32 {
        use std::os::fd::AsFd;
        self.as_fd().as_raw_fd() as u32
    }
}

impl Bar {
    /// First byte. Others write at any time: no references into it, only raw and atomic access.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`; whatever was borrowed from it holds the value.
        let _ = unsafe { munmap(self.base.cast(), self.size) };
    }
}
