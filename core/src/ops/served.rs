// SPDX-License-Identifier: Apache-2.0
//! Operations that the target carries out; see [`crate::service`].

use crate::control::{self, REQUESTS_MAX};
use crate::service::{
    self, Bell, LINE_WORDS, MessageLine, Reply, Request, Requester, Wanted, Wire,
};
use crate::transport::{Amo, Remote, SegmentKind, Status, Stream};
use crate::wait::{Reason, Waiting};
use crate::world::World;
use crate::world::peers::{Peer, Peers};
use std::sync::{Arc, OnceLock};

/// What PEs need of each other to send requests and replies.
#[derive(Clone)]
pub(crate) struct ControlWire {
    /// Where each PE's heap, and with it its control area, is mapped; 0 where it is not.
    pub(crate) heaps: Arc<[usize]>,
    pub(crate) peers: Arc<Peers>,
}

impl ControlWire {
    /// The way for messages to a PE that is not mapped: the first transport that can put to its heap
    /// and has not failed.
    fn peer(&self, pe: usize) -> Option<&Peer> {
        let mut peers = (0..self.peers.transports().len()).filter_map(|i| self.peers.get(i, pe));
        peers.find(|peer| peer.can(SegmentKind::Heap).put && !peer.has_failed())
    }
}

impl ControlWire {
    /// Whether every way to a PE's control area has failed: neither requests nor replies get there.
    pub(crate) fn is_cut_off(&self, pe: usize) -> bool {
        let ways = || (0..self.peers.transports().len()).filter_map(|i| self.peers.get(i, pe));
        let mut able = ways().filter(|peer| peer.can(SegmentKind::Heap).put).peekable();
        self.heaps[pe] == 0 && able.peek().is_some() && able.all(|peer| peer.has_failed())
    }
}

impl Wire for ControlWire {
    fn put(&self, stream: &Stream, pe: usize, offset: usize, line: &[u64; LINE_WORDS]) -> Status {
        if self.heaps[pe] != 0 {
            let place = (self.heaps[pe] + offset) as *const MessageLine;
            // SAFETY: a line of the PE's mapped control area, which consists of atomics.
            unsafe { (*place).write(line) };
            return Status::Complete;
        }
        let dest = Remote { segment: SegmentKind::Heap, offset };
        let (source, len) = (line.as_ptr().cast(), size_of_val(line));
        while let Some(peer) = self.peer(pe) {
            // SAFETY: the line stays as it is until the stream is quiet, and a control area begins every
            // heap.
            match unsafe { peer.endpoint.put(stream, dest, source, len, false) } {
                Status::Failed => peer.note_failure(),
                status => return status,
            }
        }
        Status::Failed
    }

    fn is_quiet(&self, stream: &Stream) -> bool {
        stream.is_quiet() || {
            // Some transports confirm arrivals only when they are asked.
            self.peers.transports().iter().for_each(|transport| _ = transport.quiet(stream));
            stream.is_quiet()
        }
    }

    fn takes_messages(&self, pe: usize) -> bool {
        let takes = |peer: &Peer| {
            let can = peer.can(SegmentKind::Heap);
            can.whole_words || can.ends_last
        };
        self.heaps[pe] != 0 || self.peer(pe).is_some_and(takes)
    }

    fn ring(&self, pe: usize) {
        if self.heaps[pe] != 0 {
            let bell = (self.heaps[pe] + control::service_bell()) as *const Bell;
            // SAFETY: the PE's mapped control area holds its bell there.
            unsafe { (*bell).ring() };
        }
    }
}

impl World {
    /// Has the target execute an AMO and waits for the old value.
    pub(super) fn request_amo(
        &self,
        target: Remote,
        amo: Amo,
        pe: usize,
        routine: &'static str,
    ) -> u64 {
        self.request(Request { target, wanted: Wanted::Amo(amo) }, pe, routine)
    }

    /// Has the target store up to 8 bytes, and waits until it has.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes, at most 8.
    pub(super) unsafe fn request_store(
        &self,
        target: Remote,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) {
        let mut bytes = 0u64;
        // SAFETY: by the caller's word; little-endian, so the first byte is the lowest.
        unsafe { std::ptr::copy_nonoverlapping(source, (&raw mut bytes).cast(), len) };
        self.request(
            Request { target, wanted: Wanted::Store { len: len as u8, bytes } },
            pe,
            routine,
        );
    }

    fn request(&self, request: Request, pe: usize, routine: &'static str) -> u64 {
        if pe == self.pe() {
            let base = self.base(request.target.segment);
            // SAFETY: located by the caller, and aligned if it is an AMO.
            return unsafe { service::carry_out(&request, base as usize) };
        }
        let lines = self.requesters.to(pe);
        let mut claimed = None;
        self.until(routine, pe, Reason::Answer, || {
            let mut claims = lines.iter().enumerate();
            claimed = claims.find_map(|(index, line)| Some((index, line.claim()?)));
            claimed.is_some()
        });
        let Some((index, mut claim)) = claimed else { unreachable!("the wait ends with a claim") };
        claim.start(&request);
        let wire = &self.control_wire;
        let there = control::request_line(self.pe(), index);
        let here = control::reply_line(self.n_pes(), pe, index);
        // SAFETY: a line of this PE's own control area, which consists of atomics.
        let here = unsafe { &*self.heap().base().add(here).cast::<MessageLine>() };
        let mut reply: Option<Reply> = None;
        let waiting = Waiting { routine, argument: pe as u64, reason: Reason::Answer };
        self.wait_for_service(waiting, &mut || {
            if claim.is_sent(wire, pe, there) {
                reply = claim.reply(here);
            }
            reply.is_some() || self.goes_on_without(pe)
        });
        match reply {
            Some(Some(old)) => old,
            // What a lost PE answers.
            None => 0,
            Some(None) => {
                self.stop_job(routine, format_args!("PE {pe} refused an operation on its memory"))
            }
        }
    }
}

/// The lines of requests to all PEs, made when a PE is asked for something first: most never are.
pub(crate) struct Requesters(Box<[OnceLock<Box<[Requester; REQUESTS_MAX]>>]>);

impl Requesters {
    /// For a job of `n_pes` PEs.
    pub(crate) fn new(n_pes: usize) -> Requesters {
        Requesters((0..n_pes).map(|_| OnceLock::new()).collect())
    }

    fn to(&self, pe: usize) -> &[Requester; REQUESTS_MAX] {
        self.0[pe].get_or_init(|| Box::new(std::array::from_fn(|_| Requester::new())))
    }
}
