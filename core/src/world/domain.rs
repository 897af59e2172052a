// SPDX-License-Identifier: Apache-2.0
//! Which atomic operations exclude each other on the variables of each PE.
//!
//! A device, such as a network card, may carry out atomic operations that are atomic among each other
//! but not with those of the processor. They are used for variables of one size of a PE only if everybody
//! uses them: every PE of the job reaches that PE through the same transport's device, itself included,
//! and nobody maps its memory. Otherwise all go through the processor, with the target's help where need
//! be. Cards often have variables of 8 bytes only: programs use those of 4 and of 8 bytes apart.

use super::peers::Peers;
use crate::transport::SegmentKind;

/// By size of the variable (4 bytes, then 8), the transport whose device carries out all atomic
/// operations on such variables of a PE.
pub(crate) type Devices = [Option<u8>; 2];

/// The sizes that variables have.
const SIZES: [u8; 2] = [4, 8];

/// By PE and size, 1 + the transport whose device this PE would use for atomic operations there, or 0;
/// empty if there is none at all. `reached` says which segments there are, `mapped` which PEs are mapped.
pub(super) fn wishes(
    peers: &Peers,
    me: usize,
    n_pes: usize,
    segments: &[SegmentKind],
    mapped: impl Fn(usize) -> bool,
) -> Vec<u8> {
    let device = |transport: usize, pe: usize, size: u8| {
        let can = |kind: &SegmentKind| {
            let can = peers.get(transport, pe).map(|peer| peer.can(*kind));
            can.is_some_and(|can| can.device_amos.is_sufficient(size))
        };
        segments.iter().all(can)
    };
    let transports = 0..peers.transports().len().min(usize::from(u8::MAX));
    let wish = |pe: usize, size: u8| {
        let used = transports.clone().find(|transport| device(*transport, pe, size));
        used.filter(|_| pe == me || !mapped(pe)).map_or(0, |transport| transport as u8 + 1)
    };
    let wishes: Vec<u8> = (0..n_pes).flat_map(|pe| SIZES.map(|size| wish(pe, size))).collect();
    if wishes.iter().all(|wish| *wish == 0) { Vec::new() } else { wishes }
}

/// By PE, the devices that carry out atomic operations, where everybody wishes the same.
pub(super) fn settled(all: &[Vec<u8>], n_pes: usize) -> Box<[Devices]> {
    let of = |at: usize| {
        let first = *all.first()?.get(at)?;
        let alike = all.iter().all(|wishes| wishes.get(at) == Some(&first));
        (alike && first > 0).then(|| first - 1)
    };
    (0..n_pes).map(|pe| [of(2 * pe), of(2 * pe + 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_used_where_everybody_wishes_it_and_nowhere_else() {
        let all = [vec![1, 2, 0, 1], vec![1, 2, 1, 1], vec![1, 1, 1, 1]];
        assert_eq!(*settled(&all, 2), [[Some(0), None], [None, Some(0)]]);
        let one_cannot = [vec![1, 1], vec![], vec![1, 1]];
        assert_eq!(*settled(&one_cannot, 1), [[None, None]]);
        assert_eq!(*settled(&[vec![], vec![]], 1), [[None, None]]);
    }
}
