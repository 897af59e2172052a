// SPDX-License-Identifier: Apache-2.0
//! The port for processes beside the one that has its device open. Nearly all of it is in the memory of the device, and
//! all processes do the same with that.

use super::device::{Device, PciDevice};
use super::layout::Shared;
use super::outbound::{Left, Target};
use super::{BITS, Core};
use crate::ntb::port::listener::Waiters;
use crate::ntb::port::shared::{Client, DeviceShare, Given, Kind, Share};
use crate::ntb::port::slots::SlottedOutbound;
use crate::ntb::port::vfio;
use crate::ntb::port::{Event, LinkState, Outbound, PcieGen, PortError, Result};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What others need.
pub(super) fn share(core: &Arc<Core>, waiters: &Waiters) -> Result<Share> {
    let device = core.device.share()?;
    waiters.share(&core.words);
    let base = core.shared.window_base(core.side).addr();
    // Handles that are made from now on leave counters to others.
    core.is_lent.store(true, Ordering::SeqCst);
    let (leaving, opens, left) = (core.clone(), core.clone(), Mutex::new(Left::new()));
    Ok(Share {
        kind: Kind::Ivshmem,
        details: vec![core.side as u64],
        words: core.words.clone(),
        page: None,
        device,
        fixed: Some((base, core.shared.window().size)),
        is_open: Box::new(move |_, slot| opens.own().entries[slot].load(Ordering::SeqCst) != 0),
        leave: Box::new(move |place| {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(writer) = left.add(place, leaving.words.places()) {
                leaving.own().writers[writer].0.store(0, Ordering::SeqCst);
            }
        }),
    })
}

/// The port, from what the owner has told. Refuses what cannot be.
pub fn open(given: Given) -> Result<Arc<dyn Client>> {
    let device: Arc<dyn Device> = match given.device.here::<Arc<dyn Device>>() {
        Ok(double) => double,
        Err(share) => {
            let (file, address) = DeviceShare::file(share)?;
            Arc::new(PciDevice::beside(vfio::Device::beside(file, address)?)?)
        }
    };
    let side = match given.details[..] {
        [side @ (0 | 1)] => side as usize,
        _ => return Err(PortError::Invalid("what is told of a port cannot be".into())),
    };
    let shared = Shared::new(device.clone())?;
    let is_lent = AtomicBool::new(false);
    Ok(Arc::new(Arc::new(Core { device, shared, side, words: given.words, is_lent })))
}

impl Client for Arc<Core> {
    /// There is no line: the figures of one with a single lane of the first generation.
    fn link_state(&self) -> LinkState {
        LinkState {
            up: self.shared.is_up(),
            speed: PcieGen::Gen1,
            width: 1,
            max_payload: 256,
            generation: self.generation(),
        }
    }

    fn generation(&self) -> u64 {
        self.shared.generation()
    }

    fn outbound(&self, _window: usize) -> Result<Box<dyn Outbound>> {
        Ok(Box::new(SlottedOutbound::new(Target::new(self.clone()))))
    }

    fn pending(&self) -> u64 {
        // Read behind the mask, where that is asked for as well: a ringer sets the one before it reads the other.
        self.own().pending.load(Ordering::SeqCst)
    }

    fn clear(&self, bits: u64) {
        self.own().pending.fetch_and(!bits, Ordering::SeqCst);
    }

    fn mask(&self) -> u64 {
        self.own().mask.load(Ordering::SeqCst)
    }

    fn set_mask(&self, bits: u64) {
        self.own().mask.fetch_or(bits, Ordering::SeqCst);
    }

    fn clear_mask(&self, bits: u64) {
        self.own().mask.fetch_and(!bits, Ordering::SeqCst);
        self.words.tell();
    }

    fn ring(&self, bits: u64) -> bool {
        let bits = bits & ((1 << BITS) - 1);
        if self.reaches_peer() {
            self.count(Event::DoorbellsRung, 1);
            let peer = self.peer();
            peer.pending.fetch_or(bits, Ordering::SeqCst);
            let heard = bits & !peer.mask.load(Ordering::SeqCst);
            self.interrupt(heard);
        }
        true
    }

    fn fixed(&self, offset: usize) -> Option<(NonNull<u8>, Arc<dyn Debug + Send + Sync>)> {
        let base = self.shared.window_base(self.side).wrapping_add(offset);
        Some((NonNull::new(base)?, self.device.clone()))
    }

    fn abandon(&self) {
        // What is behind the device's memory then is a link that is down.
        self.device.abandon();
        self.words.lose();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_processes_are_reset_when_all_that_have_them_have_ended() {
        let mut left = Left::new();
        let all: Vec<usize> = (1..=16).filter_map(|place| left.add(place, 17)).collect();
        assert_eq!(all, (16..32).collect::<Vec<_>>());
        // Places 1, 17 and 33 have the same.
        let mut left = Left::new();
        assert_eq!([33, 1, 17].map(|place| left.add(place, 34)), [None, None, Some(16)]);
        // One that is the owner's, and one that there is not.
        assert_eq!([0, usize::MAX].map(|place| left.add(place, 34)), [None, None]);
    }
}
