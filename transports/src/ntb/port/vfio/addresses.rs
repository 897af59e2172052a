// SPDX-License-Identifier: Apache-2.0
//! Addresses that functions use: those that their IOMMU has, and nobody has reserved yet.

use std::ops::RangeInclusive;
use vfio_bindings::bindings::vfio::*;

/// Where addresses start, if the kernel does not say otherwise: above those that interrupts and reserved
/// ranges take.
const START: u64 = 1 << 32;

/// What an IOMMU has, by the kernel's answer; none: it does not say.
pub type Ranges = Option<Vec<RangeInclusive<u64>>>;

/// Addresses that are given out, each once.
#[derive(Debug)]
pub struct Addresses {
    ranges: Ranges,
    free: u64,
}

impl Addresses {
    pub fn new(ranges: Ranges) -> Addresses {
        Addresses { ranges, free: START }
    }

    /// The lowest `len` addresses from a multiple of `align` on that are in one range, and above all that were
    /// given out.
    pub fn reserve(&mut self, len: u64, align: u64) -> Option<u64> {
        let all = [0..=u64::MAX];
        let ranges = self.ranges.as_deref().unwrap_or(&all);
        let fit = ranges.iter().filter_map(|range| {
            let start = self.free.max(*range.start()).checked_next_multiple_of(align.max(1))?;
            let end = start.checked_add(len)?;
            // The last address of a range belongs to it.
            (start <= *range.end() && end.max(1) - 1 <= *range.end()).then_some((start, end))
        });
        let (start, end) = fit.min()?;
        self.free = end;
        Some(start)
    }
}

/// Reads what the kernel answers to a question for the IOMMU: a header, and behind it capabilities, each of which
/// tells where the next one is. Whatever is not as it should be tells nothing.
pub fn ranges_in(answer: &[u8]) -> Ranges {
    let word = |at: usize| {
        let bytes = answer.get(at..at.checked_add(4)?)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    };
    let address = |at: usize| {
        let bytes = answer.get(at..at.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    };
    if word(std::mem::offset_of!(vfio_iommu_type1_info, flags))? & VFIO_IOMMU_INFO_CAPS == 0 {
        return None;
    }
    let mut next = word(std::mem::offset_of!(vfio_iommu_type1_info, cap_offset))?;
    // Each is behind the one before: a list without end is none.
    let mut before = 0;
    while next > before {
        let at = next as usize;
        let bytes = answer.get(at..at.checked_add(2)?)?;
        let id = u16::from_ne_bytes(bytes.try_into().ok()?);
        if u32::from(id) == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            let count = word(at + size_of::<vfio_info_cap_header>())?;
            let first = at + size_of::<vfio_iommu_type1_info_cap_iova_range>();
            let ranges = (0..count as usize).map(|index| {
                let at = first.checked_add(index.checked_mul(size_of::<vfio_iova_range>())?)?;
                Some(address(at)?..=address(at + 8)?)
            });
            return ranges.collect::<Ranges>().filter(|ranges| !ranges.is_empty());
        }
        before = next;
        next = word(at + std::mem::offset_of!(vfio_info_cap_header, next))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with a capability that says something else before that of the ranges.
    fn answer(ranges: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![];
        // Size, flags (page sizes and capabilities), page sizes, where capabilities begin, nothing.
        for word in [0u32, 3, 0x1000, 0, 24, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        // The capability 3: version 1, the next one behind it, and a word.
        bytes.extend([3u16, 1].map(u16::to_ne_bytes).as_flattened());
        bytes.extend([40u32, 65535, 0].map(u32::to_ne_bytes).as_flattened());
        bytes.extend([1u16, 1].map(u16::to_ne_bytes).as_flattened());
        bytes.extend([0, ranges.len() as u32, 0].map(u32::to_ne_bytes).as_flattened());
        for (start, end) in ranges {
            bytes.extend([*start, *end].map(u64::to_ne_bytes).as_flattened());
        }
        bytes
    }

    /// What an Intel IOMMU of 39 bits says: all but the interrupts.
    const USUAL: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];

    #[test]
    fn ranges_are_read_from_the_answer_of_the_kernel() {
        let whole = answer(&USUAL);
        let expected = vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
        assert_eq!(ranges_in(&whole), Some(expected));
        assert_eq!(ranges_in(&answer(&[])), None);
        for len in 0..whole.len() {
            assert_eq!(ranges_in(&whole[..len]), None, "{len} bytes");
        }
        let mut without = whole.clone();
        without[4] = 1;
        assert_eq!(ranges_in(&without), None, "a kernel that has no capabilities");
        let mut endless = whole;
        endless[28..32].copy_from_slice(&24u32.to_ne_bytes());
        assert_eq!(ranges_in(&endless), None);
    }

    #[test]
    fn addresses_are_given_out_inside_of_ranges_alone() {
        let mut anywhere = Addresses::new(None);
        assert_eq!(anywhere.reserve(0x1000, 0x1000), Some(1 << 32));
        assert_eq!(anywhere.reserve(1 << 30, 1 << 30), Some(5 << 30));
        assert_eq!(anywhere.reserve(u64::MAX, 1), None);

        let mut addresses = Addresses::new(ranges_in(&answer(&USUAL)));
        assert_eq!(addresses.reserve(0x1000, 0x1000), Some(1 << 32));
        assert_eq!(addresses.reserve(1 << 38, 1 << 38), Some(1 << 38), "up to the last address");
        assert_eq!(addresses.reserve(0x1000, 0x1000), None);

        // A hole, and a range that is behind another in the list.
        let ranges = vec![2 << 32..=(3 << 32) - 1, 1 << 32..=(1 << 32) + 0x1fff];
        let mut addresses = Addresses::new(Some(ranges));
        assert_eq!(addresses.reserve(0x1000, 0x1000), Some(1 << 32));
        assert_eq!(addresses.reserve(0x2000, 0x1000), Some(2 << 32));
        assert_eq!(addresses.reserve(0x1000, 0x1000), Some((2 << 32) + 0x2000));
        assert_eq!(addresses.reserve(1 << 32, 1), None);
        assert_eq!(addresses.reserve(0, 1), Some((2 << 32) + 0x3000));
        // An IOMMU that ends below: nothing is left rather than what interrupts take.
        assert_eq!(Addresses::new(Some(vec![0..=0xfedf_ffff])).reserve(0x1000, 1), None);
    }
}
