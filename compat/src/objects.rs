// SPDX-License-Identifier: Apache-2.0
//! Contexts, teams and sessions that a program has made, by the handles it holds them by: the
//! addresses of contexts and teams.

use crate::abi::SessionConfig;
use std::collections::HashMap;
use std::ffi::c_long;
use std::sync::Arc;
use tombolo_core::{Context, Team};

/// A context that the program has created.
#[repr(C)]
pub struct ProgramContext {
    /// World PE of each member of the context's team: first, as the fast path reads it.
    pub members: *const u32,
    context: Context,
}

// SAFETY: `members` points into the team that `context` keeps alive and that never changes.
unsafe impl Send for ProgramContext {}
// SAFETY: as above; the rest is `Sync` by itself.
unsafe impl Sync for ProgramContext {}

/// The hints of a communication session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSession {
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

/// Contexts and teams that the program has made, and its sessions, by handle.
#[derive(Default)]
pub struct Objects {
    contexts: HashMap<usize, Arc<ProgramContext>>,
    teams: HashMap<usize, Arc<Team>>,
    sessions: HashMap<usize, ContextSession>,
}

impl Objects {
    /// Enters a context; gives its handle.
    pub fn add_context(&mut self, context: Context) -> usize {
        let context = Arc::new(ProgramContext::new(context));
        let handle = Arc::as_ptr(&context) as usize;
        self.contexts.insert(handle, context);
        handle
    }

    /// Takes a context out.
    pub fn remove_context(&mut self, ctx: usize) -> Option<Arc<ProgramContext>> {
        self.sessions.remove(&ctx);
        self.contexts.remove(&ctx)
    }

    /// Starts a session on a context, or adds to the one under way: options accumulate, a new value
    /// replaces an old one. What a session says are hints; operations do not depend on them.
    pub fn start_session(
        &mut self,
        ctx: usize,
        options: c_long,
        total_ops: Option<usize>,
    ) -> ContextSession {
        let session = self.sessions.entry(ctx).or_default();
        session.options |= options;
        if let Some(total_ops) = total_ops {
            session.config.total_ops = total_ops;
        }
        *session
    }

    /// Ends the session on a context, if there is one.
    pub fn stop_session(&mut self, ctx: usize) -> Option<ContextSession> {
        self.sessions.remove(&ctx)
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
        found.iter().filter_map(|handle| self.remove_context(*handle)).collect()
    }

    /// Whether a handle is that of a context.
    pub fn has_context(&self, ctx: usize) -> bool {
        self.contexts.contains_key(&ctx)
    }

    /// Enters a team; gives its handle.
    pub fn add_team(&mut self, team: Arc<Team>) -> usize {
        let handle = Arc::as_ptr(&team) as usize;
        self.teams.insert(handle, team);
        handle
    }

    /// The team of a handle.
    pub fn team(&self, team: usize) -> Option<&Arc<Team>> {
        self.teams.get(&team)
    }

    /// Takes a team out.
    pub fn remove_team(&mut self, team: usize) -> Option<Arc<Team>> {
        self.teams.remove(&team)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_accumulates_options_and_ends_once() {
        let mut objects = Objects::default();
        let first = objects.start_session(0, 1, None);
        assert_eq!((first.options, first.config.total_ops), (1, usize::MAX));
        let second = objects.start_session(0, 2, Some(7));
        assert_eq!((second.options, second.config.total_ops), (3, 7));
        assert_eq!(objects.stop_session(0), Some(second));
        assert_eq!(objects.stop_session(0), None);
    }
}
