// SPDX-License-Identifier: Apache-2.0
//! Hosts with one PE each, cables whose writes arrive when told to, and DMA engines that read and write
//! when they are told to. What an engine writes has no order with what the CPU stores.

use super::*;
use crate::ntb::sim::{LaneMemory, Symmetric, amo, line_bytes, sealed};
use std::collections::VecDeque;

pub(super) const SEGMENT_BYTES: usize = 1024;
pub(super) const LOCAL_BYTES: usize = 1024;

/// Hosts with one PE each, and cables whose writes arrive when told to.
#[derive(Clone, Hash)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) engines: Vec<Engine>,
    pub(super) sides: Vec<Parts>,
}

/// What an engine works on.
#[derive(Clone, Hash)]
pub(super) struct Parts {
    pub(super) memory: LaneMemory,
    pub(super) symmetric: Symmetric,
    /// Writes under way, by side.
    pub(super) wires: [VecDeque<(usize, Vec<u8>)>; 2],
    pub(super) done: Vec<(u64, Ended)>,
    pub(super) rings: u32,
    pub(super) losses: Vec<u16>,
    pub(super) silent: u32,
    pub(super) rests: u32,
    pub(super) stuck: Option<Side>,
    /// The CPU stores payload in steps.
    pub(super) in_steps: bool,
    /// By side, where a DMA engine moves payload: what it has been told to do.
    pub(super) engines: Option<[Dma; 2]>,
}

/// What moves payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mover {
    Cpu,
    CpuInSteps,
    Dma,
}

/// A DMA engine that reads and writes when it is told to.
#[derive(Clone, Default, Hash)]
pub(super) struct Dma {
    pub(super) queue: VecDeque<DmaJob>,
    /// Writes under way.
    pub(super) posted: VecDeque<(usize, Vec<u8>)>,
    pub(super) submitted: u64,
    pub(super) moved: u64,
    /// The header that comes next belongs to a payload in the queue.
    pub(super) header_follows: bool,
}

#[derive(Clone, Hash)]
pub(super) enum DmaJob {
    Payload { from: Span, offset: usize, len: usize, seal: u64 },
    Header(usize, Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ended {
    Done,
    Refused,
    Lost,
}

impl Memory for Parts {
    fn load_word(&mut self, side: Side, offset: usize) -> u64 {
        self.memory.word(side, offset)
    }

    fn load_line(&mut self, side: Side, offset: usize) -> LineWords {
        self.memory.line(side, offset)
    }

    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords) {
        self.wires[side as usize].push_back((offset, line_bytes(line).to_vec()));
    }

    fn store_header(&mut self, side: Side, offset: usize, line: &LineWords) -> Transfer {
        if let Some(engines) = &mut self.engines {
            let engine = &mut engines[side as usize];
            if std::mem::take(&mut engine.header_follows) {
                engine.submitted += 1;
                engine.queue.push_back(DmaJob::Header(offset, line_bytes(line).to_vec()));
                return Transfer::Queued(engine.submitted);
            }
        }
        if let Some(number) = self.memory.steps[side as usize].header(offset, line) {
            return Transfer::Queued(number);
        }
        self.store_line(side, offset, line);
        Transfer::Done
    }

    fn has_steps(&self) -> bool {
        self.memory.steps.iter().any(|steps| !steps.is_empty())
    }

    fn store_some(&mut self) -> bool {
        let mut some = false;
        for side in Side::BOTH {
            let Some(step) = self.memory.steps[side as usize].take() else { continue };
            some = true;
            match step {
                Step::Header { offset, line } => self.store_line(side, offset, &line),
                Step::Payload { from, offset, len, seal, .. } => {
                    let bytes = self.memory.bytes(&self.symmetric, from, len).unwrap();
                    let bytes = seal.map_or(bytes.to_vec(), |seal| sealed(bytes, seal));
                    self.wires[side as usize].push_back((offset, bytes));
                }
            }
        }
        some
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        let bytes = self.memory.bytes(&self.symmetric, from, len)?.to_vec();
        self.memory.write(&mut self.symmetric, to, &bytes)
    }

    fn send(
        &mut self,
        from: Span,
        side: Side,
        offset: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange> {
        let bytes = sealed(self.memory.bytes(&self.symmetric, from, len)?, seal);
        if self.in_steps
            && let Some(number) = self.memory.leave(from, side, offset, len, seal)
        {
            return Ok(Transfer::Queued(number));
        }
        let by_engine = self.engines.as_mut().filter(|_| !matches!(from, Span::Retained(_)));
        let Some(engines) = by_engine else {
            self.wires[side as usize].push_back((offset, bytes));
            return Ok(Transfer::Done);
        };
        let engine = &mut engines[side as usize];
        engine.queue.push_back(DmaJob::Payload { from, offset, len, seal });
        engine.submitted += 1;
        engine.header_follows = true;
        Ok(Transfer::Queued(engine.submitted))
    }

    fn is_idle(&mut self, side: Side) -> bool {
        self.memory.steps[side as usize].is_empty()
            && self.engines.as_ref().is_none_or(|engines| engines[side as usize].queue.is_empty())
    }

    fn has_left(&mut self, side: Side, transfer: Transfer) -> bool {
        match (transfer, &self.engines) {
            (Transfer::Queued(number), Some(engines)) => engines[side as usize].moved >= number,
            (Transfer::Queued(number), None) => self.memory.steps[side as usize].has_ended(number),
            _ => true,
        }
    }

    fn mark(&mut self, side: Side, offset: usize, word: u64) -> Option<Transfer> {
        let engine = self.engines.as_mut().map(|engines| &mut engines[side as usize]);
        let Some(engine) = engine.filter(|engine| engine.submitted > 0) else {
            return Some(Transfer::Done);
        };
        engine.submitted += 1;
        engine.queue.push_back(DmaJob::Header(offset, word.to_le_bytes().to_vec()));
        Some(Transfer::Queued(engine.submitted))
    }

    fn checksum(&mut self, span: Span, len: usize) -> u32 {
        crc32c::crc32c(self.memory.bytes(&self.symmetric, span, len).unwrap())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        bytes.copy_from_slice(self.memory.bytes(&self.symmetric, span, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(&mut self.symmetric, span, bytes)
    }

    fn amo(&mut self, place: Location, request: &Amo) -> Result<u64, OutOfRange> {
        amo(&mut self.symmetric, place, request)
    }

    fn take_stuck(&mut self, side: Side, _: bool) -> bool {
        self.stuck == Some(side)
    }

    fn ring(&mut self, _: Side) {
        self.rings += 1;
    }

    fn link_is_up(&mut self, _: Side) -> bool {
        true
    }

    fn complete(&mut self, token: u64, outcome: Completion) {
        self.done.push((
            token,
            match outcome {
                Completion::Done => Ended::Done,
                Completion::Refused => Ended::Refused,
                Completion::Lost => Ended::Lost,
            },
        ));
    }

    fn event(&mut self, event: Event) {
        if let Event::Lost { first, .. } | Event::GaveUp(first) = event {
            self.losses.push(first);
        }
        self.silent += u32::from(matches!(event, Event::Silent(_)));
        self.rests += u32::from(matches!(event, Event::Resting(_)));
    }
}

impl World {
    /// A ring whose links are all in use.
    pub(super) fn new(hosts: u16, config: Config) -> World {
        World::moved_by(hosts, config, Mover::Cpu)
    }

    /// The same, with payload moved in some way.
    pub(super) fn moved_by(hosts: u16, config: Config, mover: Mover) -> World {
        let side = || Parts {
            memory: LaneMemory::new(&config, LOCAL_BYTES),
            symmetric: vec![vec![0; SEGMENT_BYTES]],
            wires: Default::default(),
            done: Vec::new(),
            rings: 0,
            losses: Vec::new(),
            silent: 0,
            rests: 0,
            stuck: None,
            in_steps: mover == Mover::CpuInSteps,
            engines: (mover == Mover::Dma).then(Default::default),
        };
        let engine = |host| Engine::new(config, host, hosts, 0).unwrap();
        let mut world = World {
            now: 0,
            engines: (0..hosts).map(engine).collect(),
            sides: (0..hosts).map(|_| side()).collect(),
        };
        for host in 0..usize::from(hosts) {
            for side in Side::BOTH {
                world.with(host, |engine, parts| engine.link_event(side, true, 0, parts));
            }
        }
        world.settle();
        assert!(world.engines.iter().all(|engine| engine.is_whole()));
        world
    }

    pub(super) fn with<R>(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut Engine, &mut Parts) -> R,
    ) -> R {
        call(&mut self.engines[host], &mut self.sides[host])
    }

    pub(super) fn poll(&mut self, host: usize) -> bool {
        let now = self.now;
        self.with(host, |engine, parts| engine.poll(now, parts))
    }

    /// Lets the oldest write of a port arrive: of its CPU, or else of its DMA engine.
    pub(super) fn deliver(&mut self, host: usize, side: Side) -> bool {
        self.deliver_stored(host, side) || self.deliver_posted(host, side)
    }

    /// The same of its CPU.
    pub(super) fn deliver_stored(&mut self, host: usize, side: Side) -> bool {
        let write = self.sides[host].wires[side as usize].pop_front();
        self.arrive(host, side, write)
    }

    /// The same of its DMA engine.
    pub(super) fn deliver_posted(&mut self, host: usize, side: Side) -> bool {
        let engines = self.sides[host].engines.as_mut();
        let write = engines.and_then(|engines| engines[side as usize].posted.pop_front());
        self.arrive(host, side, write)
    }

    fn arrive(&mut self, host: usize, side: Side, write: Option<(usize, Vec<u8>)>) -> bool {
        let Some((offset, bytes)) = write else { return false };
        let hosts = self.engines.len();
        let far = match side {
            Side::Right => (host + 1) % hosts,
            Side::Left => (host + hosts - 1) % hosts,
        };
        let region = &mut self.sides[far].memory.inbound[side.opposite() as usize];
        region[offset..offset + bytes.len()].copy_from_slice(&bytes);
        true
    }

    /// Lets the DMA engine of a port carry out what it was told first.
    pub(super) fn move_on(&mut self, host: usize, side: Side) -> bool {
        let parts = &mut self.sides[host];
        let engine = parts.engines.as_mut().map(|engines| &mut engines[side as usize]);
        let Some((engine, job)) = engine.and_then(|it| it.queue.pop_front().map(|job| (it, job)))
        else {
            return false;
        };
        engine.moved += 1;
        match job {
            DmaJob::Header(offset, bytes) => engine.posted.push_back((offset, bytes)),
            DmaJob::Payload { from, offset, len, seal } => {
                let bytes = parts.memory.bytes(&parts.symmetric, from, len).unwrap();
                engine.posted.push_back((offset, bytes.to_vec()));
                engine.posted.push_back((offset + len, seal.to_le_bytes().to_vec()));
            }
        }
        true
    }

    /// Everyone in turn, until nothing happens any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..200_000 {
            let mut busy = false;
            for host in 0..self.engines.len() {
                busy |= self.poll(host);
                for side in Side::BOTH {
                    while self.move_on(host, side) || self.deliver(host, side) {
                        busy = true;
                    }
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the ring does not come to rest");
    }

    /// Lets time pass in steps, so that timers can repair.
    pub(super) fn pass(&mut self, total_ns: u64) {
        let end = self.now + total_ns;
        while self.now < end {
            self.now += 50_000;
            self.settle();
        }
    }

    pub(super) fn segment(&self, host: usize) -> &[u8] {
        &self.sides[host].symmetric[0]
    }

    pub(super) fn word(&self, host: usize, at: usize) -> u64 {
        u64::from_le_bytes(self.segment(host)[at..at + 8].try_into().unwrap())
    }

    pub(super) fn put(&mut self, from: usize, put: PutRequest) -> Status {
        self.with(from, |engine, parts| engine.put(&put, parts))
    }
}
