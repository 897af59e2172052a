// SPDX-License-Identifier: Apache-2.0
//! What exists between initialisation and finalisation, for all routines.

use crate::objects::Objects;
use crate::profile;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tombolo_core::bootstrap::Bootstrap;
use tombolo_core::error::report;
use tombolo_core::{World, world};

/// What exists while the library is initialised.
pub struct Library {
    /// This PE's part of the job.
    pub world: World,
    /// Contexts and teams that the program has made.
    pub objects: Mutex<Objects>,
}

impl Library {
    /// Contexts and teams that the program has made.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether arguments are checked.
    pub fn checks(&self) -> bool {
        self.world.config().debug.0
    }
}

/// The initialised library, or null.
static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());

/// The same, but null while what routines do is counted.
static DIRECT: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());

/// The connection to the launcher, from the first initialisation on: for errors.
static JOB: OnceLock<Arc<dyn Bootstrap>> = OnceLock::new();

/// Whether there was a library at some time.
static WAS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// To be called when this process has joined its job.
pub fn joined(job: Arc<dyn Bootstrap>) {
    JOB.get_or_init(|| job);
}

/// The connection to the launcher, if this process has joined its job.
pub fn job() -> Option<&'static Arc<dyn Bootstrap>> {
    JOB.get()
}

/// From now on routines work with this library.
pub fn publish(library: Box<Library>) {
    let library = Box::into_raw(library);
    LIBRARY.store(library, Ordering::Release);
    WAS_INITIALIZED.store(true, Ordering::Release);
    if profile::on().is_none() {
        DIRECT.store(library, Ordering::Release);
    }
}

/// Takes the library back; none if there is none.
///
/// # Safety
/// Nobody uses what [`library`] gave.
pub unsafe fn retract() -> Option<Library> {
    DIRECT.store(std::ptr::null_mut(), Ordering::Release);
    let library = LIBRARY.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null, or made by `publish`; nobody else has it since the swap.
    (!library.is_null()).then(|| unsafe { *Box::from_raw(library) })
}

/// The initialised library; without one, says so in `routine`'s name and ends the process.
#[inline]
pub fn library(routine: &str) -> &'static Library {
    // SAFETY: null or a live library. It is gone only after the last finalisation, during and after
    // which programs may not be in any other routine.
    match unsafe { LIBRARY.load(Ordering::Acquire).as_ref() } {
        Some(library) => library,
        None => refuse(routine),
    }
}

/// The initialised library, unless what routines do is counted: then they have to begin with
/// [`profile::within`]'s other path.
#[inline(always)]
pub fn direct() -> Option<&'static Library> {
    // SAFETY: as in `library`.
    unsafe { DIRECT.load(Ordering::Acquire).as_ref() }
}

/// True between initialisation and finalisation.
pub fn is_initialized() -> bool {
    !LIBRARY.load(Ordering::Acquire).is_null()
}

/// Says why there is no library in `routine`'s name, and ends the process.
#[cold]
pub fn refuse(routine: &str) -> ! {
    match JOB.get() {
        Some(job) => {
            let pe = job.pe();
            let when = match WAS_INITIALIZED.load(Ordering::Acquire) {
                true => "after shmem_finalize",
                false => "without a successful shmem_init",
            };
            report(format_args!("PE {pe}: {routine}: called {when}"));
            world::end(&**job, 1)
        }
        None => {
            // Not part of a job yet; the launcher's number tells which process it is.
            let pe = std::env::var("PMI_RANK").map(|pe| format!("PE {pe}: ")).unwrap_or_default();
            report(format_args!("{pe}{routine}: called before shmem_init"));
            std::process::exit(1)
        }
    }
}
