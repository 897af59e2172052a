// SPDX-License-Identifier: Apache-2.0
//! Strided operations (OpenSHMEM 1.6, `shmem_iput`, `shmem_ibput`, `shmem_iget`, `shmem_ibget`) on PEs that are not
//! mapped: many blocks at a time where the endpoint takes them so, elsewhere block by block.

use super::{Mode, Way};
use crate::context::Context;
use crate::copy;
use crate::route::{Channel, Steps};
use crate::transport::{Blocks, Remote, Stream};
use crate::world::World;
use std::mem::MaybeUninit;

/// Fewer blocks go by themselves.
const TOGETHER_MIN: usize = 4;
/// Bytes of the buffer in which blocks lie one behind the other.
const PACKED: usize = 16 << 10;

/// Blocks that are copied from one buffer to another.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// Bytes of a block.
    pub len: usize,
    /// How many there are.
    pub count: usize,
    /// Bytes from the start of a block of the destination to the start of the next one.
    pub dest: isize,
    /// The same of the source.
    pub source: isize,
}

impl Strided {
    /// The blocks from number `first` on, and where they begin.
    fn from(self, first: usize, dest: *mut u8, source: *const u8) -> (Strided, *mut u8, *const u8) {
        let at = |stride: isize| (first as isize).wrapping_mul(stride);
        let rest = Strided { count: self.count - first, ..self };
        (rest, dest.wrapping_offset(at(self.dest)), source.wrapping_offset(at(self.source)))
    }

    /// Has `copy` see to the blocks that are left, of which it says how many it has seen to, until none is left.
    fn in_turns(
        self,
        dest: *mut u8,
        source: *const u8,
        mut copy: impl FnMut(Strided, *mut u8, *const u8) -> usize,
    ) {
        let mut done = 0;
        while done < self.count && self.len > 0 {
            let (rest, dest, source) = self.from(done, dest, source);
            done += copy(rest, dest, source);
        }
    }
}

/// A transport that takes many blocks at a time, and how many.
#[derive(Clone, Copy)]
struct Together {
    index: u8,
    most: usize,
}

/// Blocks one behind the other.
struct Packed(MaybeUninit<[u8; PACKED]>);

impl Packed {
    fn new() -> Packed {
        Packed(MaybeUninit::uninit())
    }

    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl World {
    /// Copies blocks to symmetric `dest` at `pe`. The source may be reused at once.
    ///
    /// # Safety
    /// The source is readable at every block.
    pub unsafe fn put_blocks(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        strided: Strided,
        pe: usize,
        routine: &'static str,
    ) {
        strided.in_turns(dest, source, |rest, dest, source| {
            // SAFETY: by the caller's word.
            let together = unsafe { self.put_together(context, dest, source, rest, pe, routine) };
            together.unwrap_or_else(|| {
                let (len, mode) = (rest.len, Mode::Blocking);
                // SAFETY: as above.
                unsafe { self.put(context, dest, source, len, pe, mode, routine) };
                1
            })
        });
    }

    /// Copies blocks from symmetric `source` at `pe`, and waits for them.
    ///
    /// # Safety
    /// The destination is writable at every block.
    pub unsafe fn get_blocks(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        strided: Strided,
        pe: usize,
        routine: &'static str,
    ) {
        let mut waits = false;
        strided.in_turns(dest, source, |rest, dest, source| {
            // SAFETY: by the caller's word.
            let together = unsafe { self.get_together(context, dest, source, rest, pe, routine) };
            together.unwrap_or_else(|| {
                waits = true;
                let (len, mode) = (rest.len, Mode::NonBlocking);
                // SAFETY: as above; it is waited for below.
                unsafe { self.get(context, dest, source, len, pe, mode, routine) };
                1
            })
        });
        if waits {
            self.quiet(context, routine);
        }
        copy::then_read();
    }

    /// The transport that takes blocks of a symmetric buffer together, if there is one.
    fn takes_together(
        &self,
        context: &Context,
        routes: &Steps,
        at: Remote,
        strided: Strided,
        stride: isize,
        pe: usize,
    ) -> Option<(Together, Blocks)> {
        let Strided { len, count, .. } = strided;
        let blocks = Blocks { at, len, stride: usize::try_from(stride).ok()?, count };
        let index = match routes.choose(len) {
            Channel::Endpoint(index) => index,
            Channel::Either(either) => context.one_of(&either, len, Mode::Blocking),
            _ => return None,
        };
        let can = self.peer(index.into(), pe)?.can(at.segment);
        let most = can.blocks_max.min(PACKED) / len;
        // What is not whole, or reaches beyond the segment, is seen to block by block.
        let plain = can.whole_words && can.put_align <= 1 && can.get_align <= 1;
        let address = self.base(at.segment).wrapping_add(at.offset);
        let inside = blocks.extent().is_some_and(|extent| extent <= self.room_at(address));
        (plain && inside && count.min(most) >= TOGETHER_MIN)
            .then_some((Together { index, most }, blocks))
    }

    /// Puts as many blocks as an endpoint takes in one go. How many, or none if they do not go together.
    ///
    /// # Safety
    /// As [`World::put_blocks`].
    unsafe fn put_together(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        strided: Strided,
        pe: usize,
        routine: &'static str,
    ) -> Option<usize> {
        let target = self.target(routine, "dest", dest, strided.len, pe);
        let routes = &self.routes_to(context, pe).put[target.segment as usize];
        let (together, blocks) =
            self.takes_together(context, routes, target, strided, strided.dest, pe)?;
        let peer = self.peer_of(together.index, pe, routine);
        let stream = context.stream(together.index.into());
        let (mut packed, behind) = (Packed::new(), strided.len as isize);
        let mut done = 0;
        while done < blocks.count {
            let (rest, _, source) = strided.from(done, dest, source);
            let count = rest.count.min(together.most);
            let offset = target.offset + done * blocks.stride;
            let part = Blocks { at: Remote { offset, ..target }, count, ..blocks };
            let from = match usize::try_from(strided.source) == Ok(strided.len) {
                true => source,
                false => {
                    // SAFETY: the caller vouches for the source; there is room for `most` blocks.
                    unsafe {
                        copy_blocks(packed.at(), source, Strided { count, dest: behind, ..rest })
                    };
                    packed.at().cast_const()
                }
            };
            // SAFETY: as above.
            let issue = || unsafe { peer.endpoint.put_blocks(stream, part, from) };
            if !self.accepted(routine, pe, issue) && !self.is_dropped(target, pe) {
                self.another_way(together.index, pe, target, false, routine);
                return Some(done);
            }
            done += count;
        }
        Some(done)
    }

    /// Gets as many blocks as the buffer holds, or all where they belong one behind the other. How many, or none if
    /// they do not go together.
    ///
    /// # Safety
    /// As [`World::get_blocks`].
    unsafe fn get_together(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        strided: Strided,
        pe: usize,
        routine: &'static str,
    ) -> Option<usize> {
        let target = self.place(routine, "source", source, strided.len, pe, true)?;
        let routes = &self.routes_to(context, pe).get[target.segment as usize];
        let (together, blocks) =
            self.takes_together(context, routes, target, strided, strided.source, pe)?;
        let Together { index, most } = together;
        let peer = self.peer_of(index, pe, routine);
        let own = Stream::new(context.stream(index.into()).id, true);
        let mut packed = Packed::new();
        let is_packed = usize::try_from(strided.dest) != Ok(strided.len);
        let (into, room) = match is_packed {
            true => (packed.at(), PACKED / strided.len),
            false => (dest, usize::MAX),
        };
        let count = blocks.count.min(room);
        let way = Way { context, index, target, pe, routine };
        let received = self.piecewise(way, &own, most, count, |first, count| {
            let offset = target.offset + first * blocks.stride;
            let part = Blocks { at: Remote { offset, ..target }, count, ..blocks };
            // SAFETY: the caller vouches for the destination, which is waited for.
            unsafe { peer.endpoint.get_blocks(&own, into.add(first * blocks.len), part) }
        }) && self.until_quiet(index, &own, routine, pe);
        let dropped = !received && self.is_dropped(target, pe);
        if !received && !dropped {
            self.another_way(index, pe, target, true, routine);
            return Some(0);
        }
        if dropped {
            // SAFETY: the buffer, or the caller's, has room for so many.
            unsafe { into.write_bytes(0, count * blocks.len) };
        }
        if is_packed {
            let spread =
                Strided { count, dest: strided.dest, source: blocks.len as isize, ..strided };
            // SAFETY: all blocks of the buffer have been filled; the caller vouches for the destination.
            unsafe { copy_blocks(dest, into, spread) };
        }
        Some(count)
    }
}

/// Copies blocks within this process.
///
/// # Safety
/// Both buffers are valid at every block.
unsafe fn copy_blocks(dest: *mut u8, source: *const u8, strided: Strided) {
    // SAFETY: by the caller's word. Words, whose length is known to the compiler here, are copied whole.
    unsafe {
        match strided.len {
            4 => copy_each(dest, source, Strided { len: 4, ..strided }),
            8 => copy_each(dest, source, Strided { len: 8, ..strided }),
            _ => copy_each(dest, source, strided),
        }
    }
}

/// # Safety
/// As [`copy_blocks`].
#[inline(always)]
unsafe fn copy_each(mut dest: *mut u8, mut source: *const u8, strided: Strided) {
    for _ in 0..strided.count {
        // SAFETY: by the caller's word.
        unsafe { copy::known(dest, source, strided.len) };
        (dest, source) =
            (dest.wrapping_offset(strided.dest), source.wrapping_offset(strided.source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_copied_from_stride_to_stride() {
        let source: Vec<u8> = (0..100).collect();
        for len in [1, 3, 4, 8] {
            let (dest_stride, source_stride) = (len + 2, len + 1);
            let mut dest = vec![0xff; 6 * dest_stride];
            let (to, from) = (dest_stride as isize, source_stride as isize);
            let strided = Strided { len, count: 6, dest: to, source: from };
            // SAFETY: both hold six blocks.
            unsafe { copy_blocks(dest.as_mut_ptr(), source.as_ptr(), strided) };
            for (number, block) in dest.chunks(dest_stride).enumerate() {
                let at = number * source_stride;
                assert_eq!(block[..len], source[at..at + len]);
                assert!(block[len..].iter().all(|byte| *byte == 0xff));
            }
        }
    }
}
