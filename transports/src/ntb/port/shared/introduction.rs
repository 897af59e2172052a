// SPDX-License-Identifier: Apache-2.0
//! How the owner of a device makes a port known to another process: what the port has, and what is needed to use it.

use super::client::{Client, DeviceShare, Given, Kind, Share};
use super::message::{bytes_of, words_of};
use super::words::Words;
use crate::ntb::port::bridge::client::BridgeClient;
use crate::ntb::port::{
    Arrival, Capabilities, DoorbellDelivery, LinkEvent, PortError, Result, Window, ivshmem,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Windows of a port at most.
const WINDOWS_MAX: usize = 8;
/// Words before the windows, and of each.
const HEAD: usize = 16;
const WINDOW: usize = 5;

/// Bytes of an introduction for the process in a place: words, then the name of the hardware and where the device is.
pub fn bytes(capabilities: &Capabilities, share: &Share, place: usize) -> Vec<u8> {
    let flags = [
        capabilities.write_combining,
        capabilities.resets_on_link_down,
        capabilities.paced,
        capabilities.dma.is_some(),
    ];
    let flags = flags.iter().rev().fold(0u64, |all, flag| all << 1 | u64::from(*flag));
    let address = match &share.device {
        DeviceShare::File(_, address) => address.as_str(),
        #[cfg(any(test, feature = "testing"))]
        DeviceShare::Here(_) => "",
    };
    let (vectors, bits) = (capabilities.doorbell_vectors, capabilities.doorbell_bits);
    let event = match capabilities.link_event {
        LinkEvent::Interrupt => 0,
        LinkEvent::PollMs(ms) => u64::from(ms),
    };
    let mut words = vec![
        share.kind as u64,
        place as u64,
        capabilities.windows.len() as u64,
        share.details.len() as u64,
        capabilities.name.len() as u64,
        flags,
        capabilities.store_bytes.into(),
        (capabilities.arrival == Arrival::Later).into(),
        bits.into(),
        vectors.into(),
        DELIVERIES.iter().position(|it| *it == capabilities.doorbell_delivery).unwrap_or(0) as u64,
        capabilities.spads as u64,
        event,
        u64::from(share.page.is_some()),
        capabilities.modelled.into(),
        double(&share.device),
    ];
    for window in &capabilities.windows {
        let flags = [window.size_aligned, window.has_limit, window.fixed];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u64::from(*flag));
        let Window { size, slots, addr_align, size_align, .. } = *window;
        words.extend([size, slots as u64, addr_align, size_align, flags]);
    }
    words.extend(&share.details);
    let mut bytes = bytes_of(words.iter());
    bytes.extend(capabilities.name.bytes().chain(address.bytes()));
    bytes
}

/// Descriptors that go along.
pub fn files(share: &Share) -> Vec<BorrowedFd<'_>> {
    let device = match &share.device {
        DeviceShare::File(file, _) => Some(file.as_fd()),
        #[cfg(any(test, feature = "testing"))]
        DeviceShare::Here(_) => None,
    };
    let page = share.page.as_ref().map(AsFd::as_fd);
    share.words.file().into_iter().chain(page).chain(device).collect()
}

const DELIVERIES: [DoorbellDelivery; 3] = [
    DoorbellDelivery::PerBitVector,
    DoorbellDelivery::AggregateLevel,
    DoorbellDelivery::EdgeFromZero,
];

/// What a port is made of.
pub struct Accepted {
    pub capabilities: Capabilities,
    pub words: Arc<Words>,
    pub client: Arc<dyn Client>,
    /// Whether its owner has DMA engines.
    pub has_engines: bool,
}

/// Makes a port of an introduction. Refuses what cannot be.
pub fn accept(bytes: &[u8], files: Vec<OwnedFd>) -> Result<Accepted> {
    read(bytes, files)
        .ok_or_else(|| PortError::Invalid("what is told of a port cannot be".into()))?
}

fn read(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Result<Accepted>> {
    let number = |word: u64| usize::try_from(word).ok();
    let all = words_of(bytes);
    let (head, rest) = all.split_first_chunk::<HEAD>()?;
    let [kind, place, windows, details, name, flags, store_bytes, later, bits, vectors, ..] = *head;
    let [.., delivery, spads, event, has_page, modelled, double] = *head;
    let count = number(windows).filter(|count| (1..=WINDOWS_MAX).contains(count))?;
    let (windows, rest) = rest.split_at_checked(count * WINDOW)?;
    let details = rest.get(..number(details)?)?.to_vec();
    let text = bytes.get((HEAD + count * WINDOW + details.len()) * 8..)?;
    let (name, address) = text.split_at_checked(number(name)?)?;
    let windows = windows.as_chunks::<WINDOW>().0.iter().map(window).collect::<Option<_>>()?;
    let capabilities = Capabilities {
        name: known(std::str::from_utf8(name).ok()?),
        windows,
        write_combining: flags & 1 != 0,
        store_bytes: u32::try_from(store_bytes).ok()?.clamp(1, 64),
        arrival: if later == 0 { Arrival::AtFlush } else { Arrival::Later },
        doorbell_bits: u32::try_from(bits).ok().filter(|bits| (1..=64).contains(bits))?,
        doorbell_vectors: u32::try_from(vectors).ok()?,
        doorbell_delivery: *DELIVERIES.get(number(delivery)?)?,
        spads: number(spads)?,
        resets_on_link_down: flags & 2 != 0,
        link_event: match u32::try_from(event).ok()? {
            0 => LinkEvent::Interrupt,
            ms => LinkEvent::PollMs(ms),
        },
        // Its engines are the owner's.
        dma: None,
        paced: flags & 4 != 0,
        modelled: modelled != 0,
    };
    let mut files = files.into_iter();
    let (words, page) = (files.next()?, if has_page != 0 { Some(files.next()?) } else { None });
    let address = String::from_utf8_lossy(address).into_owned();
    let device = match files.next() {
        Some(file) => DeviceShare::File(file, address),
        None => double_of(double)?,
    };
    let (kind, place) = (Kind::from_word(kind)?, number(place)?);
    let make = || {
        let words = Arc::new(Words::join(words, place)?);
        let given = Given { details, words: words.clone(), page, device };
        let client: Arc<dyn Client> = match kind {
            Kind::Bridge => Arc::new(BridgeClient::new(given)?),
            Kind::Ivshmem => ivshmem::client::open(given)?,
        };
        Ok(Accepted { capabilities, words, client, has_engines: flags & 8 != 0 })
    };
    Some(make())
}

fn window([size, slots, addr_align, size_align, flags]: &[u64; WINDOW]) -> Option<Window> {
    let is_power = |bytes: &u64| bytes.is_power_of_two() && *bytes <= 1 << 48;
    let sound = (1..=1 << 20).contains(slots)
        && *size <= 1 << 48
        && size.is_multiple_of(*slots)
        && is_power(&(size / slots))
        && is_power(addr_align)
        && is_power(size_align);
    sound.then_some(Window {
        size: *size,
        slots: *slots as usize,
        addr_align: *addr_align,
        size_align: *size_align,
        size_aligned: flags & 1 != 0,
        has_limit: flags & 2 != 0,
        fixed: flags & 4 != 0,
    })
}

/// A name that stays: there are as many as kinds of hardware.
fn known(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name = Box::leak(name.to_owned().into_boxed_str());
    names.push(name);
    name
}

#[cfg(any(test, feature = "testing"))]
mod doubles {
    //! Devices of tests, which threads of one process share.

    use super::{DeviceShare, Mutex, PoisonError};
    use std::any::Any;
    use std::sync::{Arc, Weak};

    static ALL: Mutex<Vec<Weak<dyn Any + Send + Sync>>> = Mutex::new(Vec::new());

    /// A number for a double.
    pub fn number(device: &DeviceShare) -> u64 {
        let DeviceShare::Here(double) = device else { return 0 };
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let own = Arc::downgrade(double);
        let known = all.iter().position(|known| known.ptr_eq(&own));
        let place = known.unwrap_or_else(|| {
            all.push(own);
            all.len() - 1
        });
        place as u64 + 1
    }

    /// The double of that number.
    pub fn of(number: u64) -> Option<DeviceShare> {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        all.get(place)?.upgrade().map(DeviceShare::Here)
    }
}

#[cfg(any(test, feature = "testing"))]
use doubles::{number as double, of as double_of};

#[cfg(not(any(test, feature = "testing")))]
fn double(_device: &DeviceShare) -> u64 {
    0
}

#[cfg(not(any(test, feature = "testing")))]
fn double_of(_number: u64) -> Option<DeviceShare> {
    None
}
