// SPDX-License-Identifier: Apache-2.0
//! What one kind of engine does in its own way: its registers and its descriptors.

use crate::ntb::port::bridge::Device;
use crate::ntb::port::vfio::express;
use crate::ntb::port::{InboundMemory, PortError, Result};
use std::sync::Arc;

/// Descriptors that an engine is given memory for: as many as Linux has, and more than can be under way.
pub const DESCRIPTORS: usize = 2048;
/// Bytes of a descriptor at most: so that an engine stops soon when it has to.
pub const MAX_LEN: usize = 1 << 20;

/// What a kind of engine has.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name of the hardware, for people.
    pub name: &'static str,
    /// Longest copy of one descriptor, bytes.
    pub max_len: usize,
    /// Descriptors that it can be given before the first of them has ended.
    pub descriptors: usize,
    /// Addresses that it can reach are below this.
    pub addresses: u64,
}

/// A copy between two addresses of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub from: u64,
    pub to: u64,
    /// At least 1, at most [`Facts::max_len`].
    pub len: u32,
    /// It interrupts when it has ended.
    pub tells: bool,
}

/// How an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works, for all that it says.
    Working,
    /// It has met an error and does not go on by itself.
    Halted,
    /// Its registers read as all ones.
    Gone,
}

/// A kind of engine: one channel of it. Copies are numbered from 0. No more of them are under way than
/// there are descriptors.
pub trait Chip: Send {
    fn facts(&self) -> Facts;

    /// The function, for what all engines do alike.
    fn device(&self) -> &Arc<dyn Device>;

    /// Writes a descriptor.
    fn put(&mut self, number: u64, copy: &Copy);

    /// Has the engine carry out what was put.
    fn go(&mut self);

    /// What has become of a copy that was put: whether it was carried out, once it has ended.
    fn outcome(&mut self, number: u64) -> Option<bool>;

    /// Looks at an engine that does not go on, and has it go on if it has missed that it should.
    fn look(&mut self) -> Health;

    /// Takes what an interrupt has told.
    fn attend(&mut self) {}

    /// Ends all that was put. True: the engine says that it has stopped.
    fn stop(&mut self) -> bool;

    /// Begins again, stopped or not, with `next` as the number of the next copy.
    fn start(&mut self, next: u64) -> Result<()>;
}

const COMMAND: usize = 4;
const MASTER: u16 = 4;
/// Where the control registers of a PCI Express function are behind the head of its capability.
const CONTROL: usize = 8;
const CONTROL_2: usize = 0x28;
/// Lets a function mark writes that may pass others: of its own, and of other requesters.
const RELAXED: u16 = 1 << 4;
const BY_ID: u16 = 1 << 8;

/// Forbids a function to have its writes pass each other, and lets it reach memory.
pub fn in_order(device: &dyn Device) -> Result<()> {
    if let Some(at) = express(|offset| device.config16(offset)) {
        let version = device.config16(at + 2) & 0xf;
        let second = (version >= 2).then_some((CONTROL_2, BY_ID));
        for (register, bit) in [(CONTROL, RELAXED)].into_iter().chain(second) {
            device.set_config16(at + register, device.config16(at + register) & !bit)?;
            if device.config16(at + register) & bit != 0 {
                return Err(PortError::Invalid(format!(
                    "{} may reorder its writes, and does not let that be turned off",
                    device.describe()
                )));
            }
        }
    }
    device.set_config16(COMMAND, device.config16(COMMAND) | MASTER)
}

/// Makes sure that a function reaches no memory any more, whatever it does. The answer to the last
/// read comes behind all that it has written.
pub fn silence(device: &dyn Device) {
    let off = device.set_config16(COMMAND, device.config16(COMMAND) & !MASTER);
    device.config16(COMMAND);
    if let Err(error) = off.and_then(|()| device.reset()) {
        tracing::warn!(%error, "stopping a DMA engine");
    }
}

/// Memory of this process that functions reach at an address, for as long as it lives.
pub struct Shared {
    pub memory: InboundMemory,
    pub address: u64,
    device: Arc<dyn Device>,
}

impl Shared {
    /// `len` bytes, zeroed, at an address below `limit`.
    pub fn new(device: &Arc<dyn Device>, len: usize, limit: u64) -> Result<Shared> {
        let memory = InboundMemory::new(len)?;
        let len = memory.size() as u64;
        let address = device.reserve(len, len.next_power_of_two())?;
        if address > limit || limit - address < len {
            return Err(PortError::Exhausted(format!(
                "{} does not reach the address {address:#x}",
                device.describe()
            )));
        }
        // SAFETY: the memory lives as long as the value, which takes it back first.
        unsafe { device.map(address, memory.base(), memory.size())? };
        Ok(Shared { memory, address, device: device.clone() })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.device.unmap(self.address, self.memory.size());
    }
}
