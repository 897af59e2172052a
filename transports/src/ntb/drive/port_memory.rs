// SPDX-License-Identifier: Apache-2.0
//! The [`Memory`] of an engine on real ports: its region of each window, the memory of this host's PEs,
//! the doorbell of its lane, and the streams whose operations end.
//!
//! Where a port has a DMA engine that is used, it moves the payload of long packets, and the header line
//! behind each: the CPU's stores have no order with its writes. Whatever finds no room in the
//! engine's queue, or lies in memory that the engine cannot read, the CPU moves. All other lines are the
//! CPU's, too: no protocol relies on their order with packets.

use super::jam::Jam;
use super::memory::{self, HostMemory};
use super::packet_engine::PacketEngine;
use super::token::token_parts;
use crate::ntb::port::{self, InboundMemory, NtbPort, Outbound, PortError};
use crate::ntb::ring::{
    Completion, Config, Event, LINE, LineWords, Location, Memory, OutOfRange, STEP_BYTES, Side,
    Span, Step, Steps, Transfer,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tombolo_core::copy;
use tombolo_core::transport::Amo;

/// Events kept for the service thread; more are dropped, as they only describe.
const EVENTS: usize = 64;
/// One side of a lane.
pub struct SideParts {
    pub port: Arc<dyn NtbPort>,
    pub inbound: Arc<InboundMemory>,
    pub outbound: Box<dyn Outbound>,
    pub engine: Option<PacketEngine>,
    /// The CPU stores long payloads in steps: the link is slower than memory.
    pub in_steps: bool,
}

struct SideState {
    port: Arc<dyn NtbPort>,
    inbound: Arc<InboundMemory>,
    outbound: Box<dyn Outbound>,
    /// All of the neighbour's region is open for what is stored and sent.
    open: bool,
    /// Stores leave in any order until a flush.
    combining: bool,
    /// Something was stored since the last flush.
    dirty: bool,
    jam: Jam,
    engine: Option<PacketEngine>,
    /// Where the CPU stores in steps and no engine does.
    steps: Option<Steps>,
}

/// What an engine reads and writes. Used under the lane's lock, by one thread at a time.
pub struct PortMemory {
    sides: [SideState; 2],
    /// Where this lane's region lies in the windows.
    start: usize,
    /// Bytes of it.
    region_bytes: usize,
    doorbell: u64,
    /// Bytes of the retained area that stay as they are until their packets have been acknowledged.
    kept_bytes: usize,
    /// Written through pointers that `kept` makes of a shared borrow, which atomics allow.
    retained: Box<[AtomicU64]>,
    memory: HostMemory,
    events: VecDeque<Event>,
    refused: u64,
}

impl PortMemory {
    /// For the lane whose region is `region` of the windows. `sides` by [`Side`].
    pub fn new(
        sides: [SideParts; 2],
        region: Range<usize>,
        doorbell: u64,
        config: &Config,
    ) -> PortMemory {
        let state = |parts: SideParts| SideState {
            combining: parts.port.capabilities().write_combining,
            port: parts.port,
            inbound: parts.inbound,
            outbound: parts.outbound,
            open: false,
            dirty: false,
            jam: Jam::default(),
            steps: (parts.in_steps && parts.engine.is_none()).then(Steps::new),
            engine: parts.engine,
        };
        PortMemory {
            sides: sides.map(state),
            start: region.start,
            region_bytes: region.len(),
            doorbell,
            kept_bytes: config.kept_bytes(),
            retained: (0..config.retained_bytes().div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
            memory: HostMemory::default(),
            events: VecDeque::with_capacity(EVENTS),
            refused: 0,
        }
    }

    /// Hands over the memory that packets are delivered to.
    pub fn deliver_to(&mut self, memory: HostMemory) {
        self.memory = memory;
    }

    /// Opens the neighbour's region at `side` for what is stored and sent from now on.
    pub fn open(&mut self, side: Side) -> Result<(), PortError> {
        let (start, len) = (self.start, self.region_bytes);
        let state = &mut self.sides[side as usize];
        if let Some(engine) = &mut state.engine {
            engine.open = false;
        }
        state.open = false;
        state.outbound.open(start, len)?;
        state.open = true;
        self.open_engine(side)
    }

    /// Whether all of the region at `side` has been opened since the link there came up.
    pub fn is_open(&self, side: Side) -> bool {
        self.sides[side as usize].open
    }

    /// The same for the DMA engine, if that is still to be done. It comes after the CPU: a link whose
    /// lines get through then lets packets through, too.
    pub fn open_engine(&mut self, side: Side) -> Result<(), PortError> {
        let (start, len) = (self.start, self.region_bytes);
        let Some(engine) = &mut self.sides[side as usize].engine else { return Ok(()) };
        engine.open = engine.open || engine.writer.open(start, len);
        if engine.open { Ok(()) } else { Err(PortError::NotConnected) }
    }

    /// The link at `side` has changed.
    pub fn cut(&mut self, side: Side) {
        self.sides[side as usize].open = false;
        if let Some(steps) = &mut self.sides[side as usize].steps {
            steps.clear();
        }
        if let Some(engine) = &mut self.sides[side as usize].engine {
            engine.writer.cut();
            engine.open = false;
        }
    }

    /// The DMA engines are not used any more.
    pub fn close_engines(&mut self) {
        let engines = self.sides.iter().filter_map(|side| side.engine.as_ref());
        engines.for_each(|engine| engine.writer.close());
    }

    /// Lets what was stored and sent go on its way.
    pub fn flush(&mut self) {
        self.sides.iter_mut().for_each(SideState::flush);
    }

    /// See [`NtbPort::poll`].
    pub fn poll(&mut self) {
        for state in &mut self.sides {
            state.port.poll();
            if let Some(engine) = state.engine.as_mut().filter(|engine| engine.busy) {
                engine.busy = !engine.writer.is_idle();
                if !engine.busy && std::mem::take(&mut engine.rings) {
                    state.port.peer_db_set(self.doorbell);
                }
            }
        }
    }

    /// See [`NtbPort::rest`].
    pub fn rest(&self) {
        self.sides.iter().for_each(|side| side.port.rest());
    }

    /// A poll took long: times stores for a while.
    #[cold]
    pub fn time_stores(&mut self) {
        self.sides.iter_mut().for_each(|side| side.jam.time());
    }

    /// The oldest event not yet told.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Operations of this PE whose address the target refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn source(&self, span: Span, len: usize) -> Result<*const u8, OutOfRange> {
        match span {
            Span::Inbound(side, offset) => {
                let inbound = &self.sides[side as usize].inbound;
                debug_assert!(offset + len <= inbound.size());
                Ok(inbound.base().wrapping_add(offset))
            }
            Span::Symmetric(place) => Ok(self.memory.at(place, len)?),
            Span::Local(address) => Ok(address as *const u8),
            Span::Retained(offset) => Ok(self.kept(offset, len)),
        }
    }

    /// Stores the next step of a side, if anything waits there.
    fn store_step(&mut self, side: Side) -> bool {
        let state = &mut self.sides[side as usize];
        let Some(step) = state.steps.as_mut().and_then(Steps::take) else { return false };
        match step {
            Step::Header { offset, line } => self.store_line(side, offset, &line),
            Step::Payload { from, offset, len, seal, .. } => {
                // A PE's memory may not be reached any more: the packet is then without its seal.
                if let Ok(source) = self.source(from, len) {
                    // SAFETY: resolved for `len` bytes; a local source stays until its operation
                    // has ended, which waits for this.
                    unsafe { self.store_payload(side, offset, source, len, seal) };
                }
            }
        }
        if self.sides[side as usize].steps.as_ref().is_some_and(Steps::is_header_next) {
            self.store_step(side);
        }
        true
    }

    fn must_store_first(&self, side: Side, stays: bool) -> bool {
        let steps = self.sides[side as usize].steps.as_ref();
        steps.is_some_and(|steps| steps.must_store_first(stays))
    }

    /// Stores bytes of a payload, and its seal with the last of them.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes.
    unsafe fn store_payload(
        &mut self,
        side: Side,
        offset: usize,
        source: *const u8,
        len: usize,
        seal: Option<u64>,
    ) {
        let at = self.start + offset;
        let state = &mut self.sides[side as usize];
        if state.jam.drops() {
            return;
        }
        let begun = state.jam.begin();
        // SAFETY: by the caller's word; the seal is a local.
        unsafe {
            state.outbound.write(at, source, len);
            if let Some(seal) = seal {
                state.outbound.write(at + len, (&raw const seal).cast(), 8);
            }
        }
        state.dirty = true;
        state.jam.end(begun);
    }

    fn kept(&self, offset: usize, len: usize) -> *mut u8 {
        debug_assert!(offset + len <= self.retained.len() * 8);
        self.retained.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset)
    }
}

impl SideState {
    fn flush(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.outbound.flush();
        }
    }
}

impl Memory for PortMemory {
    fn load_word(&mut self, side: Side, offset: usize) -> u64 {
        self.sides[side as usize].inbound.load(offset)
    }

    fn load_line(&mut self, side: Side, offset: usize) -> LineWords {
        let inbound = &self.sides[side as usize].inbound;
        std::array::from_fn(|word| inbound.load(offset + word * 8))
    }

    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords) {
        let state = &mut self.sides[side as usize];
        if state.jam.drops() {
            return;
        }
        let begun = state.jam.begin();
        if state.combining {
            state.flush();
        }
        state.outbound.write_line(self.start + offset, &port::Line(*line));
        state.dirty = true;
        state.jam.end(begun);
    }

    fn store_header(&mut self, side: Side, offset: usize, line: &LineWords) -> Transfer {
        if let Some(engine) = &mut self.sides[side as usize].engine
            && std::mem::take(&mut engine.header_follows)
        {
            return engine.header(self.start + offset, line);
        }
        let steps = self.sides[side as usize].steps.as_mut();
        if let Some(number) = steps.and_then(|steps| steps.header(offset, line)) {
            return Transfer::Queued(number);
        }
        self.store_line(side, offset, line);
        Transfer::Done
    }

    fn has_steps(&self) -> bool {
        self.sides.iter().filter_map(|side| side.steps.as_ref()).any(|steps| !steps.is_empty())
    }

    fn store_some(&mut self) -> bool {
        Side::BOTH.into_iter().fold(false, |some, side| self.store_step(side) | some)
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        let source = self.source(from, len)?;
        let dest = match to {
            Span::Symmetric(place) => self.memory.at(place, len)?,
            Span::Local(address) => address as *mut u8,
            Span::Retained(offset) => self.kept(offset, len),
            Span::Inbound(..) => return Err(OutOfRange),
        };
        // Who sees this packet in a PE's memory sees those before it.
        fence(Ordering::Release);
        let mut done = 0;
        while self.has_steps() && len - done > STEP_BYTES {
            // SAFETY: as below.
            unsafe { copy::cached(dest.add(done), source.add(done), STEP_BYTES) };
            done += STEP_BYTES;
            self.store_some();
        }
        // SAFETY: a segment's range was checked, the submitter of the operation vouches for a local buffer,
        // and retained memory is touched under the lane's lock alone. Source and destination never
        // overlap: what comes in lies in memory of the ring.
        unsafe { copy::cached(dest.add(done), source.add(done), len - done) };
        Ok(())
    }

    fn send(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange> {
        let source = self.source(from, len)?;
        let state = &mut self.sides[side as usize];
        if state.jam.drops() {
            return Ok(Transfer::Done);
        }
        let at = self.start + offset;
        // With CRC the bytes of a reply are fixed in the retained area, which the next reply uses again.
        let may_wait = !matches!(from, Span::Retained(_));
        if let Some(engine) = &mut state.engine
            && engine.open
            && len >= engine.least
            && may_wait
            && let Some(number) = engine.payload(at, source, len, seal)
        {
            return Ok(Transfer::Queued(number));
        }
        let stays = !matches!(from, Span::Retained(at) if at >= self.kept_bytes);
        // What is stored out of order looks as if something were lost.
        while self.must_store_first(side, stays) && self.store_some() {}
        if stays
            && let Some(steps) = &mut self.sides[side as usize].steps
            && let Some(number) = steps.payload(from, offset, len, seal)
        {
            // What this host sends begins at once. Packets of others wait for a while in any case, and this
            // host takes in what has arrived first.
            if !matches!(from, Span::Inbound(..)) {
                self.store_step(side);
            }
            return Ok(Transfer::Queued(number));
        }
        // SAFETY: the source was resolved for `len` bytes; a local one the submitter of the
        // operation vouches for.
        unsafe { self.store_payload(side, offset, source, len, Some(seal)) };
        Ok(Transfer::Done)
    }

    fn is_idle(&mut self, side: Side) -> bool {
        let SideState { engine, steps, .. } = &self.sides[side as usize];
        engine.as_ref().is_none_or(|engine| engine.writer.is_idle())
            && steps.as_ref().is_none_or(Steps::is_empty)
    }

    fn has_left(&mut self, side: Side, transfer: Transfer) -> bool {
        let Transfer::Queued(number) = transfer else { return true };
        let SideState { engine, steps, .. } = &self.sides[side as usize];
        engine.as_ref().is_none_or(|engine| engine.writer.has_ended(number))
            && steps.as_ref().is_none_or(|steps| steps.has_ended(number))
    }

    fn mark(&mut self, side: Side, offset: usize, word: u64) -> Option<Transfer> {
        let at = self.start + offset;
        match &mut self.sides[side as usize].engine {
            Some(engine) => engine.mark(at, word),
            None => Some(Transfer::Done),
        }
    }

    fn checksum(&mut self, span: Span, len: usize) -> u32 {
        match self.source(span, len) {
            // SAFETY: resolved for `len` bytes.
            Ok(at) => unsafe { memory::checksum(at, len) },
            Err(OutOfRange) => 0,
        }
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        let at = self.source(span, bytes.len())?;
        // SAFETY: resolved for this length.
        unsafe { memory::load(at, bytes) };
        Ok(())
    }

    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange> {
        let at = match span {
            Span::Symmetric(place) => self.memory.at(place, bytes.len())?,
            Span::Local(address) => address as *mut u8,
            _ => return Err(OutOfRange),
        };
        // SAFETY: checked, or vouched for by the submitter.
        unsafe { memory::store(at, bytes) };
        Ok(())
    }

    fn amo(&mut self, place: Location, amo: &Amo) -> Result<u64, OutOfRange> {
        self.memory.amo(place, amo)
    }

    fn take_stuck(&mut self, side: Side, may_drop: bool) -> bool {
        self.sides[side as usize].jam.take_stuck(may_drop)
    }

    fn ring(&mut self, side: Side) {
        let state = &mut self.sides[side as usize];
        state.flush();
        match &mut state.engine {
            // A doorbell overtakes what an engine writes.
            Some(engine) if engine.busy => engine.rings = true,
            _ => state.port.peer_db_set(self.doorbell),
        }
    }

    fn link_is_up(&mut self, side: Side) -> bool {
        self.sides[side as usize].port.link_state().up
    }

    fn complete(&mut self, token: u64, outcome: Completion) {
        let (stream, pe) = token_parts(token);
        // SAFETY: made by `token` from a live stream. Its owner keeps it until everything issued
        // has completed or the job ends.
        let stream = unsafe { &*stream };
        if outcome == Completion::Refused {
            self.refused += 1;
        }
        match outcome {
            Completion::Done => {
                stream.completed.fetch_add(1, Ordering::Release);
            }
            Completion::Refused | Completion::Lost => {
                stream.fail(pe, outcome == Completion::Refused)
            }
        }
    }

    fn event(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }
}

const _: () = assert!(LINE == port::Line::BYTES);
