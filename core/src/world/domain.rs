// SPDX-License-Identifier: Apache-2.0
//! Which atomic operations exclude each other on the variables of each PE.
//!
//! A device, such as a network card, may carry out atomic operations that are atomic among each other
//! but not with those of the processor. They are used for variables of one size of a PE only if everybody
//! uses them: every PE of the job reaches that PE through the same transport's device, itself included,
//! and nobody maps its memory. Otherwise all go through the processor, with the target's help where need
//! be. Cards often have variables of 8 bytes only: programs use those of 4 and of 8 bytes apart.
//!
//! A PE's own operations on its variables then take the way through the device too, which is slower than
//! its processor; in return those of others need no processor of the target. A device whose operations
//! are atomic with those of processors needs none of this: it offers them as [`amos`].
//!
//! [`amos`]: crate::transport::Capabilities::amos

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

/// Tells each transport for which PEs its device carries out atomic operations.
pub(super) fn tell(peers: &Peers, devices: &[Devices]) {
    for (index, transport) in peers.transports().iter().enumerate() {
        let by_it = |pe: &Devices| pe.contains(&Some(index as u8));
        transport.amos_settled(&devices.iter().map(by_it).collect::<Vec<bool>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{
        AmoOp, AmoSet, Capabilities, Endpoint, Job, Mapping, Remote, Segment, Status, Stream,
        Transport,
    };

    /// An endpoint of which no more is asked than what it can do.
    struct Able(Capabilities);

    impl Endpoint for Able {
        fn capabilities(&self, _: SegmentKind) -> Capabilities {
            self.0
        }

        fn mapped(&self, _: SegmentKind) -> Option<Mapping> {
            None
        }

        unsafe fn put(&self, _: &Stream, _: Remote, _: *const u8, _: usize, _: bool) -> Status {
            Status::Failed
        }

        unsafe fn get(&self, _: &Stream, _: *mut u8, _: Remote, _: usize) -> Status {
            Status::Failed
        }
    }

    /// A transport that is there to be counted.
    struct Counted;

    impl Transport for Counted {
        fn name(&self) -> &'static str {
            "counted"
        }

        fn probe(&self, _: &Job<'_>) -> Result<(), String> {
            Ok(())
        }

        fn open(&mut self, _: &Job<'_>, _: &[Segment<'_>]) -> crate::Result<Vec<u8>> {
            Ok(vec![])
        }

        fn connect(
            &mut self,
            _: &Job<'_>,
            _: &[Vec<u8>],
        ) -> crate::Result<Vec<Result<Box<dyn Endpoint>, String>>> {
            Ok(vec![])
        }
    }

    #[test]
    fn a_pe_wishes_a_device_that_is_sufficient_and_for_memory_that_nobody_maps() {
        const KINDS: [SegmentKind; 2] = SegmentKind::ALL;
        let adds = AmoSet::NONE.with(AmoOp::Add, 8);
        let swaps = adds.with(AmoOp::CompareSwap, 8);
        let with = |device_amos| {
            let able = Able(Capabilities { device_amos, ..Capabilities::NONE });
            Some(Box::new(able) as Box<dyn Endpoint>)
        };
        let wished = |of_pes: [AmoSet; 3], mapped: [bool; 3]| {
            let transport: Box<dyn Transport> = Box::new(Counted);
            let peers = Peers::new(vec![transport], vec![of_pes.map(with).into()]);
            wishes(&peers, 0, 3, &KINDS, |pe| mapped[pe])
        };
        let all = |of_each, mapped| wished([of_each; 3], mapped);
        // A PE has its own memory mapped always; it uses the device all the same.
        assert_eq!(all(swaps, [true, false, false]), [0, 1, 0, 1, 0, 1]);
        // What has no compare-and-swap cannot do all there is.
        assert_eq!(all(adds, [true, false, false]), [0; 0]);
        // PE 1 is on this PE's host.
        assert_eq!(all(swaps, [true, true, false]), [0, 1, 0, 0, 0, 1]);
        let one_has_none = wished([swaps, AmoSet::NONE, swaps], [true, false, false]);
        assert_eq!(one_has_none, [0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_device_is_used_where_everybody_wishes_it_and_nowhere_else() {
        let all = [vec![1, 2, 0, 1], vec![1, 2, 1, 1], vec![1, 1, 1, 1]];
        assert_eq!(*settled(&all, 2), [[Some(0), None], [None, Some(0)]]);
        let one_cannot = [vec![1, 1], vec![], vec![1, 1]];
        assert_eq!(*settled(&one_cannot, 1), [[None, None]]);
        assert_eq!(*settled(&[vec![], vec![]], 1), [[None, None]]);
    }
}
