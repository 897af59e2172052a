// SPDX-License-Identifier: Apache-2.0
//! The 128-bit format of IEEE 754. No processor calculates with it: compilers call routines of
//! their runtime library (libgcc, compiler-rt), which take and return values in vector registers.

use super::LongDouble;
use std::arch::aarch64::uint8x16_t;
use std::arch::asm;

// Declared without arguments, since stable Rust has no type that C passes alike.
unsafe extern "C" {
    fn __addtf3();
    fn __multf3();
    fn __lttf2();
    #[cfg(test)]
    fn __extenddftf2();
    #[cfg(test)]
    fn __trunctfdf2();
}

macro_rules! arithmetic {
    ($name:ident, $routine:ident) => {
        #[inline(always)]
        pub fn $name(left: LongDouble, right: LongDouble) -> LongDouble {
            let mut result = in_register(left);
            // SAFETY: calls `long double $routine(long double, long double)` by the rules of C.
            unsafe {
                asm!(
                    "bl {routine}",
                    routine = sym $routine,
                    inout("v0") result,
                    in("v1") in_register(right),
                    clobber_abi("C"),
                );
            }
            in_memory(result)
        }
    };
}

arithmetic!(add, __addtf3);
arithmetic!(multiply, __multf3);

/// Whether `left < right`; false if either is not a number.
#[inline(always)]
pub fn less(left: &LongDouble, right: &LongDouble) -> bool {
    let below: i32;
    // SAFETY: calls `int __lttf2(long double, long double)` by the rules of C. The result is
    // below zero exactly if the first value is less.
    unsafe {
        asm!(
            "bl {routine}",
            routine = sym __lttf2,
            in("v0") in_register(*left),
            in("v1") in_register(*right),
            lateout("w0") below,
            clobber_abi("C"),
        );
    }
    below < 0
}

#[inline(always)]
fn in_register(value: LongDouble) -> uint8x16_t {
    // SAFETY: 16 bytes either way, of which all values are valid.
    unsafe { std::mem::transmute(value) }
}

#[inline(always)]
fn in_memory(value: uint8x16_t) -> LongDouble {
    // SAFETY: as above.
    unsafe { std::mem::transmute(value) }
}

#[cfg(test)]
impl LongDouble {
    /// The same number.
    pub fn new(value: f64) -> LongDouble {
        let result: uint8x16_t;
        // SAFETY: calls `long double __extenddftf2(double)` by the rules of C.
        unsafe {
            asm!(
                "bl {routine}",
                routine = sym __extenddftf2,
                in("v0") value,
                lateout("v0") result,
                clobber_abi("C"),
            );
        }
        in_memory(result)
    }

    /// The nearest `double`.
    pub fn value(self) -> f64 {
        let result: f64;
        // SAFETY: calls `double __trunctfdf2(long double)` by the rules of C.
        unsafe {
            asm!(
                "bl {routine}",
                routine = sym __trunctfdf2,
                in("v0") in_register(self),
                lateout("v0") result,
                clobber_abi("C"),
            );
        }
        result
    }
}
