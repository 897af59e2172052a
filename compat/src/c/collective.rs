// SPDX-License-Identifier: Apache-2.0
//! Collectives over teams (OpenSHMEM 1.6, "Collective Routines").

use super::handle::TeamHandle;
use super::slow::{bytes_of, check_broadcast, check_buffers, check_root, check_strided};
use crate::profile;
use std::ffi::{c_int, c_void};
use tombolo_collectives::{self as coll, And, Max, Min, Or, Prod, Strided, Sum, Xor, reducer};

routines! {
    callers: "a team is one that was created and not destroyed, which is looked up before it is used; no \
        memory is passed";
    [shmem_barrier_all]() {
        profile::within(ROUTINE, 0, |library| coll::barrier_all(&library.world, ROUTINE))
    }
    [shmem_sync_all]() {
        profile::within(ROUTINE, 0, |library| coll::sync_all(&library.world, ROUTINE))
    }
    [shmem_team_sync](team: TeamHandle) -> c_int {
        profile::within(ROUTINE, 0, |library| {
            coll::sync(&library.world, team.team(library, ROUTINE), ROUTINE);
            0
        })
    }
}

macro_rules! data {
    ([$($prefix:tt)*], [$($suffix:tt)*], $ty:ty, $element:ty) => {
        routines! {
            callers: "`dest` and `source` are valid on every member for the elements that the routine \
                moves, and are used by nobody else until the call returns: copies stay inside \
                these arrays";
            [shmem_ $($prefix)* broadcast $($suffix)*](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, nelems: usize,
                pe_root: c_int,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$element>(nelems), |library| {
                    let (team, len) = (team.team(library, ROUTINE), bytes_of::<$element>(nelems));
                    check_root(library, ROUTINE, pe_root, team.n_pes());
                    let (dest, source) = (dest.cast(), source.cast());
                    let is_root = team.me == pe_root as usize;
                    check_broadcast(library, ROUTINE, (dest, source), len, is_root);
                    coll::broadcast(&library.world, team, dest, source, len, pe_root, ROUTINE);
                    0
                })
            }
            [shmem_ $($prefix)* collect $($suffix)*](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, nelems: usize,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$element>(nelems), |library| {
                    let (team, len) = (team.team(library, ROUTINE), bytes_of::<$element>(nelems));
                    check_buffers(library, ROUTINE, (dest.cast(), len), (source.cast(), len), false);
                    coll::collect(&library.world, team, dest.cast(), source.cast(), len, ROUTINE);
                    0
                })
            }
            [shmem_ $($prefix)* fcollect $($suffix)*](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, nelems: usize,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$element>(nelems), |library| {
                    let (team, len) = (team.team(library, ROUTINE), bytes_of::<$element>(nelems));
                    let all = len.saturating_mul(team.n_pes());
                    check_buffers(library, ROUTINE, (dest.cast(), all), (source.cast(), len), false);
                    coll::fcollect(&library.world, team, dest.cast(), source.cast(), len, ROUTINE);
                    0
                })
            }
            [shmem_ $($prefix)* alltoall $($suffix)*](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, nelems: usize,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$element>(nelems), |library| {
                    let (team, len) = (team.team(library, ROUTINE), bytes_of::<$element>(nelems));
                    let all = len.saturating_mul(team.n_pes());
                    check_buffers(library, ROUTINE, (dest.cast(), all), (source.cast(), all), false);
                    coll::alltoall(&library.world, team, dest.cast(), source.cast(), len, ROUTINE);
                    0
                })
            }
            [shmem_ $($prefix)* alltoalls $($suffix)*](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, dst: isize, sst: isize,
                nelems: usize,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$element>(nelems), |library| {
                    let team = team.team(library, ROUTINE);
                    let strided = Strided { dst, sst, nelems, size: size_of::<$element>() };
                    let count = nelems.saturating_mul(team.n_pes());
                    check_strided(library, ROUTINE, dest.cast(), source.cast(), &strided, count);
                    coll::alltoalls(&library.world, team, dest.cast(), source.cast(), strided, ROUTINE);
                    0
                })
            }
        }
    };
}

macro_rules! typed_data {
    ($name:ident, $ty:ty) => {
        data! {[$name _], [], $ty, $ty}
    };
}

rma_pointer_types! {typed_data}
data! {[], [mem], c_void, u8}

macro_rules! reductions {
    ($name:ident, $ty:ty, $($verb:ident: $function:ident $op:ty;)+) => {
        routines! {
            callers: "`dest` and `source` are valid on every member for `nelems` elements and, where \
                they overlap, equal: results of that many elements are all that is written";
            $(
            [shmem_ $name _ $verb](
                team: TeamHandle, dest: *mut $ty, source: *const $ty, nelems: usize,
            ) -> c_int {
                profile::within(ROUTINE, bytes_of::<$ty>(nelems), |library| {
                    let team = team.team(library, ROUTINE);
                    let len = bytes_of::<$ty>(nelems);
                    check_buffers(library, ROUTINE, (dest.cast(), len), (source.cast(), len), true);
                    let reducer = const { reducer::<$op, $ty>() };
                    let (dest, source) = (dest.cast(), source.cast());
                    coll::$function(&library.world, team, dest, source, nelems, reducer, ROUTINE);
                    0
                })
            }
        )+ }
    };
}

macro_rules! bitwise {
    ($name:ident, $ty:ty) => {
        reductions! {$name, $ty,
            and_reduce: reduce And; or_reduce: reduce Or; xor_reduce: reduce Xor;
        }
    };
}

macro_rules! ordered {
    ($name:ident, $ty:ty) => {
        reductions! {$name, $ty, max_reduce: reduce Max; min_reduce: reduce Min;}
    };
}

macro_rules! arithmetic {
    ($name:ident, $ty:ty) => {
        reductions! {$name, $ty,
            sum_reduce: reduce Sum; prod_reduce: reduce Prod;
            sum_inscan: inscan Sum; sum_exscan: exscan Sum;
        }
    };
}

bitwise_reduce_types! {bitwise}
rma_pointer_types! {ordered}
arithmetic_types! {arithmetic}
