// SPDX-License-Identifier: Apache-2.0
//! What a port has, and the rules its hardware imposes.

use std::fmt;
use std::ops::Range;

/// A memory window of a port. Both sides have windows of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes of the aperture.
    pub size: u64,
    /// Slots it is divided into; each has a translation.
    pub slots: usize,
    /// Addresses given to a translation are multiples of this.
    pub addr_align: u64,
    /// Sizes given to a translation are multiples of this.
    pub size_align: u64,
    /// The size is a power of two and the address a multiple of it (the chip replaces low bits).
    pub size_aligned: bool,
    /// The size cuts the last slot short. Without a limit register slots are open as a whole.
    pub has_limit: bool,
    /// The window is memory of its own: nothing can be behind a slot but what
    /// [`NtbPort::inbound_memory`](super::NtbPort::inbound_memory) gives for it.
    pub fixed: bool,
}

impl Window {
    /// Bytes of one slot.
    pub fn slot_size(&self) -> u64 {
        self.size / self.slots as u64
    }

    /// What two windows have in common, for those who must divide both alike: offsets of slots of the
    /// result are offsets of slots in either, and sizes that suit it suit both. None where slots are no
    /// powers of two or none is left.
    pub fn common(&self, other: &Window) -> Option<Window> {
        let slot_size = self.slot_size().max(other.slot_size());
        let powers = [self, other].iter().all(|window| window.slot_size().is_power_of_two());
        let slots = usize::try_from(self.size.min(other.size) / slot_size.max(1)).ok()?;
        (powers && slots > 0).then(|| Window {
            size: slots as u64 * slot_size,
            slots,
            addr_align: self.addr_align.max(other.addr_align),
            size_align: self.size_align.max(other.size_align),
            size_aligned: self.size_aligned || other.size_aligned,
            has_limit: self.has_limit && other.has_limit,
            fixed: self.fixed || other.fixed,
        })
    }

    /// Smallest size that a translation of at least `bytes` can have.
    pub fn round_up(&self, bytes: u64) -> u64 {
        let size = bytes.max(1).next_multiple_of(self.size_align);
        if self.size_aligned { size.next_power_of_two() } else { size }
    }

    /// The slots of the PE with `local_index` among `pes` on a host, the same for whoever asks: an
    /// equal share, and a power of two where sizes must be, so that one translation can cover it.
    /// Empty when there are more PEs than slots.
    pub fn share(&self, local_index: usize, pes: usize) -> Range<usize> {
        let each = match self.slots / pes.max(1) {
            0 => return 0..0,
            room if self.size_aligned => 1 << room.ilog2(),
            room => room,
        };
        let first = local_index.min(pes) * each;
        first..(first + each).min(self.slots)
    }
}

/// When a doorbell bit raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellDelivery {
    /// Every bit has a vector of its own and fires when set (Intel).
    PerBitVector,
    /// One vector, raised as long as any unmasked bit is pending (INTx, Switchtec).
    AggregateLevel,
    /// One vector, fired when the unmasked pending bits leave zero; a bit set while another is
    /// pending fires nothing (PLX with MSI).
    EdgeFromZero,
}

/// Where the stores of an outbound window are when a flush returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// In the peer's memory, for all its processors to see.
    AtFlush,
    /// Under way, in order. Only an answer from the peer to something that was written behind them
    /// tells that they have arrived.
    Later,
}

/// How a port learns of link changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// By interrupt.
    Interrupt,
    /// By polling at this interval in milliseconds.
    PollMs(u32),
}

/// A DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaCapability {
    /// Channels; more handles than these share them.
    pub channels: u32,
    /// Longest transfer of one descriptor, bytes.
    pub max_len: usize,
    /// Descriptors outstanding per channel.
    pub descriptors: usize,
    /// Fixed cost of a transfer, nanoseconds: a first guess for the threshold between CPU and DMA.
    pub start_ns: u64,
    /// It is a thread of this machine, which needs a processor like any other, and has to be woken.
    pub needs_processor: bool,
}

/// What a port has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the hardware, for people.
    pub name: &'static str,
    /// Windows, the same inbound and outbound.
    pub windows: Vec<Window>,
    /// Outbound windows are mapped write-combining.
    pub write_combining: bool,
    /// Bytes of the transaction that a store of the CPU through a window becomes: a line where the processor combines
    /// what it stores, else a word.
    pub store_bytes: u32,
    /// When stores have arrived.
    pub arrival: Arrival,
    /// Doorbell bits.
    pub doorbell_bits: u32,
    /// Interrupt vectors for them.
    pub doorbell_vectors: u32,
    /// When bits raise events.
    pub doorbell_delivery: DoorbellDelivery,
    /// Scratchpads.
    pub spads: usize,
    /// Translations, doorbells and masks are lost when the link goes down.
    pub resets_on_link_down: bool,
    /// How link changes become known.
    pub link_event: LinkEvent,
    /// The DMA engine.
    pub dma: Option<DmaCapability>,
    /// Links keep the rate that their state tells. An emulated one may be as fast as memory instead.
    pub paced: bool,
    /// Times and bandwidths follow a model instead of hardware: results are labelled "modelled".
    pub modelled: bool,
}

impl Capabilities {
    /// Lines for people: windows with the rules of their translations, doorbells, the rest.
    pub fn describe(&self) -> Vec<String> {
        let windows = self.windows.iter().enumerate();
        let mut lines: Vec<String> = windows
            .map(|(index, window)| format!("window {index} of each port: {window}"))
            .collect();
        lines.push(format!(
            "stores are {} and {}, registers {} a link that goes down",
            if self.write_combining { "combined" } else { "in order" },
            match self.arrival {
                Arrival::AtFlush => "there at once",
                Arrival::Later => "under way for a while",
            },
            if self.resets_on_link_down { "are lost with" } else { "survive" },
        ));
        let delivery = match self.doorbell_delivery {
            DoorbellDelivery::PerBitVector => "each bit by itself",
            DoorbellDelivery::AggregateLevel => "while any is pending",
            DoorbellDelivery::EdgeFromZero => "when the first becomes pending",
        };
        let dma = self
            .dma
            .map_or("no DMA engine".into(), |dma| format!("DMA channels: {}", dma.channels));
        lines.push(format!(
            "doorbells: {} bits, interrupt vectors: {}, raised {delivery}; scratchpads: {}; {dma}",
            self.doorbell_bits, self.doorbell_vectors, self.spads
        ));
        lines
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {} slots of {}; addresses at multiples of {}, sizes {} {}{}",
            Size(self.size),
            self.slots,
            Size(self.slot_size()),
            Size(self.addr_align),
            if self.size_aligned { "powers of two from" } else { "multiples of" },
            Size(self.size_align),
            if self.has_limit { "" } else { ", slots open as a whole" }
        )
    }
}

/// Bytes in the largest unit that divides them.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit =
            units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_window_do_not_meet() {
        let window = Window {
            size: 1 << 20,
            slots: 16,
            addr_align: 4096,
            size_align: 4096,
            size_aligned: true,
            has_limit: true,
            fixed: false,
        };
        for pes in 1..=16 {
            let mut end = 0;
            for local_index in 0..pes {
                let share = window.share(local_index, pes);
                assert_eq!(share.start, end, "PE {local_index} of {pes}");
                assert!(share.len().is_power_of_two() && share.end <= 16);
                end = share.end;
            }
        }
        assert!(window.share(0, 17).is_empty());
        let any = Window { size: 127 << 13, slots: 127, size_aligned: false, ..window };
        assert_eq!((any.share(0, 1), any.share(2, 3)), (0..127, 84..126));
        assert_eq!(window.round_up(5000), 8192);
    }

    #[test]
    fn what_suits_both_windows_suits_each() {
        let window = |size: u64, slots, size_align, size_aligned| Window {
            size,
            slots,
            addr_align: size_align,
            size_align,
            size_aligned,
            has_limit: true,
            fixed: false,
        };
        let (wide, narrow) =
            (window(64 << 20, 256, 4096, true), window(16 << 20, 16, 1 << 20, false));
        let both = wide.common(&narrow).unwrap();
        assert_eq!(both, narrow.common(&wide).unwrap());
        assert_eq!((both.size, both.slots, both.size_aligned), (16 << 20, 16, true));
        for own in [&wide, &narrow] {
            assert!(both.slot_size().is_multiple_of(own.slot_size()));
            let size = both.round_up(3 << 19);
            assert_eq!(own.round_up(size), size, "{own}");
        }
        assert_eq!(wide.common(&window(1 << 16, 1, 4096, false)), None, "less than a slot");
        assert_eq!(wide.common(&window(3 << 12, 1, 4096, false)), None, "no power of two");
    }
}
