// SPDX-License-Identifier: Apache-2.0
//! Atomic memory operations, with and without result, blocking and non-blocking (OpenSHMEM 1.6,
//! "Atomic Memory Operations"). The deprecated names are at the end of each template.

use super::fast::TABLES;
use super::handle::Ctx;
use std::ffi::c_int;
use tombolo_core::transport::AmoOp;

macro_rules! extended {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "the variable is symmetric, aligned, and changed by other means than AMOs at no \
                time of the call; `fetch` is writable until the next quiet: the address is looked \
                up before the AMO is done there, and nothing else is touched";
            [$name _atomic_fetch](ctx; source: *const $ty, pe: c_int) -> $ty {
                let none = <$ty>::default();
                TABLES.amo_fetch(ROUTINE, ctx, AmoOp::Fetch, source.cast_mut(), [none; 2], pe)
            }
            [$name _atomic_set](ctx; dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo(ROUTINE, ctx, AmoOp::Set, dest, value, pe)
            }
            [$name _atomic_swap](ctx; dest: *mut $ty, value: $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, ctx, AmoOp::Set, dest, [value; 2], pe)
            }
            [$name _atomic_fetch_nbi](ctx; fetch: *mut $ty, source: *const $ty, pe: c_int) {
                let none = <$ty>::default();
                TABLES.amo_nbi(ROUTINE, ctx, AmoOp::Fetch, fetch, source.cast_mut(), [none; 2], pe)
            }
            [$name _atomic_swap_nbi](ctx; fetch: *mut $ty, dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo_nbi(ROUTINE, ctx, AmoOp::Set, fetch, dest, [value; 2], pe)
            }
        }
        routines! {
            callers: "the variable is symmetric, aligned, and changed by other means than AMOs at no \
                time of the call; `fetch` is writable until the next quiet: the address is looked \
                up before the AMO is done there, and nothing else is touched";
            [shmem_ $name _fetch](source: *const $ty, pe: c_int) -> $ty {
                let none = <$ty>::default();
                let variable = source.cast_mut();
                TABLES.amo_fetch(ROUTINE, Ctx::DEFAULT, AmoOp::Fetch, variable, [none; 2], pe)
            }
            [shmem_ $name _set](dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo(ROUTINE, Ctx::DEFAULT, AmoOp::Set, dest, value, pe)
            }
            [shmem_ $name _swap](dest: *mut $ty, value: $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, Ctx::DEFAULT, AmoOp::Set, dest, [value; 2], pe)
            }
        }
    };
}

extended_amo_types! {extended}

macro_rules! standard {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "the variable is symmetric, aligned, and changed by other means than AMOs at no \
                time of the call; `fetch` is writable until the next quiet: the address is looked \
                up before the AMO is done there, and nothing else is touched";
            [$name _atomic_compare_swap](
                ctx; dest: *mut $ty, cond: $ty, value: $ty, pe: c_int,
            ) -> $ty {
                TABLES.amo_fetch(ROUTINE, ctx, AmoOp::CompareSwap, dest, [value, cond], pe)
            }
            [$name _atomic_fetch_inc](ctx; dest: *mut $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, ctx, AmoOp::Add, dest, [1; 2], pe)
            }
            [$name _atomic_inc](ctx; dest: *mut $ty, pe: c_int) {
                TABLES.amo(ROUTINE, ctx, AmoOp::Add, dest, 1, pe)
            }
            [$name _atomic_fetch_add](ctx; dest: *mut $ty, value: $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, ctx, AmoOp::Add, dest, [value; 2], pe)
            }
            [$name _atomic_add](ctx; dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo(ROUTINE, ctx, AmoOp::Add, dest, value, pe)
            }
            [$name _atomic_compare_swap_nbi](
                ctx; fetch: *mut $ty, dest: *mut $ty, cond: $ty, value: $ty, pe: c_int,
            ) {
                TABLES.amo_nbi(ROUTINE, ctx, AmoOp::CompareSwap, fetch, dest, [value, cond], pe)
            }
            [$name _atomic_fetch_inc_nbi](ctx; fetch: *mut $ty, dest: *mut $ty, pe: c_int) {
                TABLES.amo_nbi(ROUTINE, ctx, AmoOp::Add, fetch, dest, [1; 2], pe)
            }
            [$name _atomic_fetch_add_nbi](
                ctx; fetch: *mut $ty, dest: *mut $ty, value: $ty, pe: c_int,
            ) {
                TABLES.amo_nbi(ROUTINE, ctx, AmoOp::Add, fetch, dest, [value; 2], pe)
            }
        }
        routines! {
            callers: "the variable is symmetric, aligned, and changed by other means than AMOs at no \
                time of the call; `fetch` is writable until the next quiet: the address is looked \
                up before the AMO is done there, and nothing else is touched";
            [shmem_ $name _cswap](dest: *mut $ty, cond: $ty, value: $ty, pe: c_int) -> $ty {
                let operands = [value, cond];
                TABLES.amo_fetch(ROUTINE, Ctx::DEFAULT, AmoOp::CompareSwap, dest, operands, pe)
            }
            [shmem_ $name _finc](dest: *mut $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, Ctx::DEFAULT, AmoOp::Add, dest, [1; 2], pe)
            }
            [shmem_ $name _inc](dest: *mut $ty, pe: c_int) {
                TABLES.amo(ROUTINE, Ctx::DEFAULT, AmoOp::Add, dest, 1, pe)
            }
            [shmem_ $name _fadd](dest: *mut $ty, value: $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, Ctx::DEFAULT, AmoOp::Add, dest, [value; 2], pe)
            }
            [shmem_ $name _add](dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo(ROUTINE, Ctx::DEFAULT, AmoOp::Add, dest, value, pe)
            }
        }
    };
}

amo_types! {standard}

macro_rules! bitwise {
    ($name:ident, $ty:ty) => {
        bitwise! {$name, $ty, and, AmoOp::And}
        bitwise! {$name, $ty, or, AmoOp::Or}
        bitwise! {$name, $ty, xor, AmoOp::Xor}
    };
    ($name:ident, $ty:ty, $verb:ident, $op:expr) => {
        context_routines! {
            callers: "the variable is symmetric, aligned, and changed by other means than AMOs at no \
                time of the call; `fetch` is writable until the next quiet: the address is looked \
                up before the AMO is done there, and nothing else is touched";
            [$name _atomic_fetch_ $verb](ctx; dest: *mut $ty, value: $ty, pe: c_int) -> $ty {
                TABLES.amo_fetch(ROUTINE, ctx, $op, dest, [value; 2], pe)
            }
            [$name _atomic_ $verb](ctx; dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.amo(ROUTINE, ctx, $op, dest, value, pe)
            }
            [$name _atomic_fetch_ $verb _nbi](
                ctx; fetch: *mut $ty, dest: *mut $ty, value: $ty, pe: c_int,
            ) {
                TABLES.amo_nbi(ROUTINE, ctx, $op, fetch, dest, [value; 2], pe)
            }
        }
    };
}

bitwise_amo_types! {bitwise}
