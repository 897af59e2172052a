// SPDX-License-Identifier: Apache-2.0
//! What every process has of a port that uses it: windows, what the peer says of them, and the state that the owner of
//! the device keeps.

use super::chip::Aperture;
use super::device::Device;
use super::layout::{self, Page};
use crate::ntb::port::shared::{BELLS, Words};
use crate::ntb::port::{Event, PortError, Result, Window};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub struct Reach {
    pub device: Arc<dyn Device>,
    pub apertures: Vec<Aperture>,
    /// As users see them.
    pub windows: Vec<Window>,
    /// What the peer says of its slots.
    pub page: Page,
    pub words: Arc<Words>,
    /// Doorbells of the chip; none where words of the page are used.
    pub doorbell_bits: u32,
}

impl Reach {
    pub fn count(&self, event: Event, amount: u64) {
        self.words.count(event, amount);
    }

    /// Whether doorbells are those of the chip; words of the page otherwise.
    pub fn has_bells(&self) -> bool {
        self.doorbell_bits > 0
    }

    pub fn doorbell_bits(&self) -> u32 {
        if self.has_bells() { self.doorbell_bits } else { BELLS as u32 }
    }

    pub fn valid_bits(&self) -> u64 {
        match self.doorbell_bits() {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// Doorbell bits have rung.
    pub fn latch(&self, bells: u64) {
        let before = self.words.pending().fetch_or(bells, Ordering::SeqCst);
        let masked = self.words.mask().load(Ordering::SeqCst);
        self.count(Event::DoorbellsCoalesced, (before & bells).count_ones().into());
        self.count(Event::DoorbellsSuppressed, (bells & masked).count_ones().into());
        self.count(Event::DoorbellEvents, (bells & !masked).count_ones().into());
    }

    /// The doorbells that are words and have rung. Whoever looks takes them; one that two look at may count twice.
    pub fn heard(&self) -> u64 {
        let words = self.words.heard.iter().enumerate().map(|(bit, heard)| {
            let now = self.page.bell(bit);
            let changed =
                heard.load(Ordering::SeqCst) != now && heard.swap(now, Ordering::SeqCst) != now;
            u64::from(changed) << bit
        });
        words.fold(0, |all, bit| all | bit)
    }

    /// Rings doorbells of the peer that are words.
    pub fn ring_words(&self, bits: u64) {
        let Aperture { bar, offset, .. } = self.apertures[0];
        let all = self.words.rung.iter().enumerate();
        for (bit, rung) in all.filter(|(bit, _)| bits >> bit & 1 == 1) {
            let word = rung.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            self.device.store_words(bar, offset + layout::bell_at(bit), &[word]);
        }
        self.device.drain();
    }

    /// Refuses a window that the peer divides in another way, as its size is another one there.
    pub fn check_size(&self, window: usize) -> Result<()> {
        let (own, peers) = (layout::size_of(&self.apertures[window]), self.page.size(window));
        if peers == 0 || peers == own {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "window {window} has {own} bytes at this host and {peers} bytes at its neighbour: both are to \
             have the same, to be changed where the sizes of the bridge are set (BIOS, firmware or EEPROM)"
        )))
    }
}
