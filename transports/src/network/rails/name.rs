// SPDX-License-Identifier: Apache-2.0
//! What a PE with several rails tells the others: its address on each, a number of its own, and the keys of
//! each piece of shared memory.

use super::MOST;

/// Keys of one piece of shared memory, by rail.
pub type Keys = [u64; MOST];

/// What was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Addresses, by rail.
    pub rails: Vec<Vec<u8>>,
    /// A number that strangers do not know; 0 of a PE with one rail.
    pub id: u64,
    /// Keys of its shared memory.
    pub keys: Vec<Keys>,
}

impl Name {
    /// The name as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.rails.len() as u8];
        for rail in &self.rails {
            bytes.push(rail.len() as u8);
            bytes.extend(rail);
        }
        if self.rails.len() > 1 {
            bytes.extend(self.id.to_le_bytes());
        }
        for keys in &self.keys {
            bytes.extend(keys[..self.rails.len()].iter().flat_map(|key| key.to_le_bytes()));
        }
        bytes
    }

    /// The name that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8]) -> Option<Name> {
        let (count, mut rest) = bytes.split_first()?;
        let count = usize::from(*count);
        if !(1..=MOST).contains(&count) {
            return None;
        }
        let mut rails = vec![];
        for _ in 0..count {
            let (len, after) = rest.split_first()?;
            let (rail, after) = after.split_at_checked(usize::from(*len))?;
            rails.push(rail.to_vec());
            rest = after;
        }
        let mut id = 0;
        if count > 1 {
            let (word, after) = rest.split_first_chunk()?;
            (id, rest) = (u64::from_le_bytes(*word), after);
        }
        let (words, rest) = rest.as_chunks::<8>();
        if !rest.is_empty() || !words.len().is_multiple_of(count) {
            return None;
        }
        let keys = words.chunks(count).map(|words| {
            let mut keys = [0; MOST];
            keys.iter_mut().zip(words).for_each(|(key, word)| *key = u64::from_le_bytes(*word));
            keys
        });
        Some(Name { rails, id, keys: keys.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_comes_back_as_it_was_and_nothing_longer_does(
            rails in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..=MOST),
            id: u64,
            mut keys in prop::collection::vec(any::<Keys>(), 0..3),
        ) {
            keys.iter_mut().for_each(|keys| keys[rails.len()..].fill(0));
            let id = if rails.len() > 1 { id } else { 0 };
            let name = Name { rails, id, keys };
            let bytes = name.encode();
            prop_assert_eq!(Name::decode(&bytes), Some(name));
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(Name::decode(&longer), None);
        }

        #[test]
        fn garbage_is_no_name(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(name) = Name::decode(&bytes) {
                prop_assert_eq!(name.encode(), bytes);
            }
        }
    }
}
