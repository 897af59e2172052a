// SPDX-License-Identifier: Apache-2.0
//! The C API of OpenSHMEM 1.6: one file per family of routines, in which a routine or a template of
//! routines reads like its prototype in the standard.
//!
//! - [`fast`]: the paths that decide about speed; all inline, no call.
//! - [`slow`]: what they leave: checks, other transports, errors.
//! - [`handle`]: contexts and teams as C programs hold them.
//! - [`types`]: the type tables of the standard.
//!
//! `pshmem_x` is the definition of every routine and `shmem_x` a weak alias of it, so that a
//! profiling library can take its place (OpenSHMEM 1.6, "OpenSHMEM Profiling Interface").

/// Defines C routines of a family, after what its callers vouch for: the bodies rely on that and on
/// nothing else. What of it can be checked is checked while `SHMEM_DEBUG` is set. A routine's name is
/// given in pieces, `[shmem_ int _put]`, so that templates can put type names into it. The name as a
/// string is `ROUTINE` in its body.
macro_rules! routines {
    (callers: $vouch:literal; $([$($name:tt)+] ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => { $(
        const _: () = {
            #[allow(dead_code, reason = "the simplest routines never name themselves")]
            const ROUTINE: &str = concat!($(stringify!($name)),+);

            #[doc = concat!("# Safety\nCallers vouch that ", $vouch)]
            #[unsafe(export_name = concat!("p", $(stringify!($name)),+))]
            unsafe extern "C" fn routine($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the family's `callers` says what holds, and why that suffices.
                #[allow(unused_unsafe, reason = "some bodies are safe")]
                unsafe { $body }
            }
        };
        weak_alias!($($name)+);
    )+ };
}

/// Defines pairs of C routines, `shmem_x` on the default context and `shmem_ctx_x` on the context
/// that is its first argument.
macro_rules! context_routines {
    (callers: $vouch:literal; $(
        [$($name:tt)+] ($ctx:ident; $($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => { $(
        routines! {
            callers: $vouch;
            [shmem_ $($name)+] ($($arg: $ty),*) $(-> $ret)? {
                let $ctx = $crate::c::handle::Ctx::DEFAULT;
                $body
            }
            [shmem_ctx_ $($name)+] ($ctx: $crate::c::handle::Ctx, $($arg: $ty),*) $(-> $ret)? $body
        }
    )+ };
}

/// Makes `x` a weak alias of `px`.
macro_rules! weak_alias {
    ($($name:tt)+) => {
        core::arch::global_asm!(
            concat!(".weak ", $(stringify!($name)),+),
            concat!(".set ", $(stringify!($name)),+, ", p", $(stringify!($name)),+),
        );
    };
}

/// Defines the few C routines whose names have no prefix, and so no second name.
macro_rules! plain_routines {
    (callers: $vouch:literal; $($name:ident ($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)+) => { $(
        #[doc = concat!("# Safety\nCallers vouch that ", $vouch)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the family's `callers` says what holds, and why that suffices.
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            unsafe { $body }
        }
    )+ };
}

#[macro_use]
pub mod types;

mod active_set;
mod amo;
mod collective;
mod context;
pub mod fast;
pub mod handle;
mod info;
mod legacy;
pub mod lock;
mod longdouble;
pub mod memory;
mod order;
mod rma;
mod setup;
mod signal;
mod slow;
pub mod strided;
mod team;
pub mod tune;
pub mod wait;
