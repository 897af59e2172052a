// SPDX-License-Identifier: Apache-2.0
//! Local buffers of operations, registered with a device that reaches no other memory.
//!
//! Network cards access memory by pages that were registered, and pinned, beforehand: that takes far
//! longer than a short operation. A transport over such a device has three kinds of buffers:
//!
//! - symmetric memory, registered once ([`Cache::keep`]);
//! - short private buffers, copied through a registered [`Pool`];
//! - long private buffers, which a [`Cache`] registers when they are first used and remembers.
//!
//! What is remembered is wrong from the moment the memory is unmapped: a buffer that is allocated at
//! the same address later has other pages, and the device would go on using the old ones. Programs
//! unmap memory without a word to libraries, in `free` among others. So the cache lets the kernel tell
//! ([`watch`]), and remembers only what is watched; where the kernel does not tell, a buffer is
//! registered for each operation.

mod pool;
mod slab;
#[cfg(test)]
mod tests;
mod watch;

pub use pool::Pool;
pub use slab::Slab;

use std::sync::Arc;
use watch::{Ticket, Watch};

/// Registrations that are remembered.
const ENTRIES: usize = 64;
/// Bytes of all registrations that are remembered: what is registered cannot be paged out.
const BYTES: usize = 1 << 30;

/// What memory is registered with.
pub trait Device {
    /// What an operation has to know of the registration of its buffer.
    type Key: Copy;

    /// Registers memory for operations of this process.
    ///
    /// # Safety
    /// The memory stays mapped until `unregister`, or until the program unmaps it, after which no
    /// operation uses the registration.
    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Self::Key, String>;

    /// Registers memory that operations only read, and that this process perhaps may not write: cards refuse that in
    /// [`Device::register`].
    ///
    /// # Safety
    /// As for [`Device::register`].
    unsafe fn register_source(&mut self, at: *mut u8, len: usize) -> Result<Self::Key, String> {
        // SAFETY: by the caller's word.
        unsafe { self.register(at, len) }
    }

    /// Takes a registration back. No operation uses it any more.
    fn unregister(&mut self, key: Self::Key);
}

/// A registration that an operation uses, until it is given back with [`Cache::release`].
#[derive(Clone, Copy, Debug)]
pub struct Held<K> {
    /// The registration.
    pub key: K,
    entry: Option<usize>,
}

/// Registrations of a device. For use by one thread at a time; the kernel's word comes from another.
pub struct Cache<K> {
    kept: Vec<(usize, usize, K)>,
    entries: Vec<Option<Entry<K>>>,
    watch: Option<Arc<Watch>>,
    /// Counts uses, to find out which was longest ago.
    clock: u64,
    bytes: usize,
    /// Size of a page.
    page: usize,
}

struct Entry<K> {
    start: usize,
    end: usize,
    key: K,
    /// Operations only read it.
    is_source: bool,
    /// None: for one operation alone.
    ticket: Option<Ticket>,
    /// Operations under way.
    uses: u32,
    used_at: u64,
}

impl<K: Copy> Entry<K> {
    /// Whether the memory is still what was registered, as an operation that uses it must know.
    fn is_current(&self, watch: Option<&Arc<Watch>>) -> bool {
        let ticket = self.ticket.as_ref();
        ticket.zip(watch).is_some_and(|(ticket, watch)| watch.is_intact(ticket))
    }

    /// Whether it is worth remembering.
    fn seems_current(&self, watch: Option<&Arc<Watch>>) -> bool {
        let ticket = self.ticket.as_ref();
        ticket.zip(watch).is_some_and(|(ticket, watch)| watch.seems_intact(ticket))
    }
}

impl<K: Copy> Default for Cache<K> {
    fn default() -> Cache<K> {
        Cache::new()
    }
}

impl<K: Copy> Cache<K> {
    /// An empty cache, which remembers nothing where the kernel does not tell of unmapped memory.
    pub fn new() -> Cache<K> {
        Cache::over(Watch::shared())
    }

    /// A cache that remembers nothing.
    pub fn idle() -> Cache<K> {
        Cache::over(None)
    }

    fn over(watch: Option<Arc<Watch>>) -> Cache<K> {
        let (kept, entries) = (Vec::new(), Vec::with_capacity(ENTRIES));
        let page = crate::memory::page_size();
        Cache { kept, entries, watch, clock: 0, bytes: 0, page }
    }

    /// Whether registrations are remembered.
    pub fn remembers(&self) -> bool {
        self.watch.is_some()
    }

    /// Enters memory that is registered and stays mapped as long as the cache is used.
    pub fn keep(&mut self, at: *const u8, len: usize, key: K) {
        self.kept.push((at as usize, at as usize + len, key));
    }

    /// The registration of a buffer, by `device` if there is none; an error if that is not possible. The operation only
    /// reads a source.
    ///
    /// # Safety
    /// The buffer is valid for `len` bytes until [`Cache::release`].
    pub unsafe fn acquire(
        &mut self,
        device: &mut impl Device<Key = K>,
        at: *mut u8,
        len: usize,
        is_source: bool,
    ) -> Result<Held<K>, String> {
        let (start, end) = (at as usize, at as usize + len);
        let within = |(from, to, _): &&(usize, usize, K)| *from <= start && end <= *to;
        if let Some((_, _, key)) = self.kept.iter().find(within) {
            return Ok(Held { key: *key, entry: None });
        }
        self.clock += 1;
        let (clock, watch) = (self.clock, self.watch.as_ref());
        let known = self.entries.iter_mut().enumerate().find_map(|(index, entry)| {
            let entry = entry.as_mut()?;
            let covers = entry.start <= start && end <= entry.end;
            let suits = is_source || !entry.is_source;
            (covers && suits && entry.is_current(watch)).then_some((index, entry))
        });
        if let Some((index, entry)) = known {
            (entry.uses, entry.used_at) = (entry.uses + 1, clock);
            return Ok(Held { key: entry.key, entry: Some(index) });
        }
        // Whole pages, as the device and the kernel count.
        let (start, end) = (start / self.page * self.page, end.next_multiple_of(self.page));
        self.make_room(device, start, end);
        // Watched before it is registered, so that nothing happens to it in between unseen.
        let fits = end - start <= BYTES;
        let watch = self.watch.clone().filter(|_| fits);
        let ticket = watch.as_ref().and_then(|watch| Watch::add(watch, start, end));
        // SAFETY: the pages of a buffer that the caller vouches for.
        let mut registered = unsafe { device.register(start as *mut u8, end - start) };
        if registered.is_err() {
            // Perhaps there is a limit to what may be registered.
            self.drop_if(device, |_| true);
            // SAFETY: as above.
            registered = unsafe { device.register(start as *mut u8, end - start) };
        }
        let is_source = is_source && registered.is_err();
        if is_source {
            // SAFETY: as above.
            registered = unsafe { device.register_source(start as *mut u8, end - start) };
        }
        let key = match registered {
            Ok(key) => key,
            Err(why) => {
                if let Some((watch, ticket)) = watch.zip(ticket) {
                    watch.remove(ticket);
                }
                return Err(why);
            }
        };
        self.bytes += end - start;
        let entry = Entry { start, end, key, is_source, ticket, uses: 1, used_at: clock };
        let free = self.entries.iter().position(Option::is_none);
        let index = free.unwrap_or(self.entries.len());
        match free {
            Some(index) => self.entries[index] = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        Ok(Held { key, entry: Some(index) })
    }

    /// Gives back a registration whose operation is over.
    pub fn release(&mut self, device: &mut impl Device<Key = K>, held: Held<K>) {
        let Some(index) = held.entry else { return };
        let watch = self.watch.as_ref();
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else { return };
        entry.uses -= 1;
        if entry.uses == 0 && !entry.seems_current(watch) {
            self.drop_entry(device, index);
        }
    }

    /// Takes back all registrations that no operation uses.
    pub fn clear(&mut self, device: &mut impl Device<Key = K>) {
        self.drop_if(device, |_| true);
    }

    /// Registrations there are, and their bytes; without those of memory that is kept.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.iter().flatten().count(), self.bytes)
    }

    /// Drops what is of no use any more, and, if there is too much still, what was used longest ago.
    fn make_room(&mut self, device: &mut impl Device<Key = K>, start: usize, end: usize) {
        let watch = self.watch.clone();
        self.drop_if(device, |entry| {
            let inside = start <= entry.start && entry.end <= end;
            inside || !entry.seems_current(watch.as_ref())
        });
        while self.size().0 >= ENTRIES || self.bytes + (end - start) > BYTES {
            let idle = self.entries.iter().enumerate();
            let idle = idle.filter_map(|(index, entry)| Some((index, entry.as_ref()?)));
            let oldest = idle.filter(|(_, e)| e.uses == 0).min_by_key(|(_, e)| e.used_at);
            // The rest is in use, which is bounded by the operations under way.
            let Some((index, _)) = oldest else { return };
            self.drop_entry(device, index);
        }
    }

    /// Drops idle entries.
    fn drop_if(
        &mut self,
        device: &mut impl Device<Key = K>,
        mut useless: impl FnMut(&Entry<K>) -> bool,
    ) {
        for index in 0..self.entries.len() {
            let entry = self.entries[index].as_ref();
            if entry.is_some_and(|entry| entry.uses == 0 && useless(entry)) {
                self.drop_entry(device, index);
            }
        }
    }

    fn drop_entry(&mut self, device: &mut impl Device<Key = K>, index: usize) {
        let Some(entry) = self.entries[index].take() else { return };
        self.bytes -= entry.end - entry.start;
        device.unregister(entry.key);
        if let Some((watch, ticket)) = self.watch.as_ref().zip(entry.ticket) {
            watch.remove(ticket);
        }
    }
}

impl<K> Drop for Cache<K> {
    /// The device takes back its registrations when it is closed.
    fn drop(&mut self) {
        let Some(watch) = &self.watch else { return };
        let tickets = self.entries.drain(..).flatten().filter_map(|entry| entry.ticket);
        tickets.for_each(|ticket| watch.remove(ticket));
    }
}
