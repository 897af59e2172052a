//! Contexts and teams as C programs hold them: opaque values of the size of a pointer.

use crate::abi::{SHMEM_CTX_DEFAULT, SHMEM_CTX_INVALID};
use crate::abi::{SHMEM_TEAM_INVALID, SHMEM_TEAM_SHARED, SHMEM_TEAM_WORLD, SessionConfig};
use crate::process::Library;
use std::collections::HashMap;
use std::ffi::c_long;
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

/// A context that the program has created.
#[repr(C)]
pub struct ProgramContext {
    /// World PE of each member of the context's team: first, as the fast path reads it.
    members: *const u32,
    context: Context,
}

// SAFETY: `members` points into the team that `context` keeps alive and that never changes.
unsafe impl Send for ProgramContext {}
// SAFETY: as above; the rest is `Sync` by itself.
unsafe impl Sync for ProgramContext {}

/// The hints of a communication session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Options that were set.
    pub options: c_long,
    /// What the program said of the session.
    pub config: SessionConfig,
}

impl ProgramContext {
    /// Wraps a context.
    pub fn new(context: Context) -> ProgramContext {
        let members = context.team().members.as_ptr();
        ProgramContext { members, context }
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }
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
        if library.checks() && !library.objects().contexts.contains_key(&self.0) {
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
    pub fn find(
        self,
        library: &'static Library,
        routine: &'static str,
        argument: &str,
    ) -> Option<&'static Team> {
        match self {
            TeamHandle::INVALID => return None,
            TeamHandle::WORLD => return Some(library.world.team()),
            TeamHandle::SHARED => return Some(library.world.shared_team()),
            _ => {}
        }
        if library.checks() && !library.objects().teams.contains_key(&self.0) {
            let value = self.0;
            library.world.stop_job(
                routine,
                format_args!("{argument} = {value:#x} is not a team: never created, or destroyed"),
            );
        }
        // SAFETY: a handle that is neither predefined nor invalid is the address of a team that the
        // library keeps until it is destroyed.
        Some(unsafe { &*(self.0 as *const Team) })
    }

    /// As [`TeamHandle::find`], for routines that need a team.
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
            _ => match library.objects().teams.get(&self.0) {
                Some(team) => team.clone(),
                None => library.world.stop_job(
                    routine,
                    format_args!("team = {:#x} is not a team: never created, or destroyed", self.0),
                ),
            },
        }
    }
}

/// Contexts and teams that the program has made, and its sessions, by handle.
#[derive(Default)]
pub struct Objects {
    contexts: HashMap<usize, Arc<ProgramContext>>,
    teams: HashMap<usize, Arc<Team>>,
    sessions: HashMap<usize, Session>,
}

impl Objects {
    /// Enters a context.
    pub fn add_context(&mut self, context: Context) -> Ctx {
        let context = Arc::new(ProgramContext::new(context));
        let handle = Arc::as_ptr(&context) as usize;
        self.contexts.insert(handle, context);
        Ctx(handle)
    }

    /// Takes a context out.
    pub fn remove_context(&mut self, ctx: Ctx) -> Option<Arc<ProgramContext>> {
        self.sessions.remove(&ctx.0);
        self.contexts.remove(&ctx.0)
    }

    /// Starts a session on a context, or adds to the one under way: options accumulate, a new value
    /// replaces an old one. What a session says are hints; operations do not depend on them.
    pub fn start_session(
        &mut self,
        ctx: Ctx,
        options: c_long,
        total_ops: Option<usize>,
    ) -> Session {
        let session = self.sessions.entry(ctx.0).or_default();
        session.options |= options;
        if let Some(total_ops) = total_ops {
            session.config.total_ops = total_ops;
        }
        *session
    }

    /// Ends the session on a context, if there is one.
    pub fn stop_session(&mut self, ctx: Ctx) -> Option<Session> {
        self.sessions.remove(&ctx.0)
    }

    /// All contexts.
    pub fn contexts(&self) -> Vec<Arc<ProgramContext>> {
        self.contexts.values().cloned().collect()
    }

    /// Takes out all contexts of a team that threads may share.
    pub fn remove_contexts_of(&mut self, team: &Team) -> Vec<Arc<ProgramContext>> {
        let shared = |context: &ProgramContext| {
            std::ptr::eq(&**context.context.team(), team) && !context.context.options().private
        };
        let found: Vec<usize> =
            self.contexts.iter().filter(|(_, c)| shared(c)).map(|(handle, _)| *handle).collect();
        found.iter().filter_map(|handle| self.remove_context(Ctx(*handle))).collect()
    }

    /// Enters a team.
    pub fn add_team(&mut self, team: Arc<Team>) -> TeamHandle {
        let handle = TeamHandle::of(&team);
        self.teams.insert(handle.0, team);
        handle
    }

    /// Takes a team out.
    pub fn remove_team(&mut self, team: TeamHandle) -> Option<Arc<Team>> {
        self.teams.remove(&team.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_accumulates_options_and_ends_once() {
        let mut objects = Objects::default();
        let first = objects.start_session(Ctx::DEFAULT, 1, None);
        assert_eq!((first.options, first.config.total_ops), (1, usize::MAX));
        let second = objects.start_session(Ctx::DEFAULT, 2, Some(7));
        assert_eq!((second.options, second.config.total_ops), (3, 7));
        assert_eq!(objects.stop_session(Ctx::DEFAULT), Some(second));
        assert_eq!(objects.stop_session(Ctx::DEFAULT), None);
    }
}
