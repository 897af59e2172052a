// SPDX-License-Identifier: Apache-2.0
//! Blocks at equal distances, as strided operations have them.

use super::Remote;

/// Blocks of a segment of a peer, all of one length and at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Where the first one is.
    pub at: Remote,
    /// Bytes of each.
    pub len: usize,
    /// Bytes from the start of one to the start of the next: at least `len`.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

impl Blocks {
    /// Bytes of all of them.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.len.saturating_mul(self.count)
    }

    /// Bytes from the start of the first one to the end of the last; none if blocks overlap, have no bytes, or reach
    /// beyond all memory.
    pub const fn extent(&self) -> Option<usize> {
        if self.len == 0 || self.stride < self.len || self.count == 0 {
            return None;
        }
        match (self.count - 1).checked_mul(self.stride) {
            Some(before) => before.checked_add(self.len),
            None => None,
        }
    }

    /// Whether they have an extent, and all lie inside a segment of `size` bytes.
    pub const fn fit(&self, size: usize) -> bool {
        match self.extent() {
            Some(extent) => self.at.fits(extent, size),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::SegmentKind;

    #[test]
    fn blocks_fit_where_the_last_one_ends_inside() {
        let at = Remote { segment: SegmentKind::Heap, offset: 8 };
        let blocks = Blocks { at, len: 4, stride: 10, count: 3 };
        assert_eq!((blocks.bytes(), blocks.extent()), (12, Some(24)));
        assert!(blocks.fit(32) && !blocks.fit(31));
    }

    #[test]
    fn blocks_that_overlap_or_wrap_round_are_none() {
        let at = Remote { segment: SegmentKind::Heap, offset: 0 };
        let blocks = |len, stride, count| Blocks { at, len, stride, count };
        for none in [
            blocks(0, 8, 1),
            blocks(8, 7, 2),
            blocks(8, 8, 0),
            blocks(1, usize::MAX, 3),
            blocks(2, usize::MAX, 2),
        ] {
            assert!(!none.fit(usize::MAX), "{none:?}");
        }
        assert!(blocks(8, 8, 1).fit(8));
    }
}
