// SPDX-License-Identifier: Apache-2.0
//! `shmem_longdouble_p` and `shmem_longdouble_g`: Rust has no type that is passed as C passes
//! `long double`, so that these routines fetch the value from where the processor's ABI puts it, and
//! call others that take its address as one more argument.

use super::fast::TABLES;
use super::handle::Ctx;
use std::arch::naked_asm;
use std::ffi::c_int;
use tombolo_collectives::LongDouble;

/// System V ABI for x86-64: an argument lies on the stack, in 16 bytes above the return address; a
/// result is in st(0).
#[cfg(target_arch = "x86_64")]
mod abi {
    /// Goes on at `$routine`, with the address of the value in the register `$more`.
    macro_rules! takes {
        (third, $routine:ident) => { takes!("rdx", $routine) };
        (fourth, $routine:ident) => { takes!("rcx", $routine) };
        ($more:literal, $routine:ident) => {
            naked_asm!(concat!("lea ", $more, ", [rsp + 8]"), "jmp {}", sym $routine)
        };
    }

    /// Calls `$routine`, with the address of room for the value in the register `$more`.
    macro_rules! returns {
        (third, $routine:ident) => { returns!("rdx", $routine) };
        (fourth, $routine:ident) => { returns!("rcx", $routine) };
        ($more:literal, $routine:ident) => {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 24",
                ".cfi_adjust_cfa_offset 24",
                concat!("mov ", $more, ", rsp"),
                "call {}",
                "fld tbyte ptr [rsp]",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_endproc",
                sym $routine
            )
        };
    }

    pub(super) use {returns, takes};
}

/// Procedure call standard for AArch64: an argument, if it is the first of a floating-point type, and
/// a result are in q0.
#[cfg(target_arch = "aarch64")]
mod abi {
    /// Calls `$routine`, with the address of the value in the register `$more`.
    macro_rules! takes {
        (third, $routine:ident) => {
            takes!("x2", $routine)
        };
        (fourth, $routine:ident) => {
            takes!("x3", $routine)
        };
        ($more:literal, $routine:ident) => {
            calls!("str q0, [sp, 16]", concat!("add ", $more, ", sp, 16"), "nop", $routine)
        };
    }

    /// Calls `$routine`, with the address of room for the value in the register `$more`.
    macro_rules! returns {
        (third, $routine:ident) => {
            returns!("x2", $routine)
        };
        (fourth, $routine:ident) => {
            returns!("x3", $routine)
        };
        ($more:literal, $routine:ident) => {
            calls!("nop", concat!("add ", $more, ", sp, 16"), "ldr q0, [sp, 16]", $routine)
        };
    }

    macro_rules! calls {
        ($before:expr, $address:expr, $after:expr, $routine:ident) => {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, -32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "mov x29, sp",
                $before,
                $address,
                "bl {}",
                $after,
                "ldp x29, x30, [sp], 32",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                sym $routine
            )
        };
    }

    pub(super) use {calls, returns, takes};
}

use abi::*;

/// `void shmem_longdouble_p(long double *dest, long double value, int pe)`
#[unsafe(export_name = "pshmem_longdouble_p")]
#[unsafe(naked)]
extern "C" fn p() {
    takes!(third, p_by_address)
}
weak_alias!(shmem_longdouble_p);

/// `void shmem_ctx_longdouble_p(shmem_ctx_t ctx, long double *dest, long double value, int pe)`
#[unsafe(export_name = "pshmem_ctx_longdouble_p")]
#[unsafe(naked)]
extern "C" fn ctx_p() {
    takes!(fourth, ctx_p_by_address)
}
weak_alias!(shmem_ctx_longdouble_p);

/// `long double shmem_longdouble_g(const long double *source, int pe)`
#[unsafe(export_name = "pshmem_longdouble_g")]
#[unsafe(naked)]
extern "C" fn g() {
    returns!(third, g_by_address)
}
weak_alias!(shmem_longdouble_g);

/// `long double shmem_ctx_longdouble_g(shmem_ctx_t ctx, const long double *source, int pe)`
#[unsafe(export_name = "pshmem_ctx_longdouble_g")]
#[unsafe(naked)]
extern "C" fn ctx_g() {
    returns!(fourth, ctx_g_by_address)
}
weak_alias!(shmem_ctx_longdouble_g);

/// # Safety
/// As the standard asks of callers; `value` is in the memory of a routine above; so for all below.
unsafe extern "C" fn p_by_address(dest: *mut LongDouble, pe: c_int, value: *const LongDouble) {
    // SAFETY: by the caller's word.
    unsafe { TABLES.p("shmem_longdouble_p", Ctx::DEFAULT, dest, *value, pe) }
}

/// # Safety
/// See [`p_by_address`].
unsafe extern "C" fn ctx_p_by_address(
    ctx: Ctx,
    dest: *mut LongDouble,
    pe: c_int,
    value: *const LongDouble,
) {
    // SAFETY: by the caller's word.
    unsafe { TABLES.p("shmem_ctx_longdouble_p", ctx, dest, *value, pe) }
}

/// # Safety
/// See [`p_by_address`].
unsafe extern "C" fn g_by_address(source: *const LongDouble, pe: c_int, value: *mut LongDouble) {
    // SAFETY: by the caller's word.
    unsafe { value.write(TABLES.g("shmem_longdouble_g", Ctx::DEFAULT, source, pe)) }
}

/// # Safety
/// See [`p_by_address`].
unsafe extern "C" fn ctx_g_by_address(
    ctx: Ctx,
    source: *const LongDouble,
    pe: c_int,
    value: *mut LongDouble,
) {
    // SAFETY: by the caller's word.
    unsafe { value.write(TABLES.g("shmem_ctx_longdouble_g", ctx, source, pe)) }
}
