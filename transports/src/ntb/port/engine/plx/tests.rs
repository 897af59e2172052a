// SPDX-License-Identifier: Apache-2.0
//! The engine on a model of its registers, beside the models of bridges.

mod model;

use crate::ntb::drive::device_tests::Equipped;
use crate::ntb::port::NtbPort;
use crate::ntb::port::bridge::testing::cases::until;
use crate::ntb::port::engine::testing::cases::{self, Bed};
use crate::ntb::port::plx::tests::{Plx, Shape};
use model::Channel;
use std::sync::Arc;

/// A link with engines, and what makes those of its first end stop, for tests of others.
pub fn link() -> Equipped {
    cases::link::<Plx, Channel>(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::EVEN })
}

/// A link with engines whose root complexes pass nothing on.
pub fn isolated_link() -> Equipped {
    let Bed { bench, ports: [a, b], engines } =
        cases::bed::<Plx, Channel>(Shape { windows: [[4 << 20, 16 << 20]; 2], ..Shape::EVEN }, 1);
    [0, 1].into_iter().for_each(|side| bench.isolate(side));
    (([Arc::new(a), Arc::new(b)], bench), Box::new(move || drop(engines.clone())))
}

#[test]
fn the_engine_makes_a_port_with_dma() {
    cases::conforms::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn flags_follow_their_data_in_any_order_of_descriptors() {
    cases::keeps_order::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn whether_it_reaches_the_peer_is_tried() {
    cases::is_tried::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn an_engine_that_stops_reaches_nothing_when_it_is_closed() {
    cases::may_stop::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn failures_are_told_and_end_its_use() {
    cases::may_fail::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn an_engine_that_meets_an_error_begins_again() {
    cases::may_halt::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn transfers_end_with_their_link() {
    cases::ends_with_its_link::<Plx, Channel>(Shape::EVEN);
}

#[test]
fn the_engine_of_a_killed_process_is_used_by_the_next_one() {
    cases::is_taken_over::<Plx, Channel>(Shape::EVEN);
}

/// The bridge takes the engine's number, also after it has forgotten all.
#[test]
fn the_bridge_lets_the_engine_pass() {
    let bed = cases::connected::<Plx, Channel>(Shape::EVEN);
    let _memory = crate::ntb::port::bridge::testing::opened(&bed.ports[0], 0, 8192);
    let before = bed.ports[1].link_state().generation;
    bed.bench.tamper(|model, lines| model.cable_out(false, lines));
    until("the link", || {
        let state = bed.ports[1].link_state();
        state.up && state.generation != before && bed.ports[0].link_state().up
    });
    let mut channel = bed.ports[1].dma(0).unwrap();
    until("the range", || channel.open(0, 8192).is_ok());
}
