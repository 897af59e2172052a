//! Atomic operations carried out by their target, for segments that are not mapped and whose
//! transport has no atomics of its own (CMA).
//!
//! Every PE has one line per requesting PE in its control area. The requester puts its request there
//! and then raises the ticket; the target's service thread executes the request with CPU atomics,
//! the same as the target itself uses, so there is one domain of atomicity per variable, and raises
//! `done` to the ticket. A requester has one request under way per target; tickets fit in a byte, so
//! that no transport can tear them.

use crate::amo;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Futex, Ordering, fence};
use crate::transport::{Amo, AmoOp, Remote, SegmentKind};
use std::time::Duration;

/// One requester's line.
#[repr(C, align(64))]
pub struct Line {
    /// Operation, size and segment, one byte each.
    kind: AtomicU64,
    offset: AtomicU64,
    operand: AtomicU64,
    compare: AtomicU64,
    /// 1 to 255 in turn; 0 before the first request.
    ticket: AtomicU64,
    result: AtomicU64,
    /// Ticket of the last request answered; `REFUSED` is added to it if the request was malformed.
    done: AtomicU64,
}

/// Offset of the request in the line: its four words.
const REQUEST: usize = 0;
const TICKET: usize = 32;
const RESULT: usize = 40;
const DONE: usize = 48;
/// Added to `done` when a request was refused.
const REFUSED: u64 = 256;

/// How a requester reaches its line at the target. Offsets count from the start of the line.
pub trait Wire {
    /// Writes words, of which the target sees each as a whole.
    fn put(&self, offset: usize, words: &[u64]);
    /// Reads a word. What is read by later calls is not older than it.
    fn get(&self, offset: usize) -> u64;
    /// Rings the target's bell, if it is within reach.
    fn ring(&self);
    /// Waits until `ready`; false if that will never be, because the target is gone.
    fn until(&self, ready: impl FnMut() -> bool) -> bool;
}

/// Why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The target found it malformed.
    Refused,
    /// The target is gone.
    Gone,
}

/// Has the target execute an AMO and waits for the old value. `ticket` follows that of the last
/// request on this line, which must have been answered.
pub fn request(wire: &impl Wire, target: Remote, amo: Amo, ticket: u64) -> Result<u64, Unanswered> {
    wire.put(REQUEST, &encode(target, amo));
    // The target sees the request when it sees the ticket.
    fence(Ordering::Release);
    wire.put(TICKET, &[ticket]);
    wire.ring();
    let mut done = 0;
    let answered = wire.until(|| {
        done = wire.get(DONE);
        done & 0xff == ticket
    });
    match answered {
        false => Err(Unanswered::Gone),
        true if done >= REFUSED => Err(Unanswered::Refused),
        true => Ok(wire.get(RESULT)),
    }
}

/// The request as words, in the layout of [`Line`].
fn encode(target: Remote, amo: Amo) -> [u64; 4] {
    let kind = amo.op as u64 | u64::from(amo.size) << 8 | (target.segment as u64) << 16;
    [kind, target.offset as u64, amo.operand, amo.compare]
}

/// The ticket after `ticket`.
pub fn next_ticket(ticket: u64) -> u64 {
    ticket % 255 + 1
}

/// What a service thread sleeps on.
#[repr(C, align(64))]
pub struct Bell {
    rings: Futex,
    /// 1 while the service thread sleeps or is about to.
    asleep: AtomicU32,
}

impl Bell {
    /// Wakes the service thread if it sleeps. For requesters that have the line mapped.
    pub fn ring(&self) {
        self.rings.change();
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.rings.wake();
        }
    }
}

/// A local segment that requests may touch.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Which.
    pub kind: SegmentKind,
    /// Its start in this process.
    pub base: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// Where a service thread finds its work.
#[derive(Clone, Copy)]
pub struct Lines {
    /// The bell of this PE.
    pub bell: *const Bell,
    /// The first line; one per PE follows.
    pub first: *const Line,
    /// Number of lines.
    pub count: usize,
    /// Longest sleep: short when some requester cannot ring the bell.
    pub nap: Duration,
}

// SAFETY: atomics in memory that outlives the thread, which `Service` joins when dropped.
unsafe impl Send for Lines {}

/// The thread that answers requests of other PEs.
pub struct Service {
    bell: *const Bell,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

// SAFETY: the bell consists of atomics.
unsafe impl Send for Service {}
// SAFETY: as above.
unsafe impl Sync for Service {}

impl Service {
    /// Starts answering requests for `segments`.
    ///
    /// # Safety
    /// Lines and segments stay mapped until the service is dropped.
    pub unsafe fn start(lines: Lines, segments: Vec<Served>) -> std::io::Result<Service> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, bell) = (stop.clone(), lines.bell);
        let thread = thread::Builder::new()
            .name("shmem-service".into())
            .spawn(move || serve(lines, &segments, &seen))?;
        Ok(Service { bell, stop, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // SAFETY: mapped until after the drop, by the contract of `start`.
        let bell = unsafe { &*self.bell };
        bell.rings.change();
        bell.rings.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(lines: Lines, segments: &[Served], stop: &AtomicBool) {
    // SAFETY: mapped while the thread runs, by the contract of `Service::start`; all atomics.
    let (bell, slots) =
        unsafe { (&*lines.bell, std::slice::from_raw_parts(lines.first, lines.count)) };
    loop {
        // Before anything it may announce is looked at: the end, or requests.
        let rings = bell.rings.load();
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if !answer_all(slots, segments) {
            bell.asleep.store(1, Ordering::SeqCst);
            // Sleeps only if nobody has rung since.
            bell.rings.wait(rings, lines.nap);
            bell.asleep.store(0, Ordering::SeqCst);
        }
    }
}

/// Executes and answers requests; says whether there were any.
fn answer_all(slots: &[Line], segments: &[Served]) -> bool {
    let mut found = false;
    for line in slots {
        let ticket = line.ticket.load(Ordering::Acquire);
        if ticket & 0xff == line.done.load(Ordering::Relaxed) & 0xff {
            continue;
        }
        found = true;
        let refused = if execute(line, segments) { 0 } else { REFUSED };
        line.done.store((ticket & 0xff) + refused, Ordering::Release);
    }
    found
}

/// Executes a request if it is well-formed: everything in it came from another process.
fn execute(line: &Line, segments: &[Served]) -> bool {
    let kind = line.kind.load(Ordering::Relaxed);
    let (op, size, segment) = (kind & 0xff, (kind >> 8 & 0xff) as u8, kind >> 16 & 0xff);
    let offset = line.offset.load(Ordering::Relaxed) as usize;
    let Some(op) = AmoOp::from_bits(op as u8) else { return false };
    let Some(served) = segments.iter().find(|s| s.kind as u64 == segment) else { return false };
    let fits = offset.checked_add(size.into()).is_some_and(|end| end <= served.len);
    if !matches!(size, 4 | 8) || !offset.is_multiple_of(size.into()) || !fits {
        return false;
    }
    let amo = Amo {
        op,
        size,
        operand: line.operand.load(Ordering::Relaxed),
        compare: line.compare.load(Ordering::Relaxed),
    };
    // SAFETY: inside the segment and aligned, as just checked.
    let old = unsafe { amo::execute((served.base + offset) as *mut u8, amo) };
    line.result.store(old, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests;
