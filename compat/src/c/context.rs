// SPDX-License-Identifier: Apache-2.0
//! Contexts and sessions (OpenSHMEM 1.6, "Communication Management Routines" and "Session
//! Routines").

use super::handle::{Ctx, TeamHandle};
use super::slow::check_not_null;
use crate::abi::{SHMEM_CTX_NOSTORE, SHMEM_CTX_PRIVATE, SHMEM_CTX_SERIALIZED};
use crate::abi::{SHMEM_CTX_SESSION_TOTAL_OPS, SessionConfig};
use crate::library::{Library, library};
use crate::profile;
use std::ffi::{c_int, c_long};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_core::{ContextOptions, Team};

routines! {
    callers: "`ctx` and `team` as results are writable, `config` is readable; handles are those of live \
        objects, which are looked up before they are used";
    [shmem_ctx_create](options: c_long, ctx: *mut Ctx) -> c_int {
        let library = library(ROUTINE);
        create(library, ROUTINE, library.world.team().clone(), options, ctx)
    }
    [shmem_team_create_ctx](team: TeamHandle, options: c_long, ctx: *mut Ctx) -> c_int {
        let library = library(ROUTINE);
        if team == TeamHandle::INVALID {
            ctx.write(Ctx::INVALID);
            return 1;
        }
        create(library, ROUTINE, team.keep(library, ROUTINE), options, ctx)
    }
    [shmem_ctx_destroy](ctx: Ctx) {
        let library = library(ROUTINE);
        if ctx == Ctx::INVALID {
            return;
        }
        if ctx == Ctx::DEFAULT {
            library.world.stop_job(ROUTINE, "ctx = SHMEM_CTX_DEFAULT cannot be destroyed");
        }
        // Out of the table first: of what has been destroyed before, nothing may be looked at.
        let Some(context) = library.objects().remove_context(ctx.0) else {
            let value = ctx.0;
            library.world.stop_job(
                ROUTINE,
                format_args!("ctx = {value:#x} is not a context: never created, or destroyed"),
            );
        };
        profile::shortly(ROUTINE, |library| library.world.quiet(context.context(), ROUTINE));
        context.context().team().contexts.fetch_sub(1, Ordering::Relaxed);
    }
    [shmem_ctx_get_team](ctx: Ctx, team: *mut TeamHandle) -> c_int {
        let library = library(ROUTINE);
        check_not_null(&library.world, ROUTINE, "team", team);
        if ctx == Ctx::INVALID {
            team.write(TeamHandle::INVALID);
            return 1;
        }
        team.write(TeamHandle::of(ctx.context(library, ROUTINE).team()));
        0
    }
    [shmem_ctx_session_start](
        ctx: Ctx, options: c_long, config: *const SessionConfig, config_mask: c_long,
    ) {
        let library = library(ROUTINE);
        if ctx == Ctx::INVALID {
            return;
        }
        ctx.context(library, ROUTINE);
        let total_ops = (config_mask & SHMEM_CTX_SESSION_TOTAL_OPS != 0).then(|| {
            check_not_null(&library.world, ROUTINE, "config", config);
            (*config).total_ops
        });
        let session = library.objects().start_session(ctx.0, options, total_ops);
        tracing::debug!("{ROUTINE}: {session:?}");
    }
    [shmem_ctx_session_stop](ctx: Ctx) {
        let library = library(ROUTINE);
        if ctx == Ctx::INVALID {
            return;
        }
        ctx.context(library, ROUTINE);
        if let Some(session) = library.objects().stop_session(ctx.0) {
            tracing::debug!("{ROUTINE}: {session:?}");
        }
    }
}

/// # Safety
/// `ctx` is a place for a handle.
unsafe fn create(
    library: &'static Library,
    routine: &'static str,
    team: Arc<Team>,
    options: c_long,
    ctx: *mut Ctx,
) -> c_int {
    check_not_null(&library.world, routine, "ctx", ctx);
    let known = SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE;
    let limit = usize::try_from(team.num_contexts).unwrap_or(0);
    let within_limit = |n: usize| (n < limit).then_some(n + 1);
    let created = options & !known == 0
        && team.contexts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within_limit).is_ok();
    let handle = if created {
        let options = ContextOptions {
            serialized: options & SHMEM_CTX_SERIALIZED != 0,
            private: options & SHMEM_CTX_PRIVATE != 0,
            nostore: options & SHMEM_CTX_NOSTORE != 0,
            hint: library.world.config().tune_hint.contexts,
        };
        Ctx(library.objects().add_context(library.world.new_context(team, options)))
    } else {
        tracing::info!(
            "{routine}: no context (options {options:#x}, team configured for {limit} contexts)"
        );
        Ctx::INVALID
    };
    // SAFETY: by the caller's word.
    unsafe { ctx.write(handle) };
    (!created).into()
}
