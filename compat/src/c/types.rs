// SPDX-License-Identifier: Apache-2.0
//! The type tables of OpenSHMEM 1.6. `table!(template)` expands `template!{name, type}` for every
//! row: the name as it appears in routines and the Rust type with the same representation.

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_ulonglong};
use tombolo_core::transport::AmoOp;

/// "Standard RMA Types and Names" without long double, which is passed by other means.
macro_rules! rma_types {
    ($template:ident) => {
        $template! {float, f32}
        $template! {double, f64}
        $template! {char, std::ffi::c_char}
        $template! {schar, std::ffi::c_schar}
        $template! {short, std::ffi::c_short}
        $template! {int, std::ffi::c_int}
        $template! {long, std::ffi::c_long}
        $template! {longlong, std::ffi::c_longlong}
        $template! {uchar, std::ffi::c_uchar}
        $template! {ushort, std::ffi::c_ushort}
        $template! {uint, std::ffi::c_uint}
        $template! {ulong, std::ffi::c_ulong}
        $template! {ulonglong, std::ffi::c_ulonglong}
        $template! {int8, i8}
        $template! {int16, i16}
        $template! {int32, i32}
        $template! {int64, i64}
        $template! {uint8, u8}
        $template! {uint16, u16}
        $template! {uint32, u32}
        $template! {uint64, u64}
        $template! {size, usize}
        $template! {ptrdiff, isize}
    };
}

/// "Standard RMA Types and Names", for routines that take pointers only.
macro_rules! rma_pointer_types {
    ($template:ident) => {
        rma_types! {$template}
        $template! {longdouble, tombolo_collectives::LongDouble}
    };
}

/// Element sizes of the untyped routines, in bits, and an element of that size.
macro_rules! sizes {
    ($template:ident) => {
        $template! {8, u8}
        $template! {16, u16}
        $template! {32, u32}
        $template! {64, u64}
        $template! {128, [u64; 2]}
    };
}

/// "Standard AMO Types and Names"; also the types of the wait and test routines.
macro_rules! amo_types {
    ($template:ident) => {
        $template! {int, std::ffi::c_int}
        $template! {long, std::ffi::c_long}
        $template! {longlong, std::ffi::c_longlong}
        $template! {uint, std::ffi::c_uint}
        $template! {ulong, std::ffi::c_ulong}
        $template! {ulonglong, std::ffi::c_ulonglong}
        $template! {int32, i32}
        $template! {int64, i64}
        $template! {uint32, u32}
        $template! {uint64, u64}
        $template! {size, usize}
        $template! {ptrdiff, isize}
    };
}

/// "Extended AMO Types and Names".
macro_rules! extended_amo_types {
    ($template:ident) => {
        $template! {float, f32}
        $template! {double, f64}
        amo_types! {$template}
    };
}

/// "Bitwise AMO Types and Names".
macro_rules! bitwise_amo_types {
    ($template:ident) => {
        $template! {uint, std::ffi::c_uint}
        $template! {ulong, std::ffi::c_ulong}
        $template! {ulonglong, std::ffi::c_ulonglong}
        $template! {int32, i32}
        $template! {int64, i64}
        $template! {uint32, u32}
        $template! {uint64, u64}
    };
}

/// "Reduction Types, Names and Supporting Operations": AND, OR, XOR.
macro_rules! bitwise_reduce_types {
    ($template:ident) => {
        $template! {uchar, std::ffi::c_uchar}
        $template! {ushort, std::ffi::c_ushort}
        $template! {uint, std::ffi::c_uint}
        $template! {ulong, std::ffi::c_ulong}
        $template! {ulonglong, std::ffi::c_ulonglong}
        $template! {int8, i8}
        $template! {int16, i16}
        $template! {int32, i32}
        $template! {int64, i64}
        $template! {uint8, u8}
        $template! {uint16, u16}
        $template! {uint32, u32}
        $template! {uint64, u64}
        $template! {size, usize}
    };
}

/// The same table: SUM and PROD, and the scans.
macro_rules! arithmetic_types {
    ($template:ident) => {
        rma_pointer_types! {$template}
        complex_types! {$template}
    };
}

macro_rules! complex_types {
    ($template:ident) => {
        $template! {complexf, tombolo_collectives::Complex<f32>}
        $template! {complexd, tombolo_collectives::Complex<f64>}
    };
}

/// Deprecated reductions over an active set: AND, OR, XOR.
macro_rules! bitwise_to_all_types {
    ($template:ident) => {
        $template! {short, std::ffi::c_short}
        $template! {int, std::ffi::c_int}
        $template! {long, std::ffi::c_long}
        $template! {longlong, std::ffi::c_longlong}
    };
}

/// Deprecated reductions over an active set: MAX and MIN.
macro_rules! ordered_to_all_types {
    ($template:ident) => {
        bitwise_to_all_types! {$template}
        $template! {float, f32}
        $template! {double, f64}
        $template! {longdouble, tombolo_collectives::LongDouble}
    };
}

/// Deprecated reductions over an active set: SUM and PROD.
macro_rules! arithmetic_to_all_types {
    ($template:ident) => {
        ordered_to_all_types! {$template}
        complex_types! {$template}
    };
}

/// A type on which AMOs work: 4 or 8 bytes that travel as bits.
pub trait Word: Copy {
    /// The value's bits, zero-extended.
    fn bits(self) -> u64;

    /// The value with these low bits.
    fn from_bits(bits: u64) -> Self;

    /// An AMO on a variable of this type.
    #[inline(always)]
    fn amo(op: AmoOp, operand: Self, compare: Self) -> tombolo_core::transport::Amo {
        let size = size_of::<Self>() as u8;
        tombolo_core::transport::Amo { op, size, operand: operand.bits(), compare: compare.bits() }
    }
}

macro_rules! words {
    ($($ty:ty as $bits:ty: $to:expr, $from:expr;)*) => { $(
        impl Word for $ty {
            #[inline(always)]
            fn bits(self) -> u64 {
                let bits: $bits = $to(self);
                bits as u64
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> $ty {
                $from(bits as $bits)
            }
        }
    )* };
}

words! {
    i32 as u32: |v| v as u32, |b| b as i32;
    u32 as u32: |v| v, |b| b;
    i64 as u64: |v| v as u64, |b| b as i64;
    u64 as u64: |v| v, |b| b;
    isize as u64: |v| v as u64, |b| b as isize;
    usize as u64: |v| v as u64, |b| b as usize;
    f32 as u32: f32::to_bits, f32::from_bits;
    f64 as u64: f64::to_bits, f64::from_bits;
}

/// A type of variable that can be waited on.
pub trait Watched: Copy + PartialOrd {
    /// Reads the variable; what was written before its value is seen after.
    ///
    /// # Safety
    /// `variable` is valid and aligned; others write it atomically.
    unsafe fn load(variable: *const Self) -> Self;
}

macro_rules! watched {
    ($($ty:ty: $atomic:ident;)*) => { $(
        impl Watched for $ty {
            #[inline(always)]
            unsafe fn load(variable: *const $ty) -> $ty {
                use std::sync::atomic::{$atomic, Ordering};
                // SAFETY: by the caller's word.
                unsafe { (*variable.cast::<$atomic>()).load(Ordering::Acquire) }
            }
        }
    )* };
}

watched! {
    i16: AtomicI16;
    u16: AtomicU16;
    i32: AtomicI32;
    u32: AtomicU32;
    i64: AtomicI64;
    u64: AtomicU64;
    isize: AtomicIsize;
    usize: AtomicUsize;
}

// The tables and traits above take C's types by their Rust names: LP64.
const _: () = {
    const fn is_lp64() -> bool {
        size_of::<c_int>() == 4
            && size_of::<c_uint>() == 4
            && size_of::<c_long>() == 8
            && size_of::<c_ulong>() == 8
            && size_of::<c_longlong>() == 8
            && size_of::<c_ulonglong>() == 8
            && size_of::<usize>() == 8
    }
    assert!(is_lp64(), "the C API is for LP64 systems");
};
