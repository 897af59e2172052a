// SPDX-License-Identifier: Apache-2.0
//! Initialisation, exit, threads, and PEs that are lost (OpenSHMEM 1.6, "Library Setup, Exit, and Query Routines" and
//! "Thread Support").

use crate::abi::{SHMEM_THREAD_MULTIPLE, SHMEM_THREAD_SINGLE};
use crate::ending;
use crate::library::{self, library};
use crate::process;
use std::ffi::{c_int, c_void};
use tombolo_core::error::report;
use tombolo_core::route::Channel;

routines! {
    callers: "results are writable, or null where the standard allows it; addresses that are asked about \
        are compared, never read";
    [shmem_init]() {
        process::enter_or_exit(ROUTINE)
    }
    // The library is safe at every level, so the level provided is the one asked for.
    [shmem_init_thread](requested: c_int, provided: *mut c_int) -> c_int {
        if !(SHMEM_THREAD_SINGLE..=SHMEM_THREAD_MULTIPLE).contains(&requested) {
            report(format_args!(
                "{ROUTINE}: requested = {requested} is not a thread level: expected SHMEM_THREAD_SINGLE to \
                 SHMEM_THREAD_MULTIPLE"
            ));
            return 1;
        }
        match process::enter(Some(requested)) {
            Ok(level) => {
                if !provided.is_null() {
                    provided.write(level);
                }
                0
            }
            Err(error) => {
                report(format_args!("{ROUTINE}: {error}"));
                1
            }
        }
    }
    [shmem_query_thread](provided: *mut c_int) {
        provided.write(process::thread_level())
    }
    [shmem_query_initialized](initialized: *mut c_int) {
        initialized.write(library::is_initialized().into())
    }
    [shmem_finalize]() {
        process::leave(ROUTINE)
    }
    [shmem_global_exit](status: c_int) {
        ending::global_exit(status)
    }
    [shmem_my_pe]() -> c_int {
        library(ROUTINE).world.pe() as c_int
    }
    [shmem_n_pes]() -> c_int {
        library(ROUTINE).world.n_pes() as c_int
    }
    [shmem_pe_accessible](pe: c_int) -> c_int {
        let world = &library(ROUTINE).world;
        usize::try_from(pe).is_ok_and(|pe| pe < world.n_pes()).into()
    }
    [shmem_addr_accessible](addr: *const c_void, pe: c_int) -> c_int {
        let world = &library(ROUTINE).world;
        let routes = usize::try_from(pe).ok().and_then(|pe| world.routes().peers.get(pe));
        let Some(routes) = routes else { return 0 };
        let reached = |kind: usize| routes.put[kind].choose(8) != Channel::Unreachable;
        match world.locate(addr.cast()) {
            Some(place) => reached(place.segment as usize).into(),
            None => world.has_constant(addr.cast(), 1, pe as usize).into(),
        }
    }
    [shmem_ptr](dest: *const c_void, pe: c_int) -> *mut c_void {
        let world = &library(ROUTINE).world;
        world.check_pe(ROUTINE, pe.into(), world.n_pes());
        world.ptr_to_read(dest, pe as usize)
    }
}

plain_routines! {
    callers: "nothing: the number of the PE is checked";
    shmemx_pe_is_lost(pe: c_int) -> c_int {
        let world = &library("shmemx_pe_is_lost").world;
        usize::try_from(pe).is_ok_and(|pe| pe < world.n_pes() && world.is_lost(pe)).into()
    }
}
