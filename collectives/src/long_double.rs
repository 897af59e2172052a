// SPDX-License-Identifier: Apache-2.0
//! C's `long double`, for which Rust has no type, and the four operators that reductions need.

use crate::reducer::{Max, Min, Operator, Prod, Sum};

#[cfg(target_arch = "aarch64")]
#[path = "long_double/quad.rs"]
mod format;
#[cfg(target_arch = "x86_64")]
#[path = "long_double/x87.rs"]
mod format;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!("the format of long double is known for aarch64 and x86-64 only");

/// A `long double`, in memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

impl Operator<LongDouble> for Sum {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        format::add(left, right)
    }
}

impl Operator<LongDouble> for Prod {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        format::multiply(left, right)
    }
}

impl Operator<LongDouble> for Min {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        if format::less(&right, &left) { right } else { left }
    }
}

impl Operator<LongDouble> for Max {
    #[inline(always)]
    fn apply(left: LongDouble, right: LongDouble) -> LongDouble {
        if format::less(&left, &right) { right } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reducer::reducer;

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
