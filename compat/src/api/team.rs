// SPDX-License-Identifier: Apache-2.0
//! Teams (OpenSHMEM 1.6, "Team Management Routines").

use super::context::Context;
use super::world::World;
use crate::c::handle::Ctx;
use std::sync::Arc;
use std::thread;
use tombolo_collectives::teams::{self, SplitError};
use tombolo_core::{ContextOptions, Team as CoreTeam};

/// An ordered set of PEs that communicate together. Members are numbered from 0.
///
/// Collective calls are its methods: all members make them, in the same order. **Dropping a team that
/// was split off is collective** over its members (`shmem_team_destroy`).
///
/// ```
/// let world = tombolo::init()?;
/// // PEs 0, 2, 4, ...
/// let even = world.n_pes().div_ceil(2);
/// if let Some(team) = world.team().split_strided(0, 2, even)? {
///     assert_eq!(team.translate_pe(team.my_pe(), &world.team()), Some(world.my_pe()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Team<'w> {
    world: &'w World,
    team: Arc<CoreTeam>,
    predefined: bool,
}

impl<'w> Team<'w> {
    pub(super) fn predefined(world: &'w World, team: Arc<CoreTeam>) -> Team<'w> {
        Team { world, team, predefined: true }
    }

    fn split_off(world: &'w World, team: Arc<CoreTeam>) -> Team<'w> {
        Team { world, team, predefined: false }
    }

    /// Number of this PE in the team (`shmem_team_my_pe`).
    pub fn my_pe(&self) -> usize {
        self.team.me
    }

    /// Number of members (`shmem_team_n_pes`).
    pub fn n_pes(&self) -> usize {
        self.team.n_pes()
    }

    /// The number in `other` of member `pe` of this team; none if it is not in it
    /// (`shmem_team_translate_pe`).
    pub fn translate_pe(&self, pe: usize, other: &Team<'_>) -> Option<usize> {
        teams::translate_pe(&self.team, i32::try_from(pe).ok()?, &other.team)
    }

    /// Collective: makes a team of the members `start`, `start + stride`, ... of this one, `size` of
    /// them (`shmem_team_split_strided`). Members that are not in the new team get none.
    ///
    /// # Errors
    /// The arguments describe no team, or too many teams are alive; the same at all members.
    pub fn split_strided(
        &self,
        start: usize,
        stride: isize,
        size: usize,
    ) -> Result<Option<Team<'w>>, SplitError> {
        let small = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
        let stride = i32::try_from(stride).map_err(|_| SplitError::Arguments)?;
        let (world, (start, size)) = (self.world, (small(start), small(size)));
        let all = &world.library().world;
        let routine = "Team::split_strided";
        let team = teams::split_strided(all, &self.team, start, stride, size, 0, routine)?;
        Ok(team.map(|team| Team::split_off(world, team)))
    }

    /// Collective: arranges the members in rows of `width`; gives the teams of this PE's row and
    /// column (`shmem_team_split_2d`).
    ///
    /// # Errors
    /// As [`split_strided`](Team::split_strided).
    pub fn split_2d(&self, width: usize) -> Result<[Team<'w>; 2], SplitError> {
        let width = i32::try_from(width).unwrap_or(i32::MAX);
        let all = &self.world.library().world;
        let split = teams::split_2d(all, &self.team, width, 0, 0, "Team::split_2d")?;
        Ok(split.map(|team| Team::split_off(self.world, team)))
    }

    /// A context over this team: a stream of operations with completion of its own, in which PEs are
    /// numbered as in the team (`shmem_ctx_create`). Not collective. Dropping it completes its
    /// operations.
    ///
    /// ```
    /// let world = tombolo::init()?;
    /// let counters = world.alloc_atomics(4, 0u64)?;
    /// let team = world.team();
    /// std::thread::scope(|threads| {
    ///     for counter in counters.iter() {
    ///         let context = team.context();
    ///         threads.spawn(move || context.atomic_add(counter, 1, 0));
    ///     }
    /// });
    /// world.barrier_all();
    /// assert_eq!(world.atomic_fetch(&counters[3], 0), world.n_pes() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn context(&self) -> Context<'_> {
        let library = self.world.library();
        // One thread at a time, by the type of `Context`.
        let hint = library.world.config().tune_hint.contexts;
        let options = ContextOptions { serialized: true, hint, ..ContextOptions::default() };
        let context = library.world.new_context(self.team.clone(), options);
        let handle = Ctx(library.objects().add_context(context));
        Context::new(handle, self.n_pes(), library)
    }

    pub(super) fn world(&self) -> &'w World {
        self.world
    }

    pub(super) fn core(&self) -> &CoreTeam {
        &self.team
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        if !self.predefined && !thread::panicking() {
            teams::destroy(&self.world.library().world, &self.team, "drop of a Team");
        }
    }
}
