// SPDX-License-Identifier: Apache-2.0
//! What the PEs tell each other about their NTB ports before any link is used.

use super::cabling::Far;
use super::memory::Extent;
use super::plan::PlanInputs;
use tombolo_core::transport::SegmentKind;

/// Version of the address and of all that it leads to.
const VERSION: u32 = 6;
const FAR_AT: usize = 12;
const INPUTS_AT: usize = FAR_AT + 2;
const WORDS: usize = INPUTS_AT + PlanInputs::WORDS;

/// One PE's address, exchanged by the bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Position of its host in the ring.
    pub host: u16,
    /// Hosts of the ring.
    pub hosts: u16,
    /// Random for this start of the PE.
    pub incarnation: u32,
    /// Segments that exist; other PEs of its host can write to them.
    pub segments: [Option<Extent>; SegmentKind::ALL.len()],
    /// Where each segment starts in its window for direct access, if it is there.
    pub direct: [Option<u64>; SegmentKind::ALL.len()],
    /// By [`Side`](crate::ntb::ring::Side): who its host has heard at the far end of the port.
    pub far: [Option<Far>; 2],
    /// By side: whether its host has no port there.
    pub absent: [bool; 2],
    /// What its host asks of the lanes.
    pub inputs: PlanInputs,
}

impl Advert {
    /// As the bytes that are exchanged.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = [0u64; WORDS];
        words[0] = u64::from(VERSION) << 32 | u64::from(self.incarnation);
        let absent = self.absent.iter().rev().fold(0, |all, flag| all << 1 | u64::from(*flag));
        words[1] = absent << 32 | u64::from(self.host) << 16 | u64::from(self.hosts);
        for kind in SegmentKind::ALL {
            let at = 2 + kind as usize * 5;
            if let Some(extent) = self.segments[kind as usize] {
                words[at..at + 3].copy_from_slice(&[1, extent.len, extent.layout]);
            }
            if let Some(offset) = self.direct[kind as usize] {
                words[at + 3..at + 5].copy_from_slice(&[1, offset]);
            }
        }
        words[FAR_AT..INPUTS_AT].copy_from_slice(&self.far.map(Far::to_word));
        words[INPUTS_AT..].copy_from_slice(&self.inputs.to_words());
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads it back; the error is for people.
    pub fn decode(bytes: &[u8]) -> Result<Advert, String> {
        if bytes.is_empty() {
            return Err("it has no NTB port".into());
        }
        if bytes.len() != WORDS * 8 {
            return Err("its NTB address cannot be read".into());
        }
        let word = |at: usize| {
            let bytes = bytes[at * 8..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        if word(0) >> 32 != u64::from(VERSION) {
            return Err(format!("its NTB version is {}, not {VERSION}", word(0) >> 32));
        }
        let segment = |at: usize| Extent { len: word(at + 1), layout: word(at + 2) };
        Ok(Advert {
            host: (word(1) >> 16) as u16,
            hosts: word(1) as u16,
            incarnation: word(0) as u32,
            segments: [2, 7].map(|at| (word(at) == 1).then(|| segment(at))),
            direct: [5, 10].map(|at| (word(at) == 1).then(|| word(at + 1))),
            far: [0, 1].map(|side| Far::from_word(word(FAR_AT + side))),
            absent: [32, 33].map(|bit| word(1) >> bit & 1 == 1),
            inputs: PlanInputs::from_words(std::array::from_fn(|at| word(INPUTS_AT + at))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::ring::Side;
    use proptest::prelude::*;

    const INPUTS: PlanInputs = PlanInputs {
        line_mbs: Some(7247),
        max_payload: 256,
        store_bytes: 8,
        cores: 4,
        window: None,
        doorbells: 16,
        dma: true,
    };

    #[test]
    fn an_advert_is_read_back_as_it_was_written() {
        let full = Advert {
            host: 3,
            hosts: 5,
            incarnation: 0xdead_beef,
            segments: [Some(Extent { len: 1 << 30, layout: 7 }), None],
            direct: [None, Some(1 << 33)],
            far: [None, Some(Far { host: 2, port: Side::Left, incarnation: 5 })],
            absent: [true, false],
            inputs: INPUTS,
        };
        assert_eq!(Advert::decode(&full.encode()), Ok(full));
        let swapped = Advert {
            segments: [None, Some(Extent { len: 9, layout: u64::MAX })],
            direct: [Some(0), None],
            ..full
        };
        assert_eq!(Advert::decode(&swapped.encode()), Ok(swapped));
    }

    proptest! {
        /// Words of any kind behind the right version: what is read says the same when it is
        /// written again.
        #[test]
        fn garbage_in_adverts_does_no_harm(
            words in any::<[u64; WORDS]>(), small: bool, cut in 0usize..WORDS * 8,
        ) {
            let mask = if small { 0x1_0000_0003 } else { u64::MAX };
            let mut words = words.map(|word| word & mask);
            words[0] = words[0] & 0xffff_ffff | u64::from(VERSION) << 32;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let read = Advert::decode(&bytes).expect("of this version");
            prop_assert_eq!(Advert::decode(&read.encode()), Ok(read));
            prop_assert!(Advert::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn what_is_no_advert_is_refused() {
        let good = Advert {
            host: 0,
            hosts: 2,
            incarnation: 1,
            segments: [None; 2],
            direct: [None; 2],
            far: [None; 2],
            absent: [false; 2],
            inputs: INPUTS,
        }
        .encode();
        assert!(Advert::decode(&[]).is_err());
        assert!(Advert::decode(&good[1..]).is_err());
        let mut other = good;
        other[4] = 99;
        assert!(Advert::decode(&other).unwrap_err().contains("99"));
    }
}
