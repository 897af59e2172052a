// SPDX-License-Identifier: Apache-2.0
//! Memory of this process that a device reads and writes: tried on the `edu` device of QEMU, which
//! copies between memory of the machine and a buffer of its own.

use super::{Device, open};
use crate::ntb::port::functions::Function;
use crate::ntb::port::{InboundMemory, PortError, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Has the device at `function` copy a word within memory that is mapped for it, and then to memory
/// that is not any more. The error says what went otherwise than it should.
pub fn memory_reaches_a_device(function: &Function) -> Result<()> {
    let device = open(&[function])?.pop().ok_or(PortError::Unsupported("device"))?;
    let device: Arc<Device> = Arc::new(device);
    let registers = device.map(0)?;
    let copy = |from: u64, to: u64, direction: u64| {
        let at = |offset: usize| registers.base().as_ptr().wrapping_add(offset).cast::<u64>();
        for (offset, value) in
            [(SOURCE, from), (DEST, to), (BYTES, 8), (COMMAND, START | direction)]
        {
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
        Ok(())
    };
    let memory = InboundMemory::new(4096)?;
    let address = device.reserve(1 << 20, 1 << 20)?;
    // SAFETY: unmapped below, or by the end of this process.
    unsafe { device.map_memory(address, memory.base(), memory.size())? };
    memory.store(0, 0x0123_4567_89ab_cdef);
    copy(address, BUFFER, 0)?;
    copy(BUFFER, address + 64, TO_MEMORY)?;
    let expect = |word: usize, value: u64| match memory.load(word) {
        found if found == value => Ok(()),
        found => Err(PortError::Invalid(format!("{found:#x} at {word}, expected {value:#x}"))),
    };
    expect(64, 0x0123_4567_89ab_cdef)?;
    device.unmap_memory(address, memory.size())?;
    copy(BUFFER, address + 128, TO_MEMORY)?;
    expect(128, 0)
}
