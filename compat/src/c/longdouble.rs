// SPDX-License-Identifier: Apache-2.0
//! `shmem_longdouble_p` and `shmem_longdouble_g`: Rust has no type that is passed as C passes
//! `long double`, so the value is fetched from where the System V ABI for x86-64 puts it. An
//! argument lies on the stack, in 16 bytes above the return address; a result is in st(0).

#[cfg(not(target_arch = "x86_64"))]
compile_error!("shmem_longdouble_p and shmem_longdouble_g are written for x86-64 only");

use super::fast::TABLES;
use super::handle::Ctx;
use std::arch::naked_asm;
use std::ffi::c_int;
use tombolo_collectives::LongDouble;

/// `void shmem_longdouble_p(long double *dest, long double value, int pe)`
#[unsafe(export_name = "pshmem_longdouble_p")]
#[unsafe(naked)]
extern "C" fn p() {
    naked_asm!("lea rdx, [rsp + 8]", "jmp {}", sym p_by_address)
}
weak_alias!(shmem_longdouble_p);

/// `void shmem_ctx_longdouble_p(shmem_ctx_t ctx, long double *dest, long double value, int pe)`
#[unsafe(export_name = "pshmem_ctx_longdouble_p")]
#[unsafe(naked)]
extern "C" fn ctx_p() {
    naked_asm!("lea rcx, [rsp + 8]", "jmp {}", sym ctx_p_by_address)
}
weak_alias!(shmem_ctx_longdouble_p);

/// `long double shmem_longdouble_g(const long double *source, int pe)`
#[unsafe(export_name = "pshmem_longdouble_g")]
#[unsafe(naked)]
extern "C" fn g() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov rdx, rsp",
        "call {}",
        "fld tbyte ptr [rsp]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
        sym g_by_address
    )
}
weak_alias!(shmem_longdouble_g);

/// `long double shmem_ctx_longdouble_g(shmem_ctx_t ctx, const long double *source, int pe)`
#[unsafe(export_name = "pshmem_ctx_longdouble_g")]
#[unsafe(naked)]
extern "C" fn ctx_g() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov rcx, rsp",
        "call {}",
        "fld tbyte ptr [rsp]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
        sym ctx_g_by_address
    )
}
weak_alias!(shmem_ctx_longdouble_g);

/// # Safety
/// As the standard asks of callers; `value` is on the caller's stack; so for all below.
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
