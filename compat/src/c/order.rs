// SPDX-License-Identifier: Apache-2.0
//! Ordering and completion (OpenSHMEM 1.6, "Memory Ordering Routines").

use super::handle::Ctx;
use super::slow::check_not_null;
use crate::library::library;
use crate::profile;
use std::ffi::c_int;

context_routines! {
    callers: "a context is one that was created and not destroyed: it is looked up before it is used, \
        and no memory is passed";
    [fence](ctx;) {
        profile::shortly(ROUTINE, |library| {
            if ctx != Ctx::INVALID {
                library.world.fence(ctx.context(library, ROUTINE), ROUTINE);
            }
        })
    }
    [quiet](ctx;) {
        profile::shortly(ROUTINE, |library| {
            if ctx != Ctx::INVALID {
                library.world.quiet(ctx.context(library, ROUTINE), ROUTINE);
            }
        })
    }
    [pe_quiet](ctx; target_pes: *const c_int, npes: usize) {
        let library = library(ROUTINE);
        if npes == 0 || ctx == Ctx::INVALID {
            return;
        }
        let context = ctx.context(library, ROUTINE);
        if library.checks() {
            check_not_null(&library.world, ROUTINE, "target_pes", target_pes);
        }
        let (pes, team) = (std::slice::from_raw_parts(target_pes, npes), context.team());
        for pe in pes {
            library.world.check_pe(ROUTINE, (*pe).into(), team.n_pes());
        }
        let pes = pes.iter().map(|pe| team.world_pe(*pe as usize));
        profile::shortly(ROUTINE, |library| library.world.pe_quiet(context, pes, ROUTINE));
    }
}
