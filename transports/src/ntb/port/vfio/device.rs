// SPDX-License-Identifier: Apache-2.0
//! An open PCI function: its registers, memory and interrupts.

use super::{Container, call};
use crate::ntb::port::shared::DeviceShare;
use crate::ntb::port::{PcieGen, PortError, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::*;

const GET_REGION_INFO: u32 = 8;
const GET_IRQ_INFO: u32 = 9;
const SET_IRQS: u32 = 10;
const RESET: u32 = 11;

/// The command register in configuration space, and what it has to say: the function answers to its
/// memory and may raise message-signalled interrupts.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u16 = 2 | 4;

/// Where the list of capabilities starts, and what their entries are.
const CAPABILITIES: usize = 0x34;
const EXPRESS: u16 = 0x10;
/// Entries that configuration space has room for: a broken list has an end as well.
const CAPABILITIES_MAX: usize = 48;

/// Where a function's configuration space says what it is on PCI Express; none on others.
pub fn express(config: impl Fn(usize) -> u16) -> Option<usize> {
    let mut at = usize::from(config(CAPABILITIES) & 0xfc);
    for _ in 0..CAPABILITIES_MAX {
        if at < 0x40 {
            break;
        }
        let head = config(at);
        if head & 0xff == EXPRESS {
            return Some(at);
        }
        at = usize::from(head >> 8 & 0xfc);
    }
    None
}

/// What a PCIe link was trained to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trained {
    pub speed: PcieGen,
    pub width: u32,
    pub max_payload: u32,
}

impl Trained {
    /// As configuration space tells, read by two bytes. Functions that tell nothing, such as those of
    /// virtual machines, have a single lane of the first generation.
    pub fn of(config: impl Fn(usize) -> u16) -> Trained {
        let none = Trained { speed: PcieGen::Gen1, width: 1, max_payload: 128 };
        let Some(at) = express(&config) else { return none };
        let (control, status) = (config(at + 8), config(at + 0x12));
        Trained {
            max_payload: 128 << (control >> 5 & 7).min(5),
            ..Trained::of_status(status).unwrap_or(none)
        }
    }

    /// As the status register of a link tells; none where there is no link.
    pub fn of_status(status: u16) -> Option<Trained> {
        let speed = match status & 0xf {
            0 | 0xf => return None,
            number => PcieGen::ALL[usize::from(number).min(PcieGen::ALL.len()) - 1],
        };
        let width = u32::from(status >> 4 & 0x3f);
        (width > 0).then_some(Trained { speed, width, max_payload: 128 })
    }
}

/// An open function.
#[derive(Debug)]
pub struct Device {
    file: File,
    address: String,
    /// None in a process that was given the descriptor by another one.
    container: Option<Arc<Container>>,
    /// Where configuration space starts in the file.
    space: u64,
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
        let mut device = Device::of(file, address)?;
        device.container = Some(container);
        let failed = |e| PortError::system(format!("enabling {}", device.address), e);
        let mut command = [0; 2];
        device.file.read_exact_at(&mut command, device.space + COMMAND).map_err(failed)?;
        let command = u16::from_le_bytes(command) | MEMORY_AND_MASTER;
        device.file.write_all_at(&command.to_le_bytes(), device.space + COMMAND).map_err(failed)?;
        Ok(device)
    }

    fn of(file: File, address: String) -> Result<Device> {
        let mut device = Device { file, address, container: None, space: 0 };
        device.space = device.region(VFIO_PCI_CONFIG_REGION_INDEX)?.offset;
        Ok(device)
    }

    /// A function that another process has open, from its descriptor: its memory can be mapped.
    pub fn beside(file: OwnedFd, address: String) -> Result<Device> {
        Device::of(file.into(), address)
    }

    /// What another process needs for that.
    pub fn share(&self) -> Result<DeviceShare> {
        let file = self.file.try_clone();
        let file =
            file.map_err(|e| PortError::system("duplicating the descriptor of a device", e))?;
        Ok(DeviceShare::File(file.into(), self.address.clone()))
    }

    /// Puts memory that leads nowhere in the place of ranges of the function, and closes it: as long as a process has it
    /// open or mapped, the kernel does not reset it, and nobody else can open it.
    pub fn abandon<'a>(&self, bars: impl Iterator<Item = &'a Bar>) {
        for bar in bars {
            // SAFETY: the range is that of the value, which is used by stores and loads alone and takes it back.
            if let Err(error) = unsafe { lead_nowhere(bar.base, bar.size) } {
                tracing::warn!(%error, "leaving the memory of {}", self.address);
            }
        }
        let nothing = File::open("/dev/null");
        let closed = nothing.and_then(|nothing| {
            // SAFETY: both are descriptors of this process, and that of the value goes on to be one.
            match unsafe { libc::dup3(nothing.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) }
            {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "closing {}", self.address);
        }
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

    /// Whether there is memory behind a base address register that can be mapped.
    pub fn has_memory(&self, index: u32) -> Result<bool> {
        let info = self.region(index)?;
        Ok(info.size > 0 && info.flags & VFIO_REGION_INFO_FLAG_MMAP != 0)
    }

    /// Ties every MSI-X vector to an event of its own, up to `most` and as many as the machine has left.
    pub fn interrupts(&self, most: u32) -> Result<Vec<EventFd>> {
        self.vectors(VFIO_PCI_MSIX_IRQ_INDEX, most)
    }

    /// The same, or vectors of MSI where the function has no others. Says whether they are of MSI-X.
    pub fn interrupts_of_any_kind(&self, most: u32) -> Result<(Vec<EventFd>, bool)> {
        let events = self.interrupts(most)?;
        match events.is_empty() {
            true => Ok((self.vectors(VFIO_PCI_MSI_IRQ_INDEX, most)?, false)),
            false => Ok((events, true)),
        }
    }

    fn vectors(&self, index: u32, most: u32) -> Result<Vec<EventFd>> {
        let mut info =
            vfio_irq_info { argsz: size_of::<vfio_irq_info>() as u32, flags: 0, index, count: 0 };
        let failed = |e| PortError::system(format!("interrupts of {}", self.address), e);
        self.call(GET_IRQ_INFO, &raw mut info).map_err(failed)?;
        let count = info.count.min(most);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = |_| EventFd::from_value_and_flags(0, flags);
        let mut events: Vec<EventFd> = (0..count)
            .map(event)
            .collect::<nix::Result<_>>()
            .map_err(|e| PortError::system("making events for interrupts", e))?;
        tie(&mut events, |events| {
            let head = size_of::<vfio_irq_set>() as u32;
            let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
            let count = events.len() as u32;
            // The structure ends in an array of as many descriptors as it says.
            let mut set = vec![head + 4 * count, flags, index, 0, count];
            set.extend(events.iter().map(|event| event.as_fd_number()));
            self.call(SET_IRQS, set.as_mut_ptr())
        })
        .map_err(failed)?;
        Ok(events)
    }

    /// Two bytes of configuration space; all ones where they cannot be read.
    pub fn config16(&self, offset: usize) -> u16 {
        let mut bytes = [0; 2];
        let read = self.file.read_exact_at(&mut bytes, self.space + offset as u64);
        read.map_or(u16::MAX, |()| u16::from_le_bytes(bytes))
    }

    /// Writes two bytes of configuration space.
    pub fn set_config16(&self, offset: usize, value: u16) -> Result<()> {
        let written = self.file.write_all_at(&value.to_le_bytes(), self.space + offset as u64);
        written.map_err(|e| PortError::system(format!("configuring {}", self.address), e))
    }

    /// Resets the function.
    pub fn reset(&self) -> Result<()> {
        let done = call(self.file.as_raw_fd(), RESET, 0);
        done.map(|_| ()).map_err(|e| PortError::system(format!("resetting {}", self.address), e))
    }

    pub(super) fn container(&self) -> Result<&Arc<Container>> {
        let none = PortError::Unsupported("address space: another process has the device open");
        self.container.as_ref().ok_or(none)
    }

    /// The link between the function and this machine.
    pub fn trained(&self) -> Result<Trained> {
        Ok(Trained::of(|offset| self.config16(offset)))
    }

    /// See `bridge::device::Device`.
    pub fn reserve(&self, len: u64, align: u64) -> Result<u64> {
        self.container()?.reserve(len, align)
    }

    /// Puts memory behind an address of the functions.
    ///
    /// # Safety
    /// The memory stays mapped until `unmap_memory`; the functions may write it at any time.
    pub unsafe fn map_memory(&self, address: u64, base: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.container()?.map(address, base, len) }
    }

    /// Takes it back, whole.
    pub fn unmap_memory(&self, address: u64, len: usize) -> Result<()> {
        self.container()?.unmap(address, len)
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

    fn call<T>(&self, number: u32, argument: *mut T) -> io::Result<i32> {
        call(self.file.as_raw_fd(), number, argument as libc::c_ulong)
    }
}

/// Puts private memory, of zeros, in the place of a range.
///
/// # Safety
/// Nobody believes that the range is what it was, and whoever uses it does so by raw pointers or atomics.
pub unsafe fn lead_nowhere(base: NonNull<u8>, size: usize) -> io::Result<()> {
    let size = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
    let at = NonZeroUsize::new(base.as_ptr().addr());
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the caller's promise.
    unsafe { mmap_anonymous(at, size, access, flags)? };
    Ok(())
}

/// Ties events to vectors by `set`, whose answer is 0, or how many vectors there are where those are fewer than
/// events. Then none is tied, and the events that are too many go.
fn tie(
    events: &mut Vec<EventFd>,
    mut set: impl FnMut(&[EventFd]) -> io::Result<i32>,
) -> io::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let there = usize::try_from(set(events)?).unwrap_or(0);
    if there == 0 {
        return Ok(());
    }
    let asked = events.len();
    events.truncate(there);
    match set(events)? {
        0 => Ok(()),
        _ => Err(io::Error::other(format!(
            "of {asked} vectors this machine has {there}, and does not give them either"
        ))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_a_function_is_found_in_any_configuration_space() {
        let mut space = [0u8; 256];
        let of = |space: &[u8; 256]| {
            Trained::of(|at| u16::from_le_bytes([space[at % 256], space[(at + 1) % 256]]))
        };
        assert_eq!(of(&space).width, 1, "no list");
        space[0x34] = 0x40;
        (space[0x40], space[0x41]) = (5, 0x60);
        (space[0x60], space[0x68], space[0x72]) = (0x10, 1 << 5, 0x83);
        let gen3 = Trained { speed: PcieGen::Gen3, width: 8, max_payload: 256 };
        assert_eq!(of(&space), gen3);
        space[0x60] = 9;
        space[0x61] = 0x40;
        assert_eq!(of(&space).width, 1, "a list without end");
        assert_eq!(of(&[0xff; 256]).width, 1, "a function that does not answer");
        for (status, speed) in [
            (0x0104, PcieGen::Gen4),
            (0x0105, PcieGen::Gen5),
            (0x0106, PcieGen::Gen6),
            (0x0107, PcieGen::Gen6),
        ] {
            assert_eq!(Trained::of_status(status).map(|link| link.speed), Some(speed));
        }
    }

    /// Ties up to `asked` events on a machine that has some vectors; says how many are tied in the end.
    fn tied(asked: usize, there: &[i32]) -> io::Result<(usize, Vec<usize>)> {
        let event = |_| EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
        let mut events: Vec<EventFd> = (0..asked).map(event).collect();
        let (mut calls, mut there) = (vec![], there.iter());
        tie(&mut events, |events| {
            calls.push(events.len());
            there.next().copied().ok_or(io::ErrorKind::OutOfMemory.into())
        })?;
        Ok((events.len(), calls))
    }

    #[test]
    fn fewer_vectors_than_asked_for_are_used() {
        assert_eq!(tied(33, &[0]).unwrap(), (33, vec![33]));
        assert_eq!(tied(33, &[8, 0]).unwrap(), (8, vec![33, 8]), "none is tied by the first call");
        assert_eq!(tied(0, &[]).unwrap(), (0, vec![]));
        let why = tied(33, &[8, 4]).unwrap_err().to_string();
        assert!(why.contains("of 33 vectors this machine has 8"), "{why}");
        assert_eq!(tied(33, &[]).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
