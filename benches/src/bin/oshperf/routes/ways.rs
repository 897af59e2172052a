// SPDX-License-Identifier: Apache-2.0
//! The routes that are usable for an operation, each of them forced, and which of them is taken.

use super::Op;
use tombolo_core::World;
use tombolo_core::route::{Channel, Routes, Steps};
use tombolo_core::transport::{Capabilities, SegmentKind};
use tombolo_selector::data::{CACHED, STREAMING};
use tombolo_selector::report;

const HEAP: usize = SegmentKind::Heap as usize;

/// One route.
pub struct Way {
    /// Its name.
    pub name: String,
    /// Routes by which everything of the kind takes it.
    pub routes: Routes,
}

/// The usable routes of an operation.
pub struct Ways {
    /// All of them; at least one.
    pub all: Vec<Way>,
    /// The one that the selector takes.
    pub taken: usize,
    /// Whether some of them may copy the sources of puts first.
    pub copy: bool,
}

/// The names of all routes that are usable at one of these sizes.
pub fn names(world: &World, selected: &Routes, pe: usize, op: Op, sizes: &[u64]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for bytes in sizes {
        for way in of(world, selected, pe, op, *bytes as usize).all {
            if !names.contains(&way.name) {
                names.push(way.name);
            }
        }
    }
    names
}

/// The routes of an operation on the heap of a PE; `selected` are what the selector made.
pub fn of(world: &World, selected: &Routes, pe: usize, op: Op, bytes: usize) -> Ways {
    let peer = &selected.peers[pe];
    let steps = if op == Op::Get { &peer.get } else { &peer.put };
    let chosen = steps[HEAP].choose(bytes);
    let forced = |channel: Channel| {
        let mut routes = selected.clone();
        let peer = &mut routes.peers[pe];
        let steps = if op == Op::Get { &mut peer.get } else { &mut peer.put };
        steps[HEAP] = Steps::always(channel);
        routes
    };
    let mut all = Vec::new();
    let (mut taken, mut copy) = (0, false);
    let mut channels = channels(world, pe, op, bytes);
    if let Channel::Striped(_) | Channel::Either(_) = chosen {
        let name = report::name(chosen, |index| world.transports()[index].name());
        channels.push((name.into_owned(), chosen));
    }
    for (name, channel) in channels {
        let mut add = |name: String, routes: Routes, is_taken: bool| {
            if is_taken {
                taken = all.len();
            }
            all.push(Way { name, routes });
        };
        let can = match channel {
            Channel::Endpoint(index) => capabilities(world, usize::from(index), pe),
            _ => Capabilities::NONE,
        };
        if op == Op::Puts && can.needs_target_cpu && bytes <= can.inline_max {
            copy = true;
            let waited = bytes >= peer.zero_copy[HEAP];
            for (how, zero_copy) in [("copied", usize::MAX), ("from source", 0)] {
                let mut routes = forced(channel);
                routes.peers[pe].zero_copy[HEAP] = zero_copy;
                let is_taken = channel == chosen && waited == (zero_copy == 0);
                add(format!("{name} {how}"), routes, is_taken);
            }
        } else {
            add(name, forced(channel), channel == chosen);
        }
    }
    Ways { all, taken, copy }
}

/// What reaches the heap of a PE, as `SHMEM_ROUTE` names it.
fn channels(world: &World, pe: usize, op: Op, bytes: usize) -> Vec<(String, Channel)> {
    let mut found = Vec::new();
    let mapped = !world.ptr(world.heap().base().cast_const(), pe).is_null();
    if mapped {
        found.push((CACHED.to_owned(), Channel::Cached));
        found.push((STREAMING.to_owned(), Channel::Streaming));
    }
    for (index, transport) in world.transports().iter().enumerate() {
        let Some(endpoint) = world.endpoint(index, pe) else { continue };
        let can = endpoint.capabilities(SegmentKind::Heap);
        let (able, align) =
            if op == Op::Get { (can.get, can.get_align) } else { (can.put, can.put_align) };
        // Where memory is mapped an endpoint that only offers the mapping is the same route; what has to
        // be aligned, or is sent as an AMO because it might be torn, is not the plain operation.
        let only_mapped = mapped && endpoint.mapped(SegmentKind::Heap).is_some();
        let torn = op != Op::Get && !can.whole_words && bytes <= 8;
        if able && align <= 1 && !only_mapped && !torn {
            found.push((transport.name().to_owned(), Channel::Endpoint(index as u8)));
        }
    }
    found
}

fn capabilities(world: &World, index: usize, pe: usize) -> Capabilities {
    let endpoint = world.endpoint(index, pe);
    endpoint.map_or(Capabilities::NONE, |endpoint| endpoint.capabilities(SegmentKind::Heap))
}
