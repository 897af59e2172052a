// SPDX-License-Identifier: Apache-2.0
//! The device itself: shared memory, a register that interrupts the peer, interrupts from it.

use crate::ntb::port::shared::DeviceShare;
use crate::ntb::port::vfio::{self, Bar};
use crate::ntb::port::{PortError, Result};
use nix::sys::eventfd::EventFd;
use std::fmt::Debug;
use std::sync::Arc;

/// Vectors that are used at most: there are no more doorbell bits.
pub const VECTORS_MAX: u32 = 16;

/// Registers of the device, in BAR 0.
const REGISTERS: u32 = 0;
const POSITION: usize = 8;
const DOORBELL: usize = 12;
const REGISTERS_SIZE: usize = 16;
/// BAR of the shared memory.
const MEMORY: u32 = 2;

/// What the port needs of a device.
pub trait Device: Debug + Send + Sync {
    /// The shared memory, mapped as long as the device is held.
    fn memory(&self) -> (*mut u8, usize);

    /// The number that the server gave it.
    fn position(&self) -> u32;

    /// Interrupts the device with number `peer`; nothing happens if there is none, or no such vector.
    fn ring(&self, peer: u16, vector: u16);

    /// Raised by the peer, one for each vector.
    fn interrupts(&self) -> &[EventFd];

    /// What another process of this host needs to use the memory and to interrupt.
    fn share(&self) -> Result<DeviceShare> {
        Err(PortError::Unsupported("way for several processes to use it"))
    }

    /// In such a process: lets go of the device, whose owner has ended. Its memory is of zeros then.
    fn abandon(&self) {}

    /// What it is and where, for people.
    fn describe(&self) -> String;
}

/// The PCI function.
#[derive(Debug)]
pub struct PciDevice {
    device: Arc<vfio::Device>,
    registers: Bar,
    memory: Bar,
    interrupts: Vec<EventFd>,
}

impl PciDevice {
    /// Maps the memory of a function that another process may have open.
    pub fn beside(device: vfio::Device) -> Result<PciDevice> {
        // Elsewhere the kernel maps it as that of a device, where atomic operations and unaligned accesses fault.
        if cfg!(not(target_arch = "x86_64")) {
            return Err(PortError::Invalid(format!(
                "{} shares memory that only programs on x86-64 can use as such",
                device.address()
            )));
        }
        let device = Arc::new(device);
        let (registers, memory) = (device.map(REGISTERS)?, device.map(MEMORY)?);
        if registers.size() < REGISTERS_SIZE {
            return Err(PortError::Invalid(format!("{} lacks registers", device.address())));
        }
        Ok(PciDevice { device, registers, memory, interrupts: vec![] })
    }

    /// Takes a function over, with its interrupts.
    pub fn new(device: vfio::Device) -> Result<PciDevice> {
        let mut function = PciDevice::beside(device)?;
        function.interrupts = function.device.interrupts(VECTORS_MAX)?;
        if function.interrupts.is_empty() {
            return Err(PortError::Invalid(format!(
                "{} raises no interrupts: the virtual machine must have it as ivshmem-doorbell",
                function.device.address()
            )));
        }
        Ok(function)
    }

    fn register(&self, offset: usize) -> *mut u32 {
        self.registers.base().as_ptr().wrapping_add(offset).cast()
    }
}

impl Device for PciDevice {
    fn memory(&self) -> (*mut u8, usize) {
        (self.memory.base().as_ptr(), self.memory.size())
    }

    fn position(&self) -> u32 {
        // SAFETY: an aligned register inside the mapped range, by the check in `beside`.
        unsafe { self.register(POSITION).read_volatile() }
    }

    fn ring(&self, peer: u16, vector: u16) {
        // SAFETY: as above; the device ignores what leads nowhere.
        unsafe {
            self.register(DOORBELL).write_volatile(u32::from(peer) << 16 | u32::from(vector))
        };
    }

    fn interrupts(&self) -> &[EventFd] {
        &self.interrupts
    }

    fn share(&self) -> Result<DeviceShare> {
        self.device.share()
    }

    fn abandon(&self) {
        self.device.abandon([&self.registers, &self.memory].into_iter());
    }

    fn describe(&self) -> String {
        format!("ivshmem device {}", self.device.address())
    }
}
