// SPDX-License-Identifier: Apache-2.0
//! The ring protocol as a state machine without I/O, clock, thread or pointer.
//!
//! One [`Engine`] runs one lane of one host: it reads what the two neighbours have written into
//! this host's window regions ([`Geometry`]), writes into theirs, takes operations of the local
//! PE, and calls a [`Memory`] for everything that touches memory. Time is an argument.
//!
//! ```text
//!  put/get/amo --> flows --> injection --+             +--> neighbour on the right
//!                    ^                   |   bubble    |
//!  completions <-- acks, replies         +--> rule ----+
//!                    ^                   |             |
//!  memory      <-- delivery <-- inbound rings <--------+--- neighbour on the left, and back
//!                                   |___ relay (one copy, slot to window) ___^
//! ```
//!
//! Invariants:
//! - Only posted writes cross a link. An index that comes over one is checked before it is used.
//! - A packet enters a ring only where two slots are free; transit may use the last one (bubble
//!   flow control, Puente and others; Chen, Wang and Pinkston, IPDPS 2011). So each direction of each class always has a free slot somewhere, and always moves.
//! - A handler never waits for room in the request class: requests emit replies and control,
//!   replies emit nothing, control is always taken in.
//! - A sender keeps what it sent until the target acknowledged it end to end. Whatever happens on
//!   the way (link loss, corruption, dropped transit) is repaired by repeating, perhaps the other
//!   way round.
//! - Streams take turns, packet by packet, and while several are in use none fills the way to a target
//!   (`fair`). Only what one stream sends to one host is ordered.
//! - A link is judged by what it does while both of its ends run (`health`). Silence alone is no
//!   evidence: the other process may be stopped.
//! - A target applies exactly the next sequence number of a flow. Repetitions change nothing; the
//!   results of fetching AMOs are cached until their tag is used again.
//! - Nothing is allocated after the start.

mod bits;
pub mod choose;
mod config;
mod engine;
mod fair;
mod fetcher;
mod flow;
mod health;
mod layout;
mod losses;
mod memory;
mod ops;
mod packet;
mod port;
mod receiver;
mod repair;
mod request;
mod send;
mod sender;
mod stats;
mod steps;
mod submit;
mod take;
mod topology;

#[cfg(test)]
mod tests;

pub use config::{Config, FETCHES, HOSTS_MAX};
pub use engine::{Engine, EngineError};
pub use health::RunClock;
pub use layout::{
    CHUNK_BYTES_MAX, CREDIT_OFFSET, Geometry, GeometryError, HELLO_OFFSET, LINE, body_bytes,
};
pub use memory::{Completion, Event, Location, Memory, OutOfRange, Side, Span, Transfer};
pub use packet::{Class, INLINE_BYTES, Kind, Limits, LineWords, Malformed, Packet, Spread, flag};
pub use request::{AmoRequest, GetRequest, PutRequest, Target};
pub use stats::Stats;
pub use steps::{STEP_BYTES, Step, Steps};
