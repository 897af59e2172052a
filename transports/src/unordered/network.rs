// SPDX-License-Identifier: Apache-2.0
//! What is under way, and when it arrives.

use super::local::{Lender, Lent, Local};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tombolo_core::random::Random;
use tombolo_core::transport::{Amo, Blocks, Capabilities, Stream};
use tombolo_core::{amo, copy};

/// An address in mapped memory of a peer, or in this process.
#[derive(Clone, Copy, Debug)]
pub struct Pointer(pub *mut u8);

// SAFETY: an address; who makes it vouches for the memory.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Pointer {
    pub fn add(self, bytes: usize) -> Pointer {
        Pointer(self.0.wrapping_add(bytes))
    }
}

/// Where a put takes its bytes from.
pub enum Source {
    /// They were copied.
    Now(Box<[u8]>),
    /// They are read when a piece arrives.
    Later(Local),
}

/// How the words of a put appear.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Aligned ones whole.
    pub whole: bool,
    /// The last one of a short put after the others.
    pub end_last: bool,
}

impl Words {
    /// Where the end of a put begins that must not appear before the rest.
    fn end(self, to: Far, len: usize) -> Option<usize> {
        let Far::Place(to) = to else { return None };
        let is_short = (16..=64).contains(&len) && to.0.addr().is_multiple_of(8);
        (self.end_last && is_short).then(|| len - 8)
    }
}

/// Where the bytes of an operation are at the peer.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// One behind the other.
    Place(Pointer),
    /// In blocks, the first of which is here.
    Blocks(Pointer, Blocks),
}

impl Far {
    /// Where byte `at` of the operation is.
    fn add(self, at: usize) -> Pointer {
        match self {
            Far::Place(first) => first.add(at),
            Far::Blocks(first, Blocks { len, stride, .. }) => {
                first.add(at / len * stride + at % len)
            }
        }
    }

    /// Bytes of each part of an operation of `len` bytes that has no gaps.
    fn part(self, len: usize) -> usize {
        match self {
            Far::Place(_) => len,
            Far::Blocks(_, blocks) => blocks.len,
        }
    }
}

/// An operation.
pub enum Action {
    /// A put, perhaps with a signal.
    Put { from: Source, to: Far, len: usize, words: Words, signal: Option<(Pointer, Amo)> },
    /// A get.
    Get { from: Far, to: Local, len: usize },
    /// An AMO.
    Amo { at: Pointer, amo: Amo, result: Option<Local> },
}

impl Action {
    /// Where the end begins that must not arrive before the rest.
    fn end(&self) -> Option<usize> {
        let Action::Put { to, len, words, .. } = self else { return None };
        words.end(*to, *len)
    }

    /// The buffer in this process, with its length.
    fn local(&self) -> Option<(Local, usize)> {
        match self {
            Action::Put { from: Source::Now(_), .. } => None,
            Action::Put { from: Source::Later(local), len, .. } => Some((*local, *len)),
            Action::Get { to, len, .. } => Some((*to, *len)),
            Action::Amo { amo, result, .. } => Some(((*result)?, amo.size.into())),
        }
    }
}

/// An operation under way.
struct Operation {
    stream: *const Stream,
    id: u32,
    pe: usize,
    /// Operations issued before it.
    number: u64,
    /// Fences that its stream has made before it.
    fences: u64,
    action: Action,
    /// Start and length of what has not arrived yet, and when it does.
    pieces: Vec<(usize, usize, u64)>,
    /// When an operation of which all has arrived is told to be complete.
    told_at: u64,
    /// Its completion is told only after somebody has asked.
    unasked: bool,
    /// What was lent for it.
    lent: Option<Lent>,
    /// Its buffer was not registered when it was needed.
    is_refused: bool,
}

// SAFETY: the stream is alive until the operation is complete, by the contract of endpoints.
unsafe impl Send for Operation {}

/// All operations of a PE that are under way.
pub struct Network {
    state: Mutex<State>,
    /// Operations under way, to be looked at without the lock.
    count: AtomicU64,
}

struct State {
    random: Random,
    /// Apart from the rest, so that it does not change what else the seed says.
    rarely: Random,
    now: u64,
    /// Pieces that arrived, and operations that were told to be complete.
    happened: u64,
    /// Longest delay of anything.
    delay: u64,
    /// Operations of a stream to a PE become visible in the order issued.
    ordered: bool,
    operations: Vec<Operation>,
    issued: u64,
    /// Fences by stream.
    fences: Vec<(u32, u64)>,
    lender: Lender,
}

/// How much later than others a piece may arrive, in longest delays.
const LATE: u64 = 40;

/// Time that passes at most before the caller looks for something that has happened. A PE that shares a processor gives
/// it to others between two calls.
const IDLE: u32 = 8;

/// Operations under way at the most.
const ROOM: u64 = 64;

impl Network {
    /// A network that behaves as the seed says, but for the order if it is `ordered`. `own` is this PE's symmetric memory: address and length
    /// of each segment.
    pub fn new(seed: u64, pe: usize, ordered: bool, own: &[(usize, usize)]) -> Network {
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(pe as u64));
        let delay = random.pick(&[1, 3, 10]);
        let (operations, fences) = (Vec::new(), Vec::new());
        // Drawn apart, so that it does not change what else the seed says.
        let copied_max = Random::new(seed.wrapping_mul(7_919)).pick(&[0, 64, 2048]);
        let lender = Lender::new(ROOM as u16, copied_max, own);
        let (now, happened, issued) = (0, 0, 0);
        let rarely = Random::new(seed.wrapping_mul(15_485_863).wrapping_add(pe as u64));
        let state = State {
            random,
            rarely,
            now,
            happened,
            delay,
            ordered,
            operations,
            issued,
            fences,
            lender,
        };
        Network { state: Mutex::new(state), count: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an operation is taken now.
    pub fn has_room(&self) -> bool {
        if self.count.load(Ordering::Relaxed) < ROOM {
            return !self.lock().random.one_in(8);
        }
        // Nobody may ever ask for the completion of what takes the room.
        self.lock().operations.iter_mut().for_each(|operation| operation.unasked = false);
        false
    }

    /// A buffer of this process in registered memory: where it is, or a copy. With `is_source` it is
    /// read, otherwise written. None if there is no room for it now.
    ///
    /// # Safety
    /// The buffer is valid for `len` bytes until the operation is complete that it is lent for.
    pub unsafe fn lend(&self, at: *mut u8, len: usize, is_source: bool) -> Option<(Local, Lent)> {
        // SAFETY: by the caller's word.
        unsafe { self.lock().lender.lend(at, len, is_source) }
    }

    /// Takes an operation on PE `pe`, with what was lent for it.
    ///
    /// # Panics
    /// If its local buffer is not registered: this network reaches no other memory.
    pub fn submit(&self, stream: &Stream, pe: usize, action: Action, lent: Option<Lent>) {
        let mut state = self.lock();
        if let Some((local, len)) = action.local() {
            let registered = state.lender.is_registered(local, 0, len);
            assert!(registered, "the {len} bytes at {:p} are not registered", local.place.0);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let cuts = match &action {
            Action::Put { to, len, words, .. } => {
                let end = words.end(*to, *len).unwrap_or(*len);
                let whole = words.whole && *len <= Capabilities::WHOLE;
                let mut cuts = state.cut(*to, 0, end, whole);
                cuts.extend(state.cut(*to, end, *len, whole));
                cuts
            }
            Action::Get { from, len, .. } => state.cut(*from, 0, *len, true),
            Action::Amo { amo, .. } => vec![(0, amo.size.into())],
        };
        let mut pieces: Vec<_> =
            cuts.into_iter().map(|(at, len)| (at, len, state.later())).collect();
        // Now and then many other operations pass a piece.
        if !pieces.is_empty() && state.rarely.one_in(32) {
            let piece = state.rarely.below(pieces.len() as u64) as usize;
            pieces[piece].2 += LATE * state.delay;
        }
        let fences = *state.fences_of(stream.id);
        let (told_at, unasked) = (state.later() + state.delay, state.random.one_in(4));
        let (stream, id) = (std::ptr::from_ref(stream), stream.id);
        let number = state.issued;
        state.issued += 1;
        state.operations.push(Operation {
            stream,
            id,
            pe,
            number,
            fences,
            action,
            pieces,
            told_at,
            unasked,
            lent,
            is_refused: false,
        });
    }

    /// Puts what the stream issued before what it issues from now on, PE by PE. False if it cannot now.
    pub fn fence(&self, stream: &Stream) -> bool {
        let mut state = self.lock();
        if !stream.is_quiet() && state.rarely.one_in(4) {
            return false;
        }
        *state.fences_of(stream.id) += 1;
        true
    }

    /// Somebody asks for the completion of a stream.
    pub fn confirm(&self, stream: &Stream) {
        let mut state = self.lock();
        let own = state.operations.iter_mut().filter(|o| std::ptr::eq(o.stream, stream));
        own.for_each(|operation| operation.unasked = false);
    }

    /// Whether no operation of a stream on a PE is under way.
    pub fn is_quiet_to(&self, pe: usize, stream: &Stream) -> bool {
        let state = self.lock();
        let mut all = state.operations.iter();
        !all.any(|operation| operation.pe == pe && std::ptr::eq(operation.stream, stream))
    }

    /// Time goes on, by one if something happens then, otherwise by up to [`IDLE`]; true while anything is under way that
    /// goes on by itself, and not only when somebody asks.
    pub fn step(&self) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = self.lock();
        let mut done = 0;
        for _ in 0..IDLE {
            let happened = state.happened;
            done += state.step();
            if state.happened != happened {
                break;
            }
        }
        self.count.fetch_sub(done, Ordering::Relaxed);
        state.operations.iter().any(|operation| !operation.unasked || !operation.pieces.is_empty())
    }
}

impl State {
    fn later(&mut self) -> u64 {
        self.now + self.random.below(self.delay + 1)
    }

    fn fences_of(&mut self, stream: u32) -> &mut u64 {
        let index = self.fences.iter().position(|(id, _)| *id == stream).unwrap_or_else(|| {
            self.fences.push((stream, 0));
            self.fences.len() - 1
        });
        &mut self.fences[index].1
    }

    /// Cuts the bytes from `at` to `len` at random places, but not inside aligned words of 4 and 8 bytes
    /// unless those may be torn.
    fn cut(
        &mut self,
        far: Far,
        mut at: usize,
        len: usize,
        whole_words: bool,
    ) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        while at < len {
            let here = far.add(at).0 as usize;
            let part = far.part(len);
            let left = (part - at % part).min(len - at);
            let step = match () {
                () if !whole_words => 1 + self.random.below(3) as usize,
                () if here.is_multiple_of(8) && left >= 8 => {
                    8 * (1 + self.random.below(32) as usize).min(left / 8)
                }
                () if here.is_multiple_of(4) && left >= 4 => 4,
                () => 1,
            };
            let step = step.min(left);
            pieces.push((at, step));
            at += step;
        }
        pieces
    }

    /// What is due arrives, and is told to be complete. Gives the number of operations that are.
    fn step(&mut self) -> u64 {
        self.now += 1;
        let mut done = 0;
        let mut index = 0;
        while index < self.operations.len() {
            if !self.waits(index) {
                self.arrive(index);
            }
            let operation = &self.operations[index];
            let told =
                operation.pieces.is_empty() && !operation.unasked && operation.told_at <= self.now;
            if told {
                // Others change places, so that their order is lost too.
                let operation = self.operations.swap_remove(index);
                if let Some(lent) = operation.lent {
                    // SAFETY: the issuer vouches for its buffer until now.
                    unsafe { self.lender.take_back(lent) };
                }
                // SAFETY: alive until the operation is complete, which it is from here on.
                let stream = unsafe { &*operation.stream };
                match operation.is_refused {
                    true => stream.fail(operation.pe as u32, true),
                    false => _ = stream.completed.fetch_add(1, Ordering::Release),
                }
                done += 1;
                self.happened += 1;
            } else {
                index += 1;
            }
        }
        done
    }

    /// Whether something has not arrived yet that comes before an operation: before the last fence of its
    /// stream, or at all where order is kept.
    fn waits(&self, index: usize) -> bool {
        let this = &self.operations[index];
        let before = |o: &Operation| {
            let earlier = o.fences < this.fences || self.ordered && o.number < this.number;
            (o.id, o.pe) == (this.id, this.pe) && earlier
        };
        (this.fences > 0 || self.ordered)
            && self.operations.iter().any(|o| before(o) && !o.pieces.is_empty())
    }

    fn arrive(&mut self, index: usize) {
        let mut rest = std::mem::take(&mut self.operations[index].pieces);
        if rest.is_empty() {
            return;
        }
        let end = self.operations[index].action.end().unwrap_or(usize::MAX);
        let mut left = Vec::<(usize, usize, u64)>::new();
        // The pieces of the end are the last ones.
        for (at, len, due) in rest.drain(..) {
            let is_held = at >= end && left.iter().any(|(earlier, ..)| *earlier < end);
            if due > self.now || is_held {
                left.push((at, len, due));
                continue;
            }
            let action = &self.operations[index].action;
            let registered = |(local, _)| self.lender.is_registered(local, at, len);
            if !action.local().is_none_or(registered) {
                // What a network card does: an error, and no more of the operation.
                self.operations[index].is_refused = true;
                return;
            }
            // SAFETY: operations keep to the ranges that their issuers vouched for, until they are
            // complete.
            let again = unsafe { deliver(action, at, len) };
            self.happened += 1;
            if again && self.random.one_in(8) {
                left.push((at, len, self.later() + 1));
            }
        }
        if left.is_empty()
            && let Action::Put { signal: Some((word, update)), .. } = &self.operations[index].action
        {
            // SAFETY: as above; signal words are aligned.
            unsafe { amo::update(word.0, *update) };
        }
        self.operations[index].pieces = left;
    }
}

/// Carries out a piece of an operation; true if it may arrive again.
///
/// # Safety
/// The operation's ranges are valid.
unsafe fn deliver(action: &Action, at: usize, len: usize) -> bool {
    // SAFETY: by the caller's word.
    unsafe {
        match action {
            Action::Put { from, to, .. } => {
                let from = match from {
                    Source::Now(bytes) => bytes[at..at + len].as_ptr(),
                    Source::Later(local) => local.place.add(at).0.cast_const(),
                };
                words(to.add(at).0, from, len);
                true
            }
            Action::Get { from, to, .. } => {
                words(to.place.add(at).0, from.add(at).0, len);
                true
            }
            Action::Amo { at, amo, result } => {
                let old = amo::execute(at.0, *amo);
                if let Some(result) = result {
                    copy::cached(result.place.0, (&raw const old).cast(), amo.size.into());
                }
                false
            }
        }
    }
}

/// Copies by single accesses of 8 bytes where there are as many, so that no word is torn.
///
/// # Safety
/// Both ranges are valid for `len` bytes.
unsafe fn words(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        let step = if len - at >= 8 { 8 } else { len - at };
        // SAFETY: by the caller's word.
        unsafe { copy::cached(to.add(at), from.add(at), step) };
        at += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 256;
    const WHOLE: Words = Words { whole: true, end_last: false };

    /// A network of a PE whose symmetric memory is `own`, and a put from there to `to`.
    fn put(own: &mut [u8; LEN], to: &mut [u8; LEN], local: impl Fn(&Network) -> Local) -> Stream {
        let segment = (own.as_ptr() as usize, LEN);
        let network = Network::new(1, 0, false, &[segment]);
        let stream = Stream::new(0, true);
        let (from, to) = (Source::Later(local(&network)), Far::Place(Pointer(to.as_mut_ptr())));
        stream.issued.fetch_add(1, Ordering::Relaxed);
        let action = Action::Put { from, to, len: LEN, words: WHOLE, signal: None };
        network.submit(&stream, 3, action, None);
        network.confirm(&stream);
        while !stream.is_quiet() {
            network.step();
        }
        stream
    }

    #[test]
    fn symmetric_memory_is_registered() {
        let (mut own, mut to) = ([7; LEN], [0; LEN]);
        let at = own.as_mut_ptr();
        // SAFETY: the array outlives the put.
        let local = |network: &Network| unsafe { network.lend(at, LEN, true).unwrap().0 };
        assert_eq!(put(&mut own, &mut to, local).failed.into_inner(), 0);
        assert_eq!(to, [7; LEN]);
    }

    #[test]
    #[should_panic = "are not registered"]
    fn a_buffer_that_is_not_registered_is_refused() {
        let (mut own, mut to, mut other) = ([7; LEN], [0; LEN], [9; LEN]);
        let (at, private) = (own.as_mut_ptr(), other.as_mut_ptr());
        // The registration of one buffer does not hold for another.
        // SAFETY: the array outlives the put.
        let key = |network: &Network| unsafe { network.lend(at, LEN, true).unwrap().0 };
        let local = |network: &Network| Local { place: Pointer(private), ..key(network) };
        put(&mut own, &mut to, local);
    }

    #[test]
    fn a_buffer_whose_registration_is_taken_back_under_way_fails_the_operation() {
        let mut to = [0; LEN];
        let mut private = vec![9u8; 8192];
        let network = Network::new(1, 0, false, &[]);
        let stream = Stream::new(0, true);
        // SAFETY: the buffer outlives the operation.
        let (local, lent) = unsafe { network.lend(private.as_mut_ptr(), 8192, true) }.unwrap();
        let (from, to) = (Source::Later(local), Far::Place(Pointer(to.as_mut_ptr())));
        stream.issued.fetch_add(1, Ordering::Relaxed);
        let action = Action::Put { from, to, len: LEN, words: WHOLE, signal: None };
        network.submit(&stream, 3, action, None);
        // SAFETY: as above; this is the fault.
        unsafe { network.lock().lender.take_back(lent) };
        network.lock().lender.forget_all();
        network.confirm(&stream);
        while !stream.is_quiet() {
            network.step();
        }
        assert_eq!(stream.failed.into_inner(), Stream::REFUSED | 4);
    }

    /// Every look at the destination of a short put finds the end only together with the rest.
    #[test]
    fn the_end_of_a_short_put_arrives_last() {
        let mut pieces_seen = 0;
        for seed in 0..200 {
            let (mut to, network) = ([0u64; 8], Network::new(seed, 0, false, &[]));
            let stream = Stream::new(0, true);
            stream.issued.fetch_add(1, Ordering::Relaxed);
            let at = to.as_mut_ptr();
            let words = Words { whole: seed % 2 == 0, end_last: true };
            let (from, to) = (Source::Now(Box::new([9; 64])), Far::Place(Pointer(at.cast())));
            network.submit(
                &stream,
                3,
                Action::Put { from, to, len: 64, words, signal: None },
                None,
            );
            network.confirm(&stream);
            while !stream.is_quiet() {
                network.step();
                // SAFETY: the array outlives the put.
                let now = unsafe { at.cast::<[u8; 64]>().read_volatile() };
                let rest = now[..56].iter().filter(|byte| **byte == 9).count();
                let end = now[56..].iter().filter(|byte| **byte == 9).count();
                assert!(end == 0 || rest == 56, "seed {seed}: {now:?}");
                pieces_seen += usize::from(rest > 0 && rest < 56);
            }
        }
        assert!(pieces_seen > 100, "too few puts came in pieces: {pieces_seen}");
    }
}
