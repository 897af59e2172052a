// SPDX-License-Identifier: Apache-2.0
//! The time model of a link: what PCI Express itself costs.

use std::fmt;

/// Generation of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PcieGen {
    /// 2.5 GT/s, 8b/10b.
    Gen1 = 1,
    /// 5 GT/s, 8b/10b.
    Gen2 = 2,
    /// 8 GT/s, 128b/130b.
    Gen3 = 3,
    /// 16 GT/s, 128b/130b.
    Gen4 = 4,
    /// 32 GT/s, 128b/130b.
    Gen5 = 5,
    /// 64 GT/s, in flits of 256 bytes, of which 14 are for finding and correcting errors.
    Gen6 = 6,
}

impl PcieGen {
    /// All generations, oldest first.
    pub const ALL: [PcieGen; 6] =
        [PcieGen::Gen1, PcieGen::Gen2, PcieGen::Gen3, PcieGen::Gen4, PcieGen::Gen5, PcieGen::Gen6];

    /// Bytes per nanosecond of one lane, after the line code.
    pub fn lane_bytes_per_ns(self) -> f64 {
        let (bits_per_ns, coded) = match self {
            PcieGen::Gen1 => (2.5, 0.8),
            PcieGen::Gen2 => (5.0, 0.8),
            PcieGen::Gen3 => (8.0, 128.0 / 130.0),
            PcieGen::Gen4 => (16.0, 128.0 / 130.0),
            PcieGen::Gen5 => (32.0, 128.0 / 130.0),
            PcieGen::Gen6 => (64.0, 242.0 / 256.0),
        };
        bits_per_ns * coded / 8.0
    }

    /// The same per second.
    pub fn lane_bytes_per_s(self) -> f64 {
        self.lane_bytes_per_ns() * 1e9
    }
}

impl fmt::Display for PcieGen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gen{}", *self as u64)
    }
}

/// What a link costs. Directions are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTiming {
    /// Generation.
    pub speed: PcieGen,
    /// Lanes.
    pub width: u32,
    /// Largest payload of one TLP, bytes. The CPU's write-combined stores make TLPs of 64.
    pub max_payload: u32,
    /// Framing, sequence, header and LCRC of a memory write, bytes.
    pub tlp_overhead: u32,
    /// Share of the line that acknowledgements, flow control and skips take, per thousand.
    pub dllp_permille: u32,
    /// From leaving the sender to visible at the receiver, nanoseconds.
    pub propagation_ns: u32,
    /// A read across the link, nanoseconds.
    pub read_ns: u32,
    /// Storing to a device register, nanoseconds of the sender's CPU.
    pub register_write_ns: u32,
    /// Loading from a local device register, nanoseconds.
    pub register_read_ns: u32,
    /// From a doorbell's arrival to the awakened handler, nanoseconds.
    pub doorbell_ns: u32,
}

impl Default for LinkTiming {
    /// Gen3 x8 with 256-byte payloads, as the boards of the published prototypes.
    fn default() -> LinkTiming {
        LinkTiming {
            speed: PcieGen::Gen3,
            width: 8,
            max_payload: 256,
            tlp_overhead: LinkTiming::TLP_OVERHEAD,
            dllp_permille: 80,
            propagation_ns: 400,
            read_ns: 1800,
            register_write_ns: 100,
            register_read_ns: 250,
            doorbell_ns: 5000,
        }
    }
}

impl LinkTiming {
    /// Framing, sequence, header with a 64-bit address and LCRC of a memory write, bytes.
    pub const TLP_OVERHEAD: u32 = 24;

    /// Payload and overhead bytes per nanosecond in one direction.
    pub fn line_bytes_per_ns(&self) -> f64 {
        let share = 1.0 - f64::from(self.dllp_permille) / 1000.0;
        self.speed.lane_bytes_per_ns() * f64::from(self.width) * share
    }

    /// The same per second.
    pub fn line_bytes_per_s(&self) -> f64 {
        self.line_bytes_per_ns() * 1e9
    }

    /// Time on the wire of `bytes` payload in `tlps` TLPs, picoseconds.
    pub fn wire_ps(&self, bytes: u64, tlps: u64) -> u64 {
        let on_wire = bytes + tlps * u64::from(self.tlp_overhead);
        (on_wire as f64 * 1e12 / self.line_bytes_per_s()).ceil() as u64
    }

    /// The model's own ceiling for a stream of TLPs with `payload` bytes each, bytes per second.
    pub fn ceiling_bytes_per_s(&self, payload: u32) -> f64 {
        let efficiency = f64::from(payload) / f64::from(payload + self.tlp_overhead);
        self.line_bytes_per_s() * efficiency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the published PCIe model, with ACK/FC/SKP traffic counted.
    #[test]
    fn ceilings_agree_with_the_published_model() {
        let cases = [
            (PcieGen::Gen3, 8, 64, 5.26),
            (PcieGen::Gen3, 8, 128, 5.96),
            (PcieGen::Gen3, 8, 256, 6.62),
            (PcieGen::Gen3, 4, 256, 3.32),
            (PcieGen::Gen4, 8, 256, 13.23),
            // Of these nothing is published: twice as much, and twice as much again without what flits take.
            (PcieGen::Gen5, 8, 256, 26.46),
            (PcieGen::Gen6, 8, 256, 50.9),
        ];
        for (speed, width, payload, expected) in cases {
            let timing = LinkTiming { speed, width, ..LinkTiming::default() };
            let ceiling = timing.ceiling_bytes_per_s(payload) / 1e9;
            let error = (ceiling / expected - 1.0).abs();
            assert!(error < 0.03, "{speed} x{width} {payload}: {ceiling:.2} for {expected}");
        }
    }

    #[test]
    fn wire_time_is_that_of_the_ceiling() {
        let timing = LinkTiming::default();
        let seconds = timing.wire_ps(1 << 20, 1 << 12) as f64 / 1e12;
        let rate = f64::from(1 << 20) / seconds;
        assert!((rate / timing.ceiling_bytes_per_s(256) - 1.0).abs() < 1e-3);
    }
}
