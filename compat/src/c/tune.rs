// SPDX-License-Identifier: Apache-2.0
//! The selector in this process: tuning at start, again while the program runs, and hints about its
//! buffers. The routines are extensions, declared in `shmemx.h`.

use super::fast;
use super::handle::Ctx;
use crate::library::library;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard};
use tombolo_collectives as coll;
use tombolo_core::config::{Report, Tune};
use tombolo_core::error;
use tombolo_core::{Result, World};
use tombolo_selector::adaptive::Adaptive;
use tombolo_selector::{Reuse, Tuning, report};

/// `SHMEMX_REUSE_HOT`.
const REUSE_HOT: c_int = 0;
/// `SHMEMX_REUSE_COLD`.
const REUSE_COLD: c_int = 1;

/// What a program says of its buffers; none, with a message, if it is nothing that can be said.
fn reuse_of(world: &World, routine: &str, reuse: c_int) -> Option<Reuse> {
    match reuse {
        REUSE_HOT => Some(Reuse::Hot),
        REUSE_COLD => Some(Reuse::Cold),
        _ => {
            error::report(format_args!(
                "PE {}: {routine}: reuse = {reuse}: expected SHMEMX_REUSE_HOT or SHMEMX_REUSE_COLD",
                world.pe()
            ));
            None
        }
    }
}

/// What is in force. `SHMEM_TUNE=adaptive` changes it while the program runs.
static TUNING: Mutex<Option<Arc<Mutex<Tuning>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What is in force on this PE; none before the library is initialised.
pub fn current() -> Option<Tuning> {
    lock(&TUNING).as_ref().map(|tuned| lock(tuned).clone())
}

/// Collective: tunes as the environment says, before the fast path is opened.
pub fn start(world: &World) -> Result<()> {
    let tuned = tombolo_selector::tune(world)?;
    report_on(world, &tuned);
    tuned.apply(world);
    let tuned = Arc::new(Mutex::new(tuned));
    if world.config().tune == Tune::Adaptive {
        world.observe(Box::new(Adaptive::new(tuned.clone())));
    }
    *lock(&TUNING) = Some(tuned);
    Ok(())
}

/// Reports a tuning if asked to.
fn report_on(world: &World, tuned: &Tuning) {
    let wanted = &world.config().tune_report;
    if world.pe() == 0
        && let Err(e) = report::write(tuned, wanted)
    {
        let place = match wanted {
            Report::To(_, Some(path)) => path.as_str(),
            _ => "standard output",
        };
        tracing::warn!("SHMEM_TUNE_REPORT: the report cannot be written to {place}: {e}");
    }
}

/// Opens the fast path by the routes in force; without memory for it, every operation is checked.
///
/// # Safety
/// No other thread is in a routine.
unsafe fn reopen(world: &World, routine: &str) {
    // SAFETY: by the caller's word; the world lives as long as the library is initialised.
    if let Err(why) = unsafe { fast::open(world) } {
        tracing::warn!("{routine}: operations are slow from now on: {why}");
    }
}

plain_routines! {
    callers: "no other thread is in a routine of the library, since the tables of the fast path are \
        replaced";
    shmemx_tune() -> c_int {
        const ROUTINE: &str = "shmemx_tune";
        let world = &library(ROUTINE).world;
        coll::barrier_all(world, ROUTINE);
        let failed = match tombolo_selector::retune(world) {
            Ok(mut tuned) => {
                let current = lock(&TUNING).clone();
                if let Some(current) = &current {
                    tuned.keep_hints_of(world, &lock(current));
                }
                report_on(world, &tuned);
                tuned.apply(world);
                if let Some(current) = &current {
                    *lock(current) = tuned;
                }
                // The caller vouches that no other thread is in a routine.
                reopen(world, ROUTINE);
                0
            }
            Err(error) => {
                error::report(format_args!("PE {}: {ROUTINE}: {error}", world.pe()));
                1
            }
        };
        coll::barrier_all(world, ROUTINE);
        failed
    }
    shmemx_tune_hint(reuse: c_int) -> c_int {
        const ROUTINE: &str = "shmemx_tune_hint";
        let world = &library(ROUTINE).world;
        let Some(reuse) = reuse_of(world, ROUTINE, reuse) else { return 1 };
        if let Some(current) = &*lock(&TUNING) {
            let mut tuned = lock(current);
            if tuned.reuse() != reuse {
                tuned.set_reuse(world, reuse);
                tuned.apply(world);
                // As above.
                reopen(world, ROUTINE);
            }
        }
        0
    }
    shmemx_ctx_tune_hint(ctx: Ctx, reuse: c_int) -> c_int {
        const ROUTINE: &str = "shmemx_ctx_tune_hint";
        let library = library(ROUTINE);
        let world = &library.world;
        let Some(reuse) = reuse_of(world, ROUTINE, reuse) else { return 1 };
        ctx.context(library, ROUTINE).set_hint(Some(reuse));
        if let Some(current) = &*lock(&TUNING) {
            let mut tuned = lock(current);
            if tuned.hint_contexts(world) {
                tuned.apply(world);
                // As above.
                reopen(world, ROUTINE);
            }
        }
        0
    }
}
