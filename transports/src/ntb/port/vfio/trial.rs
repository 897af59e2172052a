// SPDX-License-Identifier: Apache-2.0
//! Memory of this process that a device reads and writes: tried on the `edu` device of QEMU, which
//! copies between memory of the machine, or of another device, and a buffer of its own.

use super::{Bar, Device, join, open, order};
use crate::ntb::port::functions::Function;
use crate::ntb::port::{InboundMemory, PortError, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_core::memory::page_size;

/// Registers of the device: from, to, bytes, and what to do.
const SOURCE: usize = 0x80;
const DEST: usize = 0x88;
const BYTES: usize = 0x90;
const COMMAND: usize = 0x98;
const START: u64 = 1;
const TO_MEMORY: u64 = 2;
/// The device's buffer, as it calls it.
const BUFFER: u64 = 0x40000;
const PATIENCE: Duration = Duration::from_secs(60);

/// The device that copies.
struct Copier {
    device: Arc<Device>,
    registers: Bar,
}

impl Copier {
    fn new(function: &Function) -> Result<Copier> {
        let device = open(&[function])?.pop().ok_or(PortError::Unsupported("device"))?;
        let device = Arc::new(device);
        Ok(Copier { registers: device.map(0)?, device })
    }

    /// Copies a word from one address to another; `direction` says which of them is the buffer.
    fn copy(&self, from: u64, to: u64, direction: u64) -> Result<()> {
        let at = |offset: usize| self.registers.base().as_ptr().wrapping_add(offset).cast::<u64>();
        for (offset, value) in
            [(SOURCE, from), (DEST, to), (BYTES, 8), (COMMAND, START | direction)]
        {
            order::before_store();
            // SAFETY: an aligned register of the device, which is mapped.
            unsafe { at(offset).write_volatile(value) };
        }
        let begun = Instant::now();
        // SAFETY: as above.
        while unsafe { at(COMMAND).read_volatile() } & START != 0 {
            if begun.elapsed() > PATIENCE {
                return Err(PortError::Busy("the device does not end a copy".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        order::after_load();
        Ok(())
    }

    /// Memory of this process at an address of the device, until the process ends.
    fn shared(&self) -> Result<(InboundMemory, u64)> {
        let memory = InboundMemory::new(4096)?;
        let address = self.device.reserve(1 << 20, 1 << 20)?;
        // SAFETY: unmapped by the caller, or by the end of this process.
        unsafe { self.device.map_memory(address, memory.base(), memory.size())? };
        Ok((memory, address))
    }
}

fn expect(what: &str, found: u64, value: u64) -> Result<()> {
    match found == value {
        true => Ok(()),
        false => Err(PortError::Invalid(format!("{what}: {found:#x}, expected {value:#x}"))),
    }
}

/// Has the device at `function` copy a word within memory that is mapped for it, and then to memory
/// that is not any more. The error says what went otherwise than it should.
pub fn memory_reaches_a_device(function: &Function) -> Result<()> {
    let copier = Copier::new(function)?;
    let (memory, address) = copier.shared()?;
    memory.store(0, 0x0123_4567_89ab_cdef);
    copier.copy(address, BUFFER, 0)?;
    copier.copy(BUFFER, address + 64, TO_MEMORY)?;
    expect("while it is mapped", memory.load(64), 0x0123_4567_89ab_cdef)?;
    copier.device.unmap_memory(address, memory.size())?;
    copier.copy(BUFFER, address + 128, TO_MEMORY)?;
    expect("when it is not", memory.load(128), 0)
}

/// Has the device at `function` copy a word from memory of this process to memory of the device at `other`,
/// behind its base address register `bar`, as a DMA engine writes through the window of a bridge; and then to
/// the same when it is not mapped any more.
pub fn memory_of_a_device_reaches_another(
    function: &Function,
    other: &Function,
    bar: u32,
) -> Result<()> {
    let copier = Copier::new(function)?;
    let other = Arc::new(join(&copier.device, other)?);
    let behind = other.map(bar)?;
    let word = |index: usize| behind.base().as_ptr().wrapping_add(8 * index).cast::<u64>();
    for index in 0..2 {
        // SAFETY: words of the mapped range, which has a page at least.
        unsafe { word(index).write_volatile(7) };
    }
    // SAFETY: as above.
    let read = |index: usize| unsafe { word(index).read_volatile() };
    let (memory, source) = copier.shared()?;
    memory.store(0, 0x0123_4567_89ab_cdef);
    let window = copier.device.reserve(1 << 20, 1 << 20)?;
    // SAFETY: memory of a device, mapped as long as the value lives, and unmapped below.
    unsafe { copier.device.map_memory(window, behind.base().as_ptr(), page_size())? };
    copier.copy(source, BUFFER, 0)?;
    copier.copy(BUFFER, window, TO_MEMORY)?;
    expect("while it is mapped", read(0), 0x0123_4567_89ab_cdef)?;
    copier.device.unmap_memory(window, page_size())?;
    copier.copy(BUFFER, window + 8, TO_MEMORY)?;
    expect("when it is not", read(1), 7)
}
