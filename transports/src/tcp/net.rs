// SPDX-License-Identifier: Apache-2.0
//! The sockets of one PE on one interface: a listener, and one connection with each peer that was used.
//!
//! A connection is made when something is first sent. Where both sides begin at the same time, that of the PE
//! with the smaller token stays. One that is closed before both have greeted is made again.

mod connect;

use super::congestion::Congestion;
use super::frame::Head;
use super::listener::{ACCEPTED, LISTENER, Listener};
use super::out::Body;
use super::peer::{Common, Peer, Receive, Region, SCRATCH, State};
use super::ports::Ports;
use super::socket::end;
use crate::network::message::{LONG_MESSAGE, MESSAGE};
use crate::network::open::random;
use crate::network::rails::Rail;
use crate::network::{Completion, Event, Failure, Local, Network, RemoteAddress, Shared};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tombolo_core::registration::Device;

/// Bytes of a name: address, port, token.
const NAME: usize = 16 + 2 + 8;
/// Longest message whose rest is copied where the socket does not take all of it.
const INJECT: usize = MESSAGE;
/// While there is one connection, others are looked for in one of so many polls.
const POLLS: u32 = 16;

/// See the module.
pub struct Net {
    listener: Listener,
    congestion: Congestion,
    token: u64,
    epoll: Epoll,
    peers: Vec<Peer>,
    /// Those by which frames go.
    open: Vec<u32>,
    /// Peers of which the connection is being made.
    opening: usize,
    blocked: Vec<u32>,
    stalled: Vec<u32>,
    events: VecDeque<Event>,
    common: Common,
    polls: u32,
}

// SAFETY: the pointers lead to memory that lives as long as the network or, by its contract, as long as the
// operation that uses it.
unsafe impl Send for Net {}

impl Net {
    /// Listens at an address of this host, on the first of the ports that is free.
    pub fn open(address: IpAddr, ports: &Ports, congestion: Congestion) -> Result<Net, String> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| format!("epoll at {address}: {e}"))?;
        Ok(Net {
            listener: Listener::open(address, ports, &congestion, &epoll)?,
            congestion,
            token: random()?,
            epoll,
            peers: vec![],
            open: vec![],
            opening: 0,
            blocked: vec![],
            stalled: vec![],
            events: VecDeque::new(),
            common: Common { scratch: vec![0; SCRATCH].into(), ..Common::default() },
            polls: 0,
        })
    }

    /// Connections by which frames go, and those of which it is not known whose they are.
    #[cfg(test)]
    pub fn connections(&self) -> (usize, usize) {
        (self.open.len(), self.listener.accepted())
    }

    /// The sockets of connections by which frames go, as a process that is forked has them.
    #[cfg(test)]
    pub fn copies_of_sockets(&self) -> Vec<OwnedFd> {
        let socket = |peer: &u32| match &self.peers[*peer as usize].state {
            State::Open(socket) => socket.try_clone().expect("a copy"),
            _ => unreachable!("it is in the list"),
        };
        self.open.iter().map(socket).collect()
    }

    /// Posts a frame to a peer, and connects first if nothing was sent to it yet.
    ///
    /// # Safety
    /// As [`super::out::Out::post`].
    unsafe fn post(&mut self, to: u64, head: Head, body: Body) -> isize {
        let Some(peer) = self.peers.get_mut(to as usize) else { return -(libc::EINVAL as isize) };
        match peer.state {
            State::Open(_) => {}
            State::Closed(error) => return self.refusal(to, error),
            State::Idle => {
                if let Err(error) = self.connect(to as usize) {
                    self.fail(to as usize, error as i32);
                    return LATER;
                }
            }
            State::Connecting(..) | State::Greeting(..) | State::Expecting { .. } => {}
        }
        let peer = &mut self.peers[to as usize];
        if !peer.has_room() {
            return LATER;
        }
        // SAFETY: by the caller's word.
        let posted = unsafe { peer.post(head, body, &mut self.common) };
        match posted {
            Ok(()) => {
                self.list_blocked(to as u32);
                0
            }
            Err(error) => {
                self.fail(to as usize, error);
                LATER
            }
        }
    }

    /// What whoever posts to a peer without a connection is told: to come again while there is an event that says why,
    /// in more words than an error number.
    #[cold]
    fn refusal(&self, peer: u64, error: i32) -> isize {
        let is_it = |event: &Event| matches!(event, Event::Lost(lost, _) if *lost == peer);
        if self.events.iter().any(is_it) { LATER } else { -(error as isize) }
    }

    fn list_blocked(&mut self, peer: u32) {
        let it = &mut self.peers[peer as usize];
        if !it.is_blocked && !it.out.is_empty() && it.socket().is_some() {
            it.is_blocked = true;
            self.blocked.push(peer);
        }
    }

    /// Counts connections that are there, and those that are being made.
    fn count(&mut self) {
        self.open.clear();
        self.opening = 0;
        for (index, peer) in self.peers.iter().enumerate() {
            match peer.state {
                State::Open(_) => self.open.push(index as u32),
                State::Connecting(..) | State::Greeting(..) | State::Expecting { .. } => {
                    self.opening += 1;
                }
                State::Idle | State::Closed(_) => {}
            }
        }
    }

    /// A connection is gone, or there never was one. Whoever waits is told at once: short messages leave without a
    /// completion that could fail.
    #[cold]
    fn fail(&mut self, peer: usize, error: i32) {
        let it = &mut self.peers[peer];
        let meaning = Errno::from_raw(error).desc();
        let (was_open, at, hint) = (it.socket().is_some(), it.address, hint(error));
        let why = match was_open {
            true => format!("the connection with {at} is gone: {meaning}{hint}"),
            false => format!("no connection to {at}: {meaning}{hint}"),
        };
        self.close(peer, error, &why);
        self.events.push_back(Event::Lost(peer as u64, why));
        self.count();
    }

    /// Ends the connection with a peer for good.
    fn close(&mut self, peer: usize, error: i32, why: &str) {
        let it = &mut self.peers[peer];
        if let State::Connecting(socket, _) | State::Greeting(socket, _) | State::Open(socket) =
            &it.state
        {
            end(&self.epoll, socket);
        }
        // What the peer has begun as well, and nobody takes any more.
        self.listener.refuse(&self.epoll, it.token);
        it.close(error, why, &mut self.common);
    }

    /// The socket of a peer has something, or is connected.
    fn serve(&mut self, peer: usize) {
        match self.peers.get(peer).map(|peer| &peer.state) {
            Some(State::Open(_)) => self.read(peer),
            Some(State::Connecting(..)) => self.connected(peer),
            Some(State::Greeting(..)) => self.greeted(peer),
            _ => {}
        }
    }

    fn read(&mut self, peer: usize) {
        let it = &mut self.peers[peer];
        match it.read(&mut self.common) {
            Err(error) => return self.fail(peer, error),
            Ok(()) if it.is_stalled() && !self.stalled.contains(&(peer as u32)) => {
                self.stalled.push(peer as u32);
            }
            Ok(()) => {}
        }
        self.list_blocked(peer as u32);
    }

    /// Both sides have greeted.
    fn use_socket(&mut self, peer: usize, socket: OwnedFd) {
        self.peers[peer].state = State::Open(socket);
        // What the peer has begun as well, and has not ended yet.
        self.listener.refuse(&self.epoll, self.peers[peer].token);
        self.count();
        self.list_blocked(peer as u32);
        self.flush();
    }

    /// Sends what waits for sockets.
    fn flush(&mut self) {
        let mut at = 0;
        while at < self.blocked.len() {
            let peer = self.blocked[at] as usize;
            if let Err(error) = self.peers[peer].flush(&mut self.common) {
                self.fail(peer, error);
            }
            let it = &mut self.peers[peer];
            if it.out.is_empty() || it.socket().is_none() {
                it.is_blocked = false;
                self.blocked.swap_remove(at);
                self.watch(peer, false);
            } else {
                at += 1;
            }
        }
    }

    /// Lets the descriptor tell when the socket of a peer takes more, or no longer.
    fn watch(&mut self, peer: usize, whether: bool) {
        let it = &mut self.peers[peer];
        let State::Open(socket) = &it.state else { return };
        if it.is_watched != whether {
            let also = if whether { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | also, peer as u64);
            it.is_watched = whether;
            // Polls look anyway: a refusal costs time.
            let _ = self.epoll.modify(socket, &mut event);
        }
    }

    fn move_on(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        let is_settled = self.opening == 0 && self.listener.accepted() == 0;
        match self.open[..] {
            [only] if is_settled && !self.polls.is_multiple_of(POLLS) => self.read(only as usize),
            _ => self.look_around(),
        }
        for at in (0..self.stalled.len()).rev() {
            let peer = self.stalled[at] as usize;
            if self.peers[peer].is_stalled() {
                self.read(peer);
            }
            if !self.peers[peer].is_stalled() {
                self.stalled.swap_remove(at);
            }
        }
        if !self.blocked.is_empty() {
            self.flush();
        }
    }

    /// Asks the system which sockets have something.
    fn look_around(&mut self) {
        let mut events = [EpollEvent::empty(); 32];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.accept(),
                one if one & ACCEPTED != 0 => self.read_greeting(one & !ACCEPTED),
                peer => self.serve(peer as usize),
            }
        }
    }
}

/// There is no room now.
const LATER: isize = -(libc::EAGAIN as isize);

/// What may help where a connection cannot be made, or was lost.
fn hint(error: i32) -> &'static str {
    match error {
        libc::EMFILE | libc::ENFILE => " (ulimit -n)",
        libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ETIMEDOUT => {
            " (see SHMEM_TCP_INTERFACE, and SHMEM_TCP_PORTS if there is a firewall)"
        }
        libc::ENETUNREACH | libc::EADDRNOTAVAIL => " (see SHMEM_TCP_INTERFACE)",
        libc::EPIPE | libc::ECONNRESET => {
            " (that PE has ended, or it has given up this one, from which nothing came for SHMEM_SILENCE)"
        }
        _ => "",
    }
}

impl Device for Net {
    type Key = ();

    unsafe fn register(&mut self, _at: *mut u8, _len: usize) -> Result<(), String> {
        Ok(())
    }

    fn unregister(&mut self, _key: ()) {}
}

impl Rail for Net {
    fn is_like(&self, _other: &Net) -> bool {
        true
    }

    fn max_len(&self) -> usize {
        1 << 30
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.epoll.0.as_raw_fd())
    }

    fn closes(&self) -> bool {
        true
    }
}

impl Network for Net {
    fn is_ordered(&self) -> bool {
        true
    }

    fn needs_local_registration(&self) -> bool {
        false
    }

    fn inject_max(&self) -> usize {
        INJECT
    }

    fn message_max(&self) -> usize {
        LONG_MESSAGE
    }

    fn under_way_max(&self) -> usize {
        // Bytes that move are a sign of life themselves.
        64 << 20
    }

    unsafe fn share(&mut self, at: *mut u8, len: usize, key: u64) -> Result<Shared<()>, String> {
        self.common.regions.push(Region { base: at, len, key });
        Ok(Shared { local: (), key, base: 0 })
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        let address = match self.listener.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let (port, token) = (self.listener.address.port().to_le_bytes(), self.token.to_le_bytes());
        Ok([&address.octets()[..], &port, &token].concat())
    }

    fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        let name: &[u8; NAME] = name.try_into().map_err(|_| "its address cannot be read")?;
        let (address, rest) = name.split_first_chunk::<16>().ok_or("an address")?;
        let (port, token) = rest.split_first_chunk::<2>().ok_or("a port")?;
        let token = u64::from_le_bytes(token.try_into().map_err(|_| "a token")?);
        if let Some(known) = self.peers.iter().position(|peer| peer.token == token) {
            return Ok(known as u64);
        }
        let address = Ipv6Addr::from(*address).to_canonical();
        self.peers.push(Peer::new(SocketAddr::new(address, u16::from_le_bytes(*port)), token));
        // It may have connected before this PE knew it.
        self.use_accepted(token);
        Ok(self.peers.len() as u64 - 1)
    }

    fn remove(&mut self, peer: u64) {
        let Some(it) = self.peers.get_mut(peer as usize) else { return };
        if !matches!(it.state, State::Closed(_)) {
            self.close(peer as usize, libc::ECONNABORTED, "its peer was given up");
            self.count();
        }
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        _key: (),
        context: *mut c_void,
    ) -> isize {
        self.common.receives.push(Receive { at: buffer, len, context });
        0
    }

    unsafe fn send(
        &mut self,
        to: u64,
        buffer: *const u8,
        len: usize,
        _key: (),
        context: *mut c_void,
    ) -> isize {
        let body = Body { at: buffer, len, is_copied: false, context };
        // SAFETY: by the caller's word.
        unsafe { self.post(to, Head::Message { len }, body) }
    }

    fn inject(&mut self, to: u64, message: &[u8]) -> isize {
        let (at, len) = (message.as_ptr(), message.len());
        let body = Body { at, len, is_copied: true, context: std::ptr::null_mut() };
        // SAFETY: a slice, which is copied where it does not leave.
        unsafe { self.post(to, Head::Message { len }, body) }
    }

    unsafe fn read(
        &mut self,
        from: u64,
        local: Local<()>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let head = Head::Read { len: local.len, offset: remote.address, key: remote.key };
        // SAFETY: there is no body.
        let posted = unsafe { self.post(from, head, Body::NONE) };
        if posted == 0 {
            self.peers[from as usize].await_read(context, local.at, local.len);
        }
        posted
    }

    unsafe fn write(
        &mut self,
        to: u64,
        local: Local<()>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let (len, is_copied) = (local.len, false);
        let head = Head::Write { len, offset: remote.address, key: remote.key };
        let body = Body { at: local.at, len, is_copied, context: std::ptr::null_mut() };
        // SAFETY: by the caller's word.
        let posted = unsafe { self.post(to, head, body) };
        if posted == 0 {
            self.peers[to as usize].await_write(context);
        }
        posted
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        if self.common.done.is_empty() && self.common.failed.is_empty() {
            self.move_on();
        }
        let count = self.common.done.len().min(taken.len());
        for (to, from) in taken.iter_mut().zip(self.common.done.drain(..count)) {
            *to = from;
        }
        match count {
            0 => self.common.failed.pop_front().map_or(Ok(0), Err),
            _ => Ok(count),
        }
    }

    fn look(&mut self) {
        self.listener.look(&self.epoll);
        if self.opening > 0 {
            self.connect_again();
        }
        // Messages and the ends of transfers may wait for long behind bytes that go on moving.
        for peer in &self.open {
            if self.peers[*peer as usize].take_moved() {
                self.events.push_back(Event::Alive((*peer).into()));
            }
        }
    }

    fn event(&mut self) -> Option<Event> {
        // What a peer that is lost has sent before counts.
        if self.common.done.is_empty() { self.events.pop_front() } else { None }
    }

    fn meaning(&self, number: isize) -> String {
        Errno::from_raw(-number as i32).desc().into()
    }

    fn may_sleep(&mut self) -> bool {
        let common = &self.common;
        if !(common.done.is_empty() && common.failed.is_empty() && self.events.is_empty()) {
            return false;
        }
        for at in 0..self.blocked.len() {
            self.watch(self.blocked[at] as usize, true);
        }
        // Whoever sleeps is woken for a reason that only the system may know.
        self.polls = POLLS - 1;
        self.stalled.is_empty()
    }
}
