// SPDX-License-Identifier: Apache-2.0
//! The C routines that are measured: those that programs call, linked into this one. The standard
//! describes them.

use std::ffi::{c_int, c_long, c_void};

pub use tombolo::abi::{SHMEM_CMP_GE, SHMEM_CTX_PRIVATE, SHMEM_SIGNAL_SET, SHMEM_TEAM_WORLD};

pub type Handle = usize;

unsafe extern "C" {
    pub fn shmem_putmem(dest: *mut c_void, source: *const c_void, len: usize, pe: c_int);
    pub fn shmem_getmem(dest: *mut c_void, source: *const c_void, len: usize, pe: c_int);
    pub fn shmem_putmem_nbi(dest: *mut c_void, source: *const c_void, len: usize, pe: c_int);
    pub fn shmem_ctx_putmem_nbi(
        ctx: Handle,
        dest: *mut c_void,
        source: *const c_void,
        len: usize,
        pe: c_int,
    );
    pub fn shmem_long_iput(
        dest: *mut c_long,
        source: *const c_long,
        dst: isize,
        sst: isize,
        count: usize,
        pe: c_int,
    );
    pub fn shmem_long_iget(
        dest: *mut c_long,
        source: *const c_long,
        dst: isize,
        sst: isize,
        count: usize,
        pe: c_int,
    );
    pub fn shmem_quiet();
    pub fn shmem_ctx_quiet(ctx: Handle);
    pub fn shmem_ctx_create(options: c_long, ctx: *mut Handle) -> c_int;
    pub fn shmem_ctx_destroy(ctx: Handle);
    pub fn shmem_long_p(dest: *mut c_long, value: c_long, pe: c_int);
    pub fn shmem_long_atomic_fetch_add(variable: *mut c_long, value: c_long, pe: c_int) -> c_long;
    pub fn shmem_long_atomic_add(variable: *mut c_long, value: c_long, pe: c_int);
    pub fn shmem_long_atomic_compare_swap(
        variable: *mut c_long,
        condition: c_long,
        value: c_long,
        pe: c_int,
    ) -> c_long;
    pub fn shmem_putmem_signal(
        dest: *mut c_void,
        source: *const c_void,
        len: usize,
        signal: *mut u64,
        value: u64,
        operation: c_int,
        pe: c_int,
    );
    pub fn shmem_signal_wait_until(signal: *mut u64, cmp: c_int, value: u64) -> u64;
    pub fn shmem_barrier_all();
    pub fn shmem_sync_all();
    pub fn shmem_broadcastmem(
        team: Handle,
        dest: *mut c_void,
        source: *const c_void,
        len: usize,
        root: c_int,
    ) -> c_int;
    pub fn shmem_fcollectmem(
        team: Handle,
        dest: *mut c_void,
        source: *const c_void,
        len: usize,
    ) -> c_int;
    pub fn shmem_alltoallmem(
        team: Handle,
        dest: *mut c_void,
        source: *const c_void,
        len: usize,
    ) -> c_int;
    pub fn shmem_long_sum_reduce(
        team: Handle,
        dest: *mut c_long,
        source: *const c_long,
        count: usize,
    ) -> c_int;
}
