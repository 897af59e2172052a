// SPDX-License-Identifier: Apache-2.0
//! What time things take: links by PCIe generation, width and payload size, and the CPU's part.
//!
//! What PCI Express costs is that of [`LinkTiming`]. CPU costs are of the order measured by others on such
//! hardware. Times are in picoseconds unless named otherwise.

use crate::ntb::port::emulated::Profile;
use crate::ntb::port::{LinkTiming, PcieGen};
use crate::ntb::ring::choose::LinkCosts;

/// Bytes of headers and framing of a TLP.
pub(super) const TLP_OVERHEAD_BYTES: u64 = LinkTiming::TLP_OVERHEAD as u64;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LinkModel {
    /// PCIe generation, from 1.
    pub generation: u8,
    /// Lanes of the PCIe link.
    pub width: u8,
    /// Largest TLP payload.
    pub mps_bytes: u32,
    /// From the last byte sent to visible in the peer's memory.
    pub propagation_ns: u64,
}

impl LinkModel {
    /// Bytes per nanosecond that TLPs may use.
    pub fn wire_rate(&self) -> f64 {
        let speed = PcieGen::ALL[usize::from(self.generation) - 1];
        LinkTiming { speed, width: self.width.into(), ..LinkTiming::default() }.line_bytes_per_ns()
    }

    /// Time of a payload on the wire, in TLPs of `tlp_bytes`.
    pub fn wire_ps(&self, payload_bytes: u64, tlp_bytes: u64) -> u64 {
        let total = payload_bytes + payload_bytes.div_ceil(tlp_bytes) * TLP_OVERHEAD_BYTES;
        (total as f64 * 1000.0 / self.wire_rate()) as u64
    }

    /// Payload bytes per nanosecond (GB/s) of an endless write in TLPs of `tlp_bytes`: the ceiling.
    pub fn raw_rate(&self, tlp_bytes: u64) -> f64 {
        self.wire_rate() * tlp_bytes as f64 / (tlp_bytes + TLP_OVERHEAD_BYTES) as f64
    }
}

/// Who moves bulk data to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Writer {
    /// The CPU, through write-combining buffers: 64-byte TLPs.
    Cpu,
    /// The bridge's DMA engine: TLPs of the largest size, a start-up time, no CPU time. The header
    /// line is the last descriptor of the chain.
    Dma,
}

/// Costs of a host's part.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct HostModel {
    /// Who moves bulk data.
    pub writer: Writer,
    /// Rate of a CPU copy, bytes per nanosecond.
    pub copy_rate: f64,
    /// Rate of CRC32C, bytes per nanosecond.
    pub crc_rate: f64,
    /// A look at a word that is in the cache.
    pub look_ps: u64,
    /// Taking in a line that the bridge has written.
    pub detect_ps: u64,
    /// Storing a line through the window, with its fence.
    pub store_ps: u64,
    /// Handling an operation handed in by the program, or one that ended.
    pub submit_ps: u64,
    /// An AMO, or a copy of a few bytes.
    pub touch_ps: u64,
    /// CPU time to hand a descriptor to the DMA engine.
    pub dma_submit_ps: u64,
    /// From the descriptor to its first byte.
    pub dma_start_ps: u64,
    /// Bytes that may wait between CPU and wire before stores stall.
    pub posted_bytes: u64,
    /// A register write across the bridge.
    pub register_write_ns: u64,
    /// From a doorbell to the woken thread.
    pub interrupt_ns: u64,
}

impl HostModel {
    /// A desktop core of the published system's time.
    pub fn desktop(writer: Writer) -> HostModel {
        HostModel {
            writer,
            copy_rate: 11.0,
            crc_rate: 15.0,
            look_ps: 2_000,
            detect_ps: 70_000,
            store_ps: 60_000,
            submit_ps: 40_000,
            touch_ps: 20_000,
            dma_submit_ps: 120_000,
            dma_start_ps: 1_000_000,
            posted_bytes: 2048,
            register_write_ns: 150,
            interrupt_ns: 8_000,
        }
    }
}

/// What the choice of packet length and lanes needs to know of the model.
pub fn costs(link: &LinkModel, host: &HostModel) -> LinkCosts {
    let ns = |ps: u64| ps as f64 / 1000.0;
    LinkCosts {
        line_rate: link.wire_rate(),
        tlp_bytes: tlp_bytes(link, host.writer) as f64,
        tlp_overhead: TLP_OVERHEAD_BYTES as f64,
        propagation: link.propagation_ns as f64,
        dma: (host.writer == Writer::Dma)
            .then_some((ns(host.dma_submit_ps), ns(host.dma_start_ps))),
        copy_rate: host.copy_rate,
        touch: ns(host.touch_ps),
        store: ns(host.store_ps),
        detect: ns(host.detect_ps),
        // A look at each of three rings on both sides, and at what the neighbours say.
        look: 10.0 * ns(host.look_ps),
        posted_bytes: host.posted_bytes as f64,
        in_steps: true,
    }
}

impl Profile {
    /// The links that are usual with it.
    pub fn link(self) -> LinkModel {
        let (generation, width, propagation_ns) = match self {
            Profile::Plx8749 => (3, 8, 400),
            Profile::IntelGen3 => (3, 16, 350),
            Profile::Switchtec => (4, 8, 400),
        };
        LinkModel { generation, width, mps_bytes: 256, propagation_ns }
    }
}

/// TLP payload a writer makes on a link.
pub fn tlp_bytes(link: &LinkModel, writer: Writer) -> u64 {
    match writer {
        Writer::Cpu => 64,
        Writer::Dma => u64::from(link.mps_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_ports_are_judged_by_the_costs_of_the_simulated_ones() {
        for profile in Profile::ALL {
            let link = profile.link();
            for writer in [Writer::Cpu, Writer::Dma] {
                let dma = (writer == Writer::Dma).then_some(link.mps_bytes);
                let real = LinkCosts::desktop(link.wire_rate(), 64, dma);
                let modelled = costs(&link, &HostModel::desktop(writer));
                assert_eq!(LinkCosts { propagation: real.propagation, ..modelled }, real);
            }
        }
    }
}
