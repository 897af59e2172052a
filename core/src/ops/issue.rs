//! Handing operations to endpoints: in pieces that they take, with waiting where they are full.

use super::Mode;
use crate::context::Context;
use crate::transport::{Endpoint, Remote, Status, Stream};
use crate::wait::Waiting;
use crate::world::World;
use std::sync::atomic::Ordering;

impl World {
    /// Puts in pieces that the endpoint takes from where they are, and waits until all have arrived;
    /// false if it fails, with no piece under way.
    ///
    /// # Safety
    /// As [`World::put`], blocking.
    #[expect(clippy::too_many_arguments, reason = "the arguments of a put and its route")]
    #[inline(never)]
    pub(super) unsafe fn send_straight(
        &self,
        context: &Context,
        index: u8,
        target: Remote,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) -> bool {
        let endpoint = self.endpoint_of(index, pe, routine);
        // Only these pieces are waited for.
        let own = Stream::new(context.stream(index.into()).id, true);
        self.piecewise(&own, endpoint.capabilities().max_bytes, len, pe, routine, |at, piece| {
            let dest = Remote { offset: target.offset + at, ..target };
            // SAFETY: a part of the ranges that the caller vouches for, until the stream is quiet.
            unsafe { endpoint.put(&own, dest, source.add(at), piece, false) }
        })
    }

    /// Issues pieces on a stream and waits for those on `own`; false if one fails, with no piece
    /// under way that could still use the caller's buffer.
    pub(super) fn piecewise(
        &self,
        own: &Stream,
        max: usize,
        len: usize,
        pe: usize,
        routine: &'static str,
        issue: impl Fn(usize, usize) -> Status,
    ) -> bool {
        for (at, piece) in pieces(len, max) {
            if !self.accepted(routine, pe, || issue(at, piece)) {
                if !own.is_quiet() && !self.is_dropped(pe) {
                    // Pieces under way may still use the buffer when the caller has long gone on.
                    self.lost(routine, pe);
                }
                self.until_quiet(own, routine, pe);
                return false;
            }
        }
        self.until_quiet(own, routine, pe)
    }

    /// Puts in pieces that the endpoint takes; false if it fails.
    ///
    /// # Safety
    /// As [`World::put`].
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the arguments of a put and its route")]
    pub(super) unsafe fn send(
        &self,
        context: &Context,
        index: u8,
        endpoint: &dyn Endpoint,
        target: Remote,
        source: *const u8,
        len: usize,
        pe: usize,
        mode: Mode,
        routine: &'static str,
    ) -> bool {
        let stream = context.stream(index.into());
        pieces(len, endpoint.capabilities().max_bytes).all(|(at, piece)| {
            let dest = Remote { offset: target.offset + at, ..target };
            self.accepted(routine, pe, || {
                // SAFETY: a part of the ranges that the caller vouches for.
                unsafe { endpoint.put(stream, dest, source.add(at), piece, mode == Mode::Blocking) }
            })
        })
    }

    /// Gets in pieces that the endpoint takes; false if it fails, with no piece under way.
    ///
    /// # Safety
    /// As [`World::get`].
    #[expect(clippy::too_many_arguments, reason = "the arguments of a get and its route")]
    pub(super) unsafe fn receive(
        &self,
        context: &Context,
        index: u8,
        dest: *mut u8,
        target: Remote,
        len: usize,
        pe: usize,
        mode: Mode,
        routine: &'static str,
    ) -> bool {
        let endpoint = self.endpoint_of(index, pe, routine);
        let shared = context.stream(index.into());
        let own = Stream::new(shared.id, true);
        let stream = if mode == Mode::Blocking { &own } else { shared };
        self.piecewise(&own, endpoint.capabilities().max_bytes, len, pe, routine, |at, piece| {
            let from = Remote { offset: target.offset + at, ..target };
            // SAFETY: a part of the ranges the caller vouches for.
            unsafe { endpoint.get(stream, dest.add(at), from, piece) }
        })
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
        if !accepted && !self.is_dropped(pe) {
            self.lost(routine, pe);
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
        self.wait(Waiting { routine, argument: pe as u64 }, || {
            status = attempt();
            status != Status::Again
        });
        status != Status::Failed
    }

    /// Repeats `attempt` until it is true.
    pub(super) fn until(&self, routine: &'static str, pe: usize, attempt: impl FnMut() -> bool) {
        self.wait(Waiting { routine, argument: pe as u64 }, attempt);
    }

    /// Waits until nothing of the stream is under way. False if it lost operations to PEs that the
    /// program goes on without.
    pub(super) fn until_quiet(&self, stream: &Stream, routine: &'static str, pe: usize) -> bool {
        if !stream.is_quiet() {
            // Failed operations count as complete.
            self.until(routine, pe, || stream.is_quiet());
        }
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
        if !self.is_dropped(pe) {
            self.lost(routine, pe);
        }
        false
    }
}

/// Start and length of the pieces of `len` bytes when one operation takes at most `max` (0: any).
#[inline]
fn pieces(len: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = if max == 0 { len } else { max };
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
        for (len, max) in [(10, 0), (10, 3), (9, 3), (1, 100), (0, 5)] {
            let all: Vec<_> = pieces(len, max).collect();
            assert_eq!(all.iter().map(|(_, n)| n).sum::<usize>(), len);
            assert!(all.iter().all(|(_, n)| max == 0 || *n <= max));
            assert!(all.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
        }
    }
}
