// SPDX-License-Identifier: Apache-2.0
//! What a PE tells the others: how to reach its endpoint and its segments.

use super::engine::{Own, TheirSegment};
use tombolo_core::transport::SegmentKind;

/// Changes with the form of addresses and messages.
const FORM: u8 = 1;

/// A segment as others need to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// How RMA names it.
    pub segment: TheirSegment,
    /// Equal on two PEs if and only if their segments have the same layout.
    pub layout: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which kind of network: only those of one kind reach each other.
    pub kind: String,
    /// Address of the endpoint, in the network's form.
    pub name: Vec<u8>,
    /// What messages for this PE have to begin with.
    pub token: u64,
    /// Its segments.
    pub told: [Told; SegmentKind::ALL.len()],
}

impl Told {
    /// What a PE tells of its own segment.
    pub fn of<K>(own: &Own<K>, layout: u64) -> Told {
        let (base, key, len) = (own.shared.base, own.shared.key, own.len);
        Told { segment: TheirSegment { base, key, len }, layout }
    }
}

impl Address {
    /// The address as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORM, self.kind.len() as u8, self.name.len() as u8];
        bytes.extend_from_slice(self.kind.as_bytes());
        bytes.extend_from_slice(&self.name);
        bytes.extend_from_slice(&self.token.to_le_bytes());
        for Told { segment, layout } in &self.told {
            for field in [segment.base, segment.key, segment.len as u64, *layout] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
        }
        bytes
    }

    /// The address that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8]) -> Option<Address> {
        let ([form, kind, name], rest) = bytes.split_first_chunk::<3>()?;
        if *form != FORM {
            return None;
        }
        let (kind, rest) = rest.split_at_checked(usize::from(*kind))?;
        let (name, rest) = rest.split_at_checked(usize::from(*name))?;
        let (words, rest) = rest.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if !rest.is_empty() || words.len() != 1 + 4 * SegmentKind::ALL.len() {
            return None;
        }
        let told = SegmentKind::ALL.map(|kind| {
            let fields = &words[1 + 4 * kind as usize..];
            let segment = TheirSegment { base: fields[0], key: fields[1], len: fields[2] as usize };
            Told { segment, layout: fields[3] }
        });
        let kind = String::from_utf8(kind.to_vec()).ok()?;
        Some(Address { kind, name: name.to_vec(), token: words[0], told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_in_addresses_does_no_harm(
            lens in any::<[u8; 2]>(), bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let all = [&[FORM, lens[0] % 20, lens[1] % 40][..], &bytes].concat();
            if let Some(address) = Address::decode(&all) {
                prop_assert_eq!(address.encode(), all);
            }
            let _ = Address::decode(&bytes);
        }
    }

    #[test]
    fn an_address_comes_back_as_it_was_and_a_torn_one_does_not() {
        let segment = TheirSegment { base: 1, key: 2, len: 3 };
        let address = Address {
            kind: "tcp;ofi_rxm".into(),
            name: vec![2, 0, 31, 144, 127, 0, 0, 1],
            token: 77,
            told: [Told { segment, layout: 4 }, Told::default()],
        };
        let bytes = address.encode();
        assert_eq!(Address::decode(&bytes), Some(address));
        for cut in 0..bytes.len() {
            assert_eq!(Address::decode(&bytes[..cut]), None, "cut to {cut}");
        }
    }
}
