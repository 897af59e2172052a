// SPDX-License-Identifier: Apache-2.0
//! Deprecated collectives over active sets (OpenSHMEM 1.6, "Active-set-based collectives"). The
//! arrays `pSync` are needed, the work arrays `pWrk` are not.

use super::slow::{bytes_of, check_buffers, check_root, check_strided};
use crate::library::Library;
use crate::profile;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_collectives::active::{self, ActiveSet};
use tombolo_collectives::{And, Max, Min, Or, Prod, Strided, Sum, Xor, reducer};

/// The active set (start, logarithm of the stride, size) of a call, or nothing on a PE that is not in
/// it. The standard leaves open what happens there. Programs exist that call on all PEs, so it is an
/// error only where arguments are checked, and otherwise worth one warning.
fn active_set(
    library: &Library,
    routine: &'static str,
    (start, log_stride, size): (c_int, c_int, c_int),
    p_sync: *mut c_long,
) -> Option<ActiveSet> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let world = &library.world;
    let set = ActiveSet::new(world, start, log_stride, size, p_sync, routine);
    if set.is_none() {
        let what = format_args!(
            "this PE is not in the active set PE_start = {start}, logPE_stride = {log_stride}, \
             PE_size = {size}"
        );
        if library.checks() {
            world.stop_job(routine, what);
        }
        if !TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "PE {}: {routine}: {what}: the call has no effect on this PE",
                world.pe()
            );
        }
    }
    set
}

routines! {
    callers: "`p_sync` is a symmetric array of the set's members, used by no other set until all have \
        returned: flags are only set in there";
    [shmem_barrier](pe_start: c_int, log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long) {
        profile::within(ROUTINE, 0, |library| {
            let world = &library.world;
            let set = (pe_start, log_pe_stride, pe_size);
            let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
            active::barrier(world, set, ROUTINE)
        })
    }
    [shmem_sync](pe_start: c_int, log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long) {
        profile::within(ROUTINE, 0, |library| {
            let world = &library.world;
            let set = (pe_start, log_pe_stride, pe_size);
            let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
            active::sync(world, set, ROUTINE)
        })
    }
}

macro_rules! data {
    ($size:tt, $ty:ty) => {
        routines! {
            callers: "`dest` and `source` are valid for the elements that the routine moves, `dest` and \
                `p_sync` symmetric and used by no other call until all members have returned: \
                copies stay inside these arrays";
            [shmem_broadcast $size](
                dest: *mut c_void, source: *const c_void, nelems: usize, pe_root: c_int,
                pe_start: c_int, log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let (world, len) = (&library.world, bytes_of::<$ty>(nelems));
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    check_root(library, ROUTINE, pe_root, pe_size as usize);
                    check_buffers(library, ROUTINE, (dest.cast(), len), (source.cast(), len), false);
                    active::broadcast(world, set, dest.cast(), source.cast(), len, pe_root, ROUTINE)
                })
            }
            [shmem_collect $size](
                dest: *mut c_void, source: *const c_void, nelems: usize, pe_start: c_int,
                log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let (world, len) = (&library.world, bytes_of::<$ty>(nelems));
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    check_buffers(library, ROUTINE, (dest.cast(), len), (source.cast(), len), false);
                    active::collect(world, set, dest.cast(), source.cast(), len, ROUTINE)
                })
            }
            [shmem_fcollect $size](
                dest: *mut c_void, source: *const c_void, nelems: usize, pe_start: c_int,
                log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let (world, len) = (&library.world, bytes_of::<$ty>(nelems));
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    let all = len.saturating_mul(pe_size as usize);
                    check_buffers(library, ROUTINE, (dest.cast(), all), (source.cast(), len), false);
                    active::fcollect(world, set, dest.cast(), source.cast(), len, ROUTINE)
                })
            }
            [shmem_alltoall $size](
                dest: *mut c_void, source: *const c_void, nelems: usize, pe_start: c_int,
                log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let (world, len) = (&library.world, bytes_of::<$ty>(nelems));
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    let all = len.saturating_mul(pe_size as usize);
                    check_buffers(library, ROUTINE, (dest.cast(), all), (source.cast(), all), false);
                    active::alltoall(world, set, dest.cast(), source.cast(), len, ROUTINE)
                })
            }
            [shmem_alltoalls $size](
                dest: *mut c_void, source: *const c_void, dst: isize, sst: isize, nelems: usize,
                pe_start: c_int, log_pe_stride: c_int, pe_size: c_int, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let world = &library.world;
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    let strided = Strided { dst, sst, nelems, size: size_of::<$ty>() };
                    let count = nelems.saturating_mul(pe_size as usize);
                    check_strided(library, ROUTINE, dest.cast(), source.cast(), &strided, count);
                    active::alltoalls(world, set, dest.cast(), source.cast(), strided, ROUTINE)
                })
            }
        }
    };
}

data! {32, u32}
data! {64, u64}

macro_rules! to_all {
    ($name:ident, $ty:ty, $($verb:ident: $op:ty;)+) => {
        routines! {
            callers: "`dest` and `source` are valid for `nreduce` elements, `dest` and `p_sync` \
                symmetric and used by no other call until all members have returned: results of \
                that many elements are all that is written";
            $(
            [shmem_ $name _ $verb](
                dest: *mut $ty, source: *const $ty, nreduce: c_int,
                pe_start: c_int, log_pe_stride: c_int, pe_size: c_int,
                _p_wrk: *mut $ty, p_sync: *mut c_long,
            ) {
                profile::within(ROUTINE, nreduce.max(0) as usize * size_of::<$ty>(), |library| {
                    let world = &library.world;
                    let set = (pe_start, log_pe_stride, pe_size);
                    let Some(set) = active_set(library, ROUTINE, set, p_sync) else { return };
                    let Ok(nelems) = usize::try_from(nreduce) else {
                        let what = format_args!("nreduce = {nreduce}: expected 0 or more elements");
                        world.stop_job(ROUTINE, what)
                    };
                    let len = nelems * size_of::<$ty>();
                    check_buffers(library, ROUTINE, (dest.cast(), len), (source.cast(), len), true);
                    let reducer = const { reducer::<$op, $ty>() };
                    active::reduce(world, set, dest.cast(), source.cast(), nelems, reducer, ROUTINE)
                })
            }
        )+ }
    };
}

macro_rules! bitwise {
    ($name:ident, $ty:ty) => {
        to_all! {$name, $ty, and_to_all: And; or_to_all: Or; xor_to_all: Xor;}
    };
}

macro_rules! ordered {
    ($name:ident, $ty:ty) => {
        to_all! {$name, $ty, max_to_all: Max; min_to_all: Min;}
    };
}

macro_rules! arithmetic {
    ($name:ident, $ty:ty) => {
        to_all! {$name, $ty, sum_to_all: Sum; prod_to_all: Prod;}
    };
}

bitwise_to_all_types! {bitwise}
ordered_to_all_types! {ordered}
arithmetic_to_all_types! {arithmetic}
