// SPDX-License-Identifier: Apache-2.0
//! Strided puts and gets.

use super::{BESIDE, ROUTINE, allocate, local, meet, pattern, put};
use tombolo_core::World;
use tombolo_core::ops::{Mode, Strided};

/// Bytes of a block, how many, from one to the next of those that are put and got, and of those on this PE.
const BLOCKS: &[(usize, usize, usize, usize)] = &[
    (1, 100, 2, 1),
    (3, 400, 7, 5),
    (4, 300, 12, 4),
    (8, 1100, 16, 24),
    (8, 5, 8, 8),
    (24, 40, 100, 32),
    (100, 90, 128, 100),
    (5000, 6, 5001, 5003),
];

/// Blocks that are put and got by each of two PEs.
pub(super) fn arrive(world: &World) {
    let longest = BLOCKS.iter().map(|(_, count, far, near)| count * far.max(near)).max();
    let space = allocate(world, longest.unwrap_or(0) + 64);
    let other = 1 - world.pe();
    for (round, (len, count, far, near)) in BLOCKS.iter().copied().enumerate() {
        let offset = [0, 1, 4][round % 3];
        let whole = count * far + 64;
        let [all, theirs] = [world.pe(), other].map(|pe| pattern(whole, round + pe));
        let at = |number: usize| (offset + number * far, number * near);
        put(world, space, &all, world.pe(), Mode::Blocking);
        meet(world);
        let first = space.wrapping_add(offset);
        let strided = |dest: usize, source: usize| Strided {
            len,
            count,
            dest: dest as isize,
            source: source as isize,
        };
        let what = format!("{count} blocks of {len} at {offset}, {far} and {near} apart");
        let mut got = vec![BESIDE; count * near + 8];
        // SAFETY: the slice holds all blocks.
        unsafe {
            let (context, to) = (world.context(), got.as_mut_ptr());
            world.get_blocks(context, to, first, strided(near, far), other, ROUTINE);
        }
        let mut expected = vec![BESIDE; got.len()];
        for (far, near) in (0..count).map(at) {
            expected[near..near + len].copy_from_slice(&theirs[far..far + len]);
        }
        assert!(got == expected, "got {what}");
        meet(world);
        let mut source = pattern(count * near + 8, round + 7);
        // SAFETY: as above.
        unsafe {
            let (context, from) = (world.context(), source.as_ptr());
            world.put_blocks(context, first, from, strided(far, near), other, ROUTINE);
        }
        let mut expected = all;
        for (far, near) in (0..count).map(at) {
            expected[far..far + len].copy_from_slice(&source[near..near + len]);
        }
        // It may be reused at once.
        source.fill(0);
        world.quiet(world.context(), ROUTINE);
        meet(world);
        assert!(local(space, whole) == expected, "put {what}");
        meet(world);
    }
}
