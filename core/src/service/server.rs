// SPDX-License-Identifier: Apache-2.0
//! The target's side: looks for requests, executes them, replies.

use super::message::{LINE_WORDS, MessageLine, Reply, Request, TicketSource, Wanted};
use super::message::{decode_reply, encode_reply};
use super::wire::{Sending, Wire};
use crate::amo;
use crate::control::{self, REQUESTS_MAX};
use crate::sync::{AtomicBool, Ordering};
use crate::transport::{Remote, SegmentKind};
use std::ops::Range;

/// A local segment that requests may touch.
#[derive(Clone, Debug)]
pub struct Served {
    /// Which.
    pub kind: SegmentKind,
    /// Where offset 0 is in this process.
    pub base: usize,
    /// Offsets that requests may touch: all, or a part of a segment with gaps.
    pub offsets: Range<usize>,
}

/// The lines in which other PEs place their requests, and what they may touch.
pub struct Server<W> {
    wire: W,
    me: usize,
    n_pes: usize,
    /// The first line; [`REQUESTS_MAX`] per PE follow.
    lines: *const MessageLine,
    segments: Vec<Served>,
    /// By PE, then number of the request.
    states: Vec<State>,
}

// SAFETY: the lines are atomics in memory that outlives the server, by the contract of `new`.
unsafe impl<W: Send> Send for Server<W> {}

/// What becomes of one line.
struct State {
    tickets: TicketSource,
    /// The reply to the last request.
    reply: Sending,
}

impl<W: Wire> Server<W> {
    /// A server of PE `me`.
    ///
    /// # Safety
    /// `lines` are the request lines of `n_pes` PEs; they and the segments stay mapped as long as the
    /// server exists.
    pub(crate) unsafe fn new(
        wire: W,
        me: usize,
        n_pes: usize,
        lines: *const MessageLine,
        segments: Vec<Served>,
    ) -> Server<W> {
        let state = || State { tickets: TicketSource::default(), reply: Sending::new() };
        let states = std::iter::repeat_with(state).take(n_pes * REQUESTS_MAX).collect();
        Server { wire, me, n_pes, lines, segments, states }
    }

    /// Executes the requests that are there and moves replies on; true if there were any.
    pub(crate) fn serve(&mut self) -> bool {
        let mut found = false;
        for (place, state) in self.states.iter_mut().enumerate() {
            let pe = place / REQUESTS_MAX;
            let offset = control::reply_line(self.n_pes, self.me, place % REQUESTS_MAX);
            if state.reply.is_unsent() {
                found |= state.reply.advance(&self.wire, pe, offset);
                continue;
            }
            // SAFETY: a line of the control area, by the contract of `new`.
            let line = unsafe { &*self.lines.add(place) };
            let Some(words) = line.read(state.tickets.next()) else { continue };
            found = true;
            let reply = execute(&words, &self.segments);
            let words = encode_reply(reply, state.tickets.take());
            state.reply.start(words);
            state.reply.advance(&self.wire, pe, offset);
        }
        found
    }
}

impl<W> Drop for Server<W> {
    fn drop(&mut self) {
        // Transports may still read a reply to a PE that is gone.
        if self.states.iter().any(|state| state.reply.is_under_way()) {
            std::mem::forget(std::mem::take(&mut self.states));
        }
    }
}

/// Executes a request if it makes sense: everything in it came from another process.
fn execute(words: &[u64; LINE_WORDS], segments: &[Served]) -> Reply {
    let request = Request::decode(words)?;
    let Remote { segment, offset } = request.target;
    let holds = |served: &&Served| {
        let Range { start, end } = served.offsets;
        served.kind == segment && start <= offset && request.target.fits(request.len(), end)
    };
    let served = segments.iter().find(holds)?;
    // SAFETY: inside the segment, as just checked; `decode` has checked the alignment of AMOs.
    Some(unsafe { carry_out(&request, served.base) })
}

/// Carries out a request on the segment at `base` and gives the old value of the variable, or 0.
///
/// # Safety
/// The target lies inside the segment, and is aligned for an AMO.
pub(crate) unsafe fn carry_out(request: &Request, base: usize) -> u64 {
    let at = (base + request.target.offset) as *mut u8;
    // SAFETY: by the caller's word.
    unsafe {
        match request.wanted {
            Wanted::Amo(amo) => amo::execute(at, amo),
            Wanted::Store { len, bytes } => {
                crate::copy::cached(at, (&raw const bytes).cast(), len.into());
                0
            }
        }
    }
}

/// The requester's side of one line: one request at a time.
pub struct Requester {
    /// Somebody uses the line.
    taken: AtomicBool,
    /// What its user needs; only ever touched by it.
    own: std::cell::UnsafeCell<Own>,
}

struct Own {
    tickets: TicketSource,
    request: Sending,
}

// SAFETY: `own` belongs to whoever has set `taken`.
unsafe impl Sync for Requester {}

impl Requester {
    /// A line that was never used.
    pub fn new() -> Requester {
        let own = Own { tickets: TicketSource::default(), request: Sending::new() };
        Requester { taken: AtomicBool::new(false), own: own.into() }
    }

    /// Takes the line if it is free.
    pub(crate) fn claim(&self) -> Option<Claim<'_>> {
        let free = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Made only then: a claim gives the line back when it is dropped.
        free.is_ok().then(|| Claim(self))
    }
}

impl Default for Requester {
    fn default() -> Requester {
        Requester::new()
    }
}

/// The right to use a line.
pub(crate) struct Claim<'a>(&'a Requester);

impl Claim<'_> {
    fn own(&mut self) -> &mut Own {
        // SAFETY: `taken` is set by this claim alone.
        unsafe { &mut *self.0.own.get() }
    }

    /// Prepares the next request.
    pub(crate) fn start(&mut self, request: &Request) {
        let own = self.own();
        let ticket = own.tickets.take();
        own.request.start(request.encode(ticket));
    }

    /// Moves the request on its way; true once it needs no more of that.
    pub(crate) fn is_sent(&mut self, wire: &impl Wire, pe: usize, offset: usize) -> bool {
        let own = self.own();
        if own.request.is_unsent() {
            own.request.advance(wire, pe, offset);
        }
        !own.request.is_unsent()
    }

    /// The reply, if it is there: none where the request was refused.
    pub(crate) fn reply(&mut self, line: &MessageLine) -> Option<Reply> {
        let ticket = self.own().tickets;
        line.read(ticket.last()).map(|words| decode_reply(&words))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
