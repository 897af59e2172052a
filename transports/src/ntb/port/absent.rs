// SPDX-License-Identifier: Apache-2.0
//! The place of a port that a host does not have, as at either end of a line of hosts: a port without a cable.

use super::{
    BusAddress, Capabilities, Counters, InboundMemory, Line, LinkState, NtbPort, Outbound,
    PortError, Region, Result, Wake, WindowMapping,
};
use std::sync::Arc;
use std::time::Duration;

/// See the module. It has what the host's other port has, and its link never comes up.
pub struct AbsentPort {
    other: Arc<dyn NtbPort>,
}

impl AbsentPort {
    /// In the place beside `other`.
    pub fn beside(other: Arc<dyn NtbPort>) -> AbsentPort {
        AbsentPort { other }
    }
}

impl NtbPort for AbsentPort {
    fn capabilities(&self) -> &Capabilities {
        self.other.capabilities()
    }

    fn is_absent(&self) -> bool {
        true
    }

    fn link_enable(&self) -> Result<()> {
        Ok(())
    }

    fn link_disable(&self) -> Result<()> {
        Ok(())
    }

    fn link_state(&self) -> LinkState {
        LinkState { up: false, generation: 0, ..self.other.link_state() }
    }

    fn link_event(&self) -> bool {
        false
    }

    fn inbound_memory(&self, _: usize, _: usize, len: usize) -> Result<InboundMemory> {
        InboundMemory::new(len)
    }

    fn register(&self, _: &Region<'_>) -> Result<BusAddress> {
        Ok(BusAddress(0))
    }

    fn unregister(&self, _: BusAddress) -> Result<()> {
        Ok(())
    }

    fn mw_set_trans(&self, _: usize, _: usize, _: BusAddress, _: u64) -> Result<()> {
        Err(PortError::NotConnected)
    }

    fn mw_clear_trans(&self, _: usize, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        let window = self.capabilities().windows.get(window);
        let window = window.ok_or(PortError::Unsupported("window of that number"))?;
        Ok(Box::new(Nowhere { size: window.size as usize }))
    }

    fn db_read(&self) -> u64 {
        0
    }

    fn db_clear(&self, _: u64) {}

    fn db_read_mask(&self) -> u64 {
        self.db_valid_mask()
    }

    fn db_set_mask(&self, _: u64) {}

    fn db_clear_mask(&self, _: u64) {}

    fn peer_db_set(&self, _: u64) {}

    fn db_wait(&self, _: u64, timeout: Duration) -> Wake {
        std::thread::sleep(timeout);
        Wake::default()
    }

    fn spad_read(&self, _: usize) -> u32 {
        u32::MAX
    }

    fn spad_write(&self, _: usize, _: u32) {}

    fn peer_spad_read(&self, _: usize) -> u32 {
        u32::MAX
    }

    fn peer_spad_write(&self, _: usize, _: u32) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn describe(&self) -> String {
        "no port: this host is at an end of a line of hosts".into()
    }
}

/// A window that leads nowhere.
struct Nowhere {
    size: usize,
}

impl Outbound for Nowhere {
    fn size(&self) -> usize {
        self.size
    }

    fn open(&mut self, _: usize, _: usize) -> Result<()> {
        Err(PortError::NotConnected)
    }

    unsafe fn write(&mut self, _: usize, _: *const u8, _: usize) {}

    fn write_line(&mut self, _: usize, _: &Line) {}

    fn flush(&mut self) {}

    fn read(&mut self, _: usize, dest: &mut [u8]) {
        dest.fill(0xff);
    }

    fn map(&mut self, _: usize, _: usize) -> Option<Box<dyn WindowMapping>> {
        None
    }
}
