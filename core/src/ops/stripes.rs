// SPDX-License-Identifier: Apache-2.0
//! Transfers that two transports carry at the same time, each a part of it.
//!
//! Each part is on its transport's stream of the context, so that quiet waits for both; where operations on a PE
//! take several channels, fence waits for completion. A blocking transfer has streams of its own: a part whose
//! transport fails meanwhile, but has not given up the PE, is carried again by another channel.

use super::{Mode, Way};
use crate::context::Context;
use crate::route::Stripes;
use crate::transport::{Capabilities, Endpoint, Remote, Status, Stream};
use crate::wait::Reason;
use crate::world::World;
use std::sync::atomic::Ordering;

/// A transfer between `local` and `target` of `pe`.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    /// A get, else a put.
    pub get: bool,
    pub target: Remote,
    pub local: *mut u8,
    pub len: usize,
    pub pe: usize,
    pub mode: Mode,
}

impl Transfer {
    fn part(self, at: usize, len: usize) -> Transfer {
        let target = Remote { offset: self.target.offset + at, ..self.target };
        Transfer { target, local: self.local.wrapping_add(at), len, ..self }
    }

    fn piece_max(&self, can: &Capabilities) -> usize {
        if self.get { can.get_max } else { can.put_max }
    }

    /// Issues all of it, which the endpoint takes as a whole.
    ///
    /// # Safety
    /// As [`World::put`] and [`World::get`].
    unsafe fn issue(&self, endpoint: &dyn Endpoint, stream: &Stream) -> Status {
        // SAFETY: by the caller's word.
        unsafe {
            match self.get {
                true => endpoint.get(stream, self.local, self.target, self.len),
                false => endpoint.put(stream, self.target, self.local, self.len, false),
            }
        }
    }
}

impl World {
    /// Carries out a transfer over two transports.
    ///
    /// # Safety
    /// As [`World::put`] and [`World::get`].
    #[inline(never)]
    pub(super) unsafe fn striped(
        &self,
        context: &Context,
        stripes: Stripes,
        whole: Transfer,
        routine: &'static str,
    ) {
        let [first, second] = stripes.transports;
        let first_len = stripes.first_len(whole.len);
        let parts = [
            (first, whole.part(0, first_len)),
            (second, whole.part(first_len, whole.len - first_len)),
        ];
        let own =
            stripes.transports.map(|index| Stream::new(context.stream(index.into()).id, true));
        let way = |(index, part): (u8, Transfer)| Way {
            context,
            index,
            target: part.target,
            pe: part.pe,
            routine,
        };
        let mut carried = [true; 2];
        for (place, &(index, part)) in parts.iter().enumerate() {
            let shared = context.stream(index.into());
            let stream = if whole.mode == Mode::Blocking { &own[place] } else { shared };
            let peer = self.peer_of(index, part.pe, routine);
            let max = part.piece_max(peer.can(part.target.segment));
            carried[place] =
                self.piecewise(way(parts[place]), stream, max, part.len, |at, piece| {
                    // SAFETY: a part of the ranges that the caller vouches for, until the stream is quiet.
                    unsafe { part.part(at, piece).issue(&*peer.endpoint, stream) }
                });
        }
        if whole.mode == Mode::Blocking {
            // Nothing is issued again before all is complete: it could be written twice, in either order.
            for (place, (index, part)) in parts.iter().enumerate() {
                carried[place] &= self.until_carried(*index, &own[place], part.pe, routine);
            }
        }
        for (place, (index, part)) in parts.into_iter().enumerate() {
            if !carried[place] {
                // SAFETY: by the caller's word.
                unsafe { self.carry_again(context, index, part, routine) };
            }
        }
    }

    /// Waits until nothing of a stream is under way; false if some of it failed.
    fn until_carried(&self, index: u8, stream: &Stream, pe: usize, routine: &'static str) -> bool {
        if !stream.is_quiet() {
            let transport = &self.transports()[usize::from(index)];
            let done = || transport.quiet(stream) != Status::Pending;
            self.until(routine, pe, Reason::Completion, done);
        }
        let failed = stream.failed.load(Ordering::Relaxed);
        if failed & Stream::REFUSED != 0 {
            // Ends the job.
            self.failed(routine, failed);
        }
        failed == 0
    }

    /// Carries a part by the routes that are left when its transport has failed towards the PE.
    ///
    /// # Safety
    /// As [`World::put`] and [`World::get`].
    #[cold]
    unsafe fn carry_again(
        &self,
        context: &Context,
        index: u8,
        part: Transfer,
        routine: &'static str,
    ) {
        let Transfer { get, target, local, len, pe, mode } = part;
        if self.is_dropped(target, pe) {
            if get {
                // SAFETY: by the caller's word; no piece is under way any more.
                unsafe { local.write_bytes(0, len) };
            }
            return;
        }
        self.another_way(index, pe, target, get, routine);
        let there = self.base(target.segment).wrapping_add(target.offset);
        // SAFETY: by the caller's word.
        unsafe {
            match get {
                true => self.get(context, local, there, len, pe, mode, routine),
                false => self.put(context, there, local, len, pe, mode, routine),
            }
        }
    }
}
