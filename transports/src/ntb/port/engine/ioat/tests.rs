// SPDX-License-Identifier: Apache-2.0
//! The engine on a model of its registers, beside the models of bridges.

mod model;

use crate::ntb::drive::device_tests::Equipped;
use crate::ntb::port::engine::testing::cases;
use crate::ntb::port::intel::tests::{Shape, Xeon};
use crate::ntb::port::plx::tests::{Plx, Shape as PlxShape};
use model::Function;

/// A link with engines, and what makes those of its first end stop, for tests of others.
pub fn link() -> Equipped {
    cases::link::<Xeon, Function>(Shape { windows: [4 << 20, 16 << 20], ..Shape::ICE_LAKE })
}

#[test]
fn the_engine_makes_a_port_with_dma() {
    cases::conforms::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn flags_follow_their_data_in_any_order_of_descriptors() {
    cases::keeps_order::<Xeon, Function>(Shape::SKYLAKE);
}

/// The nearest engine of a PLX bridge may be one of the processor.
#[test]
fn the_engine_serves_bridges_of_other_makers() {
    cases::keeps_order::<Plx, Function>(PlxShape::EVEN);
}

#[test]
fn whether_it_reaches_the_peer_is_tried() {
    cases::is_tried::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn an_engine_that_stops_reaches_nothing_when_it_is_closed() {
    cases::may_stop::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn failures_are_told_and_end_its_use() {
    cases::may_fail::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn an_engine_that_meets_an_error_begins_again() {
    cases::may_halt::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn transfers_end_with_their_link() {
    cases::ends_with_its_link::<Xeon, Function>(Shape::ICE_LAKE);
}

#[test]
fn the_engine_of_a_killed_process_is_used_by_the_next_one() {
    cases::is_taken_over::<Xeon, Function>(Shape::ICE_LAKE);
}
