// SPDX-License-Identifier: Apache-2.0
//! Connecting to peers when they are first used.

use super::{DATAGRAM_OUT, Net};
use crate::verbs::hello::Hello;
use crate::verbs::link::Link;
use std::io;
use tombolo_core::board::monotonic_ns;

/// Time between two greetings of a peer that does not answer, nanoseconds.
const AGAIN_NS: u64 = 50_000_000;

impl Net {
    /// Begins to connect.
    #[cold]
    pub(super) fn want(&mut self, peer: usize) {
        self.links[peer].is_wanted = true;
        self.waiting.push(peer as u32);
        self.greet(peer);
    }

    /// Says hello.
    fn greet(&mut self, peer: usize) {
        let link = &mut self.links[peer];
        link.said_ns = monotonic_ns();
        if let Err(why) = link.prepare(&mut self.card, &self.port) {
            return self.give_up(peer, why);
        }
        if link.ah.is_null() {
            let mut way = self.port.way_to(&link.address.port);
            // SAFETY: the protection domain is open.
            link.ah = unsafe { (self.card.library.create_ah)(self.card.pd, &raw mut way) };
            if link.ah.is_null() {
                // It may be found later: addresses are resolved by the network.
                let why = io::Error::last_os_error();
                tracing::debug!("verbs: ibv_create_ah: {why}");
                return;
            }
        }
        // SAFETY: the queue pair is open.
        let queue = unsafe { (*link.qp).qp_num };
        let hello = Hello {
            to: link.address.id,
            from: self.own.id,
            queue,
            packet: link.packet,
            connected: link.progress.connected,
            ready: link.progress.ready,
        };
        self.datagrams.send(&self.card, link.ah, &link.address, &hello, DATAGRAM_OUT);
    }

    /// Somebody says hello.
    pub(super) fn hear(&mut self, hello: &Hello) {
        let from = |link: &Link| link.address.id == hello.from && !link.is_gone;
        let Some(peer) = self.links.iter().position(from).filter(|_| hello.to == self.own.id)
        else {
            return;
        };
        let link = &mut self.links[peer];
        if let Err(why) = link.prepare(&mut self.card, &self.port) {
            return self.give_up(peer, why);
        }
        let todo = link.progress.hear(hello);
        if todo.connect
            && let Err(why) = link.connect(&self.card, &self.port, hello, self.is_software)
        {
            tracing::debug!("verbs: {why}");
            if why.is_transient() && link.disconnect(&self.card, &self.port).is_ok() {
                // Whoever wants to send says hello again soon, until it takes the peer for lost.
                return;
            }
            return self.give_up(peer, why.to_string());
        }
        if todo.answer {
            self.greet(peer);
        }
    }

    /// Nothing can be sent to a peer: whoever tries is told.
    fn give_up(&mut self, peer: usize, why: String) {
        tracing::info!("verbs: no connection: {why}");
        self.why = why;
        self.links[peer].is_gone = true;
    }

    /// Says hello again to those who have not answered.
    pub(super) fn greet_again(&mut self) {
        let now = monotonic_ns();
        for at in (0..self.waiting.len()).rev() {
            let peer = self.waiting[at] as usize;
            let link = &self.links[peer];
            if link.progress.ready || link.is_gone {
                self.waiting.swap_remove(at);
            } else if now.saturating_sub(link.said_ns) > AGAIN_NS {
                self.greet(peer);
            }
        }
    }
}
