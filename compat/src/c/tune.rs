//! The selector in this process: tuning at start, again while the program runs, and hints about its
//! buffers. The routines are extensions, declared in `shmemx.h`.

use super::fast;
use crate::process::library;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};
use tombolo_collectives as coll;
use tombolo_core::config::Tune;
use tombolo_core::{Result, World};
use tombolo_selector::adaptive::Adaptive;
use tombolo_selector::{Reuse, Tuning, report};

/// `SHMEMX_REUSE_HOT`.
const REUSE_HOT: c_int = 0;
/// `SHMEMX_REUSE_COLD`.
const REUSE_COLD: c_int = 1;

/// What is in force.
static TUNING: Mutex<Option<Tuning>> = Mutex::new(None);

fn tuning() -> MutexGuard<'static, Option<Tuning>> {
    TUNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What is in force on this PE; none before the library is initialised.
pub fn current() -> Option<Tuning> {
    tuning().clone()
}

/// Collective: tunes as the environment says, before the fast path is opened.
pub fn start(world: &World) -> Result<()> {
    let tuned = tombolo_selector::tune(world)?;
    if world.config().tune == Tune::Adaptive {
        world.observe(Box::new(Adaptive::new(tuned.clone())));
    }
    adopt(world, tuned);
    Ok(())
}

/// Puts a tuning into force and reports it if asked to.
fn adopt(world: &World, tuned: Tuning) {
    tuned.apply(world);
    let wanted = &world.config().tune_report;
    if world.pe() == 0
        && let Err(e) = report::write(&tuned, wanted)
    {
        tracing::warn!("the report that SHMEM_TUNE_REPORT asks for cannot be written: {e}");
    }
    *tuning() = Some(tuned);
}

plain_routines! {
    shmemx_tune() -> c_int {
        const ROUTINE: &str = "shmemx_tune";
        let world = &library(ROUTINE).world;
        coll::barrier_all(world, ROUTINE);
        let failed = match tombolo_selector::retune(world) {
            Ok(tuned) => {
                adopt(world, tuned);
                // The caller vouches that no other thread is in a routine.
                fast::open(world);
                0
            }
            Err(error) => {
                eprintln!("tombolo: PE {}: {ROUTINE}: {error}", world.pe());
                1
            }
        };
        coll::barrier_all(world, ROUTINE);
        failed
    }
    shmemx_tune_hint(reuse: c_int) -> c_int {
        const ROUTINE: &str = "shmemx_tune_hint";
        let world = &library(ROUTINE).world;
        let reuse = match reuse {
            REUSE_HOT => Reuse::Hot,
            REUSE_COLD => Reuse::Cold,
            _ => {
                eprintln!("tombolo: PE {}: {ROUTINE}: {reuse} is no kind of reuse", world.pe());
                return 1;
            }
        };
        if let Some(tuned) = tuning().as_mut().filter(|tuned| tuned.reuse() != reuse) {
            tuned.set_reuse(world, reuse);
            tuned.apply(world);
            // As above.
            fast::open(world);
        }
        0
    }
}
