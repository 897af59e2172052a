// SPDX-License-Identifier: Apache-2.0
//! The 80-bit format of the x87 unit in 16 bytes, the last six of which are padding: a few
//! instructions for each operation.

use super::LongDouble;
use std::arch::asm;

macro_rules! arithmetic {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub fn $name(mut left: LongDouble, right: LongDouble) -> LongDouble {
            // SAFETY: reads and writes the ten bytes of two local values; the x87 stack is left as
            // it was found, empty.
            unsafe {
                asm!(
                    "fld tbyte ptr [{left}]",
                    "fld tbyte ptr [{right}]",
                    $instruction,
                    "fstp tbyte ptr [{left}]",
                    left = in(reg) &raw mut left,
                    right = in(reg) &raw const right,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            left
        }
    };
}

arithmetic!(add, "faddp st(1), st");
arithmetic!(multiply, "fmulp st(1), st");

/// Whether `left < right`; false if either is not a number.
#[inline(always)]
pub fn less(left: &LongDouble, right: &LongDouble) -> bool {
    let above: u8;
    // SAFETY: reads the ten bytes of two values; the x87 stack is left empty.
    unsafe {
        asm!(
            "fld tbyte ptr [{left}]",
            "fld tbyte ptr [{right}]",
            // Compares the top, `right`, with `left`: "above" is false for unordered values too.
            "fucomip st, st(1)",
            "fstp st(0)",
            "seta {above}",
            left = in(reg) left,
            right = in(reg) right,
            above = out(reg_byte) above,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            options(nostack),
        );
    }
    above != 0
}

#[cfg(test)]
impl LongDouble {
    /// The same number.
    pub fn new(value: f64) -> LongDouble {
        let mut result = LongDouble([0; 16]);
        // SAFETY: reads eight bytes and writes ten of local variables.
        unsafe {
            asm!(
                "fld qword ptr [{value}]",
                "fstp tbyte ptr [{result}]",
                value = in(reg) &raw const value,
                result = in(reg) &raw mut result,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            );
        }
        result
    }

    /// The nearest `double`.
    pub fn value(self) -> f64 {
        let mut result = 0f64;
        // SAFETY: reads ten bytes and writes eight of local variables.
        unsafe {
            asm!(
                "fld tbyte ptr [{this}]",
                "fstp qword ptr [{result}]",
                this = in(reg) &raw const self,
                result = in(reg) &raw mut result,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            );
        }
        result
    }
}
