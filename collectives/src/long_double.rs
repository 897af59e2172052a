// SPDX-License-Identifier: Apache-2.0
//! C's `long double` on x86-64: the 80-bit format of the x87 unit in 16 bytes. Rust has no such
//! type, so the four operators are a few instructions each.

use crate::reducer::{Max, Min, Operator, Prod, Sum};
use std::arch::asm;

/// A `long double`. The last six bytes are padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

macro_rules! arithmetic {
    ($operator:ident, $instruction:literal) => {
        impl Operator<LongDouble> for $operator {
            #[inline(always)]
            fn apply(mut left: LongDouble, right: LongDouble) -> LongDouble {
                // SAFETY: reads and writes the ten bytes of two local values; the x87 stack is
                // left as it was found, empty.
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
        }
    };
}

arithmetic!(Sum, "faddp st(1), st");
arithmetic!(Prod, "fmulp st(1), st");

impl Operator<LongDouble> for Min {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        if less(&right, &left) { right } else { left }
    }
}

impl Operator<LongDouble> for Max {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        if less(&left, &right) { right } else { left }
    }
}

/// Whether `left < right`; false if either is not a number.
#[inline(always)]
fn less(left: &LongDouble, right: &LongDouble) -> bool {
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
mod tests {
    use super::*;
    use crate::reducer::reducer;

    impl LongDouble {
        fn new(value: f64) -> LongDouble {
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

        fn value(self) -> f64 {
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

    fn run<O: Operator<LongDouble>>(left: &[f64], right: &[f64]) -> Vec<f64> {
        let mut into: Vec<_> = left.iter().map(|v| LongDouble::new(*v)).collect();
        let right: Vec<_> = right.iter().map(|v| LongDouble::new(*v)).collect();
        let reducer = reducer::<O, LongDouble>();
        assert_eq!(reducer.size(), 16);
        // SAFETY: two separate vectors of equal length.
        unsafe { reducer.combine(into.as_mut_ptr().cast(), right.as_ptr().cast(), right.len()) };
        into.into_iter().map(LongDouble::value).collect()
    }

    #[test]
    fn operators_agree_with_doubles_where_those_are_exact() {
        let (left, right) = ([1.5, -2.0, 3.0, f64::INFINITY], [2.25, 8.0, -3.0, 1.0]);
        assert_eq!(run::<Sum>(&left, &right), [3.75, 6.0, 0.0, f64::INFINITY]);
        assert_eq!(run::<Prod>(&left, &right), [3.375, -16.0, -9.0, f64::INFINITY]);
        assert_eq!(run::<Min>(&left, &right), [1.5, -2.0, -3.0, 1.0]);
        assert_eq!(run::<Max>(&left, &right), [2.25, 8.0, 3.0, f64::INFINITY]);
    }

    #[test]
    fn not_a_number_never_wins_a_comparison() {
        assert_eq!(run::<Min>(&[1.0], &[f64::NAN]), [1.0]);
        assert_eq!(run::<Max>(&[1.0], &[f64::NAN]), [1.0]);
    }

    #[test]
    fn sums_keep_more_bits_than_a_double_has() {
        let tiny = LongDouble::new(2f64.powi(-60));
        let sum = Sum::apply(LongDouble::new(1.0), tiny);
        assert_eq!(Sum::apply(sum, LongDouble::new(-1.0)).value(), 2f64.powi(-60));
    }
}
