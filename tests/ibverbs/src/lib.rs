// SPDX-License-Identifier: Apache-2.0
//! A stand-in for `libibverbs.so.1`, by which the transport over verbs is tested where there is no RDMA device. It is
//! never installed: tests put a link of that name into a folder of `LD_LIBRARY_PATH`.
//!
//! ```text
//! interface (what the transport loads) -> fabric: state, thread, socket -> queue_pair, responder -> memory
//! models: the devices        completions: queues        frame: what cards send each other
//! ```
//!
//! The card of a process is a thread of it, and calls of [`poll_cq`](interface) do its work as well. Cards of one
//! machine reach each other by datagrams of Unix sockets, whose names go with the process: nothing is left behind, and
//! no right is needed to reach another process's memory.
//!
//! # What it does
//!
//! It keeps what the InfiniBand specification promises, and no more. What the specification leaves open is left to chance,
//! by the seed `TOMBOLO_IBVERBS_SEED`:
//!
//! - An operation may begin late, and reads its source only then. Data posted inline are copied at once.
//! - A write is acknowledged before its data are in memory. They get there in order, those of one write piece by piece
//!   in any order, at the latest when a read or an atomic operation of the same connection is carried out, or before a
//!   message of it is told of. Devices that are software have the data in memory first, but no word whole.
//! - Reads and atomic operations may be overtaken by writes and messages that were posted after them without a fence,
//!   though not by their acknowledgements.
//! - Connections do not wait for each other. A message waits for a buffer, and all behind it do.
//! - Completions are seen late, and several at a time. A queue that is told to tell of the next one does not
//!   tell of those that were there. Only the end of signalled operations is told, and makes room in the
//!   send queue when it was taken.
//! - Completions of a queue pair go with it, as with mlx5; not with devices that are software.
//! - A failed operation ends its connection at both ends: all others fail, whether signalled or not, and of a
//!   failure nothing but its number and status can be relied on.
//! - Datagrams get lost.
//!
//! Mistakes are told: access outside of registered memory or without the right is refused, as is what is posted
//! beyond the depth of a queue; a state of a queue pair needs the attributes that it needs; a queue for
//! completions that overflows ends the process.
//!
//! # What it does not do
//!
//! It does not keep the pages of registered memory: where a program unmaps a registered buffer, a card would go on
//! with the old pages, and this one crashes or uses what is there now. There are no asynchronous events, no limit
//! on how often a message is sent for lack of a buffer, and no loss but by the death of processes.

mod completions;
mod fabric;
mod frame;
mod interface;
mod memory;
mod models;
mod queue_pair;
mod random;
mod responder;
#[cfg(test)]
mod tests;
#[allow(
    dead_code,
    reason = "the transport's own, so that both agree; the transport's tests compare them with C headers"
)]
#[path = "../../../transports/src/verbs/sys/types.rs"]
mod types;
