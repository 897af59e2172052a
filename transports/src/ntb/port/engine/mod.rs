// SPDX-License-Identifier: Apache-2.0
//! DMA engines that are PCI functions of their own, and write through the windows of a bridge.
//!
//! ```text
//!  memory of the program --- reads ---> engine --- writes ---> window of the bridge ---> peer
//!            ^                             |
//!            +------- writes back ---------+        one IOMMU domain: a VFIO container
//! ```
//!
//! - An engine is opened in the address space of the bridge. What it may read is mapped there when it is
//!   registered with the port, and so is the window itself (memory of a function, which the engine then
//!   reaches by way of the root complex or of a switch).
//! - Whether it does reach it depends on the machine, so it is tried: when a channel first opens a range,
//!   the engine writes a pattern into the page that the peer's port keeps for this one, and the CPU reads it
//!   there. Otherwise opening fails with the reason, and the CPU copies.
//! - Several channels share an engine; each engine has a thread that its interrupts wake.
//!
//! What a channel promises ([`DmaChannel`]), and by which rule it holds:
//!
//! | promise | rule |
//! |---|---|
//! | who sees a flag sees the data before it | The CPU writes the flag, after it has seen that the descriptor was written back. PCI Express has posted writes of one requester and traffic class not pass each other unless they are marked so, and the function is forbidden to mark them ([`chip::in_order`]): so the data was ahead of what was written back on all they have in common. From there, data and flag keep to the producer-consumer rule of PCI: whoever has seen a later write of a requester, wherever, comes after the earlier ones with what it then does, wherever. |
//! | and all that was written before | A transfer finishes when all before it have; the order between descriptors is not used. |
//! | a flag appears whole | It is a store of the CPU, like any other of a window. The engine may cut its writes anywhere. |
//! | nothing is written to a range that is not open | It is looked at before the descriptor is written, and before the flag is. When the link has changed, the engine is stopped, and what it has not carried out has failed. |
//! | and its writes come before what the CPU writes then | They were written back, or the engine has answered that it has stopped: what holds for flags holds for that. |
//! | a channel that is closed reads and writes nothing | Its transfers are waited for; an engine that does not end them is stopped, and if it does not say that it has stopped, it loses the right to reach memory (bus mastering) and is reset. The same when a process ends, by the kernel. |
//! | sources of transfers that finished are not read | As above: what was not written back has failed only after the engine was stopped. |
//!
//! [`DmaChannel`]: super::DmaChannel

mod channel;
pub mod chip;
pub mod ioat;
pub mod nearest;
pub mod plx;
mod queue;
#[cfg(test)]
pub mod testing;

pub use channel::{Attendant, Channel, Engine, Host, PATTERN};
pub use queue::{PER_HANDLE, Source};

use super::functions::{EngineName, Function, Role};
use super::{Event, PortError, Result, vfio};
use chip::Chip;

/// A window of the peer, as a channel writes to it. Only what does not wait for others.
pub trait Window: Send {
    /// As [`Outbound::open`](super::Outbound::open), by what is known of the link.
    fn open(&mut self, offset: usize, len: usize) -> Result<()>;

    /// How many bytes of a range may be written from its start on; what may not is counted.
    fn permitted(&mut self, offset: usize, len: usize) -> usize;

    /// Writes a word if that is open, and has it leave.
    fn store_flag(&mut self, offset: usize, value: u64);

    /// Where functions reach the start of the window.
    fn address(&self) -> u64;

    /// The generation of the link; 0 when it is down.
    fn generation(&self) -> u64;

    fn count(&self, event: Event);
}

/// Takes over an engine's function.
pub fn open(function: &Function, device: vfio::Device) -> Result<Box<dyn Chip>> {
    match function.kind.role {
        Role::Engine(EngineName::Plx) => plx::open(device),
        Role::Engine(EngineName::Ioat) => ioat::open(device),
        Role::Port(_) => Err(PortError::Unsupported("DMA engine at a link")),
    }
}
