// SPDX-License-Identifier: Apache-2.0
//! Handing operations to endpoints: in pieces that they take, with waiting where they are full.

use super::{Mode, Way};
use crate::route::Channel;
use crate::transport::{Remote, Status, Stream};
use crate::wait::{Reason, Waiting};
use crate::world::World;
use crate::world::peers::Peer;
use std::sync::atomic::Ordering;

impl World {
    /// Whether a put of `len` bytes to symmetric `dest` at `pe` is a copy by this PE, which is complete
    /// when it returns.
    pub fn copies(&self, dest: *const u8, len: usize, pe: usize) -> bool {
        let Some(target) = self.locate(dest) else { return false };
        let channel = self.routes().peers[pe].put[target.segment as usize].choose(len);
        matches!(channel, Channel::Cached | Channel::Streaming)
    }

    /// Puts in pieces that the endpoint takes from where they are, and waits until all have arrived;
    /// false if it fails, with no piece under way.
    ///
    /// # Safety
    /// As [`World::put`], blocking.
    #[inline(never)]
    pub(super) unsafe fn send_without_copy(
        &self,
        way: Way<'_>,
        source: *const u8,
        len: usize,
    ) -> bool {
        let Way { context, index, target, pe, routine } = way;
        let peer = self.peer_of(index, pe, routine);
        // Only these pieces are waited for.
        let own = Stream::new(context.stream(index.into()).id, true);
        let max = peer.can(target.segment).put_max;
        self.piecewise(way, &own, max, len, |at, piece| {
            let dest = Remote { offset: target.offset + at, ..target };
            // SAFETY: a part of the ranges that the caller vouches for, until the stream is quiet.
            unsafe { peer.endpoint.put(&own, dest, source.add(at), piece, false) }
        }) && self.until_quiet(index, &own, routine, pe)
    }

    /// Issues pieces on a stream; false if one fails, with nothing of the stream under way that
    /// could still use the caller's buffer.
    pub(super) fn piecewise(
        &self,
        way: Way<'_>,
        stream: &Stream,
        max: usize,
        len: usize,
        issue: impl Fn(usize, usize) -> Status,
    ) -> bool {
        let Way { index, pe, routine, .. } = way;
        for (at, piece) in pieces(len, max) {
            if !self.accepted(routine, pe, || issue(at, piece)) {
                // Failed operations are complete, so this ends.
                self.until_quiet(index, stream, routine, pe);
                return false;
            }
        }
        true
    }

    /// Puts, at once where the endpoint takes it as a whole and has room; false if it fails.
    ///
    /// # Safety
    /// As [`World::put`].
    #[inline]
    pub(super) unsafe fn send(
        &self,
        way: Way<'_>,
        peer: &Peer,
        source: *const u8,
        len: usize,
        mode: Mode,
    ) -> bool {
        if len <= peer.can(way.target.segment).put_max {
            let stream = way.context.stream(way.index.into());
            let blocking = mode == Mode::Blocking;
            // SAFETY: the caller vouches for the source.
            let status = unsafe { peer.endpoint.put(stream, way.target, source, len, blocking) };
            if status != Status::Again {
                return status != Status::Failed;
            }
        }
        // SAFETY: as above.
        unsafe { self.send_in_pieces(way, peer, source, len, mode) }
    }

    /// Puts in pieces that the endpoint takes, with waiting for room; false if it fails.
    ///
    /// # Safety
    /// As [`World::put`].
    #[inline(never)]
    unsafe fn send_in_pieces(
        &self,
        way: Way<'_>,
        peer: &Peer,
        source: *const u8,
        len: usize,
        mode: Mode,
    ) -> bool {
        let Way { context, index, target, pe, routine } = way;
        let stream = context.stream(index.into());
        pieces(len, peer.can(target.segment).put_max).all(|(at, piece)| {
            let dest = Remote { offset: target.offset + at, ..target };
            self.accepted(routine, pe, || {
                let blocking = mode == Mode::Blocking;
                // SAFETY: a part of the ranges that the caller vouches for.
                unsafe { peer.endpoint.put(stream, dest, source.add(at), piece, blocking) }
            })
        })
    }

    /// Gets in pieces that the endpoint takes; false if it fails, with no piece under way.
    ///
    /// # Safety
    /// As [`World::get`].
    pub(super) unsafe fn receive(
        &self,
        way: Way<'_>,
        dest: *mut u8,
        len: usize,
        mode: Mode,
    ) -> bool {
        let Way { context, index, target, pe, routine } = way;
        let peer = self.peer_of(index, pe, routine);
        let can = peer.can(target.segment);
        if can.get_align > 1 {
            // SAFETY: by the caller's word.
            return unsafe { self.receive_aligned(way, peer, dest, len) };
        }
        let shared = context.stream(index.into());
        let own = Stream::new(shared.id, true);
        let blocking = mode == Mode::Blocking;
        let stream = if blocking { &own } else { shared };
        self.piecewise(way, stream, can.get_max, len, |at, piece| {
            let from = Remote { offset: target.offset + at, ..target };
            // SAFETY: a part of the ranges the caller vouches for.
            unsafe { peer.endpoint.get(stream, dest.add(at), from, piece) }
        }) && (!blocking || self.until_quiet(index, stream, routine, pe))
    }

    /// Repeats `attempt` while it says `Again`. When it fails the job ends, or the answer is false
    /// if the program goes on without the PE.
    #[inline]
    pub(super) fn until_accepted(
        &self,
        routine: &'static str,
        pe: usize,
        attempt: impl FnMut() -> Status,
    ) -> bool {
        let accepted = self.accepted(routine, pe, attempt);
        if !accepted && !self.await_loss_verdict(pe) {
            self.abort_lost(routine, pe);
        }
        accepted
    }

    /// Repeats `attempt` while it says `Again`; false if it fails.
    #[inline]
    pub(super) fn accepted(
        &self,
        routine: &'static str,
        pe: usize,
        mut attempt: impl FnMut() -> Status,
    ) -> bool {
        match attempt() {
            Status::Again => self.accepted_later(routine, pe, &mut attempt),
            status => status != Status::Failed,
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn accepted_later(
        &self,
        routine: &'static str,
        pe: usize,
        attempt: &mut dyn FnMut() -> Status,
    ) -> bool {
        let mut status = Status::Again;
        self.wait(Waiting { routine, argument: pe as u64, reason: Reason::Room }, || {
            status = attempt();
            status != Status::Again
        });
        status != Status::Failed
    }

    /// Repeats `attempt` until it is true.
    pub(super) fn until(
        &self,
        routine: &'static str,
        pe: usize,
        reason: Reason,
        attempt: impl FnMut() -> bool,
    ) {
        self.wait(Waiting { routine, argument: pe as u64, reason }, attempt);
    }

    /// Waits until nothing of a stream of a transport is under way. False if it lost operations to
    /// PEs that the program goes on without.
    pub(super) fn until_quiet(
        &self,
        index: u8,
        stream: &Stream,
        routine: &'static str,
        pe: usize,
    ) -> bool {
        if !stream.is_quiet() {
            match self.transports().get(usize::from(index)) {
                Some(transport) => {
                    // Failed operations count as complete.
                    let done = || transport.quiet(stream) != Status::Pending;
                    self.until(routine, pe, Reason::Completion, done);
                }
                None => self.until_copied(stream, routine),
            }
        }
        self.has_not_failed(stream, routine)
    }

    /// False if a stream lost operations to PEs that the program goes on without.
    pub(super) fn has_not_failed(&self, stream: &Stream, routine: &'static str) -> bool {
        match stream.failed.load(Ordering::Relaxed) {
            0 => true,
            failed => self.failed(routine, failed),
        }
    }

    /// Operations of a stream failed: ends the job, or gives false if the program goes on without
    /// the PE.
    #[cold]
    pub(super) fn failed(&self, routine: &'static str, failed: u32) -> bool {
        let pe = (failed & !Stream::REFUSED) as usize - 1;
        if failed & Stream::REFUSED != 0 {
            self.stop_job(routine, format_args!("PE {pe} refused an operation on its memory"));
        }
        if !self.await_loss_verdict(pe) {
            self.abort_lost(routine, pe);
        }
        false
    }
}

/// Start and length of the pieces of `len` bytes when one operation takes at most `step`.
#[inline]
fn pieces(len: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    // Not `step_by`, whose division would take as long as a short put.
    std::iter::from_fn(move || {
        let piece = (at, step.min(len - at));
        at += piece.1;
        (piece.1 > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_whole_range_once() {
        for (len, max) in [(10, usize::MAX), (10, 3), (9, 3), (1, 100), (0, 5)] {
            let all: Vec<_> = pieces(len, max).collect();
            assert_eq!(all.iter().map(|(_, n)| n).sum::<usize>(), len);
            assert!(all.iter().all(|(_, n)| *n <= max));
            assert!(all.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
        }
    }
}
