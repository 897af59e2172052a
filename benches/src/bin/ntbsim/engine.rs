// SPDX-License-Identifier: Apache-2.0
//! The protocol's own cost on this machine: two engines in one thread over plain memory.
//!
//! Wall clock, so not reproducible to the byte. No link is modelled: what is measured is what the
//! engine and the copies take from a core.

use std::time::Instant;

use tombolo_core::transport::{Amo, AmoOp, Remote, SegmentKind, Status};
use tombolo_transports::ntb::ring::{
    AmoRequest, Completion, Config, Engine, Event, Geometry, GetRequest, LineWords, Location,
    Memory, OutOfRange, PutRequest, Side, Span, Target, Transfer,
};
use tombolo_transports::ntb::sim::{LaneMemory, Symmetric, amo, line_bytes};

const SEGMENT_BYTES: usize = 1 << 20;
const DEPTH: usize = 32;

/// One host of two; its windows lead straight into the other's memory.
struct Near<'a> {
    memory: &'a mut LaneMemory,
    symmetric: &'a mut Symmetric,
    far: &'a mut LaneMemory,
    completed: &'a mut u64,
}

impl Memory for Near<'_> {
    fn load_word(&mut self, side: Side, offset: usize) -> u64 {
        self.memory.word(side, offset)
    }

    fn load_line(&mut self, side: Side, offset: usize) -> LineWords {
        self.memory.line(side, offset)
    }

    fn store_line(&mut self, side: Side, offset: usize, line: &LineWords) {
        let bytes = line_bytes(line);
        self.far.inbound[side.opposite() as usize][offset..offset + bytes.len()]
            .copy_from_slice(&bytes);
    }

    fn copy(&mut self, from: Span, to: Span, len: usize) -> Result<(), OutOfRange> {
        match (from, to) {
            (Span::Inbound(side, at), Span::Symmetric(place)) => {
                let start = place.offset as usize;
                let segment = self.symmetric.first_mut().ok_or(OutOfRange)?;
                let to = segment.get_mut(start..start + len).ok_or(OutOfRange)?;
                to.copy_from_slice(&self.memory.inbound[side as usize][at..at + len]);
                Ok(())
            }
            (Span::Inbound(side, at), Span::Local(to)) => {
                let from = &self.memory.inbound[side as usize][at..at + len];
                self.memory.local[to as usize..to as usize + len].copy_from_slice(from);
                Ok(())
            }
            _ => Err(OutOfRange),
        }
    }

    fn send(
        &mut self,
        from: Span,
        side: Side,
        at: usize,
        len: usize,
        seal: u64,
    ) -> Result<Transfer, OutOfRange> {
        let bytes = self.memory.bytes(self.symmetric, from, len)?;
        let region = &mut self.far.inbound[side.opposite() as usize];
        region[at..at + len].copy_from_slice(bytes);
        let end = at + len;
        region[end..end + 8].copy_from_slice(&seal.to_le_bytes());
        Ok(Transfer::Done)
    }

    fn checksum(&mut self, span: Span, len: usize) -> u32 {
        self.memory.bytes(self.symmetric, span, len).map_or(0, crc32c::crc32c)
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        bytes.copy_from_slice(self.memory.bytes(self.symmetric, span, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(self.symmetric, span, bytes)
    }

    fn amo(&mut self, place: Location, request: &Amo) -> Result<u64, OutOfRange> {
        amo(self.symmetric, place, request)
    }

    fn ring(&mut self, _: Side) {}

    fn link_is_up(&mut self, _: Side) -> bool {
        true
    }

    fn complete(&mut self, _: u64, _: Completion) {
        *self.completed += 1;
    }

    fn event(&mut self, _: Event) {}
}

struct Pair {
    engines: [Engine; 2],
    memories: [LaneMemory; 2],
    segments: [Symmetric; 2],
    completed: u64,
    start: Instant,
}

impl Pair {
    fn with<R>(&mut self, at: usize, call: impl FnOnce(&mut Engine, &mut Near<'_>) -> R) -> R {
        let [first, second] = &mut self.memories;
        let (memory, far) = if at == 0 { (first, second) } else { (second, first) };
        let symmetric = &mut self.segments[at];
        let mut near = Near { memory, symmetric, far, completed: &mut self.completed };
        call(&mut self.engines[at], &mut near)
    }

    fn turn(&mut self) {
        let now = self.start.elapsed().as_nanos() as u64;
        for at in 0..2 {
            self.with(at, |engine, near| engine.poll(now, near));
        }
    }
}

/// Measures and prints.
pub fn measure() -> Result<(), String> {
    let geometry = Geometry::new(8192, [32, 32, 64]).map_err(|error| error.to_string())?;
    let config = Config { split: false, ..Config::new(geometry, 77) };
    let engine = |me| Engine::new(config, me, 2, 0).map_err(|error| error.to_string());
    let memory = || LaneMemory::new(&config, SEGMENT_BYTES);
    let segment = || vec![vec![0; SEGMENT_BYTES]];
    let mut pair = Pair {
        engines: [engine(0)?, engine(1)?],
        memories: [memory(), memory()],
        segments: [segment(), segment()],
        completed: 0,
        start: Instant::now(),
    };
    for at in 0..2 {
        for side in Side::BOTH {
            pair.with(at, |engine, near| engine.link_event(side, true, 0, near));
        }
    }
    while !pair.engines.iter().all(Engine::is_whole) {
        pair.turn();
    }

    say!("wall clock, two engines in one thread, {DEPTH} operations outstanding");
    let start = Instant::now();
    const POLLS: u32 = 1_000_000;
    for _ in 0..POLLS {
        pair.turn();
    }
    let each = start.elapsed().as_nanos() as f64 / f64::from(POLLS) / 2.0;
    say!("idle poll                {each:8.0} ns");
    for (name, size, count) in [
        ("put", 8, 1_000_000),
        ("put", 64, 1_000_000),
        ("put", 8192, 200_000),
        ("put", 65536, 40_000),
    ] {
        run(&mut pair, name, size, count);
    }
    run(&mut pair, "get", 8, 500_000);
    run(&mut pair, "get", 8192, 200_000);
    run(&mut pair, "fetching AMO", 8, 500_000);
    Ok(())
}

/// Keeps operations outstanding and prints the time of each, both hosts' work included.
fn run(pair: &mut Pair, name: &str, len: usize, count: u64) {
    let remote = Remote { segment: SegmentKind::Heap, offset: 0 };
    let target = Target { host: 1, pe: 0, remote };
    let put =
        PutRequest { token: 0, stream: 0, target, source: 0, len, retain: false, signal: None };
    let get = GetRequest { token: 0, stream: 0, target, dest: 0, len };
    let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
    let fetch = AmoRequest { token: 0, stream: 0, target, amo: add, result: Some(0) };
    pair.completed = 0;
    let mut issued = 0;
    let start = Instant::now();
    while pair.completed < count {
        while issued < count && issued - pair.completed < DEPTH as u64 {
            let status = pair.with(0, |engine, near| match name {
                "put" => engine.put(&put, near),
                "get" => engine.get(&get),
                _ => engine.amo(&fetch),
            });
            if status != Status::Pending {
                break;
            }
            issued += 1;
        }
        pair.turn();
    }
    let each = start.elapsed().as_nanos() as f64 / count as f64;
    let rate = len as f64 / each;
    say!("{name:<12} {len:>6} bytes {each:10.0} ns, {rate:6.2} GB/s");
}
