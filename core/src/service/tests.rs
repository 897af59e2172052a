use super::*;
use crate::sync;

/// A requester's line and the bell, in this process.
struct Shared {
    bell: Bell,
    line: Line,
}

/// A requester's way to its line: plain words, as a copy into mapped memory is.
struct Local<'a> {
    line: &'a Line,
    bell: &'a Bell,
}

impl Local<'_> {
    fn word(&self, offset: usize) -> &AtomicU64 {
        let Line { kind, offset: place, operand, compare, ticket, result, done } = self.line;
        [kind, place, operand, compare, ticket, result, done][offset / 8]
    }
}

impl Wire for Local<'_> {
    fn put(&self, offset: usize, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.word(offset + index * 8).store(*word, Ordering::Relaxed);
        }
    }

    fn get(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.bell.ring();
    }

    fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        while !ready() {
            sync::thread::yield_now();
        }
        true
    }
}

impl Shared {
    fn ask(&self, offset: usize, amo: Amo, ticket: u64) -> Result<u64, Unanswered> {
        let wire = Local { line: &self.line, bell: &self.bell };
        request(&wire, Remote { segment: SegmentKind::Static, offset }, amo, ticket)
    }

    /// Starts answering requests for `variable`.
    ///
    /// # Safety
    /// Both outlive the service.
    unsafe fn serve(&self, variable: &std::sync::atomic::AtomicU64) -> Service {
        let (bell, first) = (&raw const self.bell, &raw const self.line);
        let lines = Lines { bell, first, count: 1, nap: Duration::from_secs(1) };
        let base = variable.as_ptr() as usize;
        // SAFETY: by the caller's word.
        unsafe {
            Service::start(lines, vec![Served { kind: SegmentKind::Static, base, len: 8 }]).unwrap()
        }
    }
}

const ADD: Amo = Amo { op: AmoOp::Add, size: 8, operand: 3, compare: 0 };

#[cfg(not(loom))]
#[test]
fn requests_are_executed_and_bad_ones_refused() {
    // SAFETY: all-zero is a valid state of plain atomics.
    let shared: Box<Shared> = unsafe { Box::new(std::mem::zeroed()) };
    let variable = AtomicU64::new(5);
    // SAFETY: both outlive the service, which is dropped below.
    let service = unsafe { shared.serve(&variable) };
    let mut ticket = 0;
    let mut ask = |offset: usize, amo: Amo| {
        ticket = next_ticket(ticket);
        shared.ask(offset, amo, ticket)
    };
    for round in 0..600 {
        assert_eq!(ask(0, ADD), Ok(5 + 3 * round));
    }
    let refused = Err(Unanswered::Refused);
    assert_eq!(ask(8, ADD), refused);
    assert_eq!(ask(4, ADD), refused);
    assert_eq!(ask(usize::MAX - 3, ADD), refused);
    assert_eq!(ask(0, Amo { size: 2, ..ADD }), refused);
    drop(service);
    assert_eq!(variable.load(Ordering::Relaxed), 5 + 1800);
}

#[cfg(loom)]
mod checked {
    use super::*;

    impl Shared {
        fn new() -> Shared {
            let word = || AtomicU64::new(0);
            let line = Line {
                kind: word(),
                offset: word(),
                operand: word(),
                compare: word(),
                ticket: word(),
                result: word(),
                done: word(),
            };
            let bell = Bell { rings: Futex::new(), asleep: AtomicU32::new(0) };
            // Loom leaves first values out of the order of sequentially consistent accesses.
            bell.asleep.store(0, Ordering::SeqCst);
            bell.rings.change();
            Shared { bell, line }
        }
    }

    /// One requester only: two that wait by yielding take turns in loom's scheduler and keep the
    /// service from running.
    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Each request is executed once and answered with its own result, and a service that sleeps
    /// or is about to is woken for it, and for its end.
    #[test]
    fn loom_requests_in_turn_are_answered_once() {
        check(|| {
            let (shared, variable) = (Shared::new(), std::sync::atomic::AtomicU64::new(5));
            // SAFETY: both outlive the service, which is dropped below.
            let service = unsafe { shared.serve(&variable) };
            assert_eq!(shared.ask(0, ADD, 1), Ok(5));
            assert_eq!(shared.ask(0, Amo { operand: 4, ..ADD }, 2), Ok(8));
            drop(service);
            assert_eq!(variable.into_inner(), 12);
        });
    }

    #[test]
    fn loom_a_refusal_reaches_its_requester_and_the_service_ends() {
        check(|| {
            let (shared, variable) = (Shared::new(), std::sync::atomic::AtomicU64::new(5));
            // SAFETY: both outlive the service, which is dropped below.
            let service = unsafe { shared.serve(&variable) };
            assert_eq!(shared.ask(8, ADD, 1), Err(Unanswered::Refused));
            drop(service);
            assert_eq!(variable.into_inner(), 5);
        });
    }
}
