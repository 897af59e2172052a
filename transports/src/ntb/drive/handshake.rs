// SPDX-License-Identifier: Apache-2.0
//! The handshake over scratchpads: who is at the other end of a cable, and was it set up alike?
//!
//! Each host writes eight words into its neighbour's scratchpads, the check word last, and repeats
//! them until the ring is in use, for a posted write may be lost. Scratchpads keep their values
//! while links and processes come and go: the epoch tells words of this job from old ones. What is
//! finer than a host (lanes, epochs of links) is in the ring's own hello lines.

use crate::ntb::port::NtbPort;
use crate::ntb::ring::{Geometry, Side};

/// Scratchpads that the handshake needs.
pub const WORDS: usize = 8;

const MAGIC: u32 = 0x5442_4c00;
const VERSION: u32 = 3;
const CHECK: usize = WORDS - 1;

/// What a host says of itself through one of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Position in the ring.
    pub host: u16,
    /// Hosts of the ring.
    pub hosts: u16,
    /// The port it is said through.
    pub side: Side,
    /// KiB of the window with the rings that all use alike.
    pub window: u32,
    /// Doorbell bits that all use.
    pub doorbells: u32,
    /// Lanes of the ring.
    pub lanes: u16,
    /// Whether packets carry a CRC.
    pub crc: bool,
    /// Rings in a lane.
    pub geometry: Geometry,
    /// Random for this job on this host.
    pub epoch: u32,
}

impl Greeting {
    fn words(&self) -> [u32; WORDS] {
        let digest = self.geometry.digest();
        let mut words = [
            MAGIC | VERSION,
            u32::from(self.host) | u32::from(self.hosts) << 16,
            self.window,
            self.doorbells,
            u32::from(self.lanes) | u32::from(self.crc) << 16 | (self.side as u32) << 17,
            digest as u32 ^ ((digest >> 32) as u32) << 8,
            self.epoch,
            0,
        ];
        words[CHECK] = check(&words);
        words
    }

    /// Writes the words into the neighbour's scratchpads.
    pub fn send(&self, port: &dyn NtbPort) {
        for (index, word) in self.words().into_iter().enumerate() {
            port.peer_spad_write(index, word);
        }
    }

    /// Compares what the neighbour has written here with `self`, what it is expected to say.
    ///
    /// - `None`: nothing of this job yet. The error says what differs.
    pub fn heard(&self, port: &dyn NtbPort) -> Option<Result<(), String>> {
        let words: [u32; WORDS] = std::array::from_fn(|index| port.spad_read(index));
        let expected = self.words();
        if words[0] & !0xff != MAGIC || words[CHECK] != check(&words) {
            return None;
        }
        if words[0] != expected[0] {
            let version = words[0] & 0xff;
            return Some(Err(format!("it speaks version {version}, this host {VERSION}")));
        }
        if words[6] != self.epoch {
            return None;
        }
        let what = [
            (1, "its place in the ring"),
            (2, "the size of the window"),
            (3, "the number of doorbells"),
            (4, "lanes, CRC or the port that the cable is in"),
            (5, "the rings of a lane"),
        ];
        let different = what.into_iter().find(|(index, _)| words[*index] != expected[*index]);
        Some(different.map_or(Ok(()), |(index, name)| {
            Err(format!("{name} differs ({:#x}, expected {:#x})", words[index], expected[index]))
        }))
    }
}

/// Never 0 or all ones, which scratchpads hold after a reset or behind a dead link.
pub fn check(words: &[u32; WORDS]) -> u32 {
    let bytes = words[..CHECK].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    crc32c::crc32c(&bytes) & 0x7fff_ffff | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::emulated::{Fabric, FabricSpec};
    use proptest::prelude::*;

    fn greeting() -> Greeting {
        Greeting {
            host: 1,
            hosts: 2,
            side: Side::Left,
            window: 64 << 10,
            doorbells: 16,
            lanes: 3,
            crc: false,
            geometry: Geometry::new(4096, [64, 64, 128]).unwrap(),
            epoch: 77,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        /// Only the very words that are expected are a greeting, and nothing is heard that others
        /// would not have sent.
        #[test]
        fn garbage_in_scratchpads_does_no_harm(
            noise in any::<[u32; WORDS]>(), kept in any::<[bool; WORDS]>(), sealed: bool,
        ) {
            let fabric = Fabric::create(&FabricSpec::new(2)).unwrap();
            let right = fabric.ports(0).unwrap().right;
            let expected = greeting();
            let good = expected.words();
            let mut words = std::array::from_fn(|at| if kept[at] { good[at] } else { noise[at] });
            if sealed {
                words[CHECK] = check(&words);
            }
            words.iter().enumerate().for_each(|(at, word)| right.spad_write(at, *word));
            match expected.heard(&*right) {
                Some(Ok(())) => prop_assert_eq!(words, good),
                Some(Err(why)) => prop_assert!(sealed || words[CHECK] == check(&words), "{}", why),
                None => prop_assert_ne!(words, good),
            }
        }
    }

    #[test]
    fn a_greeting_is_heard_when_it_is_whole_and_of_this_job() {
        let fabric = Fabric::create(&FabricSpec::new(2)).unwrap();
        let (right, left) = (fabric.ports(0).unwrap().right, fabric.ports(1).unwrap().left);
        right.link_enable().unwrap();
        left.link_enable().unwrap();
        let expected = greeting();
        assert_eq!(expected.heard(&*right), None, "nothing was said");
        Greeting { epoch: 76, ..expected }.send(&*left);
        assert_eq!(expected.heard(&*right), None, "an old job");
        expected.send(&*left);
        assert_eq!(expected.heard(&*right), Some(Ok(())));
        right.spad_write(3, 1);
        assert_eq!(expected.heard(&*right), None, "half written");
        for wrong in [
            Greeting { host: 3, ..expected },
            Greeting { window: 64, ..expected },
            Greeting { doorbells: 28, ..expected },
            Greeting { crc: true, ..expected },
            Greeting { side: Side::Right, ..expected },
            Greeting { geometry: Geometry::new(4096, [64, 32, 128]).unwrap(), ..expected },
        ] {
            wrong.send(&*left);
            let said = expected.heard(&*right).expect("whole");
            assert!(said.unwrap_err().contains("differs"), "{wrong:?}");
        }
    }
}
