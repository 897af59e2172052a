//! Atomic operations carried out by their target, for segments that are not mapped and whose
//! transport has no atomics of its own (CMA).
//!
//! Every PE has one line per requesting PE in its control area. The requester puts its request there
//! and then raises the ticket; the target's service thread executes the request with CPU atomics,
//! the same as the target itself uses, so there is one domain of atomicity per variable, and raises
//! `done` to the ticket. A requester has one request under way per target; tickets fit in a byte, so
//! that no transport can tear them.

use crate::amo;
use crate::transport::{Amo, AmoOp, Remote, SegmentKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
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

/// Bytes of a request, from the start of the line; the ticket follows.
pub const REQUEST_LEN: usize = 32;
/// Offset of the ticket in the line.
pub const TICKET: usize = 32;
/// Offset of the answer: 8 bytes of result, 8 bytes `done`.
pub const ANSWER: usize = 40;
/// Added to `done` when a request was refused.
pub const REFUSED: u64 = 256;

/// The request as words, in the layout of [`Line`].
pub fn encode(target: Remote, amo: Amo) -> [u64; 4] {
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
    rings: AtomicU32,
    /// 1 while the service thread sleeps or is about to.
    asleep: AtomicU32,
}

impl Bell {
    /// Wakes the service thread if it sleeps. For requesters that have the line mapped.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        futex(&self.rings, libc::FUTEX_WAKE, 1, None);
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
        let thread = std::thread::Builder::new()
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
        bell.rings.fetch_add(1, Ordering::SeqCst);
        bell.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(lines: Lines, segments: &[Served], stop: &AtomicBool) {
    // SAFETY: mapped while the thread runs, by the contract of `Service::start`; all atomics.
    let (bell, slots) =
        unsafe { (&*lines.bell, std::slice::from_raw_parts(lines.first, lines.count)) };
    let nap = libc::timespec {
        tv_sec: lines.nap.as_secs() as libc::time_t,
        tv_nsec: lines.nap.subsec_nanos().into(),
    };
    while !stop.load(Ordering::Relaxed) {
        let rings = bell.rings.load(Ordering::SeqCst);
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
        if !found {
            bell.asleep.store(1, Ordering::SeqCst);
            // Sleeps only if nobody has rung since before the scan.
            futex(&bell.rings, libc::FUTEX_WAIT, rings, Some(&nap));
            bell.asleep.store(0, Ordering::SeqCst);
        }
    }
}

/// Executes a request if it is well-formed: everything in it came from another process.
fn execute(line: &Line, segments: &[Served]) -> bool {
    let kind = line.kind.load(Ordering::Relaxed);
    let (op, size, segment) = (kind & 0xff, (kind >> 8 & 0xff) as u8, kind >> 16 & 0xff);
    let offset = line.offset.load(Ordering::Relaxed) as usize;
    let Some(op) = AMO_OPS.get(op as usize).copied() else { return false };
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

const AMO_OPS: [AmoOp; 7] =
    [AmoOp::Set, AmoOp::Add, AmoOp::And, AmoOp::Or, AmoOp::Xor, AmoOp::Fetch, AmoOp::CompareSwap];

fn futex(word: &AtomicU32, operation: i32, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a live, aligned futex word and a null or valid timeout. Not FUTEX_PRIVATE: the word
    // is shared between processes. Errors (interrupted, timed out, changed) all mean: look again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_executed_and_bad_ones_refused() {
        // SAFETY: all-zero is a valid state of plain atomics.
        let (bell, line): (Box<Bell>, Box<Line>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        let variable = AtomicU64::new(5);
        let lines = Lines { bell: &*bell, first: &*line, count: 1, nap: Duration::from_secs(1) };
        let served = Served { kind: SegmentKind::Static, base: variable.as_ptr() as usize, len: 8 };
        // SAFETY: the boxes outlive the service, which is dropped below.
        let service = unsafe { Service::start(lines, vec![served]) }.unwrap();
        let ask = |offset: usize, amo: Amo| {
            let words = encode(Remote { segment: SegmentKind::Static, offset }, amo);
            for (cell, word) in
                [&line.kind, &line.offset, &line.operand, &line.compare].into_iter().zip(words)
            {
                cell.store(word, Ordering::Relaxed);
            }
            let ticket = next_ticket(line.ticket.load(Ordering::Relaxed));
            line.ticket.store(ticket, Ordering::Release);
            bell.ring();
            loop {
                let done = line.done.load(Ordering::Acquire);
                if done & 0xff == ticket {
                    return (done < REFUSED).then(|| line.result.load(Ordering::Relaxed));
                }
                std::thread::yield_now();
            }
        };
        let add = Amo { op: AmoOp::Add, size: 8, operand: 3, compare: 0 };
        for round in 0..600 {
            assert_eq!(ask(0, add), Some(5 + 3 * round));
        }
        assert_eq!(ask(8, add), None);
        assert_eq!(ask(4, add), None);
        assert_eq!(ask(usize::MAX - 3, add), None);
        assert_eq!(ask(0, Amo { size: 2, ..add }), None);
        drop(service);
        assert_eq!(variable.load(Ordering::Relaxed), 5 + 1800);
    }
}
