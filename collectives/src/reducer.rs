// SPDX-License-Identifier: Apache-2.0
//! Operators of reductions and scans, over the types the standard gives them (OpenSHMEM 1.6,
//! "Reduction Types, Names, and Supporting Operations").

use crate::letters::ELEMENT_MAX;

const _: () = assert!(ELEMENT_MAX == 1792, "what messages and documents say");

/// A reduction's operator as algorithms see it: bytes in, bytes out.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    size: usize,
    exact: bool,
    combine: unsafe fn(*mut u8, *const u8, usize),
}

impl Reducer {
    /// Bytes of an element.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether a result has the same bits in whatever order elements are combined.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Combines each of the `count` elements at `source` into its counterpart at `into`, which is
    /// the left operand.
    ///
    /// # Safety
    /// Both hold `count` elements of the reducer's type and do not overlap. Alignment does not
    /// matter.
    pub unsafe fn combine(&self, into: *mut u8, source: *const u8, count: usize) {
        // SAFETY: the caller's promise is the function's condition.
        unsafe { (self.combine)(into, source, count) }
    }

    /// As [`combine`](Reducer::combine), but for the `first` operand, which is copied.
    ///
    /// # Safety
    /// As for `combine`; `into` need not hold elements yet for the first one.
    pub(crate) unsafe fn accumulate(
        &self,
        first: bool,
        into: *mut u8,
        source: *const u8,
        count: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if first {
                into.copy_from_nonoverlapping(source, count * self.size());
            } else {
                self.combine(into, source, count);
            }
        }
    }
}

/// The reducer of an operator for a type. Programs do not compile for which it panics.
///
/// # Panics
/// An element has no bytes, or more than 1792: algorithms could not cut an array into parts that fit their
/// buffers.
pub const fn reducer<O: Operator<T>, T: Copy>() -> Reducer {
    let size = size_of::<T>();
    assert!(size > 0 && size <= ELEMENT_MAX, "elements of a reduction have 1 to 1792 bytes");
    Reducer { size, exact: O::EXACT, combine: combine_all::<O, T> }
}

/// A binary operator on `T`.
pub trait Operator<T> {
    /// Whether it is associative and commutative to the last bit.
    const EXACT: bool = false;

    /// Combines two values.
    fn apply(left: T, right: T) -> T;
}

/// # Safety
/// As [`Reducer::combine`].
unsafe fn combine_all<O: Operator<T>, T: Copy>(into: *mut u8, source: *const u8, count: usize) {
    let (into, source) = (into.cast::<T>(), source.cast::<T>());
    // SAFETY: the caller's word.
    #[cfg(target_arch = "x86_64")]
    let first = unsafe { wide::combine::<O, T>(into, source, count) };
    // The compiler uses all instructions for vectors that every such processor has.
    #[cfg(not(target_arch = "x86_64"))]
    let first = 0;
    for i in first..count {
        // SAFETY: both hold `count` elements; unaligned accesses need no alignment.
        unsafe {
            let value = O::apply(into.add(i).read_unaligned(), source.add(i).read_unaligned());
            into.add(i).write_unaligned(value);
        }
    }
}

/// Combining with instructions that not every processor of this kind has.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::Operator;
    use std::array;
    use std::hint::black_box;

    /// Elements that are combined at once. In a loop over single elements the compiler uses stores with masks for minima
    /// and maxima, which take three times as long.
    const BLOCK: usize = 16;
    /// Bytes of the largest element of the standard's types.
    const SIZE_MAX: usize = 16;

    /// Combines as many elements as it can; tells how many.
    ///
    /// # Safety
    /// As [`super::Reducer::combine`].
    pub unsafe fn combine<O: Operator<T>, T: Copy>(
        into: *mut T,
        source: *const T,
        count: usize,
    ) -> usize {
        if size_of::<T>() > SIZE_MAX || count < BLOCK || !is_x86_feature_detected!("avx2") {
            return 0;
        }
        // SAFETY: the processor has these instructions; the rest is the caller's word.
        unsafe { blocks::<O, T>(into, source, count / BLOCK) };
        count / BLOCK * BLOCK
    }

    /// # Safety
    /// The processor has AVX2, and both hold so many blocks.
    #[target_feature(enable = "avx2")]
    unsafe fn blocks<O: Operator<T>, T: Copy>(into: *mut T, source: *const T, count: usize) {
        let (into, source) = (into.cast::<[T; BLOCK]>(), source.cast::<[T; BLOCK]>());
        // Where the compiler sees that a value goes back to where it came from, it uses a store with a mask.
        let from = black_box(into);
        for i in 0..count {
            // SAFETY: by the word of the caller; unaligned accesses need no alignment.
            unsafe {
                let (left, right) = (from.add(i).read_unaligned(), source.add(i).read_unaligned());
                let values = array::from_fn(|place| O::apply(left[place], right[place]));
                into.add(i).write_unaligned(values);
            }
        }
    }
}

/// Bitwise and of integers.
pub struct And;
/// Bitwise or of integers.
pub struct Or;
/// Bitwise exclusive or of integers.
pub struct Xor;
/// The smaller value. Of values that compare false (NaN) the left one.
pub struct Min;
/// The larger value. Of values that compare false (NaN) the left one.
pub struct Max;
/// The sum; integers wrap.
pub struct Sum;
/// The product; integers wrap.
pub struct Prod;

/// A complex number as C lays it out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// Real part.
    pub re: T,
    /// Imaginary part.
    pub im: T,
}

macro_rules! operators {
    ($exact:literal; $($operator:ident for $($t:ty),+: |$left:ident, $right:ident| $value:expr;)+) => {$($(
        impl Operator<$t> for $operator {
            const EXACT: bool = $exact;

            #[inline(always)]
            fn apply($left: $t, $right: $t) -> $t {
                $value
            }
        }
    )+)+};
}

macro_rules! for_integers {
    ($($t:ty),+) => { operators! { true;
        And for $($t),+: |left, right| left & right;
        Or for $($t),+: |left, right| left | right;
        Xor for $($t),+: |left, right| left ^ right;
        Sum for $($t),+: |left, right| left.wrapping_add(right);
        Prod for $($t),+: |left, right| left.wrapping_mul(right);
        Min for $($t),+: |left, right| if right < left { right } else { left };
        Max for $($t),+: |left, right| if right > left { right } else { left };
    } };
}

for_integers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

operators! { false;
    Min for f32, f64: |left, right| if right < left { right } else { left };
    Max for f32, f64: |left, right| if right > left { right } else { left };
    Sum for f32, f64: |left, right| left + right;
    Prod for f32, f64: |left, right| left * right;
    Sum for Complex<f32>, Complex<f64>:
        |left, right| Complex { re: left.re + right.re, im: left.im + right.im };
    Prod for Complex<f32>, Complex<f64>: |left, right| Complex {
        re: left.re * right.re - left.im * right.im,
        im: left.re * right.im + left.im * right.re,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<O: Operator<T>, T: Copy>(left: &[T], right: &[T]) -> Vec<T> {
        let mut into = left.to_vec();
        let reducer = reducer::<O, T>();
        assert_eq!(reducer.size(), size_of::<T>());
        // SAFETY: two separate slices of equal length.
        unsafe { reducer.combine(into.as_mut_ptr().cast(), right.as_ptr().cast(), right.len()) };
        into
    }

    #[test]
    fn integers_wrap_and_compare_by_their_sign() {
        assert_eq!(run::<Sum, u8>(&[250, 1], &[10, 2]), [4, 3]);
        assert_eq!(run::<Prod, i16>(&[300, -2], &[300, 5]), [(300i32 * 300) as i16, -10]);
        assert_eq!(run::<Min, i32>(&[-1, 5], &[1, 4]), [-1, 4]);
        assert_eq!(run::<Min, u32>(&[u32::MAX, 5], &[1, 6]), [1, 5]);
        assert_eq!(run::<Max, i64>(&[-1, 5], &[1, 4]), [1, 5]);
        assert_eq!(run::<And, u64>(&[0b1100], &[0b1010]), [0b1000]);
        assert_eq!(run::<Or, i8>(&[0b1100], &[0b1010]), [0b1110]);
        assert_eq!(run::<Xor, usize>(&[0b1100], &[0b1010]), [0b0110]);
    }

    /// What `run` gives, element by element.
    fn check<O: Operator<T>, T: Copy + PartialEq + std::fmt::Debug>(element: impl Fn(usize) -> T) {
        for count in [0, 1, 15, 16, 17, 31, 32, 100] {
            let left: Vec<T> = (0..count).map(&element).collect();
            let right: Vec<T> = (0..count).map(|i| element(7 * i + 3)).collect();
            let expected: Vec<T> = left.iter().zip(&right).map(|(&l, &r)| O::apply(l, r)).collect();
            assert_eq!(run::<O, T>(&left, &right), expected, "{count}");
        }
    }

    #[test]
    fn blocks_of_elements_are_combined_as_single_ones_are() {
        let mixed = |i: usize| (i as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
        check::<Sum, i64>(mixed);
        check::<Prod, i64>(mixed);
        check::<Min, i64>(mixed);
        check::<Max, u64>(|i| mixed(i) as u64);
        check::<Max, i16>(|i| mixed(i) as i16);
        check::<Prod, u8>(|i| mixed(i) as u8);
        check::<Xor, i32>(|i| mixed(i) as i32);
        check::<Prod, f32>(|i| mixed(i) as f32 / 1e18);
        check::<Sum, f64>(|i| mixed(i) as f64 / 1e3);
        check::<Prod, Complex<f64>>(|i| Complex { re: i as f64, im: -0.25 });
    }

    #[test]
    fn values_that_do_not_compare_are_passed_over_in_blocks_too() {
        let mut left = [1.0f64; 33];
        let mut right = [2.0f64; 33];
        (left[3], left[32]) = (f64::NAN, f64::NAN);
        (right[5], right[31]) = (f64::NAN, f64::NAN);
        let max = run::<Max, f64>(&left, &right);
        let min = run::<Min, f64>(&left, &right);
        for (i, (max, min)) in max.into_iter().zip(min).enumerate() {
            match i {
                3 | 32 => assert!(max.is_nan() && min.is_nan(), "{i}"),
                5 | 31 => assert_eq!((max, min), (1.0, 1.0), "{i}"),
                _ => assert_eq!((max, min), (2.0, 1.0), "{i}"),
            }
        }
    }

    #[test]
    fn floats_and_complex_numbers_follow_arithmetic() {
        assert_eq!(run::<Sum, f64>(&[0.5, 1.0], &[0.25, -1.0]), [0.75, 0.0]);
        assert_eq!(run::<Prod, f32>(&[0.5], &[8.0]), [4.0]);
        assert_eq!(run::<Max, f32>(&[0.5, -3.0], &[8.0, -4.0]), [8.0, -3.0]);
        let (left, right) = (Complex { re: 1.0f32, im: 2.0 }, Complex { re: 3.0, im: 4.0 });
        assert_eq!(run::<Sum, _>(&[left], &[right]), [Complex { re: 4.0, im: 6.0 }]);
        let (left, right) = (Complex { re: 1.0f64, im: 2.0 }, Complex { re: 3.0, im: 4.0 });
        assert_eq!(run::<Prod, _>(&[left], &[right]), [Complex { re: -5.0, im: 10.0 }]);
    }
}
