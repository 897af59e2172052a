// SPDX-License-Identifier: Apache-2.0
//! A bridge as a PCI function: its registers, its windows, its interrupts, and the addresses through
//! which it reaches memory of this process.

use crate::ntb::port::shared::DeviceShare;
use crate::ntb::port::vfio::{self, Bar, Trained, order};
use crate::ntb::port::{PortError, Result};
use nix::sys::eventfd::EventFd;
use std::fmt::Debug;
use std::sync::Arc;

/// Base address registers that a function can have.
pub const BARS: usize = 6;

/// What a port needs of a function. Offsets outside of a BAR are read as all ones and not written,
/// as on a bus.
pub trait Device: Debug + Send + Sync {
    /// Bytes behind a base address register; 0 where there is none.
    fn bar_size(&self, bar: usize) -> usize;

    /// Reads a register; the offset is a multiple of 4.
    fn read32(&self, bar: usize, offset: usize) -> u32;

    /// Writes a register.
    fn write32(&self, bar: usize, offset: usize, value: u32);

    /// Reads a register of eight bytes; the offset is a multiple of 8.
    fn read64(&self, bar: usize, offset: usize) -> u64;

    /// Writes one of eight bytes.
    fn write64(&self, bar: usize, offset: usize, value: u64);

    /// Reads a register of two bytes.
    fn read16(&self, bar: usize, offset: usize) -> u16;

    /// Writes one of two bytes.
    fn write16(&self, bar: usize, offset: usize, value: u16);

    /// Reads a register of one byte.
    fn read8(&self, bar: usize, offset: usize) -> u8;

    /// Writes one of one byte.
    fn write8(&self, bar: usize, offset: usize, value: u8);

    /// Two bytes of configuration space.
    fn config16(&self, offset: usize) -> u16;

    /// Writes two bytes of configuration space.
    fn set_config16(&self, offset: usize, value: u16) -> Result<()>;

    /// Resets the function.
    fn reset(&self) -> Result<()>;

    /// Stores to a window: aligned words of 2, 4 and 8 bytes are whole, in order of their addresses unless
    /// the window [combines](Device::combines) stores.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes.
    unsafe fn store(&self, bar: usize, offset: usize, source: *const u8, len: usize);

    /// Stores aligned words: who sees the last sees all.
    fn store_words(&self, bar: usize, offset: usize, words: &[u64]);

    /// Loads from a window: a round trip for every word, of which aligned ones are whole.
    ///
    /// # Safety
    /// `dest` is writable for `len` bytes.
    unsafe fn load(&self, bar: usize, offset: usize, dest: *mut u8, len: usize);

    /// Whether stores to windows leave in any order until [`Device::drain`].
    fn combines(&self) -> bool;

    /// Has all stores of this thread, to memory as well, leave before those that follow.
    fn drain(&self);

    /// The link between the function and this machine, as trained.
    fn trained(&self) -> Trained;

    /// One event for each interrupt vector.
    fn interrupts(&self) -> &[EventFd];

    /// Whether they are those of MSI-X; of MSI otherwise.
    fn has_msix(&self) -> bool;

    /// Takes `len` bytes of the addresses that functions of this process use, at a multiple of
    /// `align`. Nothing is behind them.
    fn reserve(&self, len: u64, align: u64) -> Result<u64>;

    /// Puts memory of this process behind `address`; all are multiples of the page size.
    ///
    /// # Safety
    /// The memory stays mapped until `unmap`. The function may write it at any time.
    unsafe fn map(&self, address: u64, base: *mut u8, len: usize) -> Result<()>;

    /// Puts a part of a base address register behind `address`, for other functions of this process; all
    /// are multiples of the page size.
    fn map_bar(&self, address: u64, bar: usize, offset: usize, len: usize) -> Result<()>;

    /// Takes back `map` of the same range: on return no write to it is on its way.
    fn unmap(&self, address: u64, len: usize);

    /// What another process of this host needs to store to the function, and to load from it.
    fn share(&self) -> Result<DeviceShare> {
        Err(PortError::Unsupported("way for several processes to use it"))
    }

    /// In such a process: lets go of the function, whose owner has ended. What is stored then goes nowhere.
    fn abandon(&self) {}

    /// What it is and where, for people.
    fn describe(&self) -> String;
}

/// The PCI function.
#[derive(Debug)]
pub struct PciDevice {
    device: Arc<vfio::Device>,
    bars: [Option<Bar>; BARS],
    trained: Trained,
    interrupts: Vec<EventFd>,
    has_msix: bool,
}

impl PciDevice {
    /// Maps all memory that the function has, and ties up to `vectors` interrupt vectors to events.
    pub fn new(device: vfio::Device, vectors: u32) -> Result<PciDevice> {
        let device = Arc::new(device);
        let mut bars = [const { None }; BARS];
        for (index, bar) in bars.iter_mut().enumerate() {
            if device.has_memory(index as u32)? {
                *bar = Some(device.map(index as u32)?);
            }
        }
        let (interrupts, has_msix) = device.interrupts_of_any_kind(vectors)?;
        Ok(PciDevice { trained: device.trained()?, device, bars, interrupts, has_msix })
    }

    /// Maps the same of a function that another process has open, and has no interrupts.
    pub fn beside(device: vfio::Device) -> Result<PciDevice> {
        PciDevice::new(device, 0)
    }

    /// The address of `len` bytes, if they are there and aligned to `align`.
    fn at(&self, bar: usize, offset: usize, len: usize, align: usize) -> Option<*mut u8> {
        let bar = self.bars.get(bar)?.as_ref()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= bar.size());
        (inside && offset.is_multiple_of(align)).then(|| bar.base().as_ptr().wrapping_add(offset))
    }
}

impl Device for PciDevice {
    fn bar_size(&self, bar: usize) -> usize {
        self.bars.get(bar).and_then(Option::as_ref).map_or(0, Bar::size)
    }

    fn read32(&self, bar: usize, offset: usize) -> u32 {
        let at = self.at(bar, offset, 4, 4);
        // SAFETY: an aligned register inside the mapped range.
        let value = at.map_or(u32::MAX, |at| unsafe { at.cast::<u32>().read_volatile() });
        order::after_load();
        value
    }

    fn write32(&self, bar: usize, offset: usize, value: u32) {
        if let Some(at) = self.at(bar, offset, 4, 4) {
            order::before_store();
            // SAFETY: as above.
            unsafe { at.cast::<u32>().write_volatile(value) };
        }
    }

    fn read64(&self, bar: usize, offset: usize) -> u64 {
        let at = self.at(bar, offset, 8, 8);
        // SAFETY: as above.
        let value = at.map_or(u64::MAX, |at| unsafe { at.cast::<u64>().read_volatile() });
        order::after_load();
        value
    }

    fn write64(&self, bar: usize, offset: usize, value: u64) {
        if let Some(at) = self.at(bar, offset, 8, 8) {
            order::before_store();
            // SAFETY: as above.
            unsafe { at.cast::<u64>().write_volatile(value) };
        }
    }

    fn read16(&self, bar: usize, offset: usize) -> u16 {
        let at = self.at(bar, offset, 2, 2);
        // SAFETY: as above.
        let value = at.map_or(u16::MAX, |at| unsafe { at.cast::<u16>().read_volatile() });
        order::after_load();
        value
    }

    fn write16(&self, bar: usize, offset: usize, value: u16) {
        if let Some(at) = self.at(bar, offset, 2, 2) {
            order::before_store();
            // SAFETY: as above.
            unsafe { at.cast::<u16>().write_volatile(value) };
        }
    }

    fn read8(&self, bar: usize, offset: usize) -> u8 {
        let at = self.at(bar, offset, 1, 1);
        // SAFETY: as above.
        let value = at.map_or(u8::MAX, |at| unsafe { at.read_volatile() });
        order::after_load();
        value
    }

    fn write8(&self, bar: usize, offset: usize, value: u8) {
        if let Some(at) = self.at(bar, offset, 1, 1) {
            order::before_store();
            // SAFETY: as above.
            unsafe { at.write_volatile(value) };
        }
    }

    fn config16(&self, offset: usize) -> u16 {
        self.device.config16(offset)
    }

    fn set_config16(&self, offset: usize, value: u16) -> Result<()> {
        self.device.set_config16(offset, value)
    }

    fn reset(&self) -> Result<()> {
        self.device.reset()
    }

    unsafe fn store(&self, bar: usize, offset: usize, source: *const u8, len: usize) {
        if let Some(at) = self.at(bar, offset, len, 1) {
            order::before_store();
            // SAFETY: inside the mapped range; the caller vouches for the source.
            unsafe { store_in_parts(at, source, len) };
        }
    }

    fn store_words(&self, bar: usize, offset: usize, words: &[u64]) {
        if let Some(at) = self.at(bar, offset, size_of_val(words), 8) {
            order::before_store();
            for (index, word) in words.iter().enumerate() {
                // SAFETY: an aligned word inside the mapped range.
                unsafe { at.cast::<u64>().add(index).write_volatile(*word) };
            }
        }
    }

    unsafe fn load(&self, bar: usize, offset: usize, dest: *mut u8, len: usize) {
        match self.at(bar, offset, len, 1) {
            // SAFETY: inside the mapped range; the caller vouches for the destination.
            Some(at) => unsafe { load_in_parts(dest, at, len) },
            // SAFETY: the caller's promise.
            None => unsafe { dest.write_bytes(0xff, len) },
        }
        order::after_load();
    }

    fn combines(&self) -> bool {
        // The kernel maps memory of functions without combining.
        false
    }

    fn drain(&self) {
        order::drain();
    }

    fn trained(&self) -> Trained {
        self.trained
    }

    fn interrupts(&self) -> &[EventFd] {
        &self.interrupts
    }

    fn has_msix(&self) -> bool {
        self.has_msix
    }

    fn reserve(&self, len: u64, align: u64) -> Result<u64> {
        self.device.reserve(len, align)
    }

    unsafe fn map(&self, address: u64, base: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.device.map_memory(address, base, len) }
    }

    fn map_bar(&self, address: u64, bar: usize, offset: usize, len: usize) -> Result<()> {
        let at = self.at(bar, offset, len, 1);
        let at = at.ok_or_else(|| PortError::Invalid(format!("BAR {bar} has no {len} bytes")))?;
        // SAFETY: memory of a device, which stays mapped as long as this value, and longer than other
        // functions of this process use it; it is no memory of the program.
        unsafe { self.device.map_memory(address, at, len) }
    }

    fn unmap(&self, address: u64, len: usize) {
        if let Err(error) = self.device.unmap_memory(address, len) {
            tracing::warn!(%error, "closing memory to a device");
        }
    }

    fn share(&self) -> Result<DeviceShare> {
        self.device.share()
    }

    fn abandon(&self) {
        self.device.abandon(self.bars.iter().flatten());
    }

    fn describe(&self) -> String {
        format!("device {}", self.device.address())
    }
}

/// Parts of a range from `address` on: where each begins in the range, and its bytes. Each part is the largest
/// power of two, 8 at most, that is aligned and left. So every aligned word of 2, 4 or 8 bytes in the range lies
/// in one part, if the range begins and ends between such words.
pub fn parts(address: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = len.checked_sub(done).filter(|left| *left > 0)?;
        let aligned = (address + done).trailing_zeros().min(3);
        let part = (done, 1 << left.ilog2().min(aligned));
        done += part.1;
        Some(part)
    })
}

/// Copies to memory of a device, one access for each of the range's [`parts`]: nobody sees half of one.
///
/// # Safety
/// Both ranges are valid for `len` bytes.
unsafe fn store_in_parts(to: *mut u8, source: *const u8, len: usize) {
    for_parts(to.addr(), len, |at, bytes| {
        // SAFETY: below `len`, and the destination is aligned to the part.
        unsafe {
            let (to, source) = (to.add(at), source.add(at));
            match bytes {
                8 => to.cast::<u64>().write_volatile(source.cast::<u64>().read_unaligned()),
                4 => to.cast::<u32>().write_volatile(source.cast::<u32>().read_unaligned()),
                2 => to.cast::<u16>().write_volatile(source.cast::<u16>().read_unaligned()),
                _ => to.write_volatile(source.read()),
            }
        }
    });
}

/// The same from memory of a device.
///
/// # Safety
/// Both ranges are valid for `len` bytes.
unsafe fn load_in_parts(to: *mut u8, source: *const u8, len: usize) {
    for_parts(source.addr(), len, |at, bytes| {
        // SAFETY: below `len`, and the source is aligned to the part.
        unsafe {
            let (to, source) = (to.add(at), source.add(at));
            match bytes {
                8 => to.cast::<u64>().write_unaligned(source.cast::<u64>().read_volatile()),
                4 => to.cast::<u32>().write_unaligned(source.cast::<u32>().read_volatile()),
                2 => to.cast::<u16>().write_unaligned(source.cast::<u16>().read_volatile()),
                _ => to.write(source.read_volatile()),
            }
        }
    });
}

/// Visits the [`parts`] of a range, those of 8 bytes in a loop of their own: nearly all of a long range is of these.
#[inline(always)]
fn for_parts(address: usize, len: usize, mut copy: impl FnMut(usize, usize)) {
    let head = (address.wrapping_neg() % 8).min(len);
    let words = head..len - (len - head) % 8;
    parts(address, head).for_each(|(at, bytes)| copy(at, bytes));
    words.clone().step_by(8).for_each(|at| copy(at, 8));
    parts(address + words.end, len - words.end).for_each(|(at, bytes)| copy(words.end + at, bytes));
}

/// Says that a function is gone.
pub fn gone(device: &dyn Device) -> PortError {
    PortError::Gone(device.describe())
}

/// Says what a function has that cannot be used.
pub fn broken(device: &dyn Device, what: String) -> PortError {
    PortError::Invalid(format!("{} has {what}", device.describe()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of 2, 4 and 8 bytes reach a device by one access each.
    #[test]
    fn aligned_words_are_not_split() {
        let split = |address, len| {
            let mut visited = vec![];
            for_parts(address, len, |at, bytes| visited.push((at, bytes)));
            assert_eq!(visited, parts(address, len).collect::<Vec<_>>());
            visited
        };
        assert_eq!(split(4, 4), [(0, 4)], "a counter of 4 bytes");
        assert_eq!(split(8, 4), [(0, 4)]);
        assert_eq!(split(2, 2), [(0, 2)]);
        assert_eq!(split(4, 20), [(0, 4), (4, 8), (12, 8)]);
        assert_eq!(split(1, 15), [(0, 1), (1, 2), (3, 4), (7, 8)]);
        assert_eq!(split(3, 0), []);
        for word in [1, 2, 4, 8] {
            for (start, words) in (0..16).flat_map(|start| (0..9).map(move |len| (start, len))) {
                let (address, len) = (0x1000 + start * word, words * word);
                let mut next = 0;
                for (at, bytes) in split(address, len) {
                    assert_eq!(at, next);
                    assert!((address + at).is_multiple_of(bytes) && bytes >= word, "{at} {bytes}");
                    next += bytes;
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn copies_of_any_shape_are_whole() {
        let source: Vec<u8> = (0..100).collect();
        for start in 0..9 {
            for len in 0..40 {
                let mut to = [0xaaaa_aaaa_aaaa_aaaau64; 16];
                let mut back = vec![0; len];
                // SAFETY: all ranges are as long.
                unsafe {
                    let to = to.as_mut_ptr().cast::<u8>().add(start);
                    store_in_parts(to, source.as_ptr(), len);
                    load_in_parts(back.as_mut_ptr(), to, len);
                }
                let bytes: Vec<u8> = to.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes[start..start + len], source[..len], "{len} from {start}");
                assert_eq!(back, source[..len], "{len} from {start}");
                let others = bytes[..start].iter().chain(&bytes[start + len..]);
                assert!(others.copied().eq(std::iter::repeat_n(0xaa, 128 - len)));
            }
        }
    }
}
