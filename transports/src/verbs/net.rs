// SPDX-License-Identifier: Apache-2.0
//! The network as one PE uses it: connections to peers, made when they are first used, and one queue
//! for all completions.

mod connect;
mod post;

use super::amos::Domain;
use super::card::{Card, Key, Port};
use super::datagrams::{Datagrams, qkey};
use super::link::{EndAddress, Link};
use super::queue::Work;
use super::sys::{self, Wc};
use crate::network::rails::Rail;
use crate::network::{
    Atomics, Completion, Event, Failure, Local, Network, RemoteAddress, Shared, Words,
};
use post::{Far, NOWHERE};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use tombolo_core::registration::Device;
use tombolo_core::transport::{Amo, AmoOp};

/// What a completion belongs to, in the upper four bits of its number.
const RECEIVE: u64 = 1 << 60;
const DATAGRAM_IN: u64 = 2 << 60;
const DATAGRAM_OUT: u64 = 3 << 60;
const OPERATION: u64 = 4 << 60;
const KINDS: u64 = 15 << 60;

/// Longest message that is sent without a completion: it is copied when it is posted, where the card
/// copies so much.
const INJECT: usize = 128;
/// Completions that are taken at a time.
const TAKEN: usize = 16;

/// See the module.
pub struct Net {
    links: Vec<Link>,
    /// Links that are wanted and not ready.
    waiting: Vec<u32>,
    /// Links with writes that are to be shown to be readable.
    open: Vec<u32>,
    card: Card,
    datagrams: Datagrams,
    port: Port,
    own: EndAddress,
    is_software: bool,
    ends_prove: bool,
    packets: u64,
    done: VecDeque<Completion>,
    failed: VecDeque<Failure>,
    events: VecDeque<Event>,
    why: String,
}

// SAFETY: the pointers lead to memory that lives as long as the network or, by the contract of the
// endpoints, as long as the operation that uses it.
unsafe impl Send for Net {}

/// How a network is to be.
pub struct Manner {
    /// No card: the kernel does its work.
    pub is_software: bool,
    /// The acknowledgement of a write shows that its data can be read.
    pub ends_prove: bool,
    /// What the atomic operations of the card exclude, if they are to be used.
    pub domain: Domain,
    /// Messages that may come in at a time.
    pub receives: u32,
    /// A number that strangers do not know.
    pub id: u64,
}

impl Net {
    /// Opens a port of a card.
    pub fn open(mut card: Card, port: Port, manner: &Manner) -> Result<Net, String> {
        card.domain = manner.domain;
        card.prepare(manner.receives)?;
        let datagrams = Datagrams::new(&mut card, &port, qkey(manner.id), DATAGRAM_IN)?;
        let (queue, id) = (datagrams.number(), manner.id);
        let (reads, domain) = (card.reads.1, manner.domain);
        let own = EndAddress { port: port.address, reads, domain, queue, id };
        Ok(Net {
            links: vec![],
            waiting: vec![],
            open: vec![],
            card,
            datagrams,
            port,
            own,
            is_software: manner.is_software,
            ends_prove: manner.ends_prove,
            packets: id | 1,
            done: VecDeque::with_capacity(1024),
            failed: VecDeque::new(),
            events: VecDeque::new(),
            why: String::new(),
        })
    }

    /// Takes completions from the card; whether there may be more.
    fn take(&mut self) -> bool {
        let mut taken = [Wc::default(); TAKEN];
        let count = self.card.poll(&mut taken);
        for wc in &taken[..count] {
            let number = wc.wr_id & !KINDS;
            match wc.wr_id & KINDS {
                RECEIVE => self.received(wc, number),
                DATAGRAM_IN => {
                    let slot = number as usize;
                    if wc.status == sys::WC_SUCCESS
                        && let Some(hello) = self.datagrams.message(slot, wc.byte_len as usize)
                    {
                        self.hear(&hello);
                    }
                    self.datagrams.receive(&self.card, slot, DATAGRAM_IN);
                }
                DATAGRAM_OUT => self.datagrams.sent(number as usize),
                OPERATION => self.ended(wc, (number >> 32) as usize, number as u32),
                _ => {}
            }
        }
        count == TAKEN
    }

    fn received(&mut self, wc: &Wc, context: u64) {
        let context = with_exposed_provenance_mut(context as usize);
        if wc.status != sys::WC_SUCCESS {
            let why = self.card.library.status(wc.status);
            return self.failed.push_back(Failure { context, is_refusal: false, why });
        }
        if !self.waiting.is_empty() {
            // Who sends is ready, and so connected.
            // SAFETY: queue pairs are open.
            let own =
                |link: &&mut Link| !link.qp.is_null() && unsafe { (*link.qp).qp_num } == wc.qp_num;
            if let Some(link) = self.links.iter_mut().find(own) {
                link.progress.ready |= link.progress.connected;
            }
        }
        self.done.push_back(Completion { context, len: wc.byte_len as usize });
    }

    fn ended(&mut self, wc: &Wc, peer: usize, number: u32) {
        let Some(link) = self.links.get_mut(peer) else { return };
        let done = &mut self.done;
        let told = |context| done.push_back(Completion { context, len: 0 });
        if wc.status == sys::WC_SUCCESS {
            link.queue.end(number, told);
            return;
        }
        let failed = link.queue.fail(number, told);
        // A connection on which one operation has failed carries no other.
        let is_first = !std::mem::replace(&mut link.is_gone, true);
        let why = self.card.library.status(wc.status);
        match failed {
            Some(context) => {
                let is_refusal = wc.status == sys::WC_REM_ACCESS_ERR;
                self.failed.push_back(Failure { context, is_refusal, why: why.clone() });
            }
            // What was sent without a completion may be what somebody waits to be answered.
            None if is_first => self.events.push_back(Event::Lost(peer as u64, why.clone())),
            None => {}
        }
        // What fails after the first is told to have been dropped.
        if is_first {
            self.why = why;
        }
    }
}

impl Device for Net {
    type Key = Key;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Key, String> {
        // SAFETY: by the caller's word.
        unsafe { self.card.register(at, len) }
    }

    unsafe fn register_source(&mut self, at: *mut u8, len: usize) -> Result<Key, String> {
        // SAFETY: by the caller's word.
        unsafe { self.card.register_source(at, len) }
    }

    fn unregister(&mut self, key: Key) {
        self.card.unregister(key);
    }
}

impl Rail for Net {
    fn is_like(&self, other: &Net) -> bool {
        let of = |net: &Net| (net.port.link, net.is_software, net.ends_prove, net.own.domain);
        of(self) == of(other)
    }

    fn max_len(&self) -> usize {
        self.port.max_len
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.card.wait_fd())
    }

    /// What arrives for a queue pair that is gone is dropped. One that gets its number later expects other
    /// packets.
    fn closes(&self) -> bool {
        true
    }
}

impl Network for Net {
    /// Writes of one connection reach memory in the order issued, unless the memory was registered for
    /// relaxed order, and a message is told of after the writes before it have.
    fn is_ordered(&self) -> bool {
        true
    }

    fn needs_local_registration(&self) -> bool {
        true
    }

    fn inject_max(&self) -> usize {
        INJECT.min(self.card.inline as usize)
    }

    fn inline_max(&self) -> usize {
        self.card.inline as usize
    }

    unsafe fn share(&mut self, at: *mut u8, len: usize, _key: u64) -> Result<Shared<Key>, String> {
        let access = sys::ACCESS_LOCAL_WRITE | self.card.remote_access();
        // SAFETY: by the caller's word.
        let (local, key) = unsafe { self.card.enter(at, len, access) }?;
        Ok(Shared { local, key: key.into(), base: at as u64 })
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        Ok(self.own.encode())
    }

    fn insert(&mut self, name: &[u8]) -> Result<u64, String> {
        let address = EndAddress::decode(name).ok_or("its RDMA address cannot be read")?;
        // Numbers of first packets differ, so that late packets of old connections are known.
        self.packets = self.packets.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.links.push(Link::new(address, (self.packets >> 40) as u32, self.ends_prove));
        Ok(self.links.len() as u64 - 1)
    }

    fn remove(&mut self, peer: u64) {
        let Some(link) = self.links.get_mut(peer as usize) else { return };
        link.stop(&self.card);
        // With the queue pair some cards drop completions that were not taken: those of messages, too, whose buffers
        // are not this connection's alone.
        while self.take() {}
        let (link, done) = (&mut self.links[peer as usize], &mut self.done);
        link.close(&self.card);
        link.queue.clear(|context| done.push_back(Completion { context, len: 0 }));
    }

    unsafe fn receive(
        &mut self,
        buffer: *mut u8,
        len: usize,
        key: Key,
        context: *mut c_void,
    ) -> isize {
        let mut sge = sys::Sge { addr: buffer as u64, length: len as u32, lkey: key.local };
        let mut wr = sys::RecvWr {
            wr_id: RECEIVE | context.expose_provenance() as u64,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue is open; the caller vouches for the buffer.
        let posted = unsafe {
            ((*self.card.context).ops.post_srq_recv)(self.card.srq, &raw mut wr, &raw mut bad)
        };
        -(posted.abs() as isize)
    }

    unsafe fn send(
        &mut self,
        to: u64,
        buffer: *const u8,
        len: usize,
        key: Key,
        context: *mut c_void,
    ) -> isize {
        let local = Local { at: buffer.cast_mut(), len, key };
        // SAFETY: by the caller's word.
        unsafe { self.post(to, Work::Send, local, NOWHERE, context) }
    }

    fn inject(&mut self, to: u64, message: &[u8]) -> isize {
        let at = message.as_ptr().cast_mut();
        let local = Local { at, len: message.len(), key: Key::default() };
        // SAFETY: messages of up to `inject_max` bytes are copied by the call.
        unsafe { self.post(to, Work::Send, local, NOWHERE, null_mut()) }
    }

    unsafe fn read(
        &mut self,
        from: u64,
        local: Local<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        unsafe { self.post(from, Work::Read, local, remote.into(), context) }
    }

    unsafe fn write(
        &mut self,
        to: u64,
        local: Local<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the caller's word.
        unsafe { self.post(to, Work::Write, local, remote.into(), context) }
    }

    fn atomics(&self, peer: u64) -> Atomics {
        let link = self.links.get(peer as usize);
        link.map_or_else(Atomics::default, |link| self.own.domain.with(link.address.domain))
    }

    unsafe fn amo(
        &mut self,
        to: u64,
        amo: Amo,
        words: Words<Key>,
        remote: RemoteAddress,
        context: *mut c_void,
    ) -> isize {
        let (work, operands) = match amo.op {
            AmoOp::Add => (Work::FetchAdd, [amo.operand, 0]),
            AmoOp::Fetch => (Work::FetchAdd, [0; 2]),
            AmoOp::CompareSwap => (Work::CompareSwap, [amo.compare, amo.operand]),
            AmoOp::Set | AmoOp::And | AmoOp::Or | AmoOp::Xor => return -(libc::ENOSYS as isize),
        };
        let [_, _, old] = words.places();
        let local = Local { at: old.cast(), len: size_of::<u64>(), key: words.key };
        // SAFETY: by the caller's word.
        unsafe { self.post(to, work, local, Far { at: remote, operands }, context) }
    }

    fn confirm(&mut self) {
        for at in (0..self.open.len()).rev() {
            let peer = self.open[at] as usize;
            self.prove(peer);
            let link = &mut self.links[peer];
            if link.is_gone || !link.queue.is_open {
                link.is_listed = false;
                self.open.swap_remove(at);
            }
        }
    }

    fn overtakes_reads(&self) -> bool {
        false
    }

    fn fence(&mut self) {
        for link in self.links.iter_mut().filter(|link| link.queue.reads > 0) {
            link.is_fenced = true;
        }
    }

    fn poll(&mut self, taken: &mut [Completion]) -> Result<usize, Failure> {
        if self.done.is_empty() && self.failed.is_empty() {
            self.take();
            if !self.waiting.is_empty() {
                self.greet_again();
            }
        }
        let count = self.done.len().min(taken.len());
        if count == 0
            && let Some(failure) = self.failed.pop_front()
        {
            return Err(failure);
        }
        for (to, from) in taken.iter_mut().zip(self.done.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn meaning(&self, number: isize) -> String {
        match -number as i32 {
            libc::ENOTCONN => self.why.clone(),
            libc::EACCES => "the kernel refuses what this process posts: since it opened the \
                             device, it has changed its user or rights"
                .into(),
            number => io::Error::from_raw_os_error(number).to_string(),
        }
    }

    fn may_sleep(&mut self) -> bool {
        if !self.card.arm() {
            return false;
        }
        // What came before the queue was told to tell shows nowhere. Much of it may be what nobody is told of.
        while self.take() {}
        self.done.is_empty() && self.failed.is_empty() && self.events.is_empty()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.links.iter_mut().for_each(|link| link.close(&self.card));
        self.datagrams.close(&self.card);
    }
}
