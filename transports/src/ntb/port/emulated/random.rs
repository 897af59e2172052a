// SPDX-License-Identifier: Apache-2.0
//! Seeded randomness: the same seed gives the same faults.

use tombolo_core::random;

/// The numbers of a stream.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

impl Random {
    /// A stream of its own for every `(seed, stream)`.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = random::Random::new(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.bits();
        Random(random)
    }

    /// A number below `bound`, which is positive.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// True `ppm` times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.0.below(1_000_000) < u64::from(ppm)
    }
}
