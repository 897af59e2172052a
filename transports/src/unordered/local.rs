// SPDX-License-Identifier: Apache-2.0
//! Local buffers in memory that is registered: this network, like many a card, reaches no other.

use super::network::Pointer;
use tombolo_core::registration::{Cache, Device, Held, Pool};

/// A buffer of this process, as the network gets it.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Where it lies.
    pub place: Pointer,
    /// The registration that covers it.
    pub key: u64,
}

/// What is given back when an operation is over.
#[derive(Clone, Copy, Debug)]
pub enum Lent {
    /// A registration.
    Registration(Held<u64>),
    /// A buffer of the pool, and where its contents go.
    Copy { buffer: u16, copy_to: Option<(Pointer, usize)> },
}

/// What is registered with the network.
#[derive(Default)]
struct Registered {
    /// Key, start and end.
    ranges: Vec<(u64, usize, usize)>,
    keys: u64,
}

impl Device for Registered {
    type Key = u64;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<u64, String> {
        self.keys += 1;
        self.ranges.push((self.keys, at as usize, at as usize + len));
        Ok(self.keys)
    }

    fn unregister(&mut self, key: u64) {
        self.ranges.retain(|(one, ..)| *one != key);
    }
}

/// Gives operations buffers that the network reaches.
pub struct Lender {
    registered: Registered,
    cache: Cache<u64>,
    pool: Pool,
    pool_key: u64,
    /// Longest buffer that is copied rather than registered.
    copied_max: usize,
}

impl Lender {
    /// For `operations` under way; `own` is address and length of symmetric memory.
    pub fn new(operations: u16, copied_max: usize, own: &[(usize, usize)]) -> Lender {
        let (mut registered, mut cache) = (Registered::default(), Cache::new());
        let pool = Pool::new(operations, copied_max.max(64));
        let (at, len) = pool.memory();
        // SAFETY: the pool lives as long as what it is registered with.
        let pool_key = unsafe { registered.register(at, len) }.expect("never refused");
        for (at, len) in own.iter().filter(|(_, len)| *len > 0) {
            // SAFETY: segments stay mapped until the transport is closed.
            let key = unsafe { registered.register(*at as *mut u8, *len) }.expect("never refused");
            cache.keep(*at as *const u8, *len, key);
        }
        Lender { registered, cache, pool, pool_key, copied_max }
    }

    /// See `Network::lend`.
    ///
    /// # Safety
    /// The buffer is valid for `len` bytes until it is taken back.
    pub unsafe fn lend(&mut self, at: *mut u8, len: usize, source: bool) -> Option<(Local, Lent)> {
        if len <= self.copied_max {
            let buffer = self.pool.take()?;
            let place = self.pool.at(buffer);
            if source {
                // SAFETY: by the caller's word; buffers of the pool are long enough.
                unsafe { std::ptr::copy_nonoverlapping(at, place, len) };
            }
            let copy_to = (!source).then_some((Pointer(at), len));
            let local = Local { place: Pointer(place), key: self.pool_key };
            return Some((local, Lent::Copy { buffer, copy_to }));
        }
        // SAFETY: by the caller's word.
        let held = unsafe { self.cache.acquire(&mut self.registered, at, len, source) }.ok()?;
        Some((Local { place: Pointer(at), key: held.key }, Lent::Registration(held)))
    }

    /// Takes back what was lent, and puts the result of a copied buffer where it belongs.
    ///
    /// # Safety
    /// The buffer that was lent is still valid.
    pub unsafe fn take_back(&mut self, lent: Lent) {
        match lent {
            Lent::Registration(held) => self.cache.release(&mut self.registered, held),
            Lent::Copy { buffer, copy_to } => {
                if let Some((to, len)) = copy_to {
                    let from = self.pool.at(buffer);
                    // SAFETY: by the caller's word. Single accesses for words, as without a copy.
                    unsafe { tombolo_core::copy::cached(to.0, from, len) };
                }
                self.pool.give(buffer);
            }
        }
    }

    /// Whether bytes of a buffer are covered by its registration.
    pub fn is_registered(&self, local: Local, at: usize, len: usize) -> bool {
        let start = local.place.add(at).0 as usize;
        let covers = |(key, from, to): &(u64, usize, usize)| {
            *key == local.key && *from <= start && start + len <= *to
        };
        self.registered.ranges.iter().any(covers)
    }

    /// Takes back every registration that no operation uses.
    #[cfg(test)]
    pub fn forget_all(&mut self) {
        self.cache.clear(&mut self.registered);
    }
}
