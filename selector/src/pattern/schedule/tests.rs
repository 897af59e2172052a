// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

type Memory = HashMap<(usize, Area, usize), (usize, usize)>;

/// Carries a way out. What is written in a phase may not be read or written again in it.
fn carry_out(layout: &Layout, pattern: Pattern, by: By) -> Memory {
    let mut memory = Memory::new();
    for pe in 0..layout.pes() {
        for block in given(layout, pattern, pe) {
            memory.insert((pe, Area::Source, block.index), (block.origin, block.target));
        }
    }
    let plans: Vec<_> = (0..layout.pes()).map(|pe| phases(layout, pattern, by, pe)).collect();
    assert!(plans.iter().all(|plan| plan.len() == plans[0].len()), "phases differ");
    for phase in 0..plans[0].len() {
        let mut written = Memory::new();
        for (pe, plan) in plans.iter().enumerate() {
            for transfer in &plan[phase] {
                let Transfer { operation, peer, from, to, blocks, .. } = *transfer;
                let (reader, writer) =
                    if operation == Operation::Put { (pe, peer) } else { (peer, pe) };
                let room = |area| match area {
                    Area::Stage => stage_blocks(layout, pattern, by),
                    _ => layout.pes(),
                };
                assert!(from.1 + blocks <= room(from.0) && to.1 + blocks <= room(to.0));
                for block in 0..blocks {
                    let value = memory[&(reader, from.0, from.1 + block)];
                    let place = (writer, to.0, to.1 + block);
                    assert!(written.insert(place, value).is_none(), "{place:?} twice");
                }
            }
        }
        memory.extend(written);
    }
    memory
}

proptest! {
    #[test]
    fn every_way_brings_every_block_to_its_place(
        hosts in 1usize..6, more in 0usize..9, cyclic in any::<bool>(), cpus in 1usize..5
    ) {
        let pes = hosts + more;
        let host = |pe: usize| if cyclic { pe % hosts } else { pe * hosts / pes };
        let layout = Layout::new((0..pes).map(host), cpus, true, |_, _| Distance::Network);
        for pattern in Pattern::ALL {
            for by in By::ALL {
                let memory = carry_out(&layout, pattern, by);
                for pe in 0..pes {
                    for Block { index, origin, target } in wanted(&layout, pattern, pe) {
                        let found = memory.get(&(pe, Area::Result, index));
                        prop_assert_eq!(found, Some(&(origin, target)), "{} {} {}", pattern, by, pe);
                    }
                }
            }
        }
    }
}

#[test]
fn everybody_is_wanted_something_of() {
    let layout = Layout::regular(2, 2, 4, Topology::Ring);
    let blocks = |pattern| (0..4).map(|pe| wanted(&layout, pattern, pe).len()).sum::<usize>();
    assert_eq!(Pattern::ALL.map(blocks), [3, 3, 12, 4]);
}

#[test]
fn distances_are_those_of_the_topology_that_is_asked_for() {
    let layout = Layout::regular(5, 2, 4, Topology::Ring);
    let hops = Distance::Hops;
    let on_a_ring = [Distance::Myself, Distance::Host, hops(1), hops(2), hops(2), hops(1)];
    assert_eq!([0, 1, 2, 4, 6, 8].map(|pe| layout.distance(0, pe)), on_a_ring);
    let told = Layout::regular(5, 2, 4, Topology::Network);
    let network = Distance::Network;
    let expected = [Distance::Myself, Distance::Host, network, network, network, network];
    assert_eq!([0, 1, 2, 4, 6, 8].map(|pe| told.distance(0, pe)), expected);
}
