// SPDX-License-Identifier: Apache-2.0
//! A PE's membership in its job.

use super::atomic::{Atomic, SymmetricAtomic};
use super::context::Context;
use super::lock::Lock;
use super::memory::{AllocError, Symmetric, SymmetricBox, SymmetricVec};
use super::panics;
use super::team::Team;
use crate::abi::SHMEM_THREAD_MULTIPLE;
use crate::c::handle::Ctx;
use crate::ending;
use crate::library::{Library, library};
use crate::process::{self, HAS_WORLD};
use bytemuck::Pod;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::thread;
use tombolo_collectives as coll;
use tombolo_core::{Error, Result};

/// Cache lines are fetched in pairs: variables of different PEs' attention lie this far apart.
const APART: usize = 128;
const ALIGNMENT: usize = crate::c::memory::USUAL.align;

/// This PE's part of the job, from [`init`] until it is dropped.
///
/// It derefs to the default [`Context`], so operations are called on it directly. Collective calls
/// are its own methods and those of [`Team`]. It stays with one thread at a time (it is not `Sync`),
/// as do teams and allocations: the standard allows one collective call of a team at a time. Other
/// threads get a [`Context`] of their own from [`Team::context`].
///
/// **Dropping it is collective**: it completes this PE's operations, waits for all PEs, and leaves the
/// job (OpenSHMEM 1.6, `shmem_finalize`). Dropped while its thread panics, it ends the job instead.
pub struct World {
    library: &'static Library,
    context: Context<'static>,
}

/// Collective: joins the job in which this process was started, by `oshrun` or another launcher, with
/// the settings of the environment. Without a launcher it is a job of one PE.
///
/// ```
/// let world = tombolo::init()?;
/// println!("PE {} of {}", world.my_pe(), world.n_pes());
/// world.barrier_all();
/// # Ok::<(), tombolo::Error>(())
/// ```
///
/// # Errors
/// A setting that cannot be understood, a launcher that cannot be reached, no memory for the heap, a
/// PE that no transport reaches; [`Error::Bootstrap`] if this process has a `World` already.
pub fn init() -> Result<World> {
    if HAS_WORLD.swap(true, Ordering::AcqRel) {
        return Err(Error::Bootstrap("this process has a tombolo::World already".into()));
    }
    let entered = process::enter(Some(SHMEM_THREAD_MULTIPLE));
    entered.inspect_err(|_| HAS_WORLD.store(false, Ordering::Release))?;
    let library = library("tombolo::init");
    panics::watch();
    let n_pes = library.world.n_pes();
    let context = Context::new(Ctx::DEFAULT, n_pes, library);
    Ok(World { library, context })
}

impl World {
    /// Number of this PE, from 0 (`shmem_my_pe`).
    pub fn my_pe(&self) -> usize {
        self.library.world.pe()
    }

    /// Number of PEs of the job (`shmem_n_pes`).
    pub fn n_pes(&self) -> usize {
        self.library.world.n_pes()
    }

    /// Collective: completes this PE's operations on the default context and waits for all PEs
    /// (OpenSHMEM 1.6, `shmem_barrier_all`).
    pub fn barrier_all(&self) {
        coll::barrier_all(&self.library.world, "World::barrier_all");
    }

    /// Collective: waits for all PEs. Completes nothing: what was put may arrive later (OpenSHMEM
    /// 1.6, `shmem_sync_all`).
    pub fn sync_all(&self) {
        coll::sync_all(&self.library.world, "World::sync_all");
    }

    /// The team of all PEs (`SHMEM_TEAM_WORLD`).
    pub fn team(&self) -> Team<'_> {
        Team::predefined(self, self.library.world.team().clone())
    }

    /// The team of the PEs that share memory with this one (`SHMEM_TEAM_SHARED`).
    pub fn shared_team(&self) -> Team<'_> {
        Team::predefined(self, self.library.world.shared_team().clone())
    }

    /// Collective: one value of plain data at every PE, `value` at first (OpenSHMEM 1.6,
    /// `shmem_malloc`). All PEs make the same allocations in the same order.
    ///
    /// # Errors
    /// The heap has no room; the same at all PEs.
    pub fn alloc<T: Pod>(&self, value: T) -> Result<SymmetricBox<'_, Symmetric<T>>, AllocError> {
        Ok(self.alloc_slice(1, value)?.single())
    }

    /// Collective: an array of `len` elements at every PE, all `value` at first. `len` is the same at
    /// all PEs.
    ///
    /// ```
    /// let world = tombolo::init()?;
    /// let field = world.alloc_slice(100, 0.0f64)?;
    /// let right = (world.my_pe() + 1) % world.n_pes();
    /// world.put(&field[10..13], &[1.0, 2.0, 3.0], right);
    /// world.barrier_all();
    /// assert_eq!(field[11].read(), 2.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`World::alloc`].
    pub fn alloc_slice<T: Pod>(
        &self,
        len: usize,
        value: T,
    ) -> Result<SymmetricVec<'_, T>, AllocError> {
        SymmetricBox::filled(self, len, value, ALIGNMENT)
    }

    /// Collective: one atomic variable at every PE, apart from other data.
    ///
    /// # Errors
    /// As [`World::alloc`].
    pub fn alloc_atomic<T: Atomic>(
        &self,
        value: T,
    ) -> Result<SymmetricBox<'_, SymmetricAtomic<T>>, AllocError> {
        Ok(SymmetricBox::filled(self, 1, value, APART)?.single())
    }

    /// Collective: an array of atomic variables at every PE.
    ///
    /// # Errors
    /// As [`World::alloc`].
    pub fn alloc_atomics<T: Atomic>(
        &self,
        len: usize,
        value: T,
    ) -> Result<SymmetricBox<'_, [SymmetricAtomic<T>]>, AllocError> {
        SymmetricBox::filled(self, len, value, APART)
    }

    /// Collective: a lock that one PE of the job holds at a time, free at first.
    ///
    /// # Errors
    /// As [`World::alloc`].
    pub fn alloc_lock(&self) -> Result<Lock<'_>, AllocError> {
        Lock::new(self)
    }

    /// Where the instance of `memory` at PE `pe` is mapped in this process, so that loads and stores reach it
    /// (`shmem_ptr`). There is no such address for PEs of other hosts.
    ///
    /// The address is that of the first element; the others follow. It is valid until `memory` is freed. Loads
    /// and stores through it are `unsafe`: another PE may access the same elements at the same time, as with
    /// [`SymmetricBox::local_mut`].
    ///
    /// ```
    /// let world = tombolo::init()?;
    /// let field = world.alloc_slice(4, 7u32)?;
    /// if let Some(theirs) = world.ptr(&field, 0) {
    ///     // SAFETY: nobody writes; all PEs have filled theirs.
    ///     assert_eq!(unsafe { theirs.add(3).read_volatile() }, 7);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// There is no such PE.
    #[track_caller]
    pub fn ptr<T: Pod>(&self, memory: &[Symmetric<T>], pe: usize) -> Option<NonNull<T>> {
        let pe = self.context.check_pe(pe) as usize;
        NonNull::new(self.library.world.ptr(memory.as_ptr().cast::<T>(), pe))
    }

    /// Whether a PE is lost, where the job goes on without lost PEs (`SHMEM_ON_LOSS=continue`;
    /// `shmemx_pe_is_lost`).
    ///
    /// # Panics
    /// There is no such PE.
    pub fn is_lost(&self, pe: usize) -> bool {
        self.library.world.is_lost(self.context.check_pe(pe) as usize)
    }

    /// Ends the job from this PE with an exit status (OpenSHMEM 1.6, `shmem_global_exit`). For a
    /// failure that this PE alone knows of: the others wait for it in vain otherwise.
    pub fn global_exit(&self, status: i32) -> ! {
        ending::global_exit(status)
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }
}

impl Deref for World {
    type Target = Context<'static>;

    #[inline]
    fn deref(&self) -> &Context<'static> {
        &self.context
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            panics::end_the_job(self.library);
        }
        process::leave("drop of the World");
        HAS_WORLD.store(false, Ordering::Release);
    }
}
