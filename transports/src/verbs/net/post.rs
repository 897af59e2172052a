// SPDX-License-Identifier: Apache-2.0
//! Posting operations to a connection.

use super::{Net, OPERATION};
use crate::network::{Local, RemoteAddress};
use crate::verbs::card::Key;
use crate::verbs::queue::Work;
use crate::verbs::sys::{self, ToMemory, ToVariable};
use std::ffi::c_void;
use std::ptr::null_mut;

/// The far end of an operation.
#[derive(Clone, Copy)]
pub struct Far {
    pub at: RemoteAddress,
    /// What an atomic operation adds, or compares with and replaces by.
    pub operands: [u64; 2],
}

impl From<RemoteAddress> for Far {
    fn from(at: RemoteAddress) -> Far {
        Far { at, operands: [0; 2] }
    }
}

/// Where a message goes.
pub const NOWHERE: Far = Far { at: RemoteAddress { address: 0, key: 0 }, operands: [0; 2] };

impl Net {
    /// Why nothing can be posted to a peer now, if so.
    fn not_now(&mut self, peer: usize) -> Option<isize> {
        let Some(link) = self.links.get(peer) else { return Some(-(libc::EINVAL as isize)) };
        if link.progress.ready && !link.is_gone {
            return (!link.queue.has_room()).then_some(-(libc::EAGAIN as isize));
        }
        if !link.is_wanted && !link.is_gone {
            self.want(peer);
        }
        let gone = self.links[peer].is_gone;
        Some(-(if gone { libc::ENOTCONN } else { libc::EAGAIN } as isize))
    }

    /// Posts an operation; `context` is null where nobody is told of its end.
    ///
    /// # Safety
    /// The buffer is valid until the completion.
    pub(super) unsafe fn post(
        &mut self,
        peer: u64,
        work: Work,
        local: Local<Key>,
        far: Far,
        context: *mut c_void,
    ) -> isize {
        let peer = peer as usize;
        if let Some(not_now) = self.not_now(peer) {
            return not_now;
        }
        let link = &self.links[peer];
        let mut flags = 0;
        let signalled = link.queue.should_signal(work, !context.is_null());
        if signalled {
            flags |= sys::SEND_SIGNALED;
        }
        if !work.brings() && local.len <= self.card.inline as usize {
            flags |= sys::SEND_INLINE;
        }
        if work != Work::Read && link.is_fenced && link.queue.reads > 0 {
            flags |= sys::SEND_FENCE;
        }
        // SAFETY: by the caller's word.
        let posted = unsafe { self.hand_over(peer, work, local, far, flags) };
        if posted != 0 {
            return posted;
        }
        let link = &mut self.links[peer];
        link.queue.push(work, context, signalled);
        link.is_fenced &= work == Work::Read;
        if work.changes() {
            link.place = far.at;
            if link.queue.is_open && !link.is_listed {
                link.is_listed = true;
                self.open.push(peer as u32);
            }
            if self.links[peer].queue.is_long() {
                self.prove(peer);
            }
        }
        0
    }

    /// # Safety
    /// As `post`.
    unsafe fn hand_over(
        &mut self,
        peer: usize,
        work: Work,
        local: Local<Key>,
        far: Far,
        send_flags: u32,
    ) -> isize {
        let link = &self.links[peer];
        let mut sge =
            sys::Sge { addr: local.at as u64, length: local.len as u32, lkey: local.key.local };
        let (remote_addr, rkey) = (far.at.address, far.at.key as u32);
        let [compare_add, swap] = far.operands;
        let (opcode, to) = match work {
            Work::Write => (sys::WR_WRITE, sys::To { memory: ToMemory { remote_addr, rkey } }),
            Work::Read => (sys::WR_READ, sys::To { memory: ToMemory { remote_addr, rkey } }),
            Work::Send => (sys::WR_SEND, sys::To { memory: ToMemory::default() }),
            Work::FetchAdd | Work::CompareSwap => {
                let adds = work == Work::FetchAdd;
                let opcode = if adds { sys::WR_FETCH_ADD } else { sys::WR_COMPARE_SWAP };
                let variable = ToVariable { remote_addr, compare_add, swap, rkey };
                (opcode, sys::To { variable })
            }
        };
        let mut wr = sys::SendWr {
            wr_id: OPERATION | (peer as u64) << 32 | u64::from(link.queue.next()),
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode,
            send_flags,
            imm_data: 0,
            to,
            unused: [0; 7],
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is open; the buffer is the caller's matter.
        let posted =
            unsafe { ((*self.card.context).ops.post_send)(link.qp, &raw mut wr, &raw mut bad) };
        match posted.abs() {
            0 => 0,
            // The queue is full.
            libc::ENOMEM | libc::EAGAIN => -(libc::EAGAIN as isize),
            error => -(error as isize),
        }
    }

    /// Reads a byte from where the last write went: that shows it, and all before, to be readable.
    pub(super) fn prove(&mut self, peer: usize) {
        let link = &self.links[peer];
        if link.is_gone || !link.queue.is_open || !link.queue.has_room_for_proof() {
            return;
        }
        let (local, place) = (Local { len: 1, ..self.datagrams.scratch() }, link.place.into());
        // SAFETY: the word lives as long as the queue pairs.
        let posted = unsafe { self.hand_over(peer, Work::Read, local, place, sys::SEND_SIGNALED) };
        if posted == 0 {
            self.links[peer].queue.push(Work::Read, null_mut(), true);
        }
    }
}
