// SPDX-License-Identifier: Apache-2.0
//! The symmetric heap (OpenSHMEM 1.6, "Memory Management Routines"). Every PE computes the same
//! places, so no PE has to tell another where it allocated.

use crate::abi::{SHMEM_MALLOC_ATOMICS_REMOTE, SHMEM_MALLOC_SIGNAL_REMOTE};
use crate::library::{Library, library};
use crate::profile;
use std::ffi::{c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_collectives as coll;
use tombolo_core::control;
use tombolo_core::memory::Placement;

/// Suits every C type, vectors of the processor included.
pub const USUAL: Placement = Placement::aligned(64);
/// Variables of different PEs' attention are best kept this far apart: processors fetch cache lines
/// in pairs.
const APART: Placement = Placement::apart(128);

/// Whether somebody has been told that the heap is full.
static TOLD: AtomicBool = AtomicBool::new(false);
/// Whether somebody has been told of an alignment that is none.
static TOLD_ALIGNMENT: AtomicBool = AtomicBool::new(false);

routines! {
    callers: "nothing but that all PEs call alike: a block to free or resize is looked up in the heap \
        first";
    [shmem_malloc](size: usize) -> *mut c_void {
        allocate(ROUTINE, size, USUAL)
    }
    [shmem_align](alignment: usize, size: usize) -> *mut c_void {
        allocate(ROUTINE, size, Placement::aligned(alignment))
    }
    [shmem_malloc_with_hints](size: usize, hints: c_long) -> *mut c_void {
        let contended = hints & (SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE) != 0;
        allocate(ROUTINE, size, if contended { APART } else { USUAL })
    }
    [shmem_calloc](count: usize, size: usize) -> *mut c_void {
        calloc(ROUTINE, count, size)
    }
    [shmem_realloc](ptr: *mut c_void, size: usize) -> *mut c_void {
        reallocate(ROUTINE, ptr, size)
    }
    [shmem_free](ptr: *mut c_void) {
        free(ROUTINE, ptr)
    }
}

/// `shmem_malloc` and its kin: a barrier on exit. Where nothing is asked for, the standard has the call perform no
/// action: a PE may make it alone, also while arguments are checked.
pub fn allocate(routine: &'static str, size: usize, placement: Placement) -> *mut c_void {
    if size == 0 {
        library(routine);
        return null_mut();
    }
    allocate_filled(routine, size, placement, |_| {}).cast()
}

/// As [`allocate`], for at least one byte; `fill` sees the block, unless it is null, before other PEs
/// know of it.
pub fn allocate_filled(
    routine: &'static str,
    size: usize,
    placement: Placement,
    fill: impl FnOnce(*mut u8),
) -> *mut u8 {
    let library = library(routine);
    compare(library, routine, [("size", size), ("alignment", placement.align)]);
    let block = take(library, routine, size, placement);
    if !block.is_null() {
        fill(block);
    }
    profile::within(routine, size, |library| coll::barrier_all(&library.world, routine));
    block
}

fn calloc(routine: &'static str, count: usize, size: usize) -> *mut c_void {
    let library = library(routine);
    if count == 0 || size == 0 {
        return null_mut();
    }
    compare(library, routine, [("count", count), ("size", size)]);
    // More than there ever is, where the product is no number.
    let bytes = count.saturating_mul(size);
    let block = take(library, routine, bytes, USUAL);
    if !block.is_null() {
        // SAFETY: a new block of this size, which other PEs know of only after the barrier.
        unsafe { block.write_bytes(0, bytes) };
    }
    profile::within(routine, bytes, |library| coll::barrier_all(&library.world, routine));
    block.cast()
}

/// `shmem_realloc`: barriers on entry and on exit. A block that cannot grow where it is moves, and lies there
/// as it did here.
pub fn reallocate(routine: &'static str, ptr: *mut c_void, size: usize) -> *mut c_void {
    if ptr.is_null() {
        return allocate(routine, size, USUAL);
    }
    if size == 0 {
        free(routine, ptr);
        return null_mut();
    }
    let library = library(routine);
    compare(library, routine, [("ptr", offset(library, routine, ptr)), ("size", size)]);
    profile::within(routine, size, |library| {
        let (world, old) = (&library.world, ptr.cast::<u8>());
        coll::barrier_all(world, routine);
        let heap = world.heap();
        let Some((before, placement)) = heap.size_of(old).zip(heap.placement_of(old)) else {
            no_block(library, routine, ptr);
        };
        let mut block = old;
        if !heap.resize(old, size) {
            block = take(library, routine, size, placement);
            if !block.is_null() {
                // SAFETY: two live blocks of at least this many bytes.
                unsafe { std::ptr::copy_nonoverlapping(old, block, before.min(size)) };
                heap.free(old);
            }
        }
        coll::barrier_all(world, routine);
        block.cast()
    })
}

/// `shmem_free`: a barrier on entry. Where there is nothing to free, a PE may call it alone, as in [`allocate`].
pub fn free(routine: &'static str, ptr: *mut c_void) {
    let library = library(routine);
    if ptr.is_null() {
        return;
    }
    compare(library, routine, [("ptr", offset(library, routine, ptr)), ("size", 0)]);
    profile::within(routine, 0, |library| coll::barrier_all(&library.world, routine));
    if !library.world.heap().free(ptr.cast()) {
        no_block(library, routine, ptr);
    }
}

fn take(library: &Library, routine: &'static str, size: usize, placement: Placement) -> *mut u8 {
    let heap = library.world.heap();
    let block = heap.allocate_placed(size, placement);
    // The PEs ask for the same, so one of them tells it for all, the first time.
    let tells = block.is_null() && library.world.pe() == 0;
    if tells && !placement.align.is_power_of_two() {
        if !TOLD_ALIGNMENT.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{routine}: alignment = {} is not a power of two: returns NULL",
                placement.align
            );
        }
    } else if tells && !TOLD.swap(true, Ordering::Relaxed) {
        let (free, largest, capacity) = heap.free_bytes();
        let instead = match heap.sufficient(size, placement) {
            Some(bytes) => format!(
                "; SHMEM_SYMMETRIC_SIZE={}m would have sufficed for this call",
                bytes.div_ceil(1 << 20)
            ),
            None => String::new(),
        };
        tracing::warn!(
            "{routine}: the symmetric heap ({capacity} bytes) has no free block of {size} bytes aligned to {}; \
             {free} bytes are free, the largest block has {largest}: returns NULL{instead}",
            placement.align
        );
    }
    block
}

fn no_block(library: &Library, routine: &'static str, ptr: *mut c_void) -> ! {
    library.world.stop_job(
        routine,
        format_args!(
            "ptr = {ptr:p} is not an allocated block of the symmetric heap: it was never allocated, or \
             has been freed"
        ),
    )
}

/// Where a block is: the same on every PE, as addresses are not.
fn offset(library: &Library, routine: &'static str, ptr: *mut c_void) -> usize {
    if library.checks() && library.world.heap().size_of(ptr.cast()).is_none() {
        no_block(library, routine, ptr);
    }
    (ptr as usize).wrapping_sub(library.world.heap().base() as usize)
}

/// Collective while arguments are checked: compares the arguments of all PEs.
fn compare(library: &Library, routine: &'static str, arguments: [(&str, usize); 2]) {
    if !library.checks() {
        return;
    }
    let world = &library.world;
    let line = |index| world.heap().base().wrapping_add(control::compared(world.n_pes(), index));
    let (mine, all) = (line(0).cast::<[usize; 2]>(), line(1));
    let len = size_of::<[usize; 2]>();
    // SAFETY: the control area has a line for this PE's arguments and one more for each PE.
    let others = unsafe {
        mine.write(arguments.map(|(_, value)| value));
        coll::fcollect(world, world.team(), all, mine.cast(), len, routine);
        std::slice::from_raw_parts(all.cast::<[usize; 2]>(), world.n_pes())
    };
    for (pe, theirs) in others.iter().enumerate() {
        for ((name, value), other) in arguments.iter().zip(theirs) {
            if value != other {
                let shown = |value: usize| match *name {
                    "ptr" => format!("heap + {value:#x}"),
                    _ => value.to_string(),
                };
                world.stop_job(
                    routine,
                    format_args!(
                        "{name} = {} here, but {} at PE {pe}: expected the same value at all PEs",
                        shown(*value),
                        shown(*other)
                    ),
                );
            }
        }
    }
}
