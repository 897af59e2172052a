//! Atomic memory operations on mapped memory with CPU instructions.

use crate::transport::{Amo, AmoOp};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

macro_rules! execute {
    ($atomic:ty, $word:ty, $at:expr, $amo:expr) => {{
        // SAFETY: the caller vouches that the variable is mapped and aligned; every access to it
        // by this runtime is atomic.
        let variable = unsafe { &*$at.cast::<$atomic>() };
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
    match amo.size {
        4 => execute!(AtomicU32, u32, at, amo),
        _ => execute!(AtomicU64, u64, at, amo),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
