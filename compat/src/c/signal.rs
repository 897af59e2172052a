// SPDX-License-Identifier: Apache-2.0
//! Put with signal, and signals alone (OpenSHMEM 1.6, "Signaling Operations").

use super::fast::{Signal, TABLES};
use super::slow;
use super::types::Watched;
use super::wait;
use crate::profile;
use std::ffi::{c_int, c_void};
use tombolo_core::ops::Mode::{Blocking, NonBlocking};
use tombolo_core::transport::AmoOp;

macro_rules! put_signal {
    ($name:ident, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid for `nelems` elements, `dest` and `sig_addr` \
symmetric, the signal aligned and changed by signals and AMOs alone; the source \
stays until the call, or the next quiet for `_nbi`, lets go of it";
            [$name _put_signal](
                ctx; dest: *mut $ty, source: *const $ty, nelems: usize, sig_addr: *mut u64,
                signal: u64, sig_op: c_int, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                let signal = Signal { word: sig_addr, value: signal, op: sig_op };
                let (dest, source) = (dest.cast(), source.cast());
                TABLES.put_signal(ROUTINE, ctx, dest, source, len, signal, pe, Blocking)
            }
            [$name _put_signal_nbi](
                ctx; dest: *mut $ty, source: *const $ty, nelems: usize, sig_addr: *mut u64,
                signal: u64, sig_op: c_int, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                let signal = Signal { word: sig_addr, value: signal, op: sig_op };
                let (dest, source) = (dest.cast(), source.cast());
                TABLES.put_signal(ROUTINE, ctx, dest, source, len, signal, pe, NonBlocking)
            }
        }
    };
}

rma_pointer_types! {put_signal}

macro_rules! untyped {
    ($size:tt, $ty:ty) => {
        context_routines! {
            callers: "`dest` and `source` are valid for `nelems` elements of that many bits, `dest` and \
                `sig_addr` symmetric, the signal aligned and changed by signals and AMOs alone; \
                the source stays until the call, or the next quiet for `_nbi`, lets go of it";
            [put $size _signal](
                ctx; dest: *mut c_void, source: *const c_void, nelems: usize, sig_addr: *mut u64,
                signal: u64, sig_op: c_int, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                let signal = Signal { word: sig_addr, value: signal, op: sig_op };
                let (dest, source) = (dest.cast(), source.cast());
                TABLES.put_signal(ROUTINE, ctx, dest, source, len, signal, pe, Blocking)
            }
            [put $size _signal_nbi](
                ctx; dest: *mut c_void, source: *const c_void, nelems: usize, sig_addr: *mut u64,
                signal: u64, sig_op: c_int, pe: c_int,
            ) {
                let len = nelems * size_of::<$ty>();
                let signal = Signal { word: sig_addr, value: signal, op: sig_op };
                let (dest, source) = (dest.cast(), source.cast());
                TABLES.put_signal(ROUTINE, ctx, dest, source, len, signal, pe, NonBlocking)
            }
        }
    };
}

sizes! {untyped}
untyped! {mem, u8}

context_routines! {
    callers: "`sig_addr` is a symmetric signal, aligned and changed by signals and AMOs alone: it alone \
        is touched";
    [signal_add](ctx; sig_addr: *mut u64, signal: u64, pe: c_int) {
        TABLES.amo(ROUTINE, ctx, AmoOp::Add, sig_addr, signal, pe)
    }
    [signal_set](ctx; sig_addr: *mut u64, signal: u64, pe: c_int) {
        TABLES.amo(ROUTINE, ctx, AmoOp::Set, sig_addr, signal, pe)
    }
}

routines! {
    callers: "`sig_addr` is a signal of this PE, aligned and changed by signals and AMOs alone: it alone \
        is read";
    [shmem_signal_fetch](sig_addr: *const u64) -> u64 {
        if TABLES.checking() {
            return fetch_checked(ROUTINE, sig_addr);
        }
        Watched::load(sig_addr)
    }
}

/// `shmem_signal_fetch`, with checks, and counted if calls are.
///
/// # Safety
/// `sig_addr` is readable.
#[cold]
#[inline(never)]
unsafe fn fetch_checked(routine: &'static str, sig_addr: *const u64) -> u64 {
    slow::check_variable(routine, "sig_addr", sig_addr, 1);
    // SAFETY: by the caller's word.
    wait::look(profile::on(), routine, || unsafe { Watched::load(sig_addr) })
}
