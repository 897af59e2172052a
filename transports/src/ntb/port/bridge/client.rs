// SPDX-License-Identifier: Apache-2.0
//! A port on a bridge for processes beside the one that has its device open.
//!
//! They store to its windows by themselves, see what the peer says of its slots and what the owner says of the link, and
//! ring doorbells where a register does it that never changes, or words; else the owner does.

use super::chip::{Aperture, Bell};
use super::core::Core;
use super::device::{BARS, Device, PciDevice};
use super::layout::{self, Page};
use super::outbound::Target;
use super::reach::Reach;
use crate::ntb::port::shared::{Client, DeviceShare, Given, Kind, Share};
use crate::ntb::port::slots::SlottedOutbound;
use crate::ntb::port::vfio;
use crate::ntb::port::{Event, LinkState, Outbound, PortError, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words that an aperture and a doorbell take.
const APERTURE: usize = 4;
const BELL: usize = 3;

/// What others need.
pub fn share(core: &Arc<Core>) -> Result<Share> {
    let device = core.device.share()?;
    let page = core.page.file().ok_or(PortError::Unsupported("file"))?;
    let page = page.try_clone_to_owned();
    let page = page.map_err(|e| PortError::system("duplicating a descriptor", e))?;
    let mut details = vec![core.apertures.len() as u64, u64::from(core.doorbell_bits)];
    for Aperture { bar, offset, size, inbound } in &core.apertures {
        details.extend([*bar as u64, *offset as u64, *size, *inbound]);
    }
    for bit in 0..core.doorbell_bits.min(64) {
        details.extend(core.chip.bell(bit).map_or([0; BELL], |bell| {
            [(bell.bar << 8 | bell.bytes) as u64, bell.offset as u64, bell.value]
        }));
    }
    core.waiters.share(&core.words);
    let (words, opens) = (core.words.clone(), core.clone());
    Ok(Share {
        kind: Kind::Bridge,
        details,
        page: Some(page),
        device,
        fixed: None,
        is_open: Box::new(move |window, slot| opens.is_open(window, slot)),
        leave: Box::new(move |place| words.leave(place)),
        words: core.words.clone(),
    })
}

/// The port.
pub struct BridgeClient {
    reach: Arc<Reach>,
    /// By bit.
    bells: Vec<Option<Bell>>,
}

impl BridgeClient {
    /// From what the owner has told. Refuses what cannot be.
    pub fn new(given: Given) -> Result<BridgeClient> {
        let Given { details, words, page, device } = given;
        let broken = || PortError::Invalid("what is told of a port cannot be".into());
        let device: Arc<dyn Device> = match device.here::<Arc<dyn Device>>() {
            Ok(double) => double,
            Err(share) => {
                let (file, address) = DeviceShare::file(share)?;
                Arc::new(PciDevice::beside(vfio::Device::beside(file, address)?)?)
            }
        };
        let (head, rest) = details.split_first_chunk::<2>().ok_or_else(broken)?;
        let count =
            usize::try_from(head[0]).ok().filter(|count| (1..=layout::WINDOWS).contains(count));
        let doorbell_bits = u32::try_from(head[1]).ok().filter(|bits| *bits <= 64);
        let (count, doorbell_bits) = count.zip(doorbell_bits).ok_or_else(broken)?;
        let (apertures, bells) = rest.split_at_checked(count * APERTURE).ok_or_else(broken)?;
        let apertures = apertures.as_chunks::<APERTURE>().0.iter();
        let apertures: Vec<Aperture> = apertures
            .map(|[bar, offset, size, inbound]| {
                let (bar, offset) = (usize::try_from(*bar).ok()?, usize::try_from(*offset).ok()?);
                let end = offset.checked_add(usize::try_from(*size).ok()?)?;
                let inside = bar < BARS && end <= device.bar_size(bar);
                inside.then_some(Aperture { bar, offset, size: *size, inbound: *inbound })
            })
            .collect::<Option<_>>()
            .ok_or_else(broken)?;
        let windows = apertures.iter().enumerate();
        let windows = windows.map(|(index, aperture)| layout::window_of(index, aperture));
        let windows = windows.collect::<Result<_>>()?;
        if bells.len() != doorbell_bits as usize * BELL {
            return Err(broken());
        }
        let bell = |[place, offset, value]: &[u64; BELL]| {
            let (bar, bytes) = ((place >> 8) as usize, (place & 0xff) as usize);
            let offset = usize::try_from(*offset).ok()?;
            let inside = bar < BARS && offset.checked_add(bytes)? <= device.bar_size(bar);
            let sound = matches!(bytes, 2 | 4 | 8) && offset.is_multiple_of(bytes);
            (inside && sound).then_some(Bell { bar, offset, bytes, value: *value })
        };
        let bells = bells.as_chunks::<BELL>().0.iter().map(bell).collect();
        let page = Page::join(page.ok_or_else(broken)?)?;
        let reach = Reach { device, apertures, windows, page, words, doorbell_bits };
        Ok(BridgeClient { reach: Arc::new(reach), bells })
    }
}

impl Client for BridgeClient {
    fn link_state(&self) -> LinkState {
        let words = &self.reach.words;
        let trained = words.trained();
        LinkState {
            up: words.up_generation().is_some(),
            speed: trained.speed,
            width: trained.width,
            max_payload: trained.max_payload,
            generation: self.generation(),
        }
    }

    fn generation(&self) -> u64 {
        self.reach.words.generation()
    }

    fn outbound(&self, window: usize) -> Result<Box<dyn Outbound>> {
        Ok(Box::new(SlottedOutbound::new(Target::beside(self.reach.clone(), window))))
    }

    fn pending(&self) -> u64 {
        if self.looks() {
            let bells = self.reach.heard();
            if bells != 0 && self.reach.words.listens() {
                self.reach.latch(bells);
                self.reach.words.tell();
            }
        }
        self.reach.words.pending().load(Ordering::SeqCst) & self.reach.valid_bits()
    }

    fn clear(&self, bits: u64) {
        self.reach.words.pending().fetch_and(!bits, Ordering::SeqCst);
    }

    fn mask(&self) -> u64 {
        self.reach.words.mask().load(Ordering::SeqCst) & self.reach.valid_bits()
    }

    fn set_mask(&self, bits: u64) {
        self.reach.words.mask().fetch_or(bits, Ordering::SeqCst);
    }

    fn clear_mask(&self, bits: u64) {
        self.reach.words.mask().fetch_and(!bits, Ordering::SeqCst);
        self.reach.words.tell();
    }

    fn looks(&self) -> bool {
        !self.reach.has_bells()
    }

    fn ring(&self, bits: u64) -> bool {
        let reach = &self.reach;
        if reach.words.up_generation().is_none() {
            reach.count(Event::Lost, 1);
            return true;
        }
        reach.device.drain();
        if !reach.has_bells() {
            reach.count(Event::DoorbellsRung, 1);
            reach.ring_words(bits);
            return true;
        }
        let rung = || self.bells.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        if rung().any(|(_, bell)| bell.is_none()) {
            return false;
        }
        reach.count(Event::DoorbellsRung, 1);
        for Bell { bar, offset, bytes, value } in rung().filter_map(|(_, bell)| *bell) {
            match bytes {
                2 => reach.device.write16(bar, offset, value as u16),
                4 => reach.device.write32(bar, offset, value as u32),
                _ => reach.device.write64(bar, offset, value),
            }
        }
        true
    }

    fn abandon(&self) {
        self.reach.words.lose();
        self.reach.device.abandon();
    }
}
