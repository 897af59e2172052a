// SPDX-License-Identifier: Apache-2.0
//! Contexts and teams as C programs hold them: opaque values of the size of a pointer.

use crate::abi::{SHMEM_CTX_DEFAULT, SHMEM_CTX_INVALID};
use crate::abi::{SHMEM_TEAM_INVALID, SHMEM_TEAM_SHARED, SHMEM_TEAM_WORLD};
use crate::library::Library;
use crate::objects::ProgramContext;
use std::sync::Arc;
use tombolo_core::world::{SHARED_SLOT, WORLD_SLOT};
use tombolo_core::{Context, Team};

/// `shmem_ctx_t`: a predefined value or the address of a [`ProgramContext`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ctx(pub usize);

/// `shmem_team_t`: a predefined value or the address of a [`Team`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct TeamHandle(pub usize);

/// The predefined handles as variables of the library. C has macros for them, which other languages cannot read.
mod predefined {
    use super::{Ctx, TeamHandle};

    #[unsafe(export_name = "SHMEM_CTX_INVALID")]
    static CTX_INVALID: Ctx = Ctx::INVALID;
    #[unsafe(export_name = "SHMEM_CTX_DEFAULT")]
    static CTX_DEFAULT: Ctx = Ctx::DEFAULT;
    #[unsafe(export_name = "SHMEM_TEAM_INVALID")]
    static TEAM_INVALID: TeamHandle = TeamHandle::INVALID;
    #[unsafe(export_name = "SHMEM_TEAM_WORLD")]
    static TEAM_WORLD: TeamHandle = TeamHandle::WORLD;
    #[unsafe(export_name = "SHMEM_TEAM_SHARED")]
    static TEAM_SHARED: TeamHandle = TeamHandle::SHARED;
}

impl Ctx {
    /// The default context.
    pub const DEFAULT: Ctx = Ctx(SHMEM_CTX_DEFAULT);
    /// No context.
    pub const INVALID: Ctx = Ctx(SHMEM_CTX_INVALID);

    /// The world PE that is `pe` in the context.
    ///
    /// # Safety
    /// A valid context, and `pe` is a member of its team.
    #[inline(always)]
    pub unsafe fn world_pe(self, pe: i32) -> usize {
        if self == Ctx::DEFAULT {
            return pe as u32 as usize;
        }
        // SAFETY: by the caller's word.
        unsafe { *(*(self.0 as *const ProgramContext)).members.add(pe as u32 as usize) as usize }
    }

    /// The context behind the handle. Ends the job if there is none and that can be known.
    #[inline]
    pub fn context(self, library: &'static Library, routine: &'static str) -> &'static Context {
        if self == Ctx::DEFAULT {
            return library.world.context();
        }
        self.program_context(library, routine).context()
    }

    /// As [`Ctx::context`], for all but the default context.
    pub fn program_context(
        self,
        library: &'static Library,
        routine: &'static str,
    ) -> &'static ProgramContext {
        if self == Ctx::INVALID {
            library.world.stop_job(routine, "ctx = SHMEM_CTX_INVALID: expected a context");
        }
        if library.checks() && !library.objects().has_context(self.0) {
            let value = self.0;
            library.world.stop_job(
                routine,
                format_args!("ctx = {value:#x} is not a context: never created, or destroyed"),
            );
        }
        // SAFETY: a handle that is neither predefined nor invalid is the address of a context that
        // the library keeps until it is destroyed.
        unsafe { &*(self.0 as *const ProgramContext) }
    }
}

impl TeamHandle {
    /// No team.
    pub const INVALID: TeamHandle = TeamHandle(SHMEM_TEAM_INVALID);
    /// All PEs.
    pub const WORLD: TeamHandle = TeamHandle(SHMEM_TEAM_WORLD);
    /// The PEs that share memory with this one.
    pub const SHARED: TeamHandle = TeamHandle(SHMEM_TEAM_SHARED);

    /// The handle of a live team.
    pub fn of(team: &Arc<Team>) -> TeamHandle {
        match team.slot {
            WORLD_SLOT => TeamHandle::WORLD,
            SHARED_SLOT => TeamHandle::SHARED,
            _ => TeamHandle(Arc::as_ptr(team) as usize),
        }
    }

    /// The team behind the handle, none for the invalid handle. Ends the job if the handle is that
    /// of no team and that can be known.
    #[inline]
    pub fn find(
        self,
        library: &'static Library,
        routine: &'static str,
        argument: &str,
    ) -> Option<&'static Team> {
        match self {
            TeamHandle::INVALID => None,
            TeamHandle::WORLD => Some(library.world.team()),
            TeamHandle::SHARED => Some(library.world.shared_team()),
            _ => Some(self.created(library, routine, argument)),
        }
    }

    /// The team behind the handle of one that the program has created.
    fn created(
        self,
        library: &'static Library,
        routine: &'static str,
        argument: &str,
    ) -> &'static Team {
        if library.checks() && library.objects().team(self.0).is_none() {
            let value = self.0;
            library.world.stop_job(
                routine,
                format_args!("{argument} = {value:#x} is not a team: never created, or destroyed"),
            );
        }
        // SAFETY: a handle that is neither predefined nor invalid is the address of a team that the
        // library keeps until it is destroyed.
        unsafe { &*(self.0 as *const Team) }
    }

    /// As [`TeamHandle::find`], for routines that need a team.
    #[inline]
    pub fn team(self, library: &'static Library, routine: &'static str) -> &'static Team {
        self.find(library, routine, "team").unwrap_or_else(|| {
            library.world.stop_job(routine, "team = SHMEM_TEAM_INVALID: expected a team")
        })
    }

    /// As [`TeamHandle::team`], to be kept.
    pub fn keep(self, library: &'static Library, routine: &'static str) -> Arc<Team> {
        match self {
            TeamHandle::WORLD => library.world.team().clone(),
            TeamHandle::SHARED => library.world.shared_team().clone(),
            _ => match library.objects().team(self.0) {
                Some(team) => team.clone(),
                None => library.world.stop_job(
                    routine,
                    format_args!("team = {:#x} is not a team: never created, or destroyed", self.0),
                ),
            },
        }
    }
}
