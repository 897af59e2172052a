// SPDX-License-Identifier: Apache-2.0
//! A fixed set of small numbers, scanned in rotation.

/// A set of numbers below a size fixed at the start.
#[derive(Clone, Debug, Hash)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// How many there are: most looks are of polls that find none.
    count: usize,
}

impl Bits {
    pub(super) fn new(size: usize) -> Bits {
        Bits { words: vec![0; size.div_ceil(64)], count: 0 }
    }

    pub(super) fn set(&mut self, index: usize, value: bool) {
        let word = &mut self.words[index / 64];
        let before = *word;
        let bit = 1 << (index % 64);
        *word = if value { before | bit } else { before & !bit };
        // It is one more, one less or the same.
        self.count = self.count + usize::from(*word > before) - usize::from(*word < before);
    }

    pub(super) fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// Members in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * 64 + bit)
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first member at or after `start`, which is at most the size, going round.
    #[inline]
    pub(super) fn next_from(&self, start: usize) -> Option<usize> {
        // Most searches are of polls that find nothing.
        if self.is_empty() { None } else { self.find_next(start) }
    }

    fn find_next(&self, start: usize) -> Option<usize> {
        let count = self.words.len();
        // No division: it would take longer than all else here.
        let first = if start / 64 < count { start / 64 } else { 0 };
        let head = self.words[first] & (u64::MAX << (start % 64));
        if head != 0 {
            return Some(first * 64 + head.trailing_zeros() as usize);
        }
        (1..=count).find_map(|step| {
            let index = if first + step < count { first + step } else { first + step - count };
            let word = self.words[index];
            (word != 0).then(|| index * 64 + word.trailing_zeros() as usize)
        })
    }

    /// The first member at or after `start`, going round, that is `wanted`.
    #[inline]
    pub(super) fn find_from(
        &self,
        start: usize,
        mut wanted: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let first = self.next_from(start)?;
        let mut at = first;
        loop {
            if wanted(at) {
                return Some(at);
            }
            at = self.next_from(at + 1)?;
            if at == first {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rotation_finds_what_an_oracle_finds(
            members in prop::collection::btree_set(0usize..130, 0..20), start in 0usize..130,
        ) {
            let mut bits = Bits::new(130);
            members.iter().for_each(|&member| bits.set(member, true));
            let oracle = members.range(start..).next().or_else(|| members.iter().next());
            prop_assert_eq!(bits.next_from(start), oracle.copied());
            let even = members.range(start..).chain(members.range(..start)).find(|at| *at % 2 == 0);
            prop_assert_eq!(bits.find_from(start, |at| at % 2 == 0), even.copied());
            prop_assert!(bits.iter().eq(members.iter().copied()));
            prop_assert!((0..130).all(|at| bits.contains(at) == members.contains(&at)));
            prop_assert_eq!(bits.is_empty(), members.is_empty());
        }
    }
}
