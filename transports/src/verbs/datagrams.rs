// SPDX-License-Identifier: Apache-2.0
//! The queue pair for datagrams, over which connections are agreed on.

use super::card::{Card, Key, Port};
use super::hello::{HELLO, Hello};
use super::link::EndAddress;
use super::sys::{self, GRH, Qp, QpAttr};
use crate::network::Local;
use std::ffi::c_int;
use std::ptr::null_mut;
use tombolo_core::registration::{Device, Slab};

/// Buffers for datagrams that come in.
const RECEIVES: usize = 64;
/// Buffers for those on their way out.
const SENDS: usize = 32;
/// Bytes of a buffer.
const BUFFER: usize = 128;
/// Bytes of all, and of a word that is written and not read.
const BYTES: usize = (RECEIVES + SENDS) * BUFFER + 8;
const _: () = assert!(GRH + HELLO <= BUFFER);

/// The key with which a queue pair takes datagrams, from a number that strangers do not know: the card drops
/// those of strangers before they take a buffer. The highest bit is for keys that only the kernel may use.
pub fn qkey(id: u64) -> u32 {
    (id ^ id >> 32) as u32 & 0x7fff_ffff
}

/// See the module.
pub struct Datagrams {
    qp: *mut Qp,
    key: Key,
    free: Vec<u16>,
    /// Used by the card: goes after it.
    slab: Slab,
}

impl Datagrams {
    /// A word of registered memory that nobody reads.
    pub fn scratch(&self) -> Local<Key> {
        Local { at: self.slab.at((RECEIVES + SENDS) * BUFFER), len: 8, key: self.key }
    }

    /// Makes the queue pair and posts its buffers; `tag` is added to their numbers. It takes datagrams with
    /// `qkey` alone.
    pub fn new(card: &mut Card, port: &Port, qkey: u32, tag: u64) -> Result<Datagrams, String> {
        let slab = Slab::new(BYTES);
        // SAFETY: nothing uses the slab when the queue pair is closed.
        let key = unsafe { card.register(slab.base(), BYTES) }?;
        let qp = card.datagrams(SENDS as u32, RECEIVES as u32)?;
        let free = (0..SENDS as u16).collect();
        let datagrams = Datagrams { qp, key, free, slab };
        if let Err(why) = datagrams.start(card, port, qkey, tag) {
            datagrams.close(card);
            return Err(why);
        }
        Ok(datagrams)
    }

    fn start(&self, card: &mut Card, port: &Port, qkey: u32, tag: u64) -> Result<(), String> {
        let (number, state) = (port.number, sys::QPS_INIT);
        let attr = QpAttr { qp_state: state, port_num: number, qkey, ..QpAttr::default() };
        card.modify(self.qp, attr, sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_QKEY)?;
        card.modify(self.qp, QpAttr { qp_state: sys::QPS_RTR, ..QpAttr::default() }, 0)?;
        let attr = QpAttr { qp_state: sys::QPS_RTS, ..QpAttr::default() };
        card.modify(self.qp, attr, sys::QP_SQ_PSN)?;
        match (0..RECEIVES).all(|slot| self.receive(card, slot, tag)) {
            true => Ok(()),
            false => Err("buffers for datagrams are not taken".into()),
        }
    }

    /// The number by which it is addressed.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is open.
        unsafe { (*self.qp).qp_num }
    }

    fn sge(&self, slot: usize, len: usize) -> sys::Sge {
        let addr = self.slab.at(slot * BUFFER) as u64;
        sys::Sge { addr, length: len as u32, lkey: self.key.local }
    }

    /// Posts a buffer for a datagram.
    pub fn receive(&self, card: &Card, slot: usize, tag: u64) -> bool {
        let mut sge = self.sge(slot, BUFFER);
        let mut wr = sys::RecvWr {
            wr_id: tag | slot as u64,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is open; the buffer is used for nothing else until its completion.
        unsafe { ((*card.context).ops.post_recv)(self.qp, &raw mut wr, &raw mut bad) == 0 }
    }

    /// The datagram in a buffer, of which so many bytes were filled.
    pub fn message(&self, slot: usize, len: usize) -> Option<Hello> {
        if slot >= RECEIVES || len > BUFFER {
            return None;
        }
        // SAFETY: inside the buffer, which the card does not use now.
        let bytes = unsafe { std::slice::from_raw_parts(self.slab.at(slot * BUFFER), len) };
        Hello::decode(bytes.get(GRH..)?)
    }

    /// Sends a datagram, or not: nobody relies on it.
    pub fn send(
        &mut self,
        card: &Card,
        ah: *mut sys::Ah,
        to: &EndAddress,
        hello: &Hello,
        tag: u64,
    ) {
        let Some(slot) = self.free.pop() else { return };
        let at = RECEIVES + usize::from(slot);
        let mut sge = self.sge(at, HELLO);
        // SAFETY: the buffer is free, and as long.
        unsafe { self.slab.at(at * BUFFER).cast::<[u8; HELLO]>().write(hello.encode()) };
        let to = sys::ToQueue { ah, remote_qpn: to.queue, remote_qkey: qkey(to.id) };
        let mut wr = sys::SendWr {
            wr_id: tag | u64::from(slot),
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: sys::WR_SEND,
            send_flags: sys::SEND_SIGNALED,
            imm_data: 0,
            to: sys::To { queue: to },
            unused: [0; 7],
        };
        let mut bad = null_mut();
        // SAFETY: queue pair and way are open; the buffer is used for nothing else meanwhile.
        let posted: c_int =
            unsafe { ((*card.context).ops.post_send)(self.qp, &raw mut wr, &raw mut bad) };
        if posted != 0 {
            self.free.push(slot);
        }
    }

    /// A datagram has left.
    pub fn sent(&mut self, slot: usize) {
        if slot < SENDS && self.free.len() < SENDS {
            self.free.push(slot as u16);
        }
    }

    /// Closes the queue pair.
    pub fn close(&self, card: &Card) {
        // SAFETY: made on this card, and closed once: by its owner, at the end.
        unsafe { (card.library.destroy_qp)(self.qp) };
    }
}
