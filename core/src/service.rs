// SPDX-License-Identifier: Apache-2.0
//! Operations carried out by their target: what no transport can do by itself on a variable, such as
//! an atomic operation over a transport that only copies.
//!
//! A requester writes a request into a line of its own in the target's control area; the target
//! executes it with its CPU, so that there is one domain of atomicity per variable, and writes a reply
//! into the requester's control area. Both only ever write to each other, which every transport can
//! do, and look at their own memory.
//!
//! # Order
//!
//! A transport may deliver the words of one put, and two puts, in any order. So every 8-byte word
//! of a message carries the message's ticket in its low 16 bits: a message is there when all its words
//! carry the ticket that its reader expects next. What holds the argument together:
//!
//! - Aligned words arrive whole, or the last word arrives after all others: because the transport
//!   says so of every put (`ends_last`), or because the last word is put after the others are complete
//!   (with the others again, which changes nothing). The last word carries nothing but the ticket, and
//!   the reader compares it with the one value it expects; a torn mixture of two consecutive tickets
//!   is neither of them, or the expected one, and then all other words are there as a whole.
//! - A put may be repeated until it is complete. So the puts of one message are complete before
//!   the line is used for the next: no word of an old message can overwrite one of a newer.
//! - A line holds one message at a time: the next request follows the reply to the last.
//! - Tickets count from 1 to 65535 and start over: a word of as many messages ago was overwritten
//!   by every message since.

mod message;
mod server;
mod thread;
mod wire;

pub(crate) use message::{LINE_WORDS, MessageLine, Reply};
pub use message::{Request, Wanted};
pub(crate) use server::carry_out;
pub use server::{Requester, Served, Server};
pub(crate) use thread::await_fds;
pub use thread::{Announced, Bell, Pollable, Service};
pub use wire::Wire;

#[cfg(test)]
mod tests;
