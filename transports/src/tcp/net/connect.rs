// SPDX-License-Identifier: Apache-2.0
//! How a connection with a peer is made, by either side.

use super::super::frame;
use super::super::listener::{ACCEPTED_MAX, NO_ROOM};
use super::super::peer::State;
use super::super::socket::{self, Greeting, end, greet};
use super::Net;
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{getsockopt, sockopt};

/// Looks, each a quarter of a second, for which a connection of the peer is expected instead of an own one.
const EXPECTED: u32 = 2;

/// How often a connection is begun in vain before the peer is given up.
const ATTEMPTS: u32 = 8;

/// The same where the system says that the peer cannot be reached. That may hold for one direction alone, as where one
/// host has a firewall: then the peer connects.
const REFUSALS: u32 = 2;

/// Looks after which a connection of the peer is used while the own one is still to come about.
const PATIENCE: u32 = 4;

/// How often a connection is begun that fails with this error.
fn attempts(error: Errno) -> u32 {
    match error {
        _ if NO_ROOM.contains(&error) => ATTEMPTS,
        Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH => REFUSALS,
        _ => 1,
    }
}

impl Net {
    /// Begins to connect to a peer, now or, where there is no room for another socket or no way, a little later.
    pub(super) fn connect(&mut self, peer: usize) -> Result<(), Errno> {
        self.peers[peer].attempts += 1;
        match self.begin(peer) {
            Err(error) if self.peers[peer].attempts < attempts(error) => {
                self.peers[peer].state = State::Expecting { looks: 0 };
                self.count();
                Ok(())
            }
            begun => begun,
        }
    }

    fn begin(&mut self, peer: usize) -> Result<(), Errno> {
        let (from, to) = (self.listener.address.ip(), self.peers[peer].address);
        let socket = socket::connect(from, to, &self.congestion)?;
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLOUT, peer as u64))?;
        self.peers[peer].state = State::Connecting(socket, 0);
        self.count();
        Ok(())
    }

    /// The system has connected, or could not.
    pub(super) fn connected(&mut self, peer: usize) {
        let token = self.token;
        let it = &mut self.peers[peer];
        let expecting = State::Expecting { looks: 0 };
        let State::Connecting(socket, _) = std::mem::replace(&mut it.state, expecting) else {
            return;
        };
        let error = getsockopt(&socket, sockopt::SocketError).unwrap_or(libc::EIO);
        if error != 0 {
            let is_last = it.attempts >= REFUSALS;
            end(&self.epoll, &socket);
            self.use_accepted_of(peer);
            if is_last && matches!(self.peers[peer].state, State::Expecting { .. }) {
                self.fail(peer, error);
            }
            return;
        }
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, peer as u64);
        let greeted = greet(&socket, it.token, token);
        match greeted.and_then(|()| self.epoll.modify(&socket, &mut event)) {
            Ok(()) => it.state = State::Greeting(socket, Greeting::default()),
            Err(error) => {
                end(&self.epoll, &socket);
                self.closed_early(peer, error as i32);
            }
        }
    }

    /// The other side has closed a connection before it greeted: it may have begun one itself, which is to be
    /// used, or have made room for others, or have waited for too long.
    fn closed_early(&mut self, peer: usize, error: i32) {
        let it = &mut self.peers[peer];
        if self.token > it.token || it.attempts < ATTEMPTS {
            if let State::Greeting(socket, _) = &it.state {
                end(&self.epoll, socket);
            }
            it.state = State::Expecting { looks: 0 };
        } else {
            self.fail(peer, error);
        }
    }

    /// Four times a second: connects again where that was in vain.
    pub(super) fn connect_again(&mut self) {
        for peer in 0..self.peers.len() {
            let it = &mut self.peers[peer];
            match &mut it.state {
                State::Expecting { looks } => {
                    *looks += 1;
                    if *looks >= EXPECTED
                        && let Err(error) = self.connect(peer)
                    {
                        self.fail(peer, error as i32);
                    }
                }
                State::Connecting(_, looks) => {
                    *looks += 1;
                    self.use_accepted_of(peer);
                }
                _ => {}
            }
        }
    }

    /// The peer's greeting comes.
    pub(super) fn greeted(&mut self, peer: usize) {
        let (token, it) = (self.token, &mut self.peers[peer]);
        let State::Greeting(socket, greeting) = &mut it.state else { return };
        match greeting.read(socket) {
            Ok(false) => {}
            Ok(true) if frame::greeted(&greeting.bytes, token) == Some(it.token) => {
                let State::Greeting(socket, _) = std::mem::replace(&mut it.state, State::Idle)
                else {
                    return;
                };
                self.use_socket(peer, socket);
            }
            Ok(true) => self.fail(peer, libc::EPROTO),
            Err(error) => self.closed_early(peer, error),
        }
    }

    /// Accepts connections that others have made.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept(&self.epoll, self.peers.len()) {
                Some(arrival) => self.read_greeting(arrival),
                None => return,
            }
        }
    }

    /// Something has come by a connection that was accepted.
    pub(super) fn read_greeting(&mut self, arrival: u64) {
        if let Some(from) = self.listener.read_greeting(&self.epoll, arrival, self.token) {
            self.use_accepted(from);
        }
    }

    /// Uses the connection that the PE with this token has made, if it has, and is known yet.
    pub(super) fn use_accepted(&mut self, from: u64) {
        if let Some(peer) = self.peers.iter().position(|peer| peer.token == from) {
            self.use_accepted_of(peer);
        }
    }

    /// Uses the connection that a peer has made, if it has.
    fn use_accepted_of(&mut self, peer: usize) {
        let from = self.peers[peer].token;
        match self.peers[peer].state {
            State::Idle | State::Expecting { .. } => {}
            State::Connecting(..) | State::Greeting(..) if self.token > from => {}
            // The own connection is to be used, if it comes about.
            State::Connecting(_, looks) if looks < PATIENCE => return,
            State::Connecting(..) => {}
            // The own connection stays, or there is none any more.
            _ => return self.listener.refuse(&self.epoll, from),
        }
        let Some(socket) = self.listener.take(&self.epoll, from) else { return };
        if let State::Connecting(own, _) | State::Greeting(own, _) = &self.peers[peer].state {
            end(&self.epoll, own);
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, peer as u64);
        match greet(&socket, from, self.token).and_then(|()| self.epoll.add(&socket, event)) {
            Ok(()) => self.use_socket(peer, socket),
            Err(error) => self.fail(peer, error as i32),
        }
    }
}
