// SPDX-License-Identifier: Apache-2.0
//! Ways to carry out one operation.

use crate::reader::{self, Readers};
use std::sync::atomic::Ordering;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Amo, AmoOp, Endpoint, Remote, Status};
use tombolo_core::wait::Reason;
use tombolo_core::{Waiting, World, amo, copy};
use tombolo_selector::data::Operation;

const ROUTINE: &str = "routed";
/// Operations of a pipeline.
const PIPELINE: usize = 16;
/// Blocking puts one after another.
const SERIES: usize = 4;
const ADD: Amo = Amo { op: AmoOp::Add, size: 8, operand: 1, compare: 0 };

/// Who reads what was copied.
#[derive(Clone, Copy)]
pub enum Read<'a> {
    Nobody,
    Initiator,
    Target(&'a Readers<'a>),
}

/// What is done, and where.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub operation: Operation,
    pub pe: usize,
    pub bytes: usize,
    /// The remote buffer, as a symmetric address of this PE.
    pub there: *mut u8,
    pub here: *mut u8,
    pub read: Read<'a>,
}

/// Single operations of one that is timed.
pub fn operations(operation: Operation) -> usize {
    match operation {
        Operation::Pipeline => PIPELINE,
        Operation::Blocking | Operation::ZeroCopy => SERIES,
        _ => 1,
    }
}

/// One way to do it.
pub enum Way<'a> {
    /// As a program's call would: by the fast path up to the given size, else by the routes.
    Routed { world: &'a World, cached_max: usize },
    /// Copies to and from the mapping of the remote buffer.
    Mapped { at: *mut u8, streaming: bool },
    /// One transport.
    Endpoint {
        world: &'a World,
        endpoint: &'a dyn Endpoint,
        index: usize,
        remote: Remote,
        bounced: bool,
    },
}

impl Way<'_> {
    /// Carries it out and waits until it is complete.
    pub fn perform(&self, case: &Case<'_>) {
        match self {
            Way::Routed { world, cached_max } => routed(world, *cached_max, case),
            Way::Mapped { at, streaming } => mapped(*at, *streaming, case),
            Way::Endpoint { world, endpoint, index, remote, bounced } => {
                by_endpoint(world, *endpoint, *index, *remote, *bounced, case);
            }
        }
        match case.read {
            Read::Nobody => {}
            // SAFETY: the buffer is at least that long, aligned, and complete.
            Read::Initiator => unsafe { reader::read(case.here, case.bytes) },
            Read::Target(readers) => readers.have_read(case.pe, case.bytes),
        }
    }
}

fn routed(world: &World, cached_max: usize, case: &Case<'_>) {
    let Case { pe, bytes, there, here, .. } = *case;
    let context = world.context();
    // SAFETY: all ranges lie inside the buffers of the comparison, and the PE is one of the job.
    unsafe {
        // The look at the table is the fast path's, and where it ends other copies begin.
        let at = world.table().remote(there, pe);
        let fast = !at.is_null() && bytes <= cached_max;
        match case.operation {
            Operation::Put | Operation::PutRead | Operation::Notice if fast => {
                return copy::cached(at, here, bytes);
            }
            Operation::Put | Operation::PutRead | Operation::Notice => {
                world.put(context, there, here, bytes, pe, Mode::Blocking, ROUTINE)
            }
            Operation::Get | Operation::GetRead if fast => return copy::cached(here, at, bytes),
            Operation::Get | Operation::GetRead => {
                world.get(context, here, there, bytes, pe, Mode::Blocking, ROUTINE)
            }
            Operation::Amo if !at.is_null() => {
                std::hint::black_box(amo::execute(at, ADD));
            }
            Operation::Amo => {
                std::hint::black_box(world.amo_fetch(context, there, ADD, pe, ROUTINE));
            }
            Operation::Pipeline if fast => {
                return (0..PIPELINE).for_each(|_| copy::cached(at, here, bytes));
            }
            Operation::Pipeline => (0..PIPELINE).for_each(|_| {
                world.put(context, there, here, bytes, pe, Mode::NonBlocking, ROUTINE);
            }),
            Operation::Blocking | Operation::ZeroCopy => (0..SERIES).for_each(|_| {
                world.put(context, there, here, bytes, pe, Mode::Blocking, ROUTINE);
            }),
        }
    }
    if !context.is_quiet() {
        world.quiet(context, ROUTINE);
    }
}

fn mapped(at: *mut u8, streaming: bool, case: &Case<'_>) {
    let Case { bytes, here, .. } = *case;
    let copy = if streaming { copy::streaming } else { copy::cached };
    // SAFETY: both ranges lie inside the buffers of the comparison.
    unsafe {
        match case.operation {
            Operation::Put | Operation::PutRead | Operation::Notice => copy(at, here, bytes),
            Operation::Get | Operation::GetRead => copy(here, at, bytes),
            Operation::Amo => {
                std::hint::black_box(amo::execute(at, ADD));
            }
            Operation::Pipeline | Operation::Blocking | Operation::ZeroCopy => {
                (0..operations(case.operation)).for_each(|_| copy(at, here, bytes));
            }
        }
    }
}

fn by_endpoint(
    world: &World,
    endpoint: &dyn Endpoint,
    index: usize,
    remote: Remote,
    bounced: bool,
    case: &Case<'_>,
) {
    let stream = world.context().stream(index);
    let waiting = Waiting { routine: ROUTINE, argument: case.pe as u64, reason: Reason::Answer };
    let accepted = |attempt: &dyn Fn() -> Status| {
        let mut status = attempt();
        if status == Status::Again {
            world.wait(waiting, || {
                status = attempt();
                status != Status::Again
            });
        }
        assert_ne!(status, Status::Failed);
    };
    let can = endpoint.capabilities(remote.segment);
    let max = if case.operation == Operation::Get { can.get_max } else { can.put_max };
    let transport = &world.transports()[index];
    let quiet = || {
        if !stream.is_quiet() {
            world.wait(waiting, || transport.quiet(stream) != Status::Pending);
        }
    };
    for _ in 0..operations(case.operation) {
        let mut at = 0;
        while at < case.bytes {
            let (place, here) =
                (Remote { offset: remote.offset + at, ..remote }, case.here.wrapping_add(at));
            let len = max.min(case.bytes - at);
            at += len;
            // SAFETY: parts of the buffers of the comparison, which live until all is complete.
            accepted(&|| unsafe {
                match case.operation {
                    Operation::Get => endpoint.get(stream, here, place, len),
                    Operation::Amo => endpoint.amo(stream, place, ADD, Some(here)),
                    _ => endpoint.put(stream, place, here, len, bounced),
                }
            });
        }
        // Without a copy the source of a blocking put is free when the put is complete.
        if case.operation == Operation::Blocking && !bounced {
            quiet();
        }
    }
    quiet();
    assert_eq!(stream.failed.load(Ordering::Relaxed), 0);
}
