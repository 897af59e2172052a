// SPDX-License-Identifier: Apache-2.0
//! Atomic memory operations on mapped memory with CPU instructions.

use crate::transport::{Amo, AmoOp};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Release, Ordering::SeqCst};

macro_rules! execute {
    ($variable:expr, $word:ty, $amo:expr) => {{
        let variable = $variable;
        let operand = $amo.operand as $word;
        u64::from(match $amo.op {
            AmoOp::Set => variable.swap(operand, SeqCst),
            AmoOp::Add => variable.fetch_add(operand, SeqCst),
            AmoOp::And => variable.fetch_and(operand, SeqCst),
            AmoOp::Or => variable.fetch_or(operand, SeqCst),
            AmoOp::Xor => variable.fetch_xor(operand, SeqCst),
            AmoOp::Fetch => variable.load(SeqCst),
            AmoOp::CompareSwap => {
                let expected = $amo.compare as $word;
                variable.compare_exchange(expected, operand, SeqCst, SeqCst).unwrap_or_else(|v| v)
            }
        })
    }};
}

/// Executes `amo` on the variable at `at` and returns its old value, zero-extended.
///
/// # Safety
/// `at` is mapped for `amo.size` bytes (4 or 8) and aligned to it.
#[inline]
pub unsafe fn execute(at: *mut u8, amo: Amo) -> u64 {
    // SAFETY: the caller vouches that the variable is mapped and aligned; every access to it by this
    // runtime is atomic.
    unsafe {
        match amo.size {
            4 => execute!(&*at.cast::<AtomicU32>(), u32, amo),
            _ => execute!(&*at.cast::<AtomicU64>(), u64, amo),
        }
    }
}

/// As [`execute`], on a variable of the model checker.
#[cfg(loom)]
pub fn execute_checked(variable: &crate::sync::AtomicU32, amo: Amo) -> u64 {
    execute!(variable, u32, amo)
}

/// Executes `amo` where nobody asks for the old value: setting a variable is then a plain store.
///
/// # Safety
/// As [`execute`].
#[inline]
pub unsafe fn update(at: *mut u8, amo: Amo) {
    // SAFETY: by the caller's word.
    unsafe {
        match (amo.op, amo.size) {
            (AmoOp::Set, 4) => (*at.cast::<AtomicU32>()).store(amo.operand as u32, Release),
            (AmoOp::Set, _) => (*at.cast::<AtomicU64>()).store(amo.operand, Release),
            _ => {
                execute(at, amo);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_leaves_what_the_operation_with_a_result_leaves() {
        for size in [4u8, 8] {
            for op in [AmoOp::Set, AmoOp::Add, AmoOp::And, AmoOp::Or, AmoOp::Xor] {
                let [a, b] = [0xff_0000_1234u64, 0xff_0000_1234].map(AtomicU64::new);
                let amo = Amo { op, size, operand: 0x1_0000_4321, compare: 0 };
                // SAFETY: aligned variables of 8 bytes.
                unsafe {
                    execute(a.as_ptr().cast(), amo);
                    update(b.as_ptr().cast(), amo);
                }
                assert_eq!(a.into_inner(), b.into_inner(), "{op:?} on {size} bytes");
            }
        }
    }

    #[test]
    fn every_operation_returns_the_old_value_and_wraps_at_its_width() {
        let run = |size: u8, start: u64, op, operand, compare| {
            let variable = AtomicU64::new(start);
            let amo = Amo { op, size, operand, compare };
            // SAFETY: an aligned variable of 8 bytes.
            let old = unsafe { execute(variable.as_ptr().cast(), amo) };
            (old, variable.into_inner())
        };
        assert_eq!(run(8, 5, AmoOp::Set, 9, 0), (5, 9));
        assert_eq!(run(8, u64::MAX, AmoOp::Add, 2, 0), (u64::MAX, 1));
        assert_eq!(run(4, 0x1_ffff_ffff, AmoOp::Add, 1, 0), (0xffff_ffff, 0x1_0000_0000));
        assert_eq!(run(8, 0b1100, AmoOp::And, 0b1010, 0), (0b1100, 0b1000));
        assert_eq!(run(8, 0b1100, AmoOp::Or, 0b1010, 0), (0b1100, 0b1110));
        assert_eq!(run(8, 0b1100, AmoOp::Xor, 0b1010, 0), (0b1100, 0b0110));
        assert_eq!(run(8, 7, AmoOp::Fetch, 0, 0), (7, 7));
        assert_eq!(run(8, 7, AmoOp::CompareSwap, 1, 7), (7, 1));
        assert_eq!(run(8, 7, AmoOp::CompareSwap, 1, 8), (7, 7));
    }
}
