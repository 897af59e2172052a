// SPDX-License-Identifier: Apache-2.0
//! Reproducible randomness: the same seed gives the same run on every machine.

use tombolo_core::random;

/// The numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Random {
        Random(random::Random::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`, which must not be 0. Not as [`random::Random::below`] has it: what seeds of the
    /// simulator mean is recorded.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }
}
