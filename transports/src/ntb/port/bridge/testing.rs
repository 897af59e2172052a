// SPDX-License-Identifier: Apache-2.0
//! Two functions of a bridge without hardware: a model plays their registers, and here are the buses
//! of the two machines that they are plugged into. For tests.

#[cfg(test)]
pub mod cases;

mod function;
mod machines;

pub use function::Function;
pub use machines::{Bench, Cable};

use super::BridgePort;
use super::device::BARS;
use crate::ntb::port::vfio::Trained;
use crate::ntb::port::{InboundMemory, NtbPort, Outbound, PcieGen, Result};
use nix::sys::eventfd::EventFd;
use std::sync::{Mutex, PoisonError};

/// The registers of a link: two functions, by side. What a machine reads or writes is aligned and
/// lies inside of a BAR.
pub trait Model: Send + Sync + 'static {
    /// Bytes of the BARs of a side.
    fn bars(&self, side: usize) -> [usize; BARS];

    /// Interrupt vectors of a side; whether they are those of MSI-X.
    fn vectors(&self, side: usize) -> (usize, bool);

    /// Two bytes of configuration space.
    fn config16(&self, _side: usize, _offset: usize) -> u16 {
        0
    }

    /// What the function of a side says of its own link to the machine.
    fn trained(&self, _side: usize) -> Trained {
        Trained { speed: PcieGen::Gen3, width: 8, max_payload: 256 }
    }

    /// What a side reads.
    fn read(&mut self, side: usize, bar: usize, offset: usize, bytes: usize) -> u64;

    /// What a side writes.
    fn write(&mut self, access: Access, value: u64, lines: &Lines);

    /// Where the bytes go that a side writes through a window: an address at the other side.
    fn route(&self, side: usize, bar: usize, offset: usize) -> Option<u64>;

    /// Whether the bridge lets functions beside it write through its windows: that of a requester number.
    fn admits(&self, _side: usize, _requester: u16) -> bool {
        true
    }

    /// A machine has reset the function of its side.
    fn reset(&mut self, side: usize, lines: &Lines);
}

/// What is written to.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// By whom.
    pub side: usize,
    /// In which base address register.
    pub bar: usize,
    /// Where in it.
    pub offset: usize,
    /// How many.
    pub bytes: usize,
}

/// The interrupt lines to both machines.
pub struct Lines {
    /// By side and vector.
    own: [Vec<EventFd>; 2],
    /// Those that lead elsewhere.
    tied: Mutex<[Vec<Option<EventFd>>; 2]>,
}

impl Lines {
    fn new(own: [Vec<EventFd>; 2]) -> Lines {
        let none = |events: &Vec<EventFd>| events.iter().map(|_| None).collect();
        Lines { tied: Mutex::new([none(&own[0]), none(&own[1])]), own }
    }

    /// Interrupts the machine of a side.
    pub fn raise(&self, side: usize, vector: usize) {
        let tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner);
        let tied = tied[side].get(vector).expect("a vector that there is");
        let event = tied.as_ref().unwrap_or(&self.own[side][vector]);
        event.write(1).expect("room in an event");
    }
}

/// The accesses of a `Device` to registers, of all widths, by one `read` and one `write` that are told the width.
macro_rules! accesses_by_width {
    () => {
        fn read32(&self, bar: usize, offset: usize) -> u32 {
            self.read(bar, offset, 4) as u32
        }

        fn write32(&self, bar: usize, offset: usize, value: u32) {
            self.write(bar, offset, 4, value.into());
        }

        fn read64(&self, bar: usize, offset: usize) -> u64 {
            self.read(bar, offset, 8)
        }

        fn write64(&self, bar: usize, offset: usize, value: u64) {
            self.write(bar, offset, 8, value);
        }

        fn read16(&self, bar: usize, offset: usize) -> u16 {
            self.read(bar, offset, 2) as u16
        }

        fn write16(&self, bar: usize, offset: usize, value: u16) {
            self.write(bar, offset, 2, value.into());
        }

        fn read8(&self, bar: usize, offset: usize) -> u8 {
            self.read(bar, offset, 1) as u8
        }

        fn write8(&self, bar: usize, offset: usize, value: u8) {
            self.write(bar, offset, 1, value.into());
        }
    };
}
pub(in crate::ntb::port) use accesses_by_width;

/// Opens the first slot of a window to memory of `len` bytes.
pub fn opened(port: &BridgePort, window: usize, len: usize) -> InboundMemory {
    let memory = port.inbound_memory(window, 0, len).unwrap();
    let address = port.register(&memory.region()).unwrap();
    port.mw_set_trans(window, 0, address, memory.size() as u64).unwrap();
    memory
}

/// Opens a word of an outbound window and writes it.
pub fn store(window: &mut dyn Outbound, offset: usize, value: u64) -> Result<()> {
    window.open(offset, 8)?;
    // SAFETY: eight bytes of a local.
    unsafe { window.write(offset, (&raw const value).cast(), 8) };
    window.flush();
    Ok(())
}
