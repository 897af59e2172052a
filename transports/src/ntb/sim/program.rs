// SPDX-License-Identifier: Apache-2.0
//! What the simulated PEs do, and the check that it was done.

use tombolo_core::transport::{Amo, AmoOp, Remote, SegmentKind, Signal, SignalOp, Status};

use super::memory::Symmetric;
use super::random::Random;
use crate::ntb::ring::{AmoRequest, Engine, GetRequest, Memory, PutRequest, Target};

/// Who talks to whom. PEs of the same host never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// The same PE so many hosts to the right; the neighbour is 1.
    Neighbour(u16),
    /// As before, but only host 0 sends.
    Pair(u16),
    /// All PEs of other hosts in turn.
    Alltoall,
    /// A random PE of another host each time.
    Uniform,
    /// All to PE 0 of host 0.
    Hotspot,
}

/// What they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Puts.
    Put,
    /// Gets.
    Get,
    /// Fetching additions.
    Amo,
    /// Puts with signal, gets, fetching and other additions in turn.
    Mixed,
}

/// The work of a run, the same for each PE.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Workload {
    /// Who talks to whom.
    pub pattern: Pattern,
    /// What they do.
    pub operation: Operation,
    /// Bytes of an operation.
    pub size: usize,
    /// Operations of each PE.
    pub count: u64,
    /// Operations a PE has outstanding: 1 waits for each to complete.
    pub depth: usize,
}

/// What each working PE does beside its workload, through a stream of its own: one transfer after
/// the other, so that one is always outstanding.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Beside {
    /// Puts or gets; nothing else is simulated.
    pub operation: Operation,
    /// Bytes of a transfer.
    pub size: usize,
}

/// Stream of what is done beside the workload, which has stream 0.
const BESIDE_STREAM: u32 = 1;
/// Offsets in a symmetric segment: counters, then what others get, then what others put.
const FETCHED_OFFSET: usize = 0;
const ADDED_OFFSET: usize = 8;
const SIGNAL_OFFSET: usize = 16;
const DATA_OFFSET: usize = 4096;

/// Bytes of a row. The bytes of a row of data are 7 apart from each other, modulo 256.
const ROW: usize = 256;
/// Two rows one after the other: a row of data, whatever byte it begins with, is a part of them.
static BYTES: [u8; 2 * ROW] = {
    let mut bytes = [0; 2 * ROW];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at * 7) as u8;
        at += 1;
    }
    bytes
};

/// The data of PE `number` from offset `from` up to offset `to`, row by row. All that is moved is compared with it: byte
/// by byte, that took most of the time of some tests.
fn data(number: usize, from: usize, to: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut at = from;
    std::iter::from_fn(move || {
        let end = to.min(at - at % ROW + ROW);
        let first = (number * 131 + at + (at >> 8) * 13 + (at >> 16) * 29 + 1) % ROW;
        let piece = &BYTES[first..first + (end - at)];
        at = end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A PE's place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeId {
    pub host: u16,
    pub pe: u16,
}

/// Memory sizes and addresses that follow from a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkloadPlan {
    pub workload: Workload,
    pub beside: Option<Beside>,
    pub hosts: u16,
    pub pes: u16,
    /// See [`Simulation::exact`](super::Simulation::exact).
    pub exact: bool,
}

impl WorkloadPlan {
    /// Bytes of the buffers of one lane: the source, then a destination and a result per
    /// operation that may be outstanding, then what is moved beside.
    pub fn local_bytes(&self) -> usize {
        self.beside_local() + self.beside_bytes()
    }

    fn beside_local(&self) -> usize {
        let gets = matches!(self.workload.operation, Operation::Get | Operation::Mixed);
        let places = if gets { self.workload.depth } else { 0 };
        self.workload.size * (self.count_sources() + places) + 8 * self.workload.depth
    }

    /// Bytes of a PE's segment.
    pub fn segment_bytes(&self) -> usize {
        self.beside_offset() + self.beside_bytes()
    }

    fn beside_bytes(&self) -> usize {
        self.beside.map_or(0, |beside| beside.size)
    }

    fn beside_offset(&self) -> usize {
        DATA_OFFSET + self.shifts() + self.stride() * (1 + self.sources() * self.places())
    }

    /// Number of a PE among all.
    pub fn number(&self, id: PeId) -> usize {
        usize::from(id.host) * usize::from(self.pes) + usize::from(id.pe)
    }

    /// Whether a PE sends anything.
    pub fn works(&self, id: PeId) -> bool {
        match self.workload.pattern {
            Pattern::Pair(_) => id.host == 0,
            Pattern::Hotspot => id.host != 0,
            _ => true,
        }
    }

    /// The target of a PE's operation.
    pub fn target(&self, from: PeId, index: u64, random: &mut Random) -> PeId {
        let (hosts, pes) = (u64::from(self.hosts), u64::from(self.pes));
        let other = |steps: u64, pe: u64| PeId {
            host: ((u64::from(from.host) + steps) % hosts) as u16,
            pe: pe as u16,
        };
        match self.workload.pattern {
            Pattern::Neighbour(hops) | Pattern::Pair(hops) => {
                other(u64::from(hops), u64::from(from.pe))
            }
            Pattern::Alltoall => {
                let turn = index % ((hosts - 1) * pes);
                other(1 + turn % (hosts - 1), (u64::from(from.pe) + turn / (hosts - 1)) % pes)
            }
            Pattern::Uniform => other(1 + random.below(hosts - 1), random.below(pes)),
            Pattern::Hotspot => PeId { host: 0, pe: 0 },
        }
    }

    /// What the operation of that index is.
    pub fn step(&self, index: u64) -> Step {
        match (self.workload.operation, index % 4) {
            (Operation::Put, _) => Step::Put,
            (Operation::Get, _) | (Operation::Mixed, 1) => Step::Get,
            (Operation::Amo, _) | (Operation::Mixed, 2) => Step::Fetch,
            (Operation::Mixed, 3) => Step::Add,
            (Operation::Mixed, _) => Step::PutSignal,
        }
    }

    /// Fills what others may get, and the sources.
    pub fn fill(number: usize, bytes: &mut [u8]) {
        let wanted = data(number, 0, bytes.len());
        bytes.chunks_mut(ROW).zip(wanted).for_each(|(place, piece)| place.copy_from_slice(piece));
    }

    /// Whether `bytes` are those of the data of PE `number` at offset `from`.
    pub fn is_data(number: usize, from: usize, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        data(number, from, from + bytes.len()).all(|piece| {
            let (found, others) = rest.split_at(piece.len());
            rest = others;
            found == piece
        })
    }

    /// Prepares a PE's segment.
    pub fn segment(&self, id: PeId) -> Vec<u8> {
        let mut segment = vec![0; self.segment_bytes()];
        let exposed = &mut segment[DATA_OFFSET..DATA_OFFSET + self.workload.size + self.shifts()];
        WorkloadPlan::fill(self.number(id), exposed);
        if self.beside.is_some_and(|beside| beside.operation == Operation::Get) {
            WorkloadPlan::fill(self.number(id), &mut segment[self.beside_offset()..]);
        }
        segment
    }

    /// Whether what a get brought is what its target exposes at offset `at`.
    pub fn check_get(&self, from: PeId, at: usize, bytes: &[u8]) -> bool {
        WorkloadPlan::is_data(self.number(from), at, bytes)
    }

    /// The result of a fetching AMO.
    pub fn result(&self, slot: usize, local: &[u8]) -> u64 {
        let at = self.result_offset(slot);
        let mut word = [0; 8];
        word.copy_from_slice(&local[at..at + 8]);
        u64::from_le_bytes(word)
    }

    fn result_offset(&self, slot: usize) -> usize {
        self.beside_local() - 8 * self.workload.depth + 8 * slot
    }

    /// Whether what a PE put arrived, if it is the only one that puts there.
    pub fn check_put(&self, to: PeId, from: PeId, symmetric: &[Symmetric]) -> bool {
        let segment = &symmetric[usize::from(to.host)][usize::from(to.pe)];
        let at = self.put_offset(from);
        WorkloadPlan::is_data(self.number(from), 0, &segment[at..at + self.workload.size])
    }

    /// The counters of a PE: fetching additions, other additions, signals.
    pub fn counters(&self, id: PeId, symmetric: &[Symmetric]) -> [u64; 3] {
        let segment = &symmetric[usize::from(id.host)][usize::from(id.pe)];
        [FETCHED_OFFSET, ADDED_OFFSET, SIGNAL_OFFSET].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&segment[at..at + 8]);
            u64::from_le_bytes(word)
        })
    }

    /// Prepares the buffers of a lane of PE `number`.
    pub fn fill_local(&self, number: usize, local: &mut [u8]) {
        WorkloadPlan::fill(number, &mut local[..self.workload.size]);
        if self.beside.is_some_and(|beside| beside.operation == Operation::Put) {
            WorkloadPlan::fill(number, &mut local[self.beside_local()..]);
        }
    }

    /// Whether a transfer beside the workload has brought the right bytes; forgets them.
    pub fn check_beside(&self, ends: [PeId; 2], local: &mut [u8], far: &mut [u8]) -> bool {
        let [from, to] = ends.map(|id| self.number(id));
        let (source, dest) = match self.beside.map(|beside| beside.operation) {
            Some(Operation::Get) => (to, &mut local[self.beside_local()..]),
            _ => (from, &mut far[self.beside_offset()..]),
        };
        let sound = WorkloadPlan::is_data(source, 0, dest);
        dest.fill(0);
        sound
    }

    /// Hands the next transfer beside the workload to an engine.
    pub fn submit_beside<M: Memory>(
        &self,
        engine: &mut Engine,
        memory: &mut M,
        token: u64,
        to: PeId,
    ) -> Status {
        let remote = Remote { segment: SegmentKind::Heap, offset: self.beside_offset() };
        let target = Target { host: to.host, pe: to.pe as u8, remote };
        let (local, len) = (self.beside_local() as u64, self.beside_bytes());
        if self.beside.is_some_and(|beside| beside.operation == Operation::Get) {
            let stream = BESIDE_STREAM;
            return engine.get(&GetRequest { token, stream, target, dest: local, len });
        }
        let put = PutRequest {
            token,
            stream: BESIDE_STREAM,
            target,
            source: local,
            len,
            retain: false,
            signal: None,
        };
        engine.put(&put, memory)
    }

    /// Address of the buffer of an outstanding get.
    pub fn dest(&self, slot: usize) -> usize {
        self.workload.size * (self.count_sources() + slot)
    }

    /// Hands a part of an operation to an engine.
    pub fn submit<M: Memory>(
        &self,
        engine: &mut Engine,
        memory: &mut M,
        token: u64,
        call: &Call,
    ) -> Status {
        let Call { step, from, to, slot, part, second } = *call;
        if second && !engine.fence(0, to.host) {
            return Status::Again;
        }
        let target = |offset: usize| Target {
            host: to.host,
            pe: to.pe as u8,
            remote: Remote { segment: SegmentKind::Heap, offset },
        };
        let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
        match step {
            Step::Put | Step::PutSignal => {
                let word = target(SIGNAL_OFFSET).remote;
                let signal = (step == Step::PutSignal).then_some(Signal {
                    word,
                    op: SignalOp::Add,
                    value: 1,
                });
                let put = PutRequest {
                    token,
                    stream: 0,
                    target: target(self.put_offset(from) + self.place(slot) + part.from),
                    source: (self.source(slot, second) + part.from) as u64,
                    len: part.len,
                    retain: self.retains(token, second),
                    signal,
                };
                engine.put(&put, memory)
            }
            Step::Get => engine.get(&GetRequest {
                token,
                stream: 0,
                target: target(DATA_OFFSET + self.shift(token) + part.from),
                dest: (self.dest(slot) + part.from) as u64,
                len: part.len,
            }),
            Step::Fetch => {
                let result = Some(self.result_offset(slot) as u64);
                let target = target(FETCHED_OFFSET);
                engine.amo(&AmoRequest { token, stream: 0, target, amo: add, result })
            }
            Step::Add => {
                let target = target(ADDED_OFFSET);
                engine.amo(&AmoRequest { token, stream: 0, target, amo: add, result: None })
            }
        }
    }

    /// Bytes from one place to the next.
    pub fn stride(&self) -> usize {
        self.workload.size.next_multiple_of(64)
    }

    /// PEs that may put to the same target, each to a place of its own.
    fn sources(&self) -> usize {
        match (self.workload.operation, self.workload.pattern) {
            (Operation::Get | Operation::Amo, _) => 0,
            (_, Pattern::Neighbour(_) | Pattern::Pair(_)) => 1,
            _ => usize::from(self.hosts) * usize::from(self.pes),
        }
    }

    pub fn put_offset(&self, from: PeId) -> usize {
        let index = if self.sources() == 1 { 0 } else { self.number(from) };
        DATA_OFFSET + self.shifts() + self.stride() * (1 + index * self.places())
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Put,
    PutSignal,
    Get,
    Fetch,
    Add,
}

/// The bytes of an operation that one lane moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub from: usize,
    pub len: usize,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub step: Step,
    pub from: PeId,
    pub to: PeId,
    pub slot: usize,
    pub part: Part,
    /// The put that follows another one, after a fence, to the same place.
    pub second: bool,
}
