// SPDX-License-Identifier: Apache-2.0
//! What a port counts.

use std::fmt;
use std::ops::{Index, IndexMut};

/// Something a port counts, on the side where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// Payload bytes that reached the peer's memory.
    Bytes = 0,
    /// TLPs that carried them.
    Tlps,
    /// TLPs dropped because they met no translation or the end of a window or of memory.
    WindowFaults,
    /// TLPs, doorbells and register writes lost because the link was down.
    Lost,
    /// TLPs damaged by fault injection.
    Corrupted,
    /// Reads across the link, one for every 8 bytes or register.
    Reads,
    /// DMA transfers finished.
    DmaTransfers,
    /// DMA transfers that ended in an error.
    DmaErrors,
    /// Doorbell writes sent that arrived.
    DoorbellsRung,
    /// Bits rung here by the peer that were pending already.
    DoorbellsCoalesced,
    /// Doorbell writes received that raised no event: masked, or swallowed by the edge rule.
    DoorbellsSuppressed,
    /// Doorbell events raised here.
    DoorbellEvents,
    /// Times the link went up or down.
    LinkChanges,
    /// Translations set, in slots.
    TranslationsSet,
    /// Translations cleared, in slots, by request or by a reset.
    TranslationsCleared,
}

impl Event {
    /// All events, in index order.
    pub const ALL: [Event; 15] = [
        Event::Bytes,
        Event::Tlps,
        Event::WindowFaults,
        Event::Lost,
        Event::Corrupted,
        Event::Reads,
        Event::DmaTransfers,
        Event::DmaErrors,
        Event::DoorbellsRung,
        Event::DoorbellsCoalesced,
        Event::DoorbellsSuppressed,
        Event::DoorbellEvents,
        Event::LinkChanges,
        Event::TranslationsSet,
        Event::TranslationsCleared,
    ];

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Event::Bytes => "bytes",
            Event::Tlps => "tlps",
            Event::WindowFaults => "window_faults",
            Event::Lost => "lost",
            Event::Corrupted => "corrupted",
            Event::Reads => "reads",
            Event::DmaTransfers => "dma_transfers",
            Event::DmaErrors => "dma_errors",
            Event::DoorbellsRung => "doorbells_rung",
            Event::DoorbellsCoalesced => "doorbells_coalesced",
            Event::DoorbellsSuppressed => "doorbells_suppressed",
            Event::DoorbellEvents => "doorbell_events",
            Event::LinkChanges => "link_changes",
            Event::TranslationsSet => "translations_set",
            Event::TranslationsCleared => "translations_cleared",
        }
    }
}

/// A reading of all counters of one side of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; Event::ALL.len()]);

impl Index<Event> for Counters {
    type Output = u64;

    fn index(&self, event: Event) -> &u64 {
        &self.0[event as usize]
    }
}

impl IndexMut<Event> for Counters {
    fn index_mut(&mut self, event: Event) -> &mut u64 {
        &mut self.0[event as usize]
    }
}

impl fmt::Display for Counters {
    /// Those that are not zero, as `name=value`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for event in Event::ALL.into_iter().filter(|event| self[*event] != 0) {
            write!(f, "{separator}{}={}", event.name(), self[event])?;
            separator = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_listed_in_index_order() {
        for (index, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, index, "{}", event.name());
        }
    }
}
