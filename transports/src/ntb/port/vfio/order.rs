// SPDX-License-Identifier: Apache-2.0
//! Order between what this process does to its memory and what it does to functions.
//!
//! On x86-64 memory of functions that is not cached is accessed in the order of the program, with that of memory:
//! nothing is to be done but to keep the compiler from changing it. On AArch64 Linux maps it as Device-nGnRnE.
//! What a thread does to one function is then in order, each access for itself and whole if it is aligned; one
//! that is not aligned, or an atomic operation, faults. But nothing orders it with accesses to memory, and a fence
//! as Rust has it (`dmb ish`) is for processors alone. So each access to a function comes with a barrier, as
//! Linux's `readl` and `writel` do, and [`drain`] is what `wmb` is there.
//!
//! What functions write into memory is read by acquire loads, which need no more.

use std::sync::atomic::{Ordering, fence};

/// To come before a store to a function: who sees that sees what this thread has stored to memory, and changes nothing
/// any more that it has loaded from there.
#[inline(always)]
pub fn before_store() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier; it changes no memory and no register.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Release);
}

/// To come after a load from a function: memory is read after that.
#[inline(always)]
pub fn after_load() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Acquire);
}

/// Has all stores of this thread, to memory and to functions, leave before anything that follows.
#[inline(always)]
pub fn drain() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}
