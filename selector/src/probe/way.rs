// SPDX-License-Identifier: Apache-2.0
//! One operation over one channel, as it is timed.

use super::Scratch;
use super::clock::give_way;
use crate::data::{Buffer, Operation};
use std::fmt;
use std::time::{Duration, Instant};
use tombolo_core::load::Loads;
use tombolo_core::route::{Either, Stripes};
use tombolo_core::transport::{
    Amo, AmoOp, Capabilities, Carrier, Carriers, Endpoint, Remote, SegmentKind, Status, Stream,
    Transport,
};
use tombolo_core::{Context, World, amo, copy};

/// Operations that are under way together in a pipeline.
pub const PIPELINE: usize = 16;

/// Blocking puts that follow each other.
pub const SERIES: usize = 4;

/// Single operations of one that is timed.
pub fn operations(operation: Operation) -> usize {
    match operation {
        Operation::Pipeline => PIPELINE,
        Operation::Blocking | Operation::ZeroCopy | Operation::CarriedBlocking => SERIES,
        Operation::Put
        | Operation::Carried
        | Operation::Get
        | Operation::Amo
        | Operation::PutRead
        | Operation::GetRead
        | Operation::Meeting
        | Operation::MetPut
        | Operation::MetGet
        | Operation::BothPut
        | Operation::BothGet
        | Operation::Handed => 1,
    }
}

/// An operation that takes longer will not come back.
const PATIENCE: Duration = Duration::from_secs(2);

const ROUTINE: &str = "measuring channels";

/// Why a channel dropped out while it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// An operation failed.
    Failed,
    /// An operation did not complete.
    Stuck,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Failed => f.write_str("failed while it was measured"),
            Lost::Stuck => write!(f, "an operation did not complete within {PATIENCE:?}"),
        }
    }
}

/// A channel to the target.
pub struct Way<'a> {
    /// Its name.
    pub name: String,
    /// How it works.
    pub kind: WayKind<'a>,
}

/// How a channel works.
pub enum WayKind<'a> {
    /// Mapped memory: where the target's heap and static data are, null where they are not.
    Mapped {
        /// By segment.
        bases: [*mut u8; 2],
        /// With stores that bypass the caches.
        streaming: bool,
    },
    /// An endpoint.
    Endpoint {
        /// The data path.
        endpoint: &'a dyn Endpoint,
        /// Index of its transport.
        index: usize,
        /// What alone is to carry its puts; all carriers, by their sizes, if none.
        carrier: Option<Carrier>,
    },
    /// Two endpoints at the same time.
    Striped {
        /// Of each its data path and the index of its transport.
        parts: [(&'a dyn Endpoint, usize); 2],
        /// Of 256 bytes those that the first one carries, of a put and of a get.
        first: [u8; 2],
    },
    /// One of two endpoints, by what both have under way.
    Either {
        /// Of each its data path and the index of its transport.
        parts: [(&'a dyn Endpoint, usize); 2],
        /// What is expected of a put by them.
        expected: Either,
        /// What they have under way.
        loads: Loads,
    },
    /// The target's request queue.
    Service,
}

/// Where one operation takes place.
pub struct Buffers {
    remote: Remote,
    local: *mut u8,
    len: usize,
    /// Bytes by which successive operations are apart, and how many places there are.
    stride: usize,
    places: usize,
    /// The place of the first operation.
    first: usize,
}

impl Buffers {
    /// Places for an operation on `len` bytes; none where there is no such buffer.
    pub fn of(world: &World, scratch: &mut Scratch, buffer: Buffer, len: usize) -> Option<Buffers> {
        let (mut remote, mut local) = (scratch.inbound(), scratch.outbound());
        let (mut stride, mut places) = (0, 1);
        match buffer {
            Buffer::Heap => {}
            Buffer::Private => local = scratch.private(),
            Buffer::Unaligned => {
                (remote, local) = (remote.wrapping_add(3), scratch.private().wrapping_add(1));
            }
            Buffer::Static => {
                let data = world.static_data()?;
                // Only read: it is the program's.
                (data.first_len() >= len).then_some(())?;
                (remote, local) = (data.base(), scratch.private());
            }
            Buffer::Cold | Buffer::ColdPrivate => {
                if buffer == Buffer::ColdPrivate {
                    local = scratch.private();
                }
                (stride, places) = (len, scratch.capacity() / len);
                // Fewer places would stay in the caches.
                (places >= 4).then_some(())?;
            }
        }
        scratch.touch(if places > 1 { stride * places } else { len.max(64 * PIPELINE) });
        let remote = world.locate(remote)?;
        Some(Buffers { remote, local, len, stride, places, first: 0 })
    }

    /// Places that successive operations go through.
    pub fn places(&self) -> usize {
        self.places
    }

    /// The same, of which the first place is the one at so many bytes.
    pub fn starting_at(self, shift: usize) -> Buffers {
        Buffers { first: shift / self.stride.max(1), ..self }
    }

    /// Bytes from the very first place to that of an operation.
    pub fn shift(&self, round: usize) -> usize {
        (self.first + round) % self.places * self.stride
    }

    fn place(&self, round: usize) -> (Remote, *mut u8) {
        let shift = self.shift(round);
        let remote = Remote { offset: self.remote.offset + shift, ..self.remote };
        (remote, self.local.wrapping_add(shift))
    }
}

impl Way<'_> {
    /// Whether the channel carries out an operation, as the core would use it.
    pub fn can(&self, world: &World, operation: Operation, buffer: Buffer, bytes: u64) -> bool {
        let segment = buffer.segment();
        match &self.kind {
            WayKind::Mapped { bases, streaming } => {
                // Hot copies that fit into the caches never gain from bypassing them.
                let large = bytes >= super::plan::STREAMING_FROM || buffer.is_cold();
                !bases[segment as usize].is_null()
                    && match operation {
                        Operation::Put | Operation::Get => large || !streaming,
                        Operation::PutRead | Operation::GetRead => true,
                        Operation::Amo => !streaming,
                        Operation::Pipeline
                        | Operation::Blocking
                        | Operation::ZeroCopy
                        | Operation::Carried
                        | Operation::CarriedBlocking
                        | Operation::Meeting
                        | Operation::MetPut
                        | Operation::MetGet
                        | Operation::BothPut
                        | Operation::BothGet
                        | Operation::Handed => false,
                    }
            }
            WayKind::Endpoint { endpoint, carrier, .. } => {
                let can = endpoint.capabilities(segment);
                // Single words are sent as AMOs where the endpoint might tear them.
                let word_safe = can.whole_words || bytes > 8;
                let fits = world.static_data().is_some() || segment == SegmentKind::Heap;
                can.reach()
                    && carrier.is_some() == operation.compares_carriers()
                    && can.put_align.max(can.get_align) <= 1
                    && fits
                    && !buffer.is_cold()
                    && bytes < super::HUGE
                    && match operation {
                        Operation::Put
                        | Operation::Pipeline
                        | Operation::Carried
                        | Operation::CarriedBlocking => can.put && word_safe,
                        // What the initiator does by itself is complete on return: no copy is made.
                        Operation::Blocking | Operation::ZeroCopy => {
                            can.put && word_safe && can.needs_target_cpu
                        }
                        Operation::Get => can.get,
                        Operation::Amo => can.amos.has(AmoOp::Add, 8),
                        // They tell plain copies on mapped memory apart.
                        Operation::PutRead | Operation::GetRead => false,
                        // They take both PEs.
                        Operation::Meeting
                        | Operation::MetPut
                        | Operation::MetGet
                        | Operation::BothPut
                        | Operation::BothGet
                        | Operation::Handed => false,
                    }
            }
            WayKind::Striped { parts, .. } => {
                let both = |able: fn(&Capabilities) -> bool| {
                    parts.iter().all(|(endpoint, _)| able(&endpoint.capabilities(segment)))
                };
                buffer == Buffer::Heap
                    && match operation {
                        Operation::Put => both(|can| can.put && can.put_align <= 1),
                        Operation::Get => both(|can| can.get && can.get_align <= 1),
                        _ => false,
                    }
            }
            WayKind::Either { parts, .. } => {
                let able = |endpoint: &dyn Endpoint| {
                    let can = endpoint.capabilities(segment);
                    can.put && can.put_align <= 1
                };
                buffer == Buffer::Heap
                    && operation == Operation::Pipeline
                    && parts.iter().all(|(endpoint, _)| able(*endpoint))
            }
            WayKind::Service => operation == Operation::Amo,
        }
    }

    /// To be called before operations of which some are to have a carrier of their own.
    pub fn prepare(&self) {
        if let WayKind::Endpoint { endpoint, carrier: Some(carrier), .. } = self.kind {
            endpoint.set_carriers(Carriers::only(carrier));
        }
    }

    /// Carries out one operation and waits for it.
    pub fn perform(
        &self,
        (world, context, target): (&World, &Context, usize),
        operation: Operation,
        buffers: &Buffers,
        round: usize,
    ) -> Result<(), Lost> {
        let (remote, local) = buffers.place(round);
        let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
        match &self.kind {
            WayKind::Mapped { bases, streaming } => {
                let there = bases[remote.segment as usize].wrapping_add(remote.offset);
                let (dest, source) = match operation {
                    Operation::Get | Operation::GetRead => (local, there),
                    _ => (there, local),
                };
                // SAFETY: both ranges lie in scratch memory (or, for reading, in static data) of
                // at least `len` bytes, and do not overlap.
                unsafe {
                    match (operation, streaming) {
                        (Operation::Amo, _) => {
                            std::hint::black_box(amo::execute(there, add));
                        }
                        (_, false) => copy::cached(dest, source, buffers.len),
                        (_, true) => copy::streaming(dest, source, buffers.len),
                    }
                    if matches!(operation, Operation::PutRead | Operation::GetRead) {
                        read_through(dest, buffers.len);
                    }
                }
                Ok(())
            }
            WayKind::Endpoint { endpoint, index, .. } => {
                let issuer = Issuer::of(world, context, (*endpoint, *index));
                for _ in 0..operations(operation) {
                    issuer.issue(operation, remote, local, buffers.len, add)?;
                    if operation == Operation::ZeroCopy {
                        issuer.complete()?;
                    }
                }
                issuer.complete()
            }
            WayKind::Striped { parts, first } => {
                let stripes = Stripes {
                    transports: parts.map(|(_, index)| index as u8),
                    first: first[usize::from(operation == Operation::Get)],
                };
                let first_len = stripes.first_len(buffers.len);
                let issuers = parts.map(|part| Issuer::of(world, context, part));
                issuers[0].issue(operation, remote, local, first_len, add)?;
                let rest = Remote { offset: remote.offset + first_len, ..remote };
                let (here, len) = (local.wrapping_add(first_len), buffers.len - first_len);
                issuers[1].issue(operation, rest, here, len, add)?;
                issuers[0].complete()?;
                issuers[1].complete()
            }
            WayKind::Either { parts, expected, loads } => {
                let issuers = parts.map(|part| Issuer::of(world, context, part));
                for _ in 0..operations(operation) {
                    let chosen = loads.give(expected, buffers.len, context.streams());
                    let issuer = &issuers[usize::from(chosen == expected.transports[1])];
                    issuer.issue(operation, remote, local, buffers.len, add)?;
                }
                issuers[0].complete()?;
                issuers[1].complete()
            }
            WayKind::Service => {
                let variable = world.heap().base().wrapping_add(remote.offset);
                std::hint::black_box(world.amo_fetch(context, variable, add, target, ROUTINE));
                Ok(())
            }
        }
    }
}

/// Reads a word of each cache line, as a program does that uses what arrived.
///
/// # Safety
///
/// `len` bytes from `from` on can be read, and `from` is aligned to a word.
unsafe fn read_through(from: *const u8, len: usize) {
    let words = from.cast::<u64>();
    let sum = (0..len / 64).fold(0u64, |sum, line| {
        // SAFETY: the word lies in the range, which the caller vouches for.
        sum.wrapping_add(unsafe { words.wrapping_add(line * 8).read_volatile() })
    });
    std::hint::black_box(sum);
}

struct Issuer<'a> {
    world: &'a World,
    transport: &'a dyn Transport,
    endpoint: &'a dyn Endpoint,
    stream: &'a Stream,
}

impl<'a> Issuer<'a> {
    fn of(
        world: &'a World,
        context: &'a Context,
        (endpoint, index): (&'a dyn Endpoint, usize),
    ) -> Issuer<'a> {
        let (transport, stream) = (&*world.transports()[index], context.stream(index));
        Issuer { world, transport, endpoint, stream }
    }

    fn issue(
        &self,
        operation: Operation,
        remote: Remote,
        local: *mut u8,
        len: usize,
        add: Amo,
    ) -> Result<(), Lost> {
        if operation == Operation::Amo {
            // SAFETY: an aligned word of scratch memory there, and one here for the old value.
            return self
                .accepted(|| unsafe { self.endpoint.amo(self.stream, remote, add, Some(local)) });
        }
        let can = self.endpoint.capabilities(remote.segment);
        let piece = if operation == Operation::Get { can.get_max } else { can.put_max };
        // As the core does it.
        let waits = operation == Operation::Blocking && len > can.inline_max;
        for at in (0..len).step_by(piece.max(1)) {
            let (place, len) =
                (Remote { offset: remote.offset + at, ..remote }, piece.min(len - at));
            let here = local.wrapping_add(at);
            // SAFETY: parts of scratch memory, valid until the operation is complete; memory of
            // operations that never complete is not given back.
            self.accepted(|| unsafe {
                match operation {
                    Operation::Get => self.endpoint.get(self.stream, here, place, len),
                    Operation::Blocking | Operation::CarriedBlocking => {
                        self.endpoint.put(self.stream, place, here, len, !waits)
                    }
                    _ => self.endpoint.put(self.stream, place, here, len, false),
                }
            })?;
        }
        if waits { self.complete() } else { Ok(()) }
    }

    fn accepted(&self, mut attempt: impl FnMut() -> Status) -> Result<(), Lost> {
        let mut status = attempt();
        self.until(|| {
            if status == Status::Again {
                status = attempt();
            }
            status != Status::Again
        })?;
        if status == Status::Failed { Err(Lost::Failed) } else { Ok(()) }
    }

    fn complete(&self) -> Result<(), Lost> {
        use std::sync::atomic::Ordering;
        let failed = || self.stream.failed.load(Ordering::Relaxed) != 0;
        self.until(|| self.transport.quiet(self.stream) != Status::Pending || failed())?;
        // What was under way when a peer was lost may still arrive.
        if failed() { Err(Lost::Stuck) } else { Ok(()) }
    }

    /// Waits with progress; yields to peers that may need this processor.
    fn until(&self, mut ready: impl FnMut() -> bool) -> Result<(), Lost> {
        if ready() {
            return Ok(());
        }
        let begun = Instant::now();
        for turn in 1u32.. {
            self.world.progress();
            if ready() {
                return Ok(());
            }
            if turn.is_multiple_of(64) {
                if begun.elapsed() > PATIENCE {
                    return Err(Lost::Stuck);
                }
                if begun.elapsed() > Duration::from_micros(50) {
                    give_way();
                }
            }
        }
        Ok(())
    }
}
