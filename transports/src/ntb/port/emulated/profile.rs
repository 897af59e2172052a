// SPDX-License-Identifier: Apache-2.0
//! The hardware that an emulated port takes after.

use crate::ntb::port::{Arrival, Capabilities, DmaCapability, DoorbellDelivery, LinkEvent, Window};

tombolo_core::choice! {
    /// Rules of alignment, doorbells and registers, after a family of bridges.
    #[derive(Default)]
    #[repr(u64)]
    Profile {
        /// PLX PEX8749 and relatives: A-LUT slots, no limit register, one doorbell vector that fires on
        /// leaving zero, 8 scratchpads, registers reset when the link goes down, DMA.
        #[default]
        Plx8749 = "plx8749",
        /// Intel Xeon, third generation: limit registers, a vector for each of 32 doorbells, 16
        /// scratchpads.
        IntelGen3 = "intel-gen3",
        /// Microchip Switchtec: naturally aligned power-of-two translations, 28 doorbells on one level
        /// vector, scratchpads kept in a window.
        Switchtec = "switchtec",
    }
}

impl Profile {
    /// Sizes of the windows unless asked otherwise: one for rings, one for direct access.
    pub fn window_sizes(self) -> [u64; 2] {
        match self {
            Profile::Plx8749 | Profile::IntelGen3 => [64 << 20, 4 << 30],
            // The driver's own default is 2 MiB; systems tuned for NTB raise it.
            Profile::Switchtec => [16 << 20, 1 << 30],
        }
    }

    /// Slots of a window of `size` bytes unless asked otherwise: at least 64 KiB each.
    pub fn slots(self, size: u64) -> usize {
        ((size / (64 << 10)).clamp(1, 128)) as usize
    }

    /// A window of this size under the profile's rules.
    pub(super) fn window(self, size: u64, slots: usize) -> Window {
        let slot_size = size / slots as u64;
        let page = 4096;
        match self {
            Profile::Plx8749 => Window {
                size,
                slots,
                addr_align: slot_size,
                size_align: slot_size,
                size_aligned: false,
                has_limit: false,
                fixed: false,
            },
            Profile::IntelGen3 => Window {
                size,
                slots,
                addr_align: slot_size,
                size_align: page,
                size_aligned: false,
                has_limit: true,
                fixed: false,
            },
            Profile::Switchtec => Window {
                size,
                slots,
                addr_align: page,
                size_align: page,
                size_aligned: true,
                has_limit: true,
                fixed: false,
            },
        }
    }

    /// Whether registers are lost with the link.
    pub(super) fn resets_on_link_down(self) -> bool {
        self == Profile::Plx8749
    }

    pub(super) fn capabilities(
        self,
        windows: Vec<Window>,
        modelled: bool,
        write_combining: bool,
    ) -> Capabilities {
        let (doorbell_bits, doorbell_vectors, doorbell_delivery, spads) = match self {
            Profile::Plx8749 => (16, 1, DoorbellDelivery::EdgeFromZero, 8),
            Profile::IntelGen3 => (32, 32, DoorbellDelivery::PerBitVector, 16),
            Profile::Switchtec => (28, 1, DoorbellDelivery::AggregateLevel, 128),
        };
        let dma = DmaCapability {
            channels: 4,
            max_len: 8 << 20,
            descriptors: 64,
            start_ns: if modelled { super::dma::START_NS } else { 0 },
            needs_processor: true,
        };
        Capabilities {
            name: self.name(),
            windows,
            write_combining,
            store_bytes: 64,
            doorbell_bits,
            doorbell_vectors,
            doorbell_delivery,
            spads,
            resets_on_link_down: self.resets_on_link_down(),
            link_event: LinkEvent::Interrupt,
            dma: (self == Profile::Plx8749).then_some(dma),
            arrival: if modelled { Arrival::Later } else { Arrival::AtFlush },
            paced: modelled,
            modelled,
        }
    }
}

tombolo_core::choice! {
    /// Whether time is modelled.
    #[derive(Default)]
    #[repr(u64)]
    Speed {
        /// As fast as memory allows.
        #[default]
        Direct = "direct",
        /// At the pace of [`LinkTiming`](crate::ntb::port::LinkTiming), by the clock on the wall.
        Modelled = "modelled",
    }
}

/// How stores to an outbound window leave the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum WriteCombining {
    /// In program order, as an uncached mapping or a lucky write-combining one.
    #[default]
    InOrder = 0,
    /// Through ten line buffers that drain in random order until a flush: finds missing flushes.
    Adversarial = 1,
}
