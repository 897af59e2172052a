// SPDX-License-Identifier: Apache-2.0
//! Sizes as people write them.

use tombolo_core::config::{Bytes, Value};

/// Largest size that may be asked for.
const MAX: u64 = 1 << 30;

/// Sizes in increasing order, as an option.
#[derive(Clone, Debug)]
pub struct Sizes(pub Vec<u64>);

impl Sizes {
    /// See [`parse`].
    pub fn read(text: &str) -> Result<Sizes, String> {
        parse(text).map(Sizes)
    }
}

/// Reads milliseconds for a point.
pub fn budget(text: &str) -> Result<f64, String> {
    let budget = text.parse().ok().filter(|ms: &f64| (0.05..=60_000.0).contains(ms));
    budget.ok_or_else(|| "expected milliseconds from 0.05 to 60000".to_owned())
}

/// Reads sizes: "8..4M" are the powers of two in that range, "8,1000,64K" these.
pub fn parse(text: &str) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (one(from)?, one(to)?);
                if from > to {
                    return Err(format!("'{part}' begins with the larger size"));
                }
                let first = from.next_power_of_two();
                sizes.push(from);
                let powers = std::iter::successors(Some(first), |size| Some(2 * size));
                sizes.extend(powers.take_while(|size| *size <= to));
            }
            None => sizes.push(one(part)?),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn one(text: &str) -> Result<u64, String> {
    let bytes = Bytes::parse(text).map_err(|why| format!("'{text}' is not a size: {why}"))?.0;
    match bytes {
        1..=MAX => Ok(bytes),
        _ => Err(format!("'{text}' is not a size from 1 byte to 1G")),
    }
}

/// A size in as few characters as are exact: 8, 64K, 4M.
pub fn show(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_are_read() {
        assert_eq!(parse("8..64").unwrap(), [8, 16, 32, 64]);
        assert_eq!(parse("64K,8,100,8").unwrap(), [8, 100, 65536]);
        assert_eq!(parse("100..300").unwrap(), [100, 128, 256]);
        for wrong in ["", "64..8", "x", "0", "2g", "8..", "8;9"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_exactly() {
        assert_eq!([8, 1000, 65536, 4 << 20].map(show), ["8", "1000", "64K", "4M"]);
    }
}
