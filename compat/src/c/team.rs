// SPDX-License-Identifier: Apache-2.0
//! Teams (OpenSHMEM 1.6, "Team Management Routines").

use super::handle::TeamHandle;
use super::slow::check_not_null;
use crate::abi::{SHMEM_TEAM_NUM_CONTEXTS, TeamConfig};
use crate::library::{Library, library};
use crate::profile;
use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_collectives::teams::{self, SplitError};
use tombolo_core::Team;

/// Whether somebody has been told that there are too many teams.
static TOLD: AtomicBool = AtomicBool::new(false);

routines! {
    callers: "results are writable, `config` is readable where a mask says so; handles are those of live \
        teams, which are looked up before they are used";
    [shmem_team_my_pe](team: TeamHandle) -> c_int {
        team.find(library(ROUTINE), ROUTINE, "team").map_or(-1, |team| team.me as c_int)
    }
    [shmem_team_n_pes](team: TeamHandle) -> c_int {
        team.find(library(ROUTINE), ROUTINE, "team").map_or(-1, |team| team.n_pes() as c_int)
    }
    [shmem_team_get_config](
        team: TeamHandle, config_mask: c_long, config: *mut TeamConfig,
    ) -> c_int {
        let library = library(ROUTINE);
        let Some(team) = team.find(library, ROUTINE, "team") else { return 1 };
        if config_mask & SHMEM_TEAM_NUM_CONTEXTS != 0 {
            check_not_null(&library.world, ROUTINE, "config", config);
            (*config).num_contexts = team.num_contexts;
        }
        0
    }
    [shmem_team_translate_pe](src_team: TeamHandle, src_pe: c_int, dest_team: TeamHandle) -> c_int {
        let library = library(ROUTINE);
        let source = src_team.find(library, ROUTINE, "src_team");
        let dest = dest_team.find(library, ROUTINE, "dest_team");
        let (Some(source), Some(dest)) = (source, dest) else { return -1 };
        teams::translate_pe(source, src_pe, dest).map_or(-1, |pe| pe as c_int)
    }
    [shmem_team_split_strided](
        parent_team: TeamHandle, start: c_int, stride: c_int, size: c_int,
        config: *const TeamConfig, config_mask: c_long, new_team: *mut TeamHandle,
    ) -> c_int {
        let library = library(ROUTINE);
        check_not_null(&library.world, ROUTINE, "new_team", new_team);
        new_team.write(TeamHandle::INVALID);
        let Some(parent) = parent_team.find(library, ROUTINE, "parent_team") else { return 1 };
        let contexts = num_contexts(library, ROUTINE, config, config_mask);
        let split = profile::within(ROUTINE, 0, |library| {
            teams::split_strided(&library.world, parent, start, stride, size, contexts, ROUTINE)
        });
        match split {
            Ok(None) => 0,
            Ok(Some(team)) => {
                new_team.write(TeamHandle(library.objects().add_team(team)));
                0
            }
            Err(why) => {
                tell(ROUTINE, parent, why);
                1
            }
        }
    }
    [shmem_team_split_2d](
        parent_team: TeamHandle, xrange: c_int,
        xaxis_config: *const TeamConfig, xaxis_mask: c_long, xaxis_team: *mut TeamHandle,
        yaxis_config: *const TeamConfig, yaxis_mask: c_long, yaxis_team: *mut TeamHandle,
    ) -> c_int {
        let library = library(ROUTINE);
        check_not_null(&library.world, ROUTINE, "xaxis_team", xaxis_team);
        check_not_null(&library.world, ROUTINE, "yaxis_team", yaxis_team);
        xaxis_team.write(TeamHandle::INVALID);
        yaxis_team.write(TeamHandle::INVALID);
        let Some(parent) = parent_team.find(library, ROUTINE, "parent_team") else { return 1 };
        let x_contexts = num_contexts(library, ROUTINE, xaxis_config, xaxis_mask);
        let y_contexts = num_contexts(library, ROUTINE, yaxis_config, yaxis_mask);
        let split = profile::within(ROUTINE, 0, |library| {
            teams::split_2d(&library.world, parent, xrange, x_contexts, y_contexts, ROUTINE)
        });
        match split {
            Ok([x, y]) => {
                let mut objects = library.objects();
                xaxis_team.write(TeamHandle(objects.add_team(x)));
                yaxis_team.write(TeamHandle(objects.add_team(y)));
                0
            }
            Err(why) => {
                tell(ROUTINE, parent, why);
                1
            }
        }
    }
    [shmem_team_destroy](team: TeamHandle) {
        let library = library(ROUTINE);
        if team == TeamHandle::INVALID {
            return;
        }
        if team == TeamHandle::WORLD || team == TeamHandle::SHARED {
            library.world.stop_job(ROUTINE, "team is predefined and cannot be destroyed");
        }
        let team_kept = team.keep(library, ROUTINE);
        profile::within(ROUTINE, 0, |library| {
            // Other threads use the objects while this one waits.
            let contexts = library.objects().remove_contexts_of(&team_kept);
            for context in contexts {
                library.world.quiet(context.context(), ROUTINE);
            }
            teams::destroy(&library.world, &team_kept, ROUTINE);
        });
        library.objects().remove_team(team.0);
    }
    [shmem_team_ptr](team: TeamHandle, dest: *const c_void, pe: c_int) -> *mut c_void {
        let library = library(ROUTINE);
        let Some(team) = team.find(library, ROUTINE, "team") else { return null_mut() };
        library.world.check_pe(ROUTINE, pe.into(), team.n_pes());
        library.world.ptr_to_read(dest, team.world_pe(pe as usize))
    }
}

/// Tells why there is no team. That there are too many is often a program that destroys none, so it is a warning: the
/// members get the same answer, and the first of them tells it for all, the first time.
fn tell(routine: &'static str, parent: &Team, why: SplitError) {
    let warns = why == SplitError::NoSlot && parent.me == 0;
    if warns && !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!("{routine}: {why}: no team is made");
    } else {
        tracing::info!("{routine}: {why}");
    }
}

/// What a configuration says of `num_contexts`; a negative number allows no more than 0 does.
///
/// # Safety
/// `config` is valid where `mask` selects something in it.
unsafe fn num_contexts(
    library: &Library,
    routine: &'static str,
    config: *const TeamConfig,
    mask: c_long,
) -> c_int {
    if mask & SHMEM_TEAM_NUM_CONTEXTS == 0 {
        return TeamConfig::default().num_contexts;
    }
    check_not_null(&library.world, routine, "config", config);
    // SAFETY: by the caller's word.
    unsafe { (*config).num_contexts.max(0) }
}
