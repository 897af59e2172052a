// SPDX-License-Identifier: Apache-2.0
//! Contiguous and scalar remote memory access, blocking and non-blocking (OpenSHMEM 1.6, "Remote
//! Memory Access Routines").

use super::fast::TABLES;
use std::ffi::{c_int, c_void};
use tombolo_core::ops::Mode::{Blocking, NonBlocking};

macro_rules! contiguous {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid for `nelems` elements, the remote one symmetric, and \
                local buffers stay until the call, or the next quiet for `_nbi`, lets go of them: \
                that many bytes are copied";
            [$name _put](ctx; dest: *mut $ty, source: *const $ty, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.put(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, Blocking)
            }
            [$name _put_nbi](ctx; dest: *mut $ty, source: *const $ty, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.put(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, NonBlocking)
            }
            [$name _get](ctx; dest: *mut $ty, source: *const $ty, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.get(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, Blocking)
            }
            [$name _get_nbi](ctx; dest: *mut $ty, source: *const $ty, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.get(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, NonBlocking)
            }
        }
    };
}

rma_pointer_types! {contiguous}

macro_rules! untyped {
    ($size:tt, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid for `nelems` elements of that many bits, the remote \
                one symmetric, and local buffers stay until the call, or the next quiet for \
                `_nbi`, lets go of them: that many bytes are copied";
            [put $size](ctx; dest: *mut c_void, source: *const c_void, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.put(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, Blocking)
            }
            [put $size _nbi](
                ctx; dest: *mut c_void, source: *const c_void, nelems: usize, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                TABLES.put(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, NonBlocking)
            }
            [get $size](ctx; dest: *mut c_void, source: *const c_void, nelems: usize, pe: c_int) {
                let len = nelems * size_of::<$ty>();
                TABLES.get(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, Blocking)
            }
            [get $size _nbi](
                ctx; dest: *mut c_void, source: *const c_void, nelems: usize, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                TABLES.get(ROUTINE, ctx, dest.cast(), source.cast(), len, pe, NonBlocking)
            }
        }
    };
}

sizes! {untyped}
untyped! {mem, u8}

macro_rules! scalar {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "the remote variable is symmetric and of this type: it alone is stored or loaded";
            [$name _p](ctx; dest: *mut $ty, value: $ty, pe: c_int) {
                TABLES.p(ROUTINE, ctx, dest, value, pe)
            }
            [$name _g](ctx; source: *const $ty, pe: c_int) -> $ty {
                TABLES.g(ROUTINE, ctx, source, pe)
            }
        }
    };
}

rma_types! {scalar}
