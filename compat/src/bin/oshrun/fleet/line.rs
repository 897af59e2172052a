// SPDX-License-Identifier: Apache-2.0
//! The way of orders to an agent.

use crate::wire::{self, Order, Sender, ToRelay};
use std::time::Duration;

/// See the module.
#[derive(Clone)]
pub enum Line {
    /// To the command that has started the agent.
    Own(Sender<Order>),
    /// To the relay that has, as what is for the standard input of its command.
    Behind { relay: Sender<ToRelay>, host: usize },
}

impl Line {
    /// Sends an order after all those before it.
    pub fn send(&self, order: Order) {
        match self {
            Line::Own(orders) => orders.send(order),
            Line::Behind { relay, host } => {
                relay.send(match wire::encode(&order) {
                    Ok(bytes) => ToRelay::Data { hosts: vec![*host], bytes },
                    // Its end is noticed.
                    Err(_) => ToRelay::Drop { host: *host },
                });
            }
        }
    }

    /// Closes the connection after all that was sent.
    pub fn close(&self) {
        match self {
            Line::Own(orders) => orders.close(),
            Line::Behind { relay, host } => relay.send(ToRelay::Close { host: *host }),
        }
    }

    /// Waits until everything sent so far is written, but not for longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        match self {
            Line::Own(orders) => orders.flush(patience),
            Line::Behind { relay, .. } => relay.flush(patience),
        }
    }
}
