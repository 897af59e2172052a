// SPDX-License-Identifier: Apache-2.0
//! What a provider promises, and what it has room for, by its attributes.

use super::sys::{self, EpAttr};
use crate::network::open::PIECE;

/// Whether writes become visible in the order issued, and before messages that were sent later. That a write begins
/// after the one before it is one thing; that its data follow those of the other is another, which a provider may
/// promise of short ones alone.
pub fn keeps_order(msg_order: u64, endpoint: &EpAttr) -> bool {
    let order = sys::ORDER_WAW | sys::ORDER_SAW | sys::ORDER_SAS;
    let longest = endpoint.max_msg_size.min(PIECE);
    msg_order & order == order && endpoint.max_order_waw_size >= longest
}

/// Keys that are asked for, where the provider lets them be chosen: no longer than it has room for.
pub struct Keys {
    largest: u64,
    /// The last one of a private buffer.
    last: u64,
}

impl Keys {
    /// Keys of so many bytes.
    pub fn of(bytes: usize) -> Keys {
        let largest = u64::MAX >> (64 - 8 * bytes.clamp(1, 8));
        // Those of private buffers are far from those that a trial chooses.
        Keys { largest, last: largest.isqrt() + 1 }
    }

    /// The key of another private buffer.
    pub fn own(&mut self) -> u64 {
        self.last = self.fit(self.last + 1);
        self.last
    }

    /// As much of a key as there is room for.
    pub fn fit(&self, key: u64) -> u64 {
        key & self.largest
    }

    /// How many private buffers had one so far.
    #[cfg(test)]
    pub fn given(&self) -> u64 {
        self.last - self.largest.isqrt() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_no_longer_than_there_is_room_for() {
        for (bytes, largest) in [(2, 0xffff), (4, 0xffff_ffff), (8, u64::MAX), (100, u64::MAX)] {
            let mut keys = Keys::of(bytes);
            assert_eq!((keys.fit(u64::MAX), keys.fit(0x5eed)), (largest, 0x5eed));
            let own: Vec<u64> = (0..100).map(|_| keys.own()).collect();
            assert!(own.is_sorted_by(|a, b| a < b) && own[99] <= largest, "{bytes}: {own:?}");
        }
    }

    #[test]
    fn order_counts_where_it_is_promised_of_data_as_long_as_those_of_an_operation() {
        let all = sys::ORDER_WAW | sys::ORDER_SAW | sys::ORDER_SAS;
        let keeps = |msg_order, max_msg_size, max_order_waw_size| {
            // SAFETY: numbers, and a pointer that may be null.
            let none: EpAttr = unsafe { std::mem::zeroed() };
            keeps_order(msg_order, &EpAttr { max_msg_size, max_order_waw_size, ..none })
        };
        assert!(keeps(all, usize::MAX, usize::MAX) && keeps(all, usize::MAX, PIECE));
        assert!(keeps(all, 4096, 4096));
        assert!(!keeps(all, usize::MAX, 0) && !keeps(all, usize::MAX, 4096));
        assert!(!keeps(sys::ORDER_SAS, usize::MAX, usize::MAX));
    }
}
