// SPDX-License-Identifier: Apache-2.0
//! The smallest complete transport: it reaches the PE itself, and nobody else. Read it together with
//! `transports/README.md` before you write one.
//!
//! ```sh
//! cargo run -p tombolo-transports --example myself
//! ```

use std::sync::Arc;
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Single;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{
    Amo, AmoOp, AmoSet, Capabilities, Endpoint, Job, Mapping, Remote, Segment, SegmentKind, Status,
    Stream, Transport,
};
use tombolo_core::{Config, Setup, World, amo, copy};

/// The transport: one of them per process, made before the job is known.
#[derive(Default)]
struct Myself {
    segments: [Option<(usize, usize)>; 2],
}

/// The way to one PE, here the only one: where its segments lie, and their lengths.
struct ToMyself {
    segments: [Option<(usize, usize)>; 2],
}

impl Transport for Myself {
    fn name(&self) -> &'static str {
        "myself"
    }

    fn probe(&self, _: &Job<'_>) -> Result<(), String> {
        // A real transport tries its device or library here, and says in plain words what is missing.
        Ok(())
    }

    fn open(&mut self, _: &Job<'_>, segments: &[Segment<'_>]) -> tombolo_core::Result<Vec<u8>> {
        for segment in segments {
            self.segments[segment.kind as usize] = Some((segment.base as usize, segment.len));
        }
        // What other PEs need to reach this one: keys, addresses. All of them get it in `connect`.
        Ok(Vec::new())
    }

    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> tombolo_core::Result<Vec<Result<Box<dyn Endpoint>, String>>> {
        let connect = |pe: usize| -> Result<Box<dyn Endpoint>, String> {
            match pe == job.pe {
                true => Ok(Box::new(ToMyself { segments: self.segments })),
                false => Err("this transport reaches the PE itself only".into()),
            }
        };
        Ok((0..addresses.len()).map(connect).collect())
    }
}

impl ToMyself {
    fn at(&self, remote: Remote, len: usize) -> Option<*mut u8> {
        let (base, size) = self.segments[remote.segment as usize]?;
        remote.fits(len, size).then(|| (base + remote.offset) as *mut u8)
    }
}

impl Endpoint for ToMyself {
    fn capabilities(&self, segment: SegmentKind) -> Capabilities {
        match self.segments[segment as usize] {
            None => Capabilities::NONE,
            Some(_) => Capabilities {
                put: true,
                get: true,
                // The core makes all others from a request to the target.
                amos: AmoSet::NONE.with(AmoOp::Add, 8),
                whole_words: true,
                ordered: true,
                ..Capabilities::NONE
            },
        }
    }

    fn mapped(&self, _: SegmentKind) -> Option<Mapping> {
        // If the peer's memory were offered here, the core would load and store by itself.
        None
    }

    unsafe fn put(
        &self,
        _: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        _: bool,
    ) -> Status {
        let Some(at) = self.at(dest, len) else { return Status::Failed };
        // SAFETY: inside the segment; the caller vouches for the source.
        unsafe { copy::cached(at, source, len) };
        // It has arrived. A network raises `issued` of the stream, says `Pending`, and raises
        // `completed` when the target can see it.
        Status::Complete
    }

    unsafe fn get(&self, _: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status {
        let Some(at) = self.at(source, len) else { return Status::Failed };
        // SAFETY: inside the segment; the caller vouches for the destination.
        unsafe { copy::cached(dest, at, len) };
        Status::Complete
    }

    unsafe fn amo(&self, _: &Stream, at: Remote, amo: Amo, result: Option<*mut u8>) -> Status {
        let Some(at) = self.at(at, amo.size.into()) else { return Status::Failed };
        // SAFETY: inside the segment and aligned by contract; the caller vouches for the result.
        unsafe {
            let old = amo::execute(at, amo);
            if let Some(result) = result {
                copy::cached(result, (&raw const old).cast(), amo.size.into());
            }
        }
        Status::Complete
    }
}

fn main() {
    let world = World::start(Setup {
        bootstrap: Arc::new(Single),
        board: Arc::new(Board::create(1).expect("a status board")),
        config: Config::default(),
        transports: vec![Box::new(Myself::default())],
        share_statics: false,
        several_threads: false,
    })
    .expect("a job of one PE starts");
    // Memory of the PE itself is always mapped, so the core would not ask the transport: ask it here.
    let endpoint = world.endpoint(0, 0).expect("the transport reaches its own PE");
    let place = world.heap().allocate(64, 64);
    let remote = world.locate(place).expect("the heap is symmetric");
    let (stream, word) = (Stream::new(0, true), 42u64);
    // SAFETY: a local word and a word of the heap.
    let (put, added) = unsafe {
        let add = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };
        let put = endpoint.put(&stream, remote, (&raw const word).cast(), 8, true);
        (put, endpoint.amo(&stream, remote, add, None))
    };
    assert_eq!((put, added), (Status::Complete, Status::Complete));
    let mut back = 0u64;
    // SAFETY: the destination is valid for 8 bytes, and the get blocks.
    unsafe {
        let dest = (&raw mut back).cast();
        world.get(world.context(), dest, place, 8, 0, Mode::Blocking, "the example");
    }
    println!("put 42, added 1, got {back}");
    assert_eq!(back, 43);
    world.stop().expect("the job ends");
}
