// SPDX-License-Identifier: Apache-2.0
//! Bytes as values of a launcher's key-value space: text of limited length.
//!
//! Bytes become hexadecimal digits, which no protocol gives a meaning to, and are cut into pieces.
//! The first piece begins with the number of pieces: most contributions are one piece, and then one
//! look-up tells all.

use super::pmi::Protocol;
use crate::error::{Error, Result};

/// Length of a value that is left for the number of pieces.
const HEAD: usize = 16;
/// Shortest values that are any use.
const VALUE_MIN: usize = 48;
/// More pieces than any contribution has.
const PIECES_MAX: usize = 1 << 20;

/// What every PE contributed to one exchange, in PE order.
///
/// All PEs wait for each other once; what was put before is found after. First pieces are asked for
/// together where the launcher can give several at a time.
pub fn gather(
    space: &mut dyn Protocol,
    round: u32,
    pe: usize,
    n_pes: usize,
    mine: &[u8],
) -> Result<Vec<Vec<u8>>> {
    for (index, value) in cut(mine, space.value_max()).iter().enumerate() {
        space.put(&format!("{}{pe}", stem(round, index)), value)?;
    }
    space.fence()?;
    let mut all = Vec::with_capacity(n_pes);
    while all.len() < n_pes {
        let first = all.len();
        if first == pe {
            all.push(mine.to_vec());
            continue;
        }
        let values = space.get_several(&stem(round, 0), first)?;
        if values.is_empty() || values.len() > n_pes - first {
            return Err(broken(first));
        }
        for value in values {
            let pe = all.len();
            all.push(join(space, round, pe, &value)?);
        }
    }
    Ok(all)
}

fn stem(round: u32, index: usize) -> String {
    format!("t{round}-{index}-")
}

fn broken(pe: usize) -> Error {
    Error::Bootstrap(format!("PE {pe} sent data for the start that cannot be read"))
}

fn cut(bytes: &[u8], value_max: usize) -> Vec<String> {
    let piece = (value_max.max(VALUE_MIN) - HEAD) / 2;
    let mut values: Vec<String> = bytes.chunks(piece).map(digits).collect();
    if values.is_empty() {
        values.push(String::new());
    }
    values[0] = format!("{}:{}", values.len(), values[0]);
    values
}

/// The contribution of `pe`, whose first value is at hand.
fn join(space: &mut dyn Protocol, round: u32, pe: usize, first: &str) -> Result<Vec<u8>> {
    let (count, rest) = first.split_once(':').ok_or_else(|| broken(pe))?;
    let count: usize = count.parse().map_err(|_| broken(pe))?;
    if !(1..=PIECES_MAX).contains(&count) {
        return Err(broken(pe));
    }
    let mut bytes = undigits(rest).ok_or_else(|| broken(pe))?;
    for index in 1..count {
        let value = space.get(&format!("{}{pe}", stem(round, index)), pe)?;
        bytes.extend(undigits(&value).ok_or_else(|| broken(pe))?);
    }
    Ok(bytes)
}

fn digits(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
    }
    text
}

fn undigits(text: &str) -> Option<Vec<u8>> {
    const NONE: u8 = 0xff;
    // A table: what hundreds of PEs tell is read by each of them.
    static VALUES: [u8; 256] = {
        let mut values = [NONE; 256];
        let mut digit = 0;
        while digit < 16 {
            values[b"0123456789abcdef"[digit] as usize] = digit as u8;
            values[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
            digit += 1;
        }
        values
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let value = |digit: u8| VALUES[usize::from(digit)];
    let mut wrong = !rest.is_empty();
    let bytes = pairs.iter().map(|[high, low]| {
        let (high, low) = (value(*high), value(*low));
        wrong |= high == NONE || low == NONE;
        high << 4 | low & 15
    });
    let bytes = bytes.collect();
    if wrong { None } else { Some(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A space that gives `several` values at a time.
    struct Shelf {
        pairs: HashMap<String, String>,
        several: usize,
        value_max: usize,
    }

    impl Protocol for Shelf {
        fn name(&self) -> &'static str {
            "shelf"
        }

        fn value_max(&self) -> usize {
            self.value_max
        }

        fn put(&mut self, key: &str, value: &str) -> Result<()> {
            assert!(value.len() <= self.value_max, "{} characters", value.len());
            self.pairs.insert(key.into(), value.into());
            Ok(())
        }

        fn fence(&mut self) -> Result<()> {
            Ok(())
        }

        fn get(&mut self, key: &str, _pe: usize) -> Result<String> {
            self.pairs.get(key).cloned().ok_or_else(|| Error::Bootstrap(format!("no {key}")))
        }

        fn get_several(&mut self, stem: &str, first: usize) -> Result<Vec<String>> {
            let keys = (first..first + self.several).map(|pe| format!("{stem}{pe}"));
            Ok(keys.map_while(|key| self.pairs.get(&key).cloned()).collect())
        }

        fn abort_request(&self) -> fn(i32) -> String {
            |_| String::new()
        }

        fn finalize(&mut self) {}

        fn wire(&mut self) -> &mut super::super::wire::Wire {
            unreachable!("nothing waits")
        }
    }

    proptest! {
        #[test]
        fn contributions_of_any_length_arrive_in_pe_order(
            contributions in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..9),
            several in 1usize..5,
            value_max in VALUE_MIN..200,
        ) {
            let mut shelf = Shelf { pairs: HashMap::new(), several, value_max };
            let n = contributions.len();
            for (pe, mine) in contributions.iter().enumerate() {
                // The others have not put theirs: what is not there is an error, not a hole.
                let early = gather(&mut shelf, 7, pe, n, mine);
                prop_assert_eq!(early.is_ok(), pe + 1 == n);
            }
            for (pe, mine) in contributions.iter().enumerate() {
                prop_assert_eq!(&gather(&mut shelf, 7, pe, n, mine).unwrap(), &contributions);
            }
        }

        #[test]
        fn anything_else_is_refused(value in "\\PC{0,40}") {
            let mut shelf = Shelf { pairs: HashMap::new(), several: 1, value_max: 100 };
            if let Ok(bytes) = join(&mut shelf, 0, 3, &value) {
                prop_assert_eq!(format!("1:{}", digits(&bytes)), value.to_lowercase());
            }
        }
    }
}
