// SPDX-License-Identifier: Apache-2.0
//! The published way, for comparison: one transfer at a time per link and thread, announced by
//! scratchpads and an interrupt, stored and forwarded, acknowledged round the ring.
//!
//! After Lim & Cha, "shared memory model over a switchless PCIe NTB ring". Its costs are set from
//! what is known of such hardware (register access, interrupt to thread) and not fitted to the
//! published curves; the published figures are what it is to be held against.

use serde::Serialize;

use super::model::LinkModel;

/// Costs of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prototype {
    /// Links.
    pub link: LinkModel,
    /// From starting the DMA engine to its first byte.
    pub dma_start_ns: f64,
    /// Writing the four scratchpads and the doorbell. One set for each link: threads take turns.
    pub announce_ns: f64,
    /// Doorbell to interrupt handler.
    pub interrupt_ns: f64,
    /// Handler to service thread.
    pub wake_ns: f64,
    /// Reading four scratchpads.
    pub read_ns: f64,
    /// Finding a free thread, locks, more so with more threads.
    pub dispatch_ns: f64,
}

impl Prototype {
    /// The published system's boards.
    pub fn new(link: LinkModel) -> Prototype {
        Prototype {
            link,
            dma_start_ns: 1_500.0,
            announce_ns: 5.0 * 150.0,
            interrupt_ns: 8_000.0,
            wake_ns: 5_000.0,
            read_ns: 4.0 * 900.0,
            dispatch_ns: 1_000.0,
        }
    }

    /// Time of a put of `size` bytes over `hops` links, and of its acknowledgement over the
    /// remaining `back`, with `threads` threads that each take a part.
    pub fn put_ns(&self, size: u64, hops: u32, back: u32, threads: u32) -> f64 {
        let parts = threads.max(1);
        let part = size.div_ceil(u64::from(parts));
        let mut done = vec![0.0; parts as usize];
        for _ in 0..hops {
            self.cross(&mut done, part, parts);
        }
        let data = done.iter().copied().fold(0.0, f64::max);
        data + f64::from(back) * (self.hand_off_ns(parts) + self.wire_ns(64))
    }

    /// Bytes per nanosecond of a stream of puts to the neighbour: each waits for the one before on
    /// its thread; the wire, the scratchpads and the doorbell are shared.
    pub fn throughput(&self, size: u64, threads: u32) -> f64 {
        let wire = self.wire_ns(size);
        let alone = wire + self.dma_start_ns + self.hand_off_ns(threads) + self.release_ns();
        let shared = wire + self.announce_ns + self.dispatch_ns * f64::from(threads);
        size as f64 / shared.max(alone / f64::from(threads))
    }

    /// The raw link: DMA alone.
    pub fn raw_throughput(&self, size: u64) -> f64 {
        size as f64 / (self.wire_ns(size) + self.dma_start_ns)
    }

    fn cross(&self, done: &mut [f64], part: u64, threads: u32) {
        let (mut wire_free, mut pads_free) = (0.0, 0.0);
        for ready in done {
            let start = f64::max(*ready + self.dma_start_ns, wire_free);
            wire_free = start + self.wire_ns(part);
            let announce = f64::max(wire_free, pads_free);
            pads_free = announce + self.announce_ns + self.read_ns;
            *ready = announce + self.hand_off_ns(threads);
        }
    }

    fn hand_off_ns(&self, threads: u32) -> f64 {
        self.announce_ns
            + self.interrupt_ns
            + self.wake_ns
            + self.read_ns
            + self.dispatch_ns * f64::from(threads)
    }

    /// The neighbour's doorbell that the slot is free.
    fn release_ns(&self) -> f64 {
        150.0 + self.interrupt_ns + self.wake_ns
    }

    fn wire_ns(&self, bytes: u64) -> f64 {
        let tlp = u64::from(self.link.mps_bytes);
        self.link.wire_ps(bytes, tlp) as f64 / 1000.0 + self.link.propagation_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::emulated::Profile;

    #[test]
    fn it_loses_what_the_published_system_lost() {
        let prototype = Prototype::new(Profile::Plx8749.link());
        let share = prototype.throughput(1 << 20, 1) / prototype.raw_throughput(1 << 20);
        assert!((0.75..0.9).contains(&share), "{share}");
        let turn = |hosts: u32, threads| prototype.put_ns(1 << 20, hosts, 0, threads);
        let growth = turn(4, 1) / turn(3, 1);
        assert!((1.2..1.4).contains(&growth), "{growth}");
        assert!(turn(3, 2) < turn(3, 1) && turn(3, 4) < turn(3, 2));
    }
}
