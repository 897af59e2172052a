// SPDX-License-Identifier: Apache-2.0
//! The allocator of the symmetric heap. It hands out offsets, so that PEs which make the same calls
//! get the same places wherever their heap lies, and keeps its books outside the heap, where a
//! stray write of a program cannot reach them.
//!
//! Best fit over two ordered maps of the standard library: a request takes the smallest free range
//! that holds it, the lowest one among equals, at its low end. Published offset allocators round
//! sizes to bins (a heap cannot be filled) and have no alignment; symmetric memory needs both.

use std::collections::{BTreeMap, BTreeSet};

/// Every block starts and ends on a cache line: two objects never share one.
pub const GRANULE: usize = 64;

/// How a block lies in the heap, also after it has been resized or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// It starts at a multiple of this, a power of two.
    pub align: usize,
    /// It takes a multiple of this many bytes, so that no other block comes nearer.
    pub unit: usize,
}

impl Placement {
    /// At a multiple of `align`, next to other blocks.
    pub const fn aligned(align: usize) -> Placement {
        Placement { align, unit: GRANULE }
    }

    /// At a multiple of `bytes` and so far from other blocks, a power of two.
    pub const fn apart(bytes: usize) -> Placement {
        Placement { align: bytes, unit: bytes }
    }

    fn round_up(self, size: usize) -> Option<usize> {
        size.checked_next_multiple_of(self.unit.max(GRANULE))
    }
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Bytes that it takes.
    length: usize,
    /// Bytes that were asked for.
    size: usize,
    placement: Placement,
}

/// Free and used ranges of a heap of fixed length.
#[derive(Debug)]
pub struct Allocator {
    /// Free ranges: offset to length; neighbours are merged.
    free: BTreeMap<usize, usize>,
    /// The same ranges by length, then offset.
    by_length: BTreeSet<(usize, usize)>,
    /// Used ranges, by offset.
    used: BTreeMap<usize, Used>,
    capacity: usize,
}

impl Allocator {
    /// An allocator over offsets 0 to `capacity`.
    pub fn new(capacity: usize) -> Allocator {
        let mut allocator = Allocator {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            used: BTreeMap::new(),
            capacity,
        };
        allocator.release(0, capacity / GRANULE * GRANULE);
        allocator
    }

    /// Takes `size` bytes. None when `size` is 0, the alignment is not a power of two, or no free range is
    /// large enough.
    pub fn allocate(&mut self, size: usize, placement: Placement) -> Option<usize> {
        if size == 0 || !placement.align.is_power_of_two() {
            return None;
        }
        let length = placement.round_up(size)?;
        let align = placement.align.max(GRANULE);
        let (start, offset, available) =
            self.by_length.range((length, 0)..).find_map(|&(available, start)| {
                let offset = start.checked_add(align - 1)? & !(align - 1);
                (offset + length <= start + available).then_some((start, offset, available))
            })?;
        self.take_free(start, available);
        self.release(start, offset - start);
        self.release(offset + length, start + available - offset - length);
        self.used.insert(offset, Used { length, size, placement });
        Some(offset)
    }

    /// Gives back the block at `offset`; false, and nothing done, if there is none.
    pub fn free(&mut self, offset: usize) -> bool {
        let Some(Used { length, .. }) = self.used.remove(&offset) else { return false };
        let (mut start, mut end) = (offset, offset + length);
        if let Some((&before, &bytes)) = self.free.range(..offset).next_back()
            && before + bytes == offset
        {
            self.take_free(before, bytes);
            start = before;
        }
        if let Some(&bytes) = self.free.get(&end) {
            self.take_free(end, bytes);
            end += bytes;
        }
        self.release(start, end - start);
        true
    }

    /// Changes the size of the block at `offset` without moving it; false if it has to move.
    pub fn resize(&mut self, offset: usize, size: usize) -> bool {
        let Some(&Used { length, placement, .. }) = self.used.get(&offset) else { return false };
        let wanted = placement.round_up(size).filter(|wanted| *wanted > 0);
        let Some(wanted) = wanted else { return false };
        let end = offset + length;
        let following = self.free.get(&end).copied().unwrap_or(0);
        if wanted > length + following {
            return false;
        }
        if following > 0 {
            self.take_free(end, following);
        }
        self.release(offset + wanted, length + following - wanted);
        self.used.insert(offset, Used { length: wanted, size, placement });
        true
    }

    /// The size asked for of the block at `offset`.
    pub fn size_of(&self, offset: usize) -> Option<usize> {
        self.used.get(&offset).map(|block| block.size)
    }

    /// How the block at `offset` lies.
    pub fn placement_of(&self, offset: usize) -> Option<Placement> {
        self.used.get(&offset).map(|block| block.placement)
    }

    /// The block that holds `offset`: its start and the size asked for.
    pub fn block_at(&self, offset: usize) -> Option<(usize, usize)> {
        let (&start, &Used { length, size, .. }) = self.used.range(..=offset).next_back()?;
        (offset < start + length).then_some((start, size))
    }

    /// Bytes that are free, in all.
    pub fn free_bytes(&self) -> usize {
        self.free.values().sum()
    }

    /// Length of the largest free range.
    pub fn largest_free(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// A capacity with which `allocate(size, placement)` would succeed now; none if none would do.
    pub fn sufficient(&self, size: usize, placement: Placement) -> Option<usize> {
        let end = self.capacity / GRANULE * GRANULE;
        let last = self.free.last_key_value().filter(|(start, bytes)| *start + *bytes == end);
        let start = last.map_or(end, |(start, _)| *start);
        let align = Some(placement.align).filter(|align| align.is_power_of_two())?.max(GRANULE);
        (start.checked_add(align - 1)? & !(align - 1)).checked_add(placement.round_up(size)?)
    }

    /// Bytes managed.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn release(&mut self, offset: usize, length: usize) {
        if length > 0 {
            self.free.insert(offset, length);
            self.by_length.insert((length, offset));
        }
    }

    fn take_free(&mut self, offset: usize, length: usize) {
        self.free.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EIGHT: Placement = Placement::aligned(8);

    #[test]
    fn the_capacity_that_is_called_sufficient_suffices() {
        let used = |capacity| {
            let mut heap = Allocator::new(capacity);
            let blocks = [500, 200, 300].map(|size| heap.allocate(size, EIGHT).unwrap());
            heap.free(blocks[1]);
            heap
        };
        let heap = used(2000);
        for (size, align) in [(2000, 8), (1100, 1024), (1 << 20, 1 << 16)] {
            let align = Placement::aligned(align);
            let capacity = heap.sufficient(size, align).unwrap();
            assert!(used(capacity).allocate(size, align).is_some(), "{size} at {align:?}");
            assert!(
                used(capacity - GRANULE).allocate(size, align).is_none(),
                "{size} at {align:?}"
            );
        }
        assert_eq!(
            [heap.sufficient(usize::MAX, EIGHT), heap.sufficient(1, Placement::aligned(3))],
            [None; 2]
        );
    }

    #[test]
    fn the_whole_heap_can_be_taken_and_taken_again() {
        let mut heap = Allocator::new(1000 * GRANULE);
        assert_eq!(heap.allocate(1000 * GRANULE, EIGHT), Some(0));
        assert_eq!(heap.allocate(1, EIGHT), None);
        assert!(heap.free(0) && !heap.free(0));
        assert_eq!(heap.largest_free(), 1000 * GRANULE);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let mut heap = Allocator::new(1 << 20);
        for size in [0, usize::MAX, usize::MAX - 8, 1 << 40] {
            assert_eq!(heap.allocate(size, Placement::aligned(1 << 30)), None);
        }
        assert_eq!(heap.allocate(8, Placement::aligned(3)), None);
    }

    #[test]
    fn a_block_grows_in_place_into_free_space_behind_it() {
        let mut heap = Allocator::new(1 << 16);
        let a = heap.allocate(100, EIGHT).unwrap();
        let b = heap.allocate(100, EIGHT).unwrap();
        assert!(!heap.resize(a, 1000));
        heap.free(b);
        assert!(heap.resize(a, 1000) && heap.resize(a, 10));
        assert_eq!(heap.size_of(a), Some(10));
        assert_eq!(heap.block_at(a + 5), Some((a, 10)));
    }

    #[test]
    fn what_is_to_lie_apart_does_so_whatever_its_size_becomes() {
        let mut heap = Allocator::new(1 << 16);
        let apart = Placement::apart(2 * GRANULE);
        let block = heap.allocate(8, apart).unwrap();
        let next = heap.allocate(8, EIGHT).unwrap();
        assert!(next >= block + 2 * GRANULE);
        heap.free(next);
        assert!(heap.resize(block, 2 * GRANULE + 1));
        assert_eq!(heap.allocate(8, EIGHT), Some(block + 4 * GRANULE));
        assert_eq!(
            (heap.size_of(block), heap.placement_of(block)),
            (Some(2 * GRANULE + 1), Some(apart))
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize, u32),
        Free(usize),
        Resize(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0usize..5000, 0u32..13).prop_map(|(size, shift)| Step::Allocate(size, shift)),
            any::<usize>().prop_map(Step::Free),
            (any::<usize>(), 1usize..5000).prop_map(|(at, size)| Step::Resize(at, size)),
        ]
    }

    proptest! {
        /// Blocks never overlap, keep their alignment, and nothing is lost.
        #[test]
        fn blocks_are_disjoint_and_all_memory_comes_back(
            steps in proptest::collection::vec(step(), 1..200)
        ) {
            let mut heap = Allocator::new(64 << 10);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(size, shift) => {
                        if let Some(offset) = heap.allocate(size, Placement::aligned(1 << shift)) {
                            prop_assert_eq!(offset % (1 << shift), 0);
                            live.push((offset, size));
                        }
                    }
                    Step::Free(at) if !live.is_empty() => {
                        let (offset, _) = live.swap_remove(at % live.len());
                        prop_assert!(heap.free(offset));
                    }
                    Step::Resize(at, size) if !live.is_empty() => {
                        let at = at % live.len();
                        if heap.resize(live[at].0, size) {
                            live[at].1 = size;
                        }
                    }
                    _ => {}
                }
                let mut ranges = live.clone();
                ranges.sort_unstable();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                }
                prop_assert!(ranges.last().is_none_or(|(o, s)| o + s <= heap.capacity()));
            }
            for (offset, _) in live {
                prop_assert!(heap.free(offset));
            }
            prop_assert_eq!(heap.largest_free(), heap.capacity());
        }
    }
}
