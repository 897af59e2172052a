// SPDX-License-Identifier: Apache-2.0
use super::message::{LINE_WORDS, MessageLine};
use super::thread::Announced;
use super::*;
use crate::control::{self, REQUESTS_MAX};
use crate::sync::{self, Arc};
use crate::transport::{Amo, AmoOp, Remote, SegmentKind, Status, Stream};
use crate::wait::Patience;

/// The control areas of two PEs in this process: PE 0 serves, PE 1 asks.
struct Shared {
    bell: Bell,
    /// At PE 0, by PE and number of the request; at PE 1 for the replies.
    requests: [MessageLine; 2 * REQUESTS_MAX],
    replies: [MessageLine; 2 * REQUESTS_MAX],
}

/// A way to both areas. Whether words arrive whole decides how messages are sent.
#[derive(Clone)]
struct Local(Arc<Shared>, bool);

impl Wire for Local {
    fn put(&self, _: &Stream, pe: usize, offset: usize, line: &[u64; LINE_WORDS]) -> Status {
        self.line(pe, offset).write(line);
        Status::Complete
    }

    fn is_quiet(&self, _: &Stream) -> bool {
        true
    }

    fn takes_messages(&self, _: usize) -> bool {
        self.1
    }

    fn ring(&self, pe: usize) {
        if pe == 0 {
            self.0.bell.ring();
        }
    }
}

impl Local {
    fn line(&self, pe: usize, offset: usize) -> &MessageLine {
        let lines = if pe == 0 { &self.0.requests } else { &self.0.replies };
        let first = if pe == 0 { 0 } else { 2 * REQUESTS_MAX };
        &lines[(offset - control::request_line(0, 0)) / size_of::<MessageLine>() - first]
    }

    fn ask(&self, requester: &Requester, request: Request) -> Reply {
        let mut claim = requester.claim().expect("nobody else asks");
        claim.start(&request);
        let reply = &self.0.replies[control_index(0)];
        loop {
            if claim.is_sent(self, 0, control::request_line(1, 0))
                && let Some(reply) = claim.reply(reply)
            {
                return reply;
            }
            sync::thread::yield_now();
        }
    }

    /// Starts answering requests for `variable`.
    ///
    /// # Safety
    /// Both outlive the service.
    unsafe fn serve(&self, variable: &std::sync::atomic::AtomicU64) -> Service<Local> {
        let base = variable.as_ptr() as usize;
        let served = vec![Served { kind: SegmentKind::Static, base, offsets: 0..8 }];
        // SAFETY: by the caller's word.
        unsafe {
            let server = Server::new(self.clone(), 0, 2, self.0.requests.as_ptr(), served);
            let patience = Patience::for_crowd(1);
            Service::start(&raw const self.0.bell, Some(server), Announced::ByBell, None, &patience)
                .expect("a thread")
        }
    }
}

/// Where the reply of PE `pe` to its first request lies among the replies.
fn control_index(pe: usize) -> usize {
    (control::reply_line(2, pe, 0) - control::reply_line(2, 0, 0)) / size_of::<MessageLine>()
}

fn amo(offset: usize, amo: Amo) -> Request {
    Request { target: Remote { segment: SegmentKind::Static, offset }, wanted: Wanted::Amo(amo) }
}

const ADD: Amo = Amo { op: AmoOp::Add, size: 8, operand: 3, compare: 0 };

#[cfg(not(loom))]
mod native {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn shared() -> Arc<Shared> {
        // SAFETY: all-zero is a valid state of plain atomics.
        unsafe { Arc::new(std::mem::zeroed()) }
    }

    #[test]
    fn requests_are_executed_and_bad_ones_refused() {
        for whole_words in [true, false] {
            let (local, variable) = (Local(shared(), whole_words), AtomicU64::new(5));
            // SAFETY: both outlive the service, which is dropped below.
            let service = unsafe { local.serve(&variable) };
            let requester = Requester::new();
            let ask = |request| local.ask(&requester, request);
            for round in 0..600 {
                assert_eq!(ask(amo(0, ADD)), Some(5 + 3 * round));
            }
            assert_eq!(ask(amo(8, ADD)), None);
            assert_eq!(ask(amo(4, ADD)), None);
            assert_eq!(ask(amo(usize::MAX >> 16, ADD)), None);
            assert_eq!(ask(amo(0, Amo { size: 2, ..ADD })), None);
            let target = Remote { segment: SegmentKind::Static, offset: 1 };
            let store = |len| Request { target, wanted: Wanted::Store { len, bytes: 0x0102_0304 } };
            assert_eq!(ask(store(3)), Some(0));
            assert_eq!(ask(store(8)), None, "it ends behind the segment");
            drop(service);
            let bytes = variable.load(Ordering::Relaxed).to_le_bytes();
            let expected = (5u64 + 1800).to_le_bytes();
            assert_eq!(bytes[..5], [expected[0], 4, 3, 2, expected[4]]);
        }
    }

    proptest::proptest! {
        /// Whatever PE 1 writes into its request lines: nothing outside the segment is
        /// touched.
        #[test]
        fn garbage_in_requests_does_no_harm(
            lines in proptest::collection::vec(
                (REQUESTS_MAX..2 * REQUESTS_MAX, proptest::array::uniform4(proptest::num::u64::ANY), 0u64..64),
                1..60,
            ),
        ) {
            const GUARD: u8 = 0x5a;
            let local = Local(shared(), true);
            let mut memory = [u64::from_ne_bytes([GUARD; 8]); 24];
            let base = (&raw mut memory).addr() + 64;
            let served = vec![Served { kind: SegmentKind::Static, base, offsets: 0..64 }];
            // SAFETY: the lines and the memory outlive the server.
            let mut server =
                unsafe { Server::new(local.clone(), 0, 2, local.0.requests.as_ptr(), served) };
            let mut tickets = [0u64; 2 * REQUESTS_MAX];
            for (place, words, near) in lines {
                tickets[place] += 1;
                // An operation of a sound size on the segment, or anything.
                let high = words[0] & !0xffff | near & 0xf | (4 << (near >> 4 & 1)) << 4 | 1 << 8;
                let payload = match near {
                    0..48 => [high, words[1] % 80, words[2], words[3]],
                    _ => words,
                };
                let line = std::array::from_fn(|at| {
                    payload.get(at).copied().unwrap_or(0) << 16 | tickets[place]
                });
                local.0.requests[place].write(&line);
                while server.serve() {}
            }
            // SAFETY: the array is there; bytes of it were changed by way of their address.
            let after = unsafe { std::ptr::read_volatile(&raw const memory) };
            let bytes: Vec<u8> = after.iter().flat_map(|word| word.to_ne_bytes()).collect();
            proptest::prop_assert!(bytes[..64].iter().chain(&bytes[128..]).all(|b| *b == GUARD));
        }
    }

    /// Words and whole puts that come late, in any order and again until they are complete never
    /// make a server execute a request twice, or half.
    #[test]
    fn any_order_of_arrival_does() {
        /// Puts are kept back, word by word, and come in an order drawn from the seed.
        struct Late {
            shared: Arc<Shared>,
            under_way: std::sync::Mutex<Vec<(usize, usize, u64, *const Stream)>>,
            random: AtomicU64,
        }
        // SAFETY: used by one thread.
        unsafe impl Send for Late {}
        // SAFETY: as above.
        unsafe impl Sync for Late {}
        impl Late {
            fn next(&self) -> u64 {
                let x = self.random.load(Ordering::Relaxed).wrapping_mul(6364136223846793005);
                self.random.store(x.wrapping_add(1442695040888963407), Ordering::Relaxed);
                x >> 33
            }

            /// One of the words that are under way arrives, and perhaps once more later.
            fn arrive(&self) {
                let mut words = self.under_way.lock().expect("one thread");
                if words.is_empty() {
                    return;
                }
                let index = self.next() as usize % words.len();
                let (pe, offset, word, stream) = words[index];
                let lines = Local(self.shared.clone(), true);
                let place = &lines.line(pe, offset).0[offset % size_of::<MessageLine>() / 8];
                place.store(word, Ordering::Relaxed);
                if !self.next().is_multiple_of(3) {
                    words.swap_remove(index);
                    // SAFETY: streams of the test's server and requester, alive to its end.
                    unsafe { (*stream).completed.fetch_add(1, Ordering::Release) };
                }
            }
        }
        impl Wire for &Late {
            fn put(
                &self,
                stream: &Stream,
                pe: usize,
                offset: usize,
                words: &[u64; LINE_WORDS],
            ) -> Status {
                if self.next().is_multiple_of(4) {
                    return Status::Again;
                }
                let mut under_way = self.under_way.lock().expect("one thread");
                for (index, word) in words.iter().enumerate() {
                    stream.issued.fetch_add(1, Ordering::Relaxed);
                    under_way.push((pe, offset + index * 8, *word, stream));
                }
                Status::Pending
            }
            fn is_quiet(&self, stream: &Stream) -> bool {
                stream.is_quiet()
            }
            fn takes_messages(&self, _: usize) -> bool {
                self.next().is_multiple_of(2)
            }
            fn ring(&self, _: usize) {}
        }
        for seed in 0..200 {
            let late = Late {
                shared: shared(),
                under_way: Default::default(),
                random: AtomicU64::new(seed),
            };
            let variable = AtomicU64::new(0);
            let (base, len) = (variable.as_ptr() as usize, 8);
            let served = vec![Served { kind: SegmentKind::Static, base, offsets: 0..len }];
            // SAFETY: all live to the end of the round.
            let mut server =
                unsafe { Server::new(&late, 0, 2, late.shared.requests.as_ptr(), served) };
            let requester = Requester::new();
            for round in 0..50u64 {
                let mut claim = requester.claim().expect("nobody else asks");
                claim.start(&amo(0, Amo { operand: 1 + round, ..ADD }));
                let reply = loop {
                    late.arrive();
                    server.serve();
                    if claim.is_sent(&&late, 0, control::request_line(1, 0))
                        && let Some(reply) = claim.reply(&late.shared.replies[control_index(0)])
                    {
                        break reply;
                    }
                };
                assert_eq!(reply, Some(round * (round + 1) / 2), "seed {seed}, round {round}");
            }
            // What is still under way finds its stream.
            while !late.under_way.lock().expect("one thread").is_empty() {
                late.arrive();
            }
        }
    }

    /// The shortest sleep of a thread that leaves serving to others.
    const NAP: std::time::Duration = std::time::Duration::from_micros(50);

    /// A transport that always moves, while another thread is at it or not.
    struct Moving {
        taken: bool,
        polls: Arc<AtomicU64>,
    }

    impl Pollable for Moving {
        fn progress(&self) -> bool {
            self.polls.fetch_add(1, Ordering::Relaxed);
            true
        }

        fn is_taken(&self) -> bool {
            self.taken
        }

        fn event_fds(&self) -> Option<Vec<std::os::fd::RawFd>> {
            None
        }

        fn arm(&self) -> bool {
            false
        }
    }

    /// Starts a service thread for a transport of which the polls are counted.
    fn polling(taken: bool, patience: &Patience) -> (Service<Local>, Arc<AtomicU64>) {
        let polls = Arc::new(AtomicU64::new(0));
        let transports = Box::new(Moving { taken, polls: polls.clone() });
        let shared = shared();
        let bell = &raw const shared.bell;
        // The bell stays for good.
        std::mem::forget(shared);
        // SAFETY: the bell outlives the service.
        let service =
            unsafe { Service::start(bell, None, Announced::ByBell, Some(transports), patience) };
        (service.expect("a thread"), polls)
    }

    /// How long a service thread takes for so many polls, where the program attends or not.
    fn time_of_polls(taken: bool, attends: bool, count: u64) -> std::time::Duration {
        let (service, polls) = polling(taken, &Patience::for_crowd(1));
        let attending = attends.then(|| service.attend(crate::board::monotonic_ns()));
        let (begun, first) = (std::time::Instant::now(), polls.load(Ordering::Relaxed));
        while polls.load(Ordering::Relaxed) < first + count {
            std::thread::yield_now();
        }
        let took = begun.elapsed();
        drop(attending);
        drop(service);
        took
    }

    #[test]
    fn where_the_program_issues_operations_the_thread_looks_now_and_then() {
        assert!(time_of_polls(true, false, 200) >= 198 * NAP);
        let free = (0..50).map(|_| time_of_polls(false, false, 200)).min().unwrap_or_default();
        assert!(free < 198 * NAP, "{free:?}");
    }

    /// Even if its polls are rare, as where it shares a processor: here it makes none at all.
    #[test]
    fn where_the_program_attends_the_thread_leaves_it_alone_between_two_looks() {
        assert!(time_of_polls(false, true, 20) >= 18 * NAP);
    }

    #[test]
    fn a_thread_that_rests_serves_when_the_program_sleeps() {
        let hours = std::time::Duration::from_secs(10_000);
        let patience = Patience { rest: [hours; 2], ..Patience::for_crowd(1) };
        let (service, polls) = polling(false, &patience);
        let attending = service.attend(crate::board::monotonic_ns());
        // Until it rests.
        let mut before = u64::MAX;
        while before != polls.load(Ordering::Relaxed) {
            before = polls.load(Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        service.leave(attending);
        let begun = std::time::Instant::now();
        while polls.load(Ordering::Relaxed) == before {
            assert!(begun.elapsed() < hours / 100, "it rests on");
            std::thread::yield_now();
        }
        drop(service);
    }

    /// Not even somebody who asks for a line in vain frees it.
    #[test]
    fn a_line_has_one_user_at_a_time() {
        let requester = Requester::new();
        let claim = requester.claim().unwrap();
        assert!((0..3).all(|_| requester.claim().is_none()));
        drop(claim);
        assert!(requester.claim().is_some());
    }

    #[test]
    fn reply_lines_follow_the_request_lines() {
        assert_eq!(
            control::reply_line(2, 0, 0),
            control::request_line(1, REQUESTS_MAX - 1) + size_of::<MessageLine>()
        );
    }
}

#[cfg(loom)]
mod checked {
    use super::*;
    use crate::sync::{AtomicU32, Futex, Ordering};

    fn shared() -> Arc<Shared> {
        let bell = Bell { rings: Futex::new(), asleep: AtomicU32::new(0) };
        // Loom leaves first values out of the order of sequentially consistent accesses.
        bell.asleep.store(0, Ordering::SeqCst);
        bell.rings.change();
        Arc::new(Shared { bell, requests: Default::default(), replies: Default::default() })
    }

    /// One requester only: two that wait by yielding take turns in loom's scheduler and keep the
    /// service from running.
    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Each request is executed once and answered with its own result, and a service that sleeps
    /// or is about to is woken for it, and for its end.
    #[test]
    fn loom_requests_in_turn_are_answered_once() {
        check(|| {
            let local = Local(shared(), true);
            let variable = std::sync::atomic::AtomicU64::new(5);
            // SAFETY: both outlive the service, which is dropped below.
            let service = unsafe { local.serve(&variable) };
            let requester = Requester::new();
            assert_eq!(local.ask(&requester, amo(0, ADD)), Some(5));
            assert_eq!(local.ask(&requester, amo(0, Amo { operand: 4, ..ADD })), Some(8));
            drop(service);
            assert_eq!(variable.into_inner(), 12);
        });
    }

    /// Also where the program, which polls just then, has looked before the request was there.
    #[test]
    fn loom_a_request_is_answered_though_the_program_has_just_polled() {
        check(|| {
            let local = Local(shared(), true);
            let variable = std::sync::atomic::AtomicU64::new(5);
            // SAFETY: both outlive the service, which is dropped below.
            let service = Arc::new(unsafe { local.serve(&variable) });
            let polled = service.clone();
            let program = sync::thread::spawn(move || polled.poll());
            assert_eq!(local.ask(&Requester::new(), amo(0, ADD)), Some(5));
            program.join().expect("no panic");
            drop(service);
            assert_eq!(variable.into_inner(), 8);
        });
    }

    #[test]
    fn loom_a_refusal_reaches_its_requester_and_the_service_ends() {
        check(|| {
            let local = Local(shared(), true);
            let variable = std::sync::atomic::AtomicU64::new(5);
            // SAFETY: both outlive the service, which is dropped below.
            let service = unsafe { local.serve(&variable) };
            assert_eq!(local.ask(&Requester::new(), amo(8, ADD)), None);
            drop(service);
            assert_eq!(variable.into_inner(), 5);
        });
    }
}
